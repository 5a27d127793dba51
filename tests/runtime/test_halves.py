"""Halves run in thunks that declare their scratch, on every target: f16, bf16, and half params beside wider activations.

References: the f64 formulas of ``test_half_accuracy.py`` and PyTorch, on the operands as rounded.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import rlx_viz
from planner_core import zoo
from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.ir.ops.region import region_steps
from planner_core.memory import Target
from runtime import Compilation, CompileOptions, compile_graph
from runtime.active import active_commands
from runtime.caches.commands_file import commands_from_parts, commands_to_parts
from runtime.command_list import registry
from runtime.command_list.widths import to_f32
from runtime.passes import PassOptions
from tests.runtime.test_half_accuracy import CASES, Array, Build

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
UNIT = {F16: 2.0**-11, BF16: 2.0**-8}
OWN = 1 << 16
"""Bytes that a run may take beyond the scratch: NumPy's buffers, views, small index lists."""
each_target = pytest.mark.parametrize("target", list(Target), ids=lambda t: t.value)
each_half = pytest.mark.parametrize("half", [F16, BF16], ids=["f16", "bf16"])
SOME = ["reduce-sum-(0, 2)", "cumsum-True-(2, 40000)", "softmax-0", "softmax-backward", "layer-norm-1+1000", "batch-norm-300+0",
        "group-norm-1+0", "rms-norm-300+0", "residual-layer-norm-1+0", "rms-norm-dgamma-1+0", "pool", "conv", "conv-transpose",
        "conv-dw", "depthwise-1d", "matmul", "attention", "attention-dk", "cross-entropy", "selective-scan", "region",
        "activation-gelu", "activation-elu"]


def graph_of(build: Build, arrays: list[Array], params: bool) -> Graph:
    """One op; with ``params`` all halves but the first operand are weights, which keep their width on every target."""
    g = Graph("half")
    ids = [g.param(f"x{i}", a.shape, DType.of(a.dtype), data=a) if params and i and a.dtype in UNIT
           else g.input(f"x{i}", a.shape, DType.of(a.dtype)) for i, a in enumerate(arrays)]
    return g.set_outputs(build(g, *ids), names=["y"])


def plain(g: Graph, target: Target) -> Compilation:
    return compile_graph(g, CompileOptions(target=target, fusion=no_fusion(), passes=PassOptions.none()))


def hidden_bytes(c: Compilation, feed: dict[str, Array]) -> int:
    """What a run takes at its peak beyond arena, scratch and the outputs that it returns."""
    outputs = sum(a.nbytes for a in c.run(feed).values())
    tracemalloc.start()
    try:
        c.run(feed)
        return tracemalloc.get_traced_memory()[1] - outputs
    finally:
        tracemalloc.stop()


@each_target
@each_half
@pytest.mark.parametrize("params", [False, True], ids=["one-width", "half-params"])
def test_each_kernel_of_halves(target: Target, half: np.dtype[Any], params: bool) -> None:
    """No reference evaluation in the list, four units of the f64 formula, no temporaries beyond the declared scratch."""
    for name in SOME:
        build, arrays, want = CASES[name](half)
        g = graph_of(build, arrays, params)
        c = plain(g, target)
        feed = {g[i].name: arrays[int(g[i].name[1:])] for i in g.inputs}
        assert not [t for t in c.commands.thunks if t.name == "HostOp"], name
        got = c.run(feed, sanitize=True)["y"]
        assert got.dtype == half, name
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=4 * UNIT[half] * scale, err_msg=name)
        assert hidden_bytes(c, feed) <= OWN, name


def _mlp(half: DType | None, rows: int = 32, k: int = 512, n: int = 1024) -> tuple[Graph, dict[str, Array], Array]:
    """gelu(x w + b) v + c, in f32 or a half type, and its value by PyTorch in f64 on the same values."""
    rng = np.random.default_rng(0)
    dtype = (half or DType.F32).numpy
    x, w, b, v, c = ((rng.standard_normal(s) * s[0]**-0.5).astype(dtype) for s in ((rows, k), (k, n), (n,), (n, k), (k,)))
    g = Graph("mlp")
    of = half or DType.F32
    p = {name: g.param(name, a.shape, of, data=a) for name, a in (("w", w), ("b", b), ("v", v), ("c", c))}
    h = g.activation(g.add(g.mm(g.input("x", x.shape, of), p["w"]), p["b"]), kind="gelu")
    g.set_outputs(g.add(g.mm(h, p["v"]), p["c"]), names=["y"])
    t = [torch.from_numpy(a.astype(np.float64)) for a in (x, w, b, v, c)]
    want = torch.nn.functional.gelu(t[0] @ t[1] + t[2]) @ t[3] + t[4]
    return g, {"x": x}, want.numpy()


@each_target
@pytest.mark.parametrize("precision", ["auto_mixed", "auto_mixed_bf16"])
def test_a_mixed_policy_hides_no_memory(target: Target, precision: str) -> None:
    """An MLP of 512 × 1024 took 2.3 MiB beyond a declared 0 in bf16."""
    g, feed, want = _mlp(None)
    c = rlx_viz.compile(g, target=target.value, precision=precision)
    assert [t.name for t in c.commands.thunks if t.name == "HostOp"] == []
    assert sum(t.name == "FusedMmBiasAct" for t in c.commands.thunks) == 2
    got = c.run(feed, sanitize=True)["y"]
    unit = UNIT[F16 if precision == "auto_mixed" else BF16]
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * unit * np.abs(want).max())
    assert c.commands.scratch_bytes >= 4 * 512 * 512
    assert hidden_bytes(c, feed) <= OWN


@each_target
@each_half
def test_bias_and_activation_are_taken_in_before_the_rounding(target: Target, half: np.dtype[Any]) -> None:
    """A product past the type's precision, less its bias: 3 is left of 4099 - 4096, which f16 and bf16 can't tell from 0 or 4."""
    g = Graph("bias")
    one = DType.of(half)
    x, w = np.asarray([[64, 1]], half), np.asarray([[64, -64], [3, -3]], half)
    b = np.asarray([-4096, 4096], half)
    params = [g.param("w", (2, 2), one, data=w), g.param("b", (2,), one, data=b)]
    g.set_outputs(g.fused_mat_mul_bias_act(g.input("x", (1, 2), one), *params, activation="relu"), names=["y"])
    c = plain(g, target)
    assert c.commands.thunks[0].name == "FusedMmBiasAct"
    assert c.run({"x": x}, sanitize=True)["y"].astype(np.float64).tolist() == [[3, 0]]


@each_target
@each_half
def test_grouped_products_of_halves(target: Target, half: np.dtype[Any]) -> None:
    """Each row by its expert's matrix, summed in f32: 3,000 ones beside a large value."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 3000)).astype(half), rng.standard_normal((3, 3000, 4)).astype(half)
    idx = np.asarray([2, 2, 0, 1, 1], np.int32)
    g = Graph("experts")
    bank = g.param("w", w.shape, DType.of(half), data=w)
    g.set_outputs(g.grouped_mat_mul(g.input("x", x.shape, DType.of(half)), bank, g.input("i", (5,), DType.I32)), names=["y"])
    c = plain(g, target)
    got = c.run({"x": x, "i": idx}, sanitize=True)["y"]
    want = np.einsum("rk,rkn->rn", x.astype(np.float64), w.astype(np.float64)[idx])
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=2 * UNIT[half] * np.abs(want).max())
    assert hidden_bytes(c, {"x": x, "i": idx}) <= OWN


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "pow": lambda a, b: np.abs(a) ** b}


@each_target
@each_half
@pytest.mark.parametrize("dims", [(3, 200), (200,), (3, 1)], ids=str)
def test_binaries_of_halves_round_once(target: Target, half: np.dtype[Any], dims: tuple[int, ...]) -> None:
    """With an operand of any shape that stands as an input or as a weight: the f64 value rounded to the type."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 2, (3, 200)).astype(half), rng.uniform(0.5, 2, dims).astype(half)
    for kind, formula in BINARY.items():
        want = formula(a.astype(np.float64), b.astype(np.float64)).astype(np.float32).astype(half)
        for params in (False, True):
            c = plain(graph_of(lambda g, i, j, k=kind: g.binary(i, j, kind=k), [a, b], params), target)
            assert not [t for t in c.commands.thunks if t.name == "HostOp"]
            got = c.run({"x0": a} if params else {"x0": a, "x1": b}, sanitize=True)["y"]
            exact = kind in ("add", "sub", "mul", "max", "min")
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0 if exact else 2 * UNIT[half])


@each_target
@each_half
@pytest.mark.parametrize("rounds", [False, True], ids=["one op", "as ops"])
def test_a_region_of_halves_rounds_where_it_says(target: Target, half: np.dtype[Any], rounds: bool) -> None:
    """(x + y) - y: x comes back where the region is one op; with a rounding step after the sum it is lost, as by two ops."""
    x, y = np.asarray([0.25, 3, -1], half), np.asarray([4096, 8192, 4096], half)
    step = f"to_{'f16' if half == F16 else 'bf16'}"
    text = f"s0 = add(x0, x1); s1 = {step}(s0); s2 = sub(s1, x1)" if rounds else "s0 = add(x0, x1); s1 = sub(s0, x1)"
    want = (x + y) - y if rounds else x
    for params in (False, True):
        g = graph_of(lambda g, *i: g.elementwise_region(*i, steps=region_steps(text)), [x, y], params)
        c = plain(g, target)
        assert "ElementwiseRegion" in {t.name for t in c.commands.thunks}
        np.testing.assert_array_equal(c.run({"x0": x} if params else {"x0": x, "x1": y}, sanitize=True)["y"], want)
        assert g[g.outputs[0]].op.evaluate(x, y).tolist() == want.tolist()


@each_half
@pytest.mark.parametrize("target", [Target.MLX, Target.METAL, Target.CPU], ids=lambda t: t.value)
def test_the_first_rows_of_a_bucket_run_alone(target: Target, half: np.dtype[Any]) -> None:
    """Norm, product, gate, rotary embedding: none of them makes a run stay at full extent."""
    rng = np.random.default_rng(0)
    of = DType.of(half)
    data = {n: rng.standard_normal(s).astype(half) for n, s in (
        ("gamma", (8,)), ("w", (8, 16)), ("cos", (6, 2)), ("sin", (6, 2)))}
    g = Graph("rows")
    p = {n: g.param(n, a.shape, of, data=a) for n, a in data.items()}
    h = g.mm(g.rms_norm(g.input("x", (1, "S", 8), of), p["gamma"], eps=1e-6), p["w"])
    h = g.rope(g.swi_g_l_u(h), p["cos"], p["sin"], head_dim=4, n_rot=4)
    g = g.set_outputs(h, names=["y"]).bind({"S": 6})
    c = plain(g, target)
    short = active_commands(c.legal, c.plan, "S", 4, 6)
    assert all(t.name != "HostOp" for t in short.thunks)
    assert {o.shape[-2] for t in short.thunks for o in t.writes() if len(o.shape) == 3} <= {4}
    x = rng.standard_normal((1, 6, 8)).astype(half)
    a = {n: torch.from_numpy(v.astype(np.float64)) for n, v in (*data.items(), ("x", x))}
    y = a["x"] / torch.sqrt((a["x"] ** 2).mean(-1, keepdim=True) + 1e-6) * a["gamma"] @ a["w"]
    gate, up = y.chunk(2, -1)
    y = (torch.nn.functional.silu(gate) * up).reshape(1, 6, 2, 4)
    low, high, cos, sin = y[..., :2], y[..., 2:], a["cos"][:, None], a["sin"][:, None]
    want = torch.cat([low * cos - high * sin, high * cos + low * sin], -1).reshape(1, 6, 8).numpy()
    got = c.run({"x": x}, sanitize=True)["y"].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=0, atol=12 * UNIT[half] * np.abs(want).max())


def test_f16_is_widened_exactly() -> None:
    """Every bit pattern, in arrays of any layout; infinities and NaN among them or not."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    for x in (every, finite, finite[:63480].reshape(120, -1).T, finite[::3], finite[:3]):
        got = np.empty(x.shape, np.float32)
        to_f32(x, got)
        np.testing.assert_array_equal(got.view(np.uint32), np.asarray(x.astype(np.float32)).view(np.uint32))


def test_a_widened_op_says_what_it_runs() -> None:
    """bf16 SwiGLU where bf16 is stored as such: two copies, then the kernel of f32, all declared."""
    g = graph_of(lambda g, i: g.swi_g_l_u(i), [np.ones((4, 64), BF16)], False)
    commands = plain(g, Target.MLX).commands
    (t,) = commands.thunks
    assert (t.name, t.trace_label) == ("Widened", "widened:fused_swiglu")
    (step,) = t.steps  # type: ignore[attr-defined]
    assert {o.storage for o in (*step.reads(), *step.writes())} == {DType.F32}
    assert t.scratch_bytes == 4 * (4 * 64 + 4 * 32) + step.scratch_bytes
    assert [o.storage for o in (*t.reads(), *t.writes())] == [DType.BF16] * 2
    assert registry()["Widened"].where == "host"
    assert commands_from_parts(*commands_to_parts(commands)).thunks == commands.thunks


@each_half
def test_a_zoo_decoder_of_halves_hides_no_memory(half: np.dtype[Any]) -> None:
    quant = "f16" if half == F16 else "bf16"
    g = zoo.random_weights(zoo.build("llama-prefill", layers=2, hidden=64, heads=4, ffn=128, vocab=96, seq=16, quant=quant))
    feed = {g[i].name: np.zeros(g[i].shape.sizes, g[i].dtype.numpy) for i in g.inputs}
    feed["tokens"] = np.arange(16).reshape(1, 16)
    wide = rlx_viz.compile(g, target="wgpu").run(feed, sanitize=True)["logits"].astype(np.float64)
    for target in Target:
        c = rlx_viz.compile(g, target=target.value)
        assert not [t for t in c.commands.thunks if t.name == "HostOp"]
        got = c.run(feed, sanitize=True)["logits"].astype(np.float64)
        np.testing.assert_allclose(got, wide, rtol=0, atol=40 * UNIT[half] * np.abs(wide).max())
        assert hidden_bytes(c, feed) <= OWN


@each_target
def test_a_region_of_half_weights_computes_wide(target: Target) -> None:
    """w · w / w, where f16 has no w · w: both operands are weights, and the result is stored as the target likes."""
    w = np.asarray([300, -1000, 2], F16)
    g = graph_of(lambda g, *i: g.elementwise_region(*i, steps=region_steps("s0 = mul(x1, x1); s1 = div(s0, x1); s2 = add(s1, x0)")),
                 [np.zeros(3, F16), w], True)
    np.testing.assert_array_equal(plain(g, target).run({"x0": np.zeros(3, F16)}, sanitize=True)["y"], w)
