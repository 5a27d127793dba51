"""Ops and importer decompositions at the edges of their types, on every target. References: ONNX Runtime, PyTorch, Python."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import helper

from planner_core.fusion import no_fusion
from planner_core.importers import import_onnx
from planner_core.ir import DType, Graph
from planner_core.ir.ops import Reduce
from planner_core.memory import Target
from runtime import CompileOptions, compile_graph
from tests.planner_core.importers.evaluator import model, run_ort

Array = np.ndarray[Any, np.dtype[Any]]
each_target = pytest.mark.parametrize("target", list(Target), ids=lambda t: t.value)
INF, NAN = np.inf, np.nan


def f32(values: Any) -> Array:
    return np.asarray(values, np.float32)


def f16(values: Any) -> Array:
    return np.asarray(values, np.float16)


def compiled(g: Graph, feeds: dict[str, Array], target: Target, fused: bool = True) -> list[Array]:
    options = CompileOptions.for_target(target, environ={})
    made = compile_graph(g, options if fused else dataclasses.replace(options, fusion=no_fusion()))
    out = made.run(feeds, sanitize=True)
    return [out[n] for n in g.output_names]


def imported(op: str, feeds: dict[str, Array], weights: dict[str, Array] | None = None, *, opset: int = 17, outs: int = 1,
             **attrs: Any) -> onnx.ModelProto:
    names = [f"y{i}" for i in range(outs)]
    return model([helper.make_node(op, [*feeds, *(weights or {})], names, **attrs)], feeds, names, opset=opset, weights=weights)


# --- against ONNX Runtime -----------------------------------------------------------------------------

ORT: dict[str, tuple[onnx.ModelProto, dict[str, Array]]] = {}


def case(name: str, op: str, feeds: dict[str, Array], weights: dict[str, Array] | None = None, **how: Any) -> None:
    ORT[name] = imported(op, feeds, weights, **how), feeds


case("fmod", "Mod", {"a": f32([1e8, 5, -5, 7.5, -0.0, 5]), "b": f32([3, INF, INF, -2, 3, 0])}, fmod=1)
case("fmod of ints", "Mod", {"a": np.asarray([-7, 7, 2**62 + 1]), "b": np.asarray([3, -3, 1000])}, fmod=1)
case("LogSumExp of -inf", "ReduceLogSumExp", {"x": f32([[-INF, -INF], [-INF, 2], [INF, 1], [INF, -INF], [NAN, 1], [1000, 1000]])},
     axes=[1])
case("LogSumExp dropped", "ReduceLogSumExp", {"x": f32([[-INF, -INF], [INF, 1]])}, axes=[1], keepdims=0)
case("DynamicQuantizeLinear of zeros", "DynamicQuantizeLinear", {"x": f32([0, 0, 0])}, outs=3)
case("DynamicQuantizeLinear", "DynamicQuantizeLinear", {"x": f32([0, 2, -3, -2.5, 1.34, 0.5])}, outs=3)
for _start, _limit, _step in ((2**53, 2**53 + 5, 2), (2**62, 2**62 + 3, 1), (2**62 + 3, 2**62, -1), (-(2**53) - 1, -(2**53) + 2, 1)):
    case(f"Range {_start} {_limit}", "Range", {}, {"a": np.asarray(_start), "b": np.asarray(_limit), "c": np.asarray(_step)})
case("Pad with an i64", "Pad", {"x": np.asarray([1, 2**53 + 3])}, {"w": np.asarray([1, 2]), "v": np.asarray(2**53 + 1)})
case("Pad with a small i64", "Pad", {"x": np.asarray([[1, 2**53 + 3]])}, {"w": np.asarray([1, 0, 0, 2]), "v": np.asarray(-7)})


@each_target
@pytest.mark.parametrize("name", ORT)
def test_edges_as_onnx_runtime(target: Target, name: str) -> None:
    proto, feeds = ORT[name]
    for got, want in zip(compiled(import_onnx(proto), feeds, target), run_ort(proto, feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)
        if want.dtype.kind in "iu":
            np.testing.assert_array_equal(got, want)


# --- halves: sums and squares in f32, rounded once ----------------------------------------------------

BIG = f16(np.linspace(-300, 300, 12).reshape(2, 6))
HALVES: dict[str, tuple[str, dict[str, Array], dict[str, Any], Callable[..., Any]]] = {
    "ReduceL2": ("ReduceL2", {"x": BIG}, {"axes": [1], "keepdims": 0}, lambda x: np.sqrt((x * x).sum(1))),
    "ReduceSumSquare": ("ReduceSumSquare", {"x": BIG / f16(2)}, {"axes": [1], "keepdims": 0}, lambda x: (x * x).sum(1)),
    "ReduceLogSum": ("ReduceLogSum", {"x": np.abs(BIG) * f16(100)}, {"axes": [1], "keepdims": 0}, lambda x: np.log(x.sum(1))),
    "ReduceLogSumExp": ("ReduceLogSumExp", {"x": BIG}, {"axes": [1], "keepdims": 0},
                        lambda x: x.max(1) + np.log(np.exp(x - x.max(1, keepdims=True)).sum(1))),
    "LpNormalization": ("LpNormalization", {"x": BIG}, {"axis": 1}, lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))),
    "LpNormalization of zeros": ("LpNormalization", {"x": BIG * f16(0)}, {"axis": 1}, lambda x: x),
    "Mean": ("Mean", {"a": f16([60000, 1]), "b": f16([60000, 2]), "c": f16([-10000, 4])}, {}, lambda a, b, c: (a + b + c) / 3),
    "InstanceNormalization": ("InstanceNormalization", {"x": BIG.reshape(1, 2, 6), "s": f16([1, 2]), "b": f16([0, 1])}, {},
                              lambda x, s, b: (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)
                              * s[:, None] + b[:, None]),
    "LogSoftmax": ("LogSoftmax", {"x": BIG}, {"axis": 1}, lambda x: x - x.max(1, keepdims=True) - np.log(
        np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))),
}


@each_target
@pytest.mark.parametrize("name", HALVES)
def test_halves_accumulate_in_f32(target: Target, name: str) -> None:
    """Within two f16 units of the f64 formula on the same halves."""
    op, feeds, attrs, formula = HALVES[name]
    (got,) = compiled(import_onnx(imported(op, feeds, opset=13, **attrs)), feeds, target)
    want = formula(*(a.astype(np.float64) for a in feeds.values()))
    assert got.dtype == np.float16 and np.isfinite(want).all()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-9, atol=2.0**-12)


# --- integers -----------------------------------------------------------------------------------------

A, B, C = (np.asarray(v) for v in ([[3, -5], [7, 2]], [[1, 4], [-6, 3]], [[1, -1], [5, 10]]))


@each_target
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, -3.0), (0.5, 1.0), (1.0, 0.25), (0.5, 0.0)])
def test_integer_gemm_scales_before_it_rounds(target: Target, dtype: type, alpha: float, beta: float) -> None:
    """trunc(alpha · a b + beta · c), as ONNX's reference casts it."""
    feeds = {n: v.astype(dtype) for n, v in zip("abc", (A, B, C), strict=True)}
    (got,) = compiled(import_onnx(imported("Gemm", feeds, alpha=alpha, beta=beta)), feeds, target)
    np.testing.assert_array_equal(got, np.trunc(alpha * (A @ B) + beta * C).astype(dtype))


@each_target
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.25, 1.0), (0.25, -3.0), (1.0, 0.125), (0.125, 0.0)])
def test_half_gemm_rounds_once_after_its_factors(target: Target, half: str, fused: bool, alpha: float, beta: float) -> None:
    """alpha · a b + beta · c of integers that f64 holds, rounded at the end: a product past f16's largest comes back."""
    dtype = np.dtype(ml_dtypes.bfloat16 if half == "bfloat16" else half)
    a, b, c = (np.asarray(v, np.float64) for v in ([[240, 201], [-7, 3]], [[250, 4], [11, 90]], [[1001, -1], [5, 10]]))
    a[0] *= 1.0 if alpha == 1.0 else 4.0
    feeds = {n: v.astype(dtype) for n, v in zip("abc", (a, b, c), strict=True)}
    a, b, c = (v.astype(np.float64) for v in feeds.values())
    options = {} if fused else {"fusion": no_fusion()}
    graph = import_onnx(imported("Gemm", feeds, alpha=alpha, beta=beta))
    (got,) = compile_graph(graph, CompileOptions(target=target, **options)).run(feeds, sanitize=True).values()
    want = (alpha * (a @ b) + beta * c).astype(dtype)
    assert np.isfinite(want.astype(np.float64)).all()
    np.testing.assert_array_equal(got, want)


# --- pooling ------------------------------------------------------------------------------------------

PLANES: dict[str, Any] = {
    "-inf alone": [[-INF] * 4, [-INF, -INF, 2, -INF], [-INF] * 4, [-INF] * 4],
    "NaN": [[1, NAN, NAN, 2], [0, 5, NAN, 1], [NAN, 3, 2, 9], [-INF, NAN, INF, 4]],
    "ties": [[1, 1, 1, 1], [2, 2, 0, 0], [0, 2, 2, 0], [INF, INF, -INF, 0]],
}


@each_target
@pytest.mark.parametrize("name", PLANES)
@pytest.mark.parametrize("how", [((2, 2), (2, 2), (0, 0)), ((3, 3), (1, 1), (1, 1)), ((2, 3), (2, 1), (1, 1))], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_max_pool_backward_as_torch(target: Target, name: str, how: tuple[tuple[int, int], ...], dtype: type) -> None:
    kernel, strides, pads = how
    x = torch.tensor([[PLANES[name]]], dtype=torch.float32, requires_grad=True)
    y = F.max_pool2d(x, kernel, strides, pads)
    dy = np.arange(1, y.numel() + 1, dtype=np.float32).reshape(y.shape)
    (want,) = torch.autograd.grad(y, x, torch.from_numpy(dy))
    g = Graph("pool")
    ids = [g.input(n, a.shape, DType.of(np.dtype(dtype))) for n, a in (("x", x.detach().numpy()), ("dy", dy))]
    g.set_outputs(g.max_pool2d_backward(*ids, kernel=kernel, strides=strides, pads=(*pads, *pads)))
    feeds = {"x": x.detach().numpy().astype(dtype), "dy": dy.astype(dtype)}
    np.testing.assert_array_equal(compiled(g, feeds, target)[0], want.numpy().astype(dtype))
    np.testing.assert_array_equal(g[g.outputs[0]].op.evaluate(*feeds.values()), want.numpy().astype(dtype))


# --- means of nothing ---------------------------------------------------------------------------------


@each_target
@pytest.mark.parametrize(("dtype", "want"), [(np.float32, NAN), (np.float16, NAN), (ml_dtypes.bfloat16, NAN), (np.int32, 0), (np.int8, 0)])
def test_a_mean_of_nothing_warns_of_nothing(target: Target, dtype: Any, want: float) -> None:
    """NaN, as NumPy and PyTorch; an integer can't say so."""
    x = np.zeros((2, 0, 3), dtype)
    g = Graph("nothing")
    g.set_outputs(g.reduce_mean(g.input("x", x.shape, DType.of(x.dtype)), axes=(1,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (got,) = compiled(g, {"x": x}, target)
        np.testing.assert_array_equal(Reduce("mean", (0, 1), True).evaluate(x).astype(np.float32), np.full((1, 1, 3), want))
    np.testing.assert_array_equal(got.astype(np.float32), np.full((2, 3), want))


# --- attention rows that see nothing ------------------------------------------------------------------

S, K, D = 3, 4, 2


def _sees(kind: str) -> tuple[Array, dict[str, Any], Array | None, int]:
    """(keys seen, attributes, mask operand, number of keys)."""
    keep = np.ones((S, K), bool)
    keep[1] = False
    if kind == "custom":
        return keep, {}, keep.astype(np.float32), K
    if kind == "bias":
        return keep, {}, np.where(keep, np.float32(0.25), -INF).astype(np.float32), K
    pos, key = np.arange(S)[:, None] + 1 - S, np.arange(1)[None]  # one key: only the last query comes at or behind it
    return key <= pos, {"window": 1} if kind == "sliding_window" else {}, None, 1


@each_target
@pytest.mark.parametrize("kind", ["custom", "bias", "causal", "sliding_window"])
@pytest.mark.parametrize("wrt", ["", "q", "k", "v"], ids=lambda v: v or "forward")
def test_a_row_that_sees_no_key_gives_zeros_in_every_mask_form(target: Target, kind: str, wrt: str) -> None:
    keep, how, mask, keys = _sees(kind)
    rng = np.random.default_rng(3)
    q, dy = (rng.standard_normal((1, S, D)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((1, keys, D)).astype(np.float32) for _ in range(2))
    tensors = [torch.from_numpy(a).requires_grad_() for a in (q, k, v)]
    given = torch.from_numpy(mask if kind == "bias" else keep)  # type: ignore[arg-type]
    y = F.scaled_dot_product_attention(*tensors, attn_mask=given)
    want = y.detach().numpy() if not wrt else torch.autograd.grad(y, tensors["qkv".index(wrt)], torch.from_numpy(dy))[0].numpy()
    assert wrt in ("k", "v") or not want[0, ~keep.any(1)].any()
    feeds = {"q": q, "k": k, "v": v, **({"dy": dy} if wrt else {}), **({} if mask is None else {"m": mask})}
    g = Graph("attention")
    ids = [g.input(n, a.shape) for n, a in feeds.items()]
    attrs = {"num_heads": 1, "head_dim": D, "mask_kind": kind, **how}
    g.set_outputs(g.attention_backward(*ids, wrt=wrt, **attrs) if wrt else g.attention(*ids, **attrs))
    np.testing.assert_allclose(compiled(g, feeds, target)[0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(g[g.outputs[0]].op.evaluate(*feeds.values()), want, rtol=1e-5, atol=1e-6)
