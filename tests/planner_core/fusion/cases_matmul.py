"""Where products take bias, activation, transposes and quantised weights, and where they don't."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.packed import random_blocks
from tests.planner_core.fusion.harness import Applied, Refused


def product(bias: tuple[int, ...] | None = (4,), activation: str = "", *, left: bool = False, w: tuple[int, ...] = (3, 4),
            shared: bool = False, output: bool = False, dtype: DType = DType.F32, **how: float) -> Graph:
    g = Graph("product")
    y = g.mm(g.input("x", (2, 5, 3), dtype), g.param("w", w, dtype))
    z = y
    if bias is not None:
        b = g.param("b", bias, dtype)
        z = g.add(b, y) if left else g.add(y, b)
    if activation:
        z = g.activation(z, kind=activation, **how)
    more = [y] if output else [g.reduce_max(y, axes=(0,))] if shared else []
    return g.set_outputs(z, *more)


def two_activations() -> Graph:
    """The kernel applies one already."""
    g = Graph("two")
    y = g.fused_mat_mul_bias_act(g.input("x", (2, 3)), g.param("w", (3, 4)), g.param("b", (4,)), activation="relu")
    return g.set_outputs(g.silu(y))


def transposed(*, side: str = "b", rank: int = 2, shared: bool = False, output: bool = False, data: bool = False,
               static: bool = True) -> Graph:
    g = Graph("transposed")
    lead, perm = ((2,), (0, 2, 1)) if rank == 3 else ((), (1, 0))
    a = g.transpose(g.input("a", (*lead, 3, 5)), perm=perm) if side in ("a", "ab") else g.input("a", (*lead, 5, 3))
    known = np.arange(12, dtype=np.float32).reshape(4, 3) if data else None
    b = g.param("b", (*lead, 4, 3), data=known) if static else g.input("b", (*lead, 4, 3))
    b = g.transpose(b, perm=perm) if "b" in side else g.input("c", (*lead, 3, 4))
    more = [b] if output else [g.relu(b)] if shared else []
    return g.set_outputs(g.mm(a, b), *more)


def turned_weight(data: bool) -> Graph:
    """A linear layer as exporters write it: the weight transposed, then a bias."""
    g = Graph("turned")
    known = np.arange(12, dtype=np.float32).reshape(4, 3) if data else None
    w = g.transpose(g.param("w", (4, 3), data=known), perm=(1, 0))
    return g.set_outputs(g.add(g.mm(g.input("x", (2, 3)), w), g.param("b", (4,))))


def tied() -> Graph:
    """Known data, but the weight is read as it is too: baking would make a second copy."""
    g = Graph("tied")
    w = g.param("w", (3, 3), data=np.eye(3, dtype=np.float32))
    return g.set_outputs(g.mm(g.mm(g.input("x", (2, 3)), w), g.transpose(w, perm=(1, 0))))


def gguf(read: str = "transposed", keep: str = "") -> Graph:
    """A packed weight written out, then multiplied; ``read``: how the product reads its rows."""
    g = Graph("gguf")
    scheme = QuantScheme.Q1_0
    blocks = random_blocks(np.random.default_rng(0), scheme, 128, 128)
    w = g.dequantize(g.param("w", blocks.shape, DType.U8, data=blocks), n=128, k=128, scheme=scheme)
    x = g.input("x", (2, 3, 128))
    if read == "flag":
        y = g.transposed_mat_mul(g.reshape(x, dims=(6, 128)), w, trans_b=True)
    else:
        y = g.mm(x, w if read == "as it stands" else g.transpose(w, perm=(1, 0)))
    more = [w] if keep == "output" else [g.reduce_max(w, axes=(0,))] if keep == "shared" else []
    return g.set_outputs(y, *more)


def twice() -> Graph:
    """One transpose read by two products; a product of a product's transposed twin."""
    g = Graph("twice")
    x, k = g.input("x", (2, 3)), g.input("k", (4, 3))
    t = g.transpose(k, perm=(1, 0))
    return g.set_outputs(g.mm(x, t), g.mm(g.neg(x), t))


def back() -> Graph:
    g = Graph("back")
    x, k = g.input("x", (2, 3)), g.input("k", (3, 4))
    return g.set_outputs(g.transposed_mat_mul(x, g.transpose(k, perm=(1, 0)), trans_b=True))


def bank(*, shared: bool = False, output: bool = False, data: bool = False, rows: int = 5) -> Graph:
    g = Graph("bank")
    known = np.arange(24, dtype=np.float32).reshape(2, 4, 3) if data else None
    t = g.transpose(g.param("w", (2, 4, 3), data=known), perm=(0, 2, 1))
    y = g.grouped_mat_mul(g.input("x", (rows, 3)), t, g.input("idx", (rows,), DType.I64))
    return g.set_outputs(y, *([t] if output else [g.relu(t)] if shared else []))


def quantised(scale: tuple[int, ...] = (4,), zero: tuple[int, ...] | None = None, *, dtype: DType = DType.I8, turned: bool = False,
              blocks: int = 0, shared: bool = False, output: bool = False, swap: bool = False, to: DType = DType.F32, data: bool = True,
              products: int = 1) -> Graph:
    g = Graph("quantised")
    dims: tuple[int, ...] = (4, blocks, 6 // blocks) if blocks else (4, 6) if turned else (6, 4)
    rng = np.random.default_rng(0)

    def ints(name: str, shape: tuple[int, ...]) -> int:
        high = 255 if dtype is DType.U8 else 9
        known = rng.integers(0, high, shape).astype(dtype.numpy) if data else None
        return g.cast(g.param(name, shape, dtype, data=known), to=to)

    codes = ints("w", dims)
    if zero is not None:
        codes = g.sub(codes, ints("zero", zero))
    s = g.param("scale", scale, to)
    w: Any = g.mul(s, codes) if swap else g.mul(codes, s)
    if blocks:
        w = g.reshape(w, dims=(4, 6))
    if turned:
        w = g.transpose(w, perm=(1, 0))
    x = g.input("x", (2, 3, 6), to)
    outs = [g.mm(g.relu(x) if i else x, w) for i in range(products)]
    return g.set_outputs(*outs, *([w] if output else [g.relu(w)] if shared else []))


METAL = FusionTarget.METAL
FUSED = ("FusedMatMulBiasAct",)
APPLIED = [
    Applied("matmul_bias_act", product, made=FUSED, gone=("MatMul",), id="bias"),
    Applied("matmul_bias_act", lambda: product(activation="gelu"), made=FUSED, gone=("Activation(gelu)",), times=2, id="gelu"),
    Applied("matmul_bias_act", lambda: product((1, 1, 4), "gelu_approx", left=True), made=FUSED, times=2, id="bias on the left"),
    Applied("matmul_bias_act", lambda: product(activation="leaky_relu", alpha=0.1), made=FUSED, times=2, id="slope"),
    Applied("matmul_bias_act", lambda: product(None, "silu"), made=FUSED, gone=("Activation(silu)",), id="no bias"),
    Applied("matmul_bias_act", lambda: turned_weight(True), made=FUSED, id="weight transposed ahead"),
    Applied("transpose_into_matmul", transposed, made=("TransposedMatMul",), gone=("Transpose",), id="b"),
    Applied("transpose_into_matmul", lambda: transposed(side="a"), made=("TransposedMatMul",), gone=("Transpose",), id="a"),
    Applied("transpose_into_matmul", lambda: transposed(side="ab", rank=3, static=False), gone=("Transpose",), id="batched"),
    Applied("transpose_into_matmul", tied, made=("TransposedMatMul",), gone=("Transpose",), id="tied"),
    Applied("transpose_into_matmul", twice, gone=("Transpose",), times=2, id="two products"),
    Applied("transpose_into_matmul", back, made=("MatMul",), gone=("Transpose",), id="there and back"),
    Applied("transpose_into_matmul", twice, made=("TransposedMatMul",), gone=("Transpose",), times=2, target=METAL,
            id="two products, Metal"),
    Applied("transpose_into_matmul", transposed, made=("TransposedMatMul",), gone=("Transpose",), target=METAL, id="b, Metal"),
    Applied("bank_transposes", bank, made=("TransposedGroupedMatMul",), gone=("Transpose",)),
    Applied("dequant_gguf_matmul", gguf, made=("DequantMatMul",), gone=("MatMul", "Dequantize", "Transpose")),
    Applied("dequant_gguf_matmul", lambda: gguf("flag"), made=("DequantMatMul",), gone=("TransposedMatMul",), id="flag"),
    Applied("dequant_matmul", quantised, made=("DequantMatMulBlocked",), gone=("MatMul", "Cast"), id="a column"),
    Applied("dequant_matmul", lambda: quantised((), (), swap=True), gone=("MatMul", "Cast"), id="a tensor"),
    Applied("dequant_matmul", lambda: quantised((4, 1), (4, 1), turned=True), gone=("MatMul", "Cast"), id="transposed"),
    Applied("dequant_matmul", lambda: quantised((4, 3, 1), (4, 3, 1), turned=True, blocks=3), gone=("MatMul", "Cast"), id="blocks"),
    Applied("dequant_matmul", lambda: quantised(dtype=DType.U8), made=("DequantMatMulBlocked",), gone=("MatMul",), id="u8"),
    Applied("dequant_matmul", lambda: quantised((), (), dtype=DType.U8, products=3), gone=("MatMul",), times=3, id="u8, three products"),
]
REFUSED = [
    Refused("dequant_gguf_matmul", Refusal.LAYOUT, lambda: gguf("as it stands")),
    Refused("dequant_gguf_matmul", Refusal.SHARED, lambda: gguf(keep="shared")),
    Refused("dequant_gguf_matmul", Refusal.OUTPUT, lambda: gguf(keep="output")),
    Refused("matmul_bias_act", Refusal.SHARED, lambda: product(shared=True)),
    Refused("matmul_bias_act", Refusal.OUTPUT, lambda: product(output=True)),
    Refused("matmul_bias_act", Refusal.ACTIVATION, lambda: product(None, "sin")),
    Refused("matmul_bias_act", Refusal.EPILOGUE, two_activations),
    Refused("matmul_bias_act", Refusal.BROADCAST, lambda: product((5, 1))),
    Refused("matmul_bias_act", Refusal.DTYPE, lambda: product(dtype=DType.F64)),
    Refused("matmul_bias_act", Refusal.LAYOUT, lambda: turned_weight(False)),
    Refused("matmul_bias_act", Refusal.RANK, lambda: product(w=(2, 3, 4))),
    Refused("transpose_into_matmul", Refusal.SHARED, lambda: transposed(shared=True)),
    Refused("transpose_into_matmul", Refusal.OUTPUT, lambda: transposed(output=True)),
    Refused("transpose_into_matmul", Refusal.SAVES_NOTHING, lambda: transposed(data=True)),
    Refused("bank_transposes", Refusal.SAVES_NOTHING, lambda: bank(rows=4), target=METAL, id="planned"),
    Refused("bank_transposes", Refusal.ROWS, bank, target=METAL, id="five rows"),
    Refused("bank_transposes", Refusal.SHARED, lambda: bank(shared=True)),
    Refused("bank_transposes", Refusal.OUTPUT, lambda: bank(output=True)),
    Refused("bank_transposes", Refusal.SAVES_NOTHING, lambda: bank(data=True)),
    Refused("dequant_matmul", Refusal.QUANTISATION, lambda: quantised(dtype=DType.I16), id="i16"),
    Refused("dequant_matmul", Refusal.NO_DATA, lambda: quantised(dtype=DType.U8, data=False)),
    Refused("dequant_matmul", Refusal.QUANTISATION, lambda: quantised((6, 1)), id="a scale a row"),
    Refused("dequant_matmul", Refusal.SHARED, lambda: quantised(shared=True)),
    Refused("dequant_matmul", Refusal.OUTPUT, lambda: quantised(output=True)),
    Refused("dequant_matmul", Refusal.DTYPE, lambda: quantised(to=DType.F64)),
]
