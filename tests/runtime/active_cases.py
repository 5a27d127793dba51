"""Graphs over a bucket symbol S for the active extent: safe ones by op, and ones that must run whole, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner_core.ir import DType, Graph, QuantScheme

FULL = 8
Build = Callable[[Graph], int]


def RNG(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def bucketed(build: Build) -> Graph:
    g = Graph("case")
    return g.set_outputs(build(g), names=["y"])


def feed_of(g: Graph, seed: int) -> dict[str, np.ndarray]:
    rng = RNG(seed)
    out = {}
    for i in g.inputs:
        n = g[i]
        if n.dtype.is_float:
            out[n.name] = rng.standard_normal(n.shape.sizes).astype(n.dtype.numpy)
        elif n.dtype is DType.BOOL:
            out[n.name] = rng.integers(0, 2, n.shape.sizes).astype(np.bool_)
        else:
            out[n.name] = rng.integers(0, 5, n.shape.sizes).astype(n.dtype.numpy)
    return out


def rows(g: Graph, name: str = "x", width: int = 8, dtype: DType = DType.F32) -> int:
    return g.input(name, ("S", width), dtype)


def seq(g: Graph, name: str = "x", width: int = 8) -> int:
    return g.input(name, (1, "S", width))


def _moved(g: Graph, x: int) -> int:
    """Rows through an op, so that what follows isn't on the input itself."""
    return g.exp(x)


CASES: dict[str, Build] = {
    "activation": lambda g: g.silu(rows(g)),
    "gelu": lambda g: g.gelu_approx(_moved(g, rows(g))),
    "chain in place": lambda g: g.relu(g.tanh(_moved(g, rows(g)))),
    "binary": lambda g: g.add(rows(g), rows(g, "z")),
    "bias": lambda g: g.add(rows(g), g.param("b", (8,))),
    "row table of a symbol": lambda g: g.mul(rows(g), g.param("p", ("S", 8))),
    "compare": lambda g: g.where(g.compare(rows(g), rows(g, "z"), kind="lt"), rows(g, "a"), rows(g, "b")),
    "cast": lambda g: g.cast(g.cast(rows(g), to=DType.F16), to=DType.F32),
    "cast to int": lambda g: g.cast(rows(g), to=DType.I32),
    "cast to int64 and back": lambda g: g.cast(g.cast(rows(g), to=DType.I64), to=DType.F32),
    "layer norm": lambda g: g.layer_norm(seq(g), g.param("gamma", (8,)), g.param("beta", (8,))),
    "rms norm": lambda g: g.rms_norm(seq(g), g.param("gamma", (8,))),
    "residual norms": lambda g: g.residual_rms_norm(
        g.residual_layer_norm(seq(g), seq(g, "r"), g.param("gamma", (8,)), g.param("beta", (8,))), seq(g, "s"),
        g.param("gamma2", (8,))),
    "gated norm": lambda g: g.rms_norm_mul_silu(rows(g), g.param("gamma", (8,)), rows(g, "z")),
    "swiglu": lambda g: g.swi_g_l_u(seq(g)),
    "geglu": lambda g: g.geglu(seq(g)),
    "adaln": lambda g: g.gated_residual(
        seq(g), g.ada_layer_norm(seq(g, "z"), g.param("scale1", (1, 8)), g.param("shift", (1, 8))), g.param("gate", (1, 8))),
    "matmul": lambda g: g.mm(seq(g), g.param("w", (8, 5))),
    "batched rows": lambda g: g.mm(g.input("x", ("S", 3, 8)), g.param("w", (8, 5))),
    "batched weights": lambda g: g.mm(g.input("x", (1, "S", 8)), g.param("w", (1, 8, 5))),
    "fused matmul": lambda g: g.fused_mat_mul_bias_act(rows(g), g.param("w", (8, 5)), g.param("b", (5,)), activation="relu"),
    "packed matmul": lambda g: g.dequant_mat_mul(
        rows(g, width=32), g.param("w", (3 * QuantScheme.Q8_0.row_bytes(32),), DType.U8), scheme=QuantScheme.Q8_0, n=3),
    "experts": lambda g: g.grouped_mat_mul(rows(g), g.param("w", (5, 8, 3)), g.input("e", ("S",), DType.I32)),
    "softmax would be out of place": lambda g: g.rms_norm(g.mm(rows(g), g.param("w", (8, 8))), g.param("gamma", (8,))),
    "reduce": lambda g: g.reduce(g.input("x", ("S", 3, 4)), kind="sum", axes=(2,)),
    "argreduce": lambda g: g.arg_reduce(rows(g), axis=1, kind="max"),
    "topk": lambda g: g.top_k(rows(g), k=3),
    "cumsum": lambda g: g.cumsum(rows(g)),
    "narrow": lambda g: g.add(g.narrow(rows(g), axis=1, start=2, len=3), g.param("b", (3,))),
    "concat": lambda g: g.concat(rows(g), rows(g, "z", 3), axis=1),
    "reverse": lambda g: g.reverse(rows(g), axes=(1,)),
    "transpose behind": lambda g: g.transpose(g.input("x", ("S", 3, 4)), perm=(0, 2, 1)),
    "transpose behind a batch of one": lambda g: g.transpose(g.input("x", (1, "S", 3, 4)), perm=(0, 1, 3, 2)),
    "reshape": lambda g: g.relu(g.reshape(seq(g), dims=("S", 2, 4))),
    "gather": lambda g: g.gather(g.param("table", (5, 8)), g.input("ids", (1, "S"), DType.I64), axis=0),
    "rope": lambda g: g.rope(seq(g), g.param("rope.cos", (FULL, 2)), g.param("rope.sin", (FULL, 2)), head_dim=4, n_rot=4),
    "rope with half tables": lambda g: g.rope(
        g.input("x", (1, "S", 8), DType.BF16), g.param("rope.cos", (FULL, 2), DType.BF16), g.param("rope.sin", (FULL, 2), DType.BF16),
        head_dim=4, n_rot=4),
    "rope with tables of a symbol": lambda g: g.rope(
        seq(g), g.param("rope.cos", ("S", 2)), g.param("rope.sin", ("S", 2)), head_dim=4, n_rot=4, interleaved=True),
    "attention": lambda g: g.attention(seq(g, "q"), seq(g, "k"), seq(g, "v"), num_heads=2, head_dim=4, mask_kind="causal"),
    "attention to fixed keys": lambda g: g.attention(
        seq(g, "q"), g.input("k", (1, 5, 8)), g.input("v", (1, 5, 8)), num_heads=2, head_dim=4),
    "attention over a batch": lambda g: g.attention(
        *(g.input(n, ("S", 3, 8)) for n in "qkv"), num_heads=2, head_dim=4),
    "one head first": lambda g: g.attention(
        *(g.input(n, (1, 1, "S", 4)) for n in "qkv"), num_heads=1, head_dim=4, mask_kind="causal", layout="bhsd"),
    "conv over a batch": lambda g: g.conv(g.input("x", ("S", 3, 5, 5)), g.param("w", (4, 3, 3, 3)), strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1)),
    "pool over a batch": lambda g: g.pool2d(g.input("x", ("S", 3, 4, 4)), kind="max", kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0)),
    "packed attention": lambda g: g.fused_attention_block(seq(g, "x", 24), num_heads=2, head_dim=4, mask_kind="causal"),
    "packed attention with tables": lambda g: g.fused_attention_block(
        seq(g, "x", 24), g.param("rope.cos", ("S", 2)), g.param("rope.sin", ("S", 2)), num_heads=2, head_dim=4,
        has_rope=True, mask_kind="causal"),
    "general broadcast": lambda g: g.mul(rows(g), g.param("m", (1, 8))),
    "scalar broadcast": lambda g: g.sub(g.constant(np.ones((1, 1), np.float32)), rows(g)),
    "compare broadcast": lambda g: g.where(g.compare(rows(g), g.param("t", (1, 8)), kind="gt"), rows(g, "a"), g.param("o", (1, 8))),
    "softmax": lambda g: g.softmax(_moved(g, rows(g))),
    "slice": lambda g: g.slice(rows(g), axes=(1,), starts=(1,), stops=(7,), steps=(2,)),
    "fma": lambda g: g.fma(rows(g, "a"), rows(g, "b"), rows(g, "c")),
    "reduce two axes": lambda g: g.reduce(g.input("x", ("S", 3, 2, 4)), kind="sum", axes=(1, 3)),
    "block": lambda g: _block(g),
    "region": lambda g: _region(g),
}
"""Name -> graph whose first rows never depend on later ones."""


def _block(g: Graph) -> int:
    x = seq(g)
    h = g.rms_norm(x, g.param("n1.gamma", (8,)))
    q, k, v = (g.mm(h, g.param(f"w{n}", (8, 8))) for n in "qkv")
    tables = g.param("rope.cos", (FULL, 2)), g.param("rope.sin", (FULL, 2))
    a = g.attention(g.rope(q, *tables, head_dim=4, n_rot=4), g.rope(k, *tables, head_dim=4, n_rot=4), v, num_heads=2,
                    head_dim=4, mask_kind="causal")
    x = g.add(x, g.mm(a, g.param("wo", (8, 8))))
    return g.add(x, g.mm(g.silu(g.mm(x, g.param("up", (8, 16)))), g.param("down", (16, 8))))


def _region(g: Graph) -> int:
    from planner_core.ir.ops.region import activation_step, binary_step, result_of

    x, z, b = rows(g), rows(g, "z"), g.param("b", (8,))
    steps = (binary_step("add", 0, 1), binary_step("mul", result_of(0), 2), activation_step("relu", result_of(1)))
    return g.elementwise_region(x, z, b, steps=steps)


REFUSED: dict[str, tuple[Build, str]] = {
    "a mask over keys": (lambda g: g.attention(seq(g, "q"), seq(g, "k"), seq(g, "v"), g.input("m", (1, 1, "S", "S")), num_heads=2,
                                               head_dim=4, mask_kind="bias"), "several axes"),
    "transpose moves": (lambda g: g.transpose(rows(g), perm=(1, 0)), "inner axis"),
    "transpose of one column": (lambda g: g.mul(g.transpose(g.input("x", ("S", 1)), perm=(1, 0)), g.constant(2.0)), "Transpose"),
    "inner axis": (lambda g: g.relu(g.input("x", (2, "S", 4))), "inner axis"),
    "two axes": (lambda g: g.relu(g.input("x", ("S", "S"))), "several axes"),
    "softmax along": (lambda g: g.softmax(rows(g), axis=0), "along the rows"),
    "reduce along": (lambda g: g.reduce(rows(g), kind="sum", axes=(0,)), "no axis"),
    "cumsum along": (lambda g: g.cumsum(g.input("x", ("S",))), "mixes the rows"),
    "rms norm along": (lambda g: g.rms_norm(g.input("x", (1, "S")), g.param("gamma", ("S",))), "mixes the rows"),
    "contraction": (lambda g: g.mm(g.input("x", (1, "S")), g.param("w", ("S", 3))), "no axis"),
    "right side": (lambda g: g.mm(g.param("w", (1, 8)), g.input("x", (8, "S"))), "inner axis"),
    "gram": (lambda g: g.mm(rows(g), g.transpose(rows(g, "z"), perm=(1, 0))), "inner axis"),
    "concat along": (lambda g: g.concat(rows(g), g.param("t", (2, 8)), axis=0), "Concat"),
    "narrow along": (lambda g: g.narrow(rows(g), axis=0, start=2, len=3), "no axis"),
    "reverse along": (lambda g: g.reverse(rows(g), axes=(0,)), "along the rows"),
    "gather from rows": (lambda g: g.gather(rows(g), g.input("i", (3,), DType.I64), axis=0), "no axis"),
    "packed attention with tables of plain rows": (lambda g: g.fused_attention_block(
        seq(g, "x", 24), g.param("rope.cos", (FULL, 2)), g.param("rope.sin", (FULL, 2)), num_heads=2, head_dim=4,
        has_rope=True, mask_kind="causal"), "rows of their own"),
    "an image op without a partial kernel": (
        lambda g: g.group_norm(g.input("x", ("S", 4, 3, 3)), g.param("gamma", (4,)), g.param("beta", (4,)), groups=2),
        "isn't safe for a partial extent"),
    "pad along": (lambda g: g.pad(rows(g), before=(0, 0), after=(1, 0)), "not known to keep rows apart"),
    "not in proportion": (lambda g: g.concat(g.relu(rows(g)), g.input("z", (1, 8)), axis=0), "Concat"),
}
"""Name -> (graph, part of the reason why it runs whole)."""
