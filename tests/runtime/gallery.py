"""Graphs with inputs and independently computed outputs, at least one for every thunk.

References are ONNX Runtime on a one-node model, SciPy, or the formula written out; never ``Op.evaluate``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import scipy.special
from onnx import helper

from planner_core.ir import DType, Graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    graph: Graph
    feed: dict[str, Array]
    want: list[Array]
    options: tuple[tuple[str, Any], ...] = ()


CASES: dict[str, Callable[[], Case]] = {}


def case(fn: Callable[..., Case], *grid: Any) -> None:
    """Register ``fn(*values)`` for every combination of the grid's values."""
    for values in itertools.product(*grid):
        text = "-".join(str(v).replace(" ", "") for v in values)
        CASES[f"{fn.__name__.strip('_')}-{text}".rstrip("-")] = lambda values=values: fn(*values)


def rand(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype=np.float32)


def ort(op: str, arrays: list[Array], opset: int = 17, **attrs: Any) -> Array:
    """Output 0 of one ONNX node by ONNX Runtime."""
    arrays = [np.asarray(a) for a in arrays]
    names = [f"x{i}" for i in range(len(arrays))]
    ins = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
           for n, a in zip(names, arrays, strict=True)]
    out = onnx.ValueInfoProto(name="y")  # ONNX Runtime infers its type
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", ins, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(zip(names, arrays, strict=True)))[0])


def one(build: Callable[..., int], arrays: list[Array], want: Array, **options: Any) -> Case:
    """A graph of inputs and one op: ``build(g, *ids)`` returns the output."""
    arrays = [np.asarray(a) for a in arrays]
    g = Graph("case")
    ids = [g.input(f"x{i}", a.shape, DType.of(a.dtype)) for i, a in enumerate(arrays)]
    g.set_outputs(build(g, *ids))
    return Case(g, {f"x{i}": a for i, a in enumerate(arrays)}, [want], tuple(options.items()))


# --- elementwise --------------------------------------------------------------------------------------

SIZES = [(1,), (7,), (2, 13), (3, 1, 5)]
ACTS: dict[str, tuple[Callable[[Array], Array], dict[str, float]]] = {
    "gelu": (lambda x: x * 0.5 * scipy.special.erfc(-x / np.sqrt(2)), {}),
    "gelu_approx": (lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))), {}),
    "silu": (lambda x: x * scipy.special.expit(x), {}),
    "relu": (lambda x: np.where(x > 0, x, 0), {}),
    "sigmoid": (scipy.special.expit, {}),
    "tanh": (np.tanh, {}),
    "exp": (np.exp, {}),
    "log": (lambda x: np.log(x), {}),
    "sqrt": (lambda x: x**0.5, {}),
    "rsqrt": (lambda x: x**-0.5, {}),
    "neg": (lambda x: 0 - x, {}),
    "abs": (lambda x: np.where(x < 0, -x, x), {}),
    "leaky_relu": (lambda x: np.where(x < 0, 0.1 * x, x), {"alpha": 0.1}),
    "elu": (lambda x: np.where(x < 0, 0.7 * (np.exp(x) - 1), x), {"alpha": 0.7}),
    "erf": (scipy.special.erf, {}),
    "sin": (lambda x: np.imag(np.exp(1j * x)), {}),
    "cos": (lambda x: np.real(np.exp(1j * x)), {}),
    "floor": (lambda x: -np.ceil(-x), {}),
    "ceil": (lambda x: -np.floor(-x), {}),
    "round": (lambda x: np.floor(x + 0.5), {}),
    "softplus": (lambda x: np.log1p(np.exp(x)), {}),
    "hardsigmoid": (lambda x: np.minimum(np.maximum(0.2 * x + 0.5, 0), 1), {"alpha": 0.2, "beta": 0.5}),
    "hardswish": (lambda x: x * np.minimum(np.maximum(x + 3, 0), 6) / 6, {}),
    "clip": (lambda x: np.minimum(np.maximum(x, -0.5), 0.8), {"alpha": -0.5, "beta": 0.8}),
    "reciprocal": (lambda x: x**-1.0, {}),
    "sign": (lambda x: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)), {}),
}


def _activation(kind: str, shape: tuple[int, ...]) -> Case:
    x = rand(*shape) * 3
    if kind in ("log", "sqrt", "rsqrt", "reciprocal"):
        x = np.abs(x) + np.float32(0.5)
    fn, attrs = ACTS[kind]
    return one(lambda g, a: getattr(g, kind)(a, **attrs), [x], fn(x.astype(np.float64)))


case(_activation, list(ACTS), SIZES)
case(_activation, ["gelu", "silu"], [(3, 40009)])

BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "max": "Max", "min": "Min"}
PAIRS = [((5,), (5,)), ((3, 7), (7,)), ((3, 7), ()), ((), (3, 7)), ((3, 1), (1, 7)), ((2, 3, 1, 5), (3, 7, 1)),
         ((1,), (1,))]


def _binary(kind: str, dims: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> Case:
    a, b = rand(*dims[0]) * 9, rand(*dims[1], seed=1) * 5
    b = np.where(np.abs(b) < 1, 2, b)
    if kind == "pow":
        a, b = np.abs(a) + 1, np.clip(np.abs(b), 0, 3)
    a, b = a.astype(dtype), b.astype(dtype)
    return one(lambda g, x, y: g.binary(x, y, kind=kind), [a, b], ort(BINARY[kind], [a, b]))


case(_binary, list(BINARY), PAIRS, ["float32", "int32", "int64"])


def _square() -> Case:
    a, b = rand(3, 5), np.float32(2.0)
    return one(lambda g, x, y: g.pow(x, y), [a, np.asarray(b)], a * a)


case(_square)


def _compare(kind: str, dims: tuple[tuple[int, ...], tuple[int, ...]]) -> Case:
    a, b = np.round(rand(*dims[0])), np.round(rand(*dims[1], seed=1))
    name = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.get(kind)
    want = ort(name, [a, b]) if name else ~ort("Equal", [a, b])
    return one(lambda g, x, y: getattr(g, kind)(x, y), [a, b], want)


case(_compare, ["eq", "ne", "lt", "le", "gt", "ge"], PAIRS)


def _where(dims: tuple[tuple[int, ...], ...], dtype: str) -> Case:
    c = np.random.default_rng(0).random(dims[0]) > 0.4
    a, b = rand(*dims[1]), rand(*dims[2], seed=1)
    want = ort("Where", [c, a, b])
    return one(lambda g, *x: g.where(*x), [c.astype(dtype), a, b], want)


case(_where, [((5,), (5,), (5,)), ((), (3, 2), (3, 2)), ((3, 1), (1, 4), ()), ((4, 3), (), ())], ["bool", "float32"])


def _fma(dims: tuple[tuple[int, ...], ...]) -> Case:
    a, b, c = (rand(*d, seed=i) for i, d in enumerate(dims))
    return one(lambda g, *x: g.fma(*x), [a, b, c], a * b + c)


case(_fma, [((7,), (7,), (7,)), ((2, 3), (3,), (2, 1))])


def _cast(source: str, to: DType) -> Case:
    x = (rand(3, 5) * 3).astype(source)
    wants = {DType.BOOL: x != 0, DType.F16: x.astype(np.float16)}
    want = wants.get(to, np.trunc(x.astype(np.float64)) if to.is_int else x)
    return one(lambda g, a: g.cast(a, to=to), [x], np.asarray(want, dtype=to.numpy))


case(_cast, ["float32", "int32", "int64", "bool"], [DType.F32, DType.I32, DType.I64, DType.I8, DType.BOOL, DType.F16])


def _cast_native_half(source: str) -> Case:
    x, to = (rand(3, 5).astype(source), DType.F16 if source == "float32" else DType.F32)
    return one(lambda g, a: g.cast(a, to=to), [x], x.astype(to.numpy), width_policy="native")


case(_cast_native_half, ["float32", "float16"])


def _half(width: str) -> Case:
    x, y = rand(3, 5).astype(np.float16), rand(3, 5, seed=2).astype(np.float16)
    return one(lambda g, a, b: g.silu(g.binary(a, b, kind="add")), [x, y],
               (lambda s: s * scipy.special.expit(s))((x + y).astype(np.float32)), width_policy=width)


case(_half, ["native", "native_half_widened"])

# --- matrix products ----------------------------------------------------------------------------------


def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> Case:
    x, y = rand(*a), rand(*b, seed=1)
    return one(lambda g, i, j: g.mm(i, j), [x, y], ort("MatMul", [x, y]))


case(_matmul, [(3, 5), (1, 5), (2, 3, 5), (5,), (2, 1, 3, 5)], [(5, 7), (5, 1), (5,)])
case(_matmul, [(2, 3, 5), (1, 3, 5), (3, 5), (5,)], [(2, 5, 7), (1, 5, 7)])


def _elided_matmul() -> Case:
    x, y = rand(3, 5), rand(7, 5, seed=1)
    return one(lambda g, i, j: g.mm(i, g.transpose(j, perm=(1, 0))), [x, y], x @ y.T, elide_bank_transposes=True)


def _elided_left(both: bool) -> Case:
    x, y = rand(5, 3), rand(7, 5, seed=1) if both else rand(5, 7, seed=1)
    return one(lambda g, i, j: g.mm(g.transpose(i, perm=(1, 0)), g.transpose(j, perm=(1, 0)) if both else j), [x, y],
               x.T @ (y.T if both else y), elide_bank_transposes=True)


case(_elided_matmul)
case(_elided_left, [False, True])


def _grouped(elide: bool) -> Case:
    x, w, idx = rand(5, 3), rand(4, 3, 7, seed=1), np.asarray([2, 2, 0, 3, 2], dtype=np.int64)
    want = np.stack([x[i] @ w[e] for i, e in enumerate(idx)])
    if elide:
        return one(lambda g, i, j, k: g.grouped_mat_mul(i, g.transpose(j, perm=(0, 2, 1)), k),
                   [x, np.ascontiguousarray(w.swapaxes(1, 2)), idx], want, elide_bank_transposes=True)
    return one(lambda g, i, j, k: g.grouped_mat_mul(i, j, k), [x, w, idx], want)


case(_grouped, [False, True])

# --- convolution and pooling --------------------------------------------------------------------------


def _conv(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...],
          dilations: tuple[int, ...], groups: int) -> Case:
    a, b = rand(*x), rand(*w, seed=1)
    attrs: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations}
    build = "conv3d" if len(x) == 5 else "conv"
    return one(lambda g, i, j: getattr(g, build)(i, j, groups=groups, **attrs), [a, b],
               ort("Conv", [a, b], group=groups, **attrs))


for _args in [
    ((1, 3, 7, 5), (4, 3, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
    ((2, 4, 7, 5), (6, 2, 1, 1), (1, 1), (0,) * 4, (1, 1), 2),
    ((2, 3, 11, 13), (5, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 3, 11, 13), (5, 3, 3, 3), (2, 2), (1, 0, 2, 1), (1, 1), 1),
    ((1, 4, 9, 9), (6, 2, 3, 2), (1, 2), (0, 1, 1, 0), (2, 3), 2),
    ((1, 3, 7, 5), (4, 3, 1, 1), (2, 3), (0,) * 4, (1, 1), 1),
    ((2, 5, 11, 7), (5, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    ((1, 5, 11, 7), (10, 1, 5, 5), (2, 1), (2, 2, 2, 2), (1, 1), 5),
    ((1, 3, 13, 11), (3, 1, 3, 3), (2, 2), (0, 1, 2, 3), (2, 2), 3),
    ((1, 2, 300, 301), (2, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 2, 300, 301), (2, 1, 5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 2),
    ((1, 40, 60, 61), (3, 40, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
    ((1, 1, 1, 1), (2, 1, 3, 3), (1, 1), (1,) * 4, (1, 1), 1),
    ((2, 3, 17), (4, 3, 5), (2,), (2, 1), (1,), 1),
    ((1, 4, 17), (4, 1, 3), (1,), (2, 0), (1,), 4),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 0), (1, 1, 2), 1),
    ((1, 2, 5, 6, 7), (2, 1, 3, 3, 3), (1, 1, 1), (1,) * 6, (1, 1, 1), 2),
]:
    case(_conv, *[[v] for v in _args])


def _conv_act(rank: int, activation: str, residual: bool) -> Case:
    x, w, b = rand(2, 3, *(7, 6, 5)[:rank]), rand(4, 3, *(3,) * rank, seed=1), rand(4, seed=2)
    attrs: dict[str, Any] = {"strides": (1,) * rank, "pads": (1,) * (2 * rank), "dilations": (1,) * rank}
    want = ort("Conv", [x, w, b], **attrs)
    arrays = [x, w, b]
    if residual:
        arrays.append(rand(*want.shape, seed=3))
        want = want + arrays[3]
    if activation:
        want = ACTS[activation][0](want)
    return one(lambda g, *i: g.fused_conv_bias_act(*i, activation=activation, **attrs), arrays, want)


case(_conv_act, [1, 2, 3], ["", "relu", "silu"], [False, True])


def _conv_transpose(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, int], pads: tuple[int, ...],
                    dilations: tuple[int, int], extra: tuple[int, int], groups: int) -> Case:
    a, b = rand(*x), rand(*w, seed=1)
    want = ort("ConvTranspose", [a, b], strides=strides, pads=pads, dilations=dilations, output_padding=extra,
               group=groups)
    return one(lambda g, i, j: g.conv_transpose2d(i, j, strides=strides, pads=pads, dilations=dilations,
                                                  output_padding=extra, groups=groups), [a, b], want)


for _args in [
    ((1, 3, 5, 7), (3, 4, 2, 2), (2, 2), (0,) * 4, (1, 1), (0, 0), 1),
    ((2, 4, 5, 3), (4, 3, 3, 3), (2, 1), (1, 0, 1, 2), (1, 1), (1, 0), 2),
    ((1, 1, 1, 1), (1, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (0, 0), 1),
    ((1, 2, 5, 5), (2, 2, 3, 2), (1, 2), (2, 1, 0, 0), (2, 1), (0, 1), 1),
    ((1, 8, 90, 91), (8, 16, 2, 2), (2, 2), (0,) * 4, (1, 1), (0, 0), 1),
]:
    case(_conv_transpose, *[[v] for v in _args])


def _pool(kind: str, kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, ...], ceil: bool,
          include: bool) -> Case:
    x = rand(2, 3, 11, 7)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": int(ceil)}
    if kind == "mean":
        attrs["count_include_pad"] = int(include)
    want = ort("MaxPool" if kind == "max" else "AveragePool", [x], **attrs)
    return one(lambda g, i: g.pool2d(i, kind=kind, kernel=kernel, strides=strides, pads=pads, ceil_mode=ceil,
                                     count_include_pad=include), [x], want)


case(_pool, ["max", "mean"], [(2, 2), (3, 2)], [(1, 1), (2, 3)], [(0,) * 4, (1, 0, 1, 1)], [False], [False, True])
case(_pool, ["max", "mean"], [(3, 3)], [(2, 2)], [(1, 1, 1, 1)], [True], [False])


def _global_pool(kind: str, space: tuple[int, ...]) -> Case:
    x = rand(2, 3, *space)
    return one(lambda g, i: g.global_pool(i, kind=kind), [x],
               ort("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", [x]))


case(_global_pool, ["max", "mean"], [(7,), (5, 3), (2, 3, 1)])


def _resize(dims: tuple[int, ...], factors: tuple[int, ...]) -> Case:
    x = rand(*dims)
    return one(lambda g, i: g.resize_nearest(i, factors=factors), [x], np.kron(x, np.ones(factors, np.float32)))


case(_resize, [(2, 3, 5, 7)], [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 8, 8), (2, 1, 1, 3), (1, 1, 1, 1)])

# --- norms, reductions, softmax -----------------------------------------------------------------------


def _moments(x: Array, axis: int) -> tuple[Array, Array]:
    x = x.astype(np.float64)
    return x.mean(axis, keepdims=True), x.var(axis, keepdims=True)


def _layer_norm(dims: tuple[int, ...]) -> Case:
    x, g, b = rand(*dims) * 3 + 1, rand(dims[-1], seed=1), rand(dims[-1], seed=2)
    mean, var = _moments(x, -1)
    return one(lambda gr, *i: gr.layer_norm(*i, eps=1e-3), [x, g, b], (x - mean) / np.sqrt(var + 1e-3) * g + b)


case(_layer_norm, [(1, 1), (3, 7), (2, 5, 129)])


def _rms_norm(dims: tuple[int, ...], shift: bool) -> Case:
    x, g, b = rand(*dims), rand(dims[-1], seed=1), rand(dims[-1], seed=2)
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3) * g + (b if shift else 0)
    return one(lambda gr, *i: gr.rms_norm(*i, eps=1e-3), [x, g, b][: 3 if shift else 2], want)


case(_rms_norm, [(1, 1), (3, 7), (2, 5, 129)], [False, True])


def _layer_norm2d(dims: tuple[int, ...]) -> Case:
    x, g, b = rand(*dims) * 2 + 1, rand(dims[1], seed=1), rand(dims[1], seed=2)
    mean, var = _moments(x, 1)
    want = (x - mean) / np.sqrt(var + 1e-3) * g[:, None, None] + b[:, None, None]
    return one(lambda gr, *i: gr.layer_norm2d(*i, eps=1e-3), [x, g, b], want)


case(_layer_norm2d, [(1, 1, 1, 1), (2, 5, 3, 7), (1, 401, 13, 11)])


def _batch_norm(dims: tuple[int, ...]) -> Case:
    x, (g, b, m), v = rand(*dims), (rand(dims[1], seed=i) for i in (1, 2, 3)), np.abs(rand(dims[1], seed=4)) + 0.5
    return one(lambda gr, *i: gr.batch_norm(*i, eps=1e-3), [x, g, b, m, v.astype(np.float32)],
               ort("BatchNormalization", [x, g, b, m, v.astype(np.float32)], epsilon=1e-3))


case(_batch_norm, [(2, 5), (2, 3, 7), (1, 5, 70, 101)])


def _reduce(kind: str, axes: tuple[int, ...], keep: bool) -> Case:
    x = rand(2, 3, 5, 7)
    x = np.exp(x / 9) if kind == "prod" else x
    fn = {"sum": np.sum, "mean": np.mean, "max": np.amax, "min": np.amin, "prod": np.prod}[kind]
    return one(lambda g, i: g.reduce(i, kind=kind, axes=axes, keepdims=keep), [x],
               np.asarray(fn(x.astype(np.float64), axis=axes, keepdims=keep)))


case(_reduce, ["sum", "mean", "max", "min", "prod"], [(3,), (0,), (1, 2), (0, 1, 2, 3), (-1,), (0, 2), ()], [False, True])


def _softmax(axis: int, dims: tuple[int, ...]) -> Case:
    x = rand(*dims) * 5
    return one(lambda g, i: g.softmax(i, axis=axis), [x], scipy.special.softmax(x.astype(np.float64), axis=axis))


case(_softmax, [-1, 0, 1], [(3, 7), (2, 5, 1), (1, 1)])


def _arg(kind: str, axis: int, keep: bool) -> Case:
    x = np.round(rand(3, 5, 7) * 2)
    return one(lambda g, i: g.arg_reduce(i, kind=kind, axis=axis, keepdims=keep), [x],
               ort("ArgMax" if kind == "max" else "ArgMin", [x], axis=axis, keepdims=int(keep)))


case(_arg, ["max", "min"], [0, 1, -1], [False, True])


def _topk(k: int, largest: bool, values: bool) -> Case:
    x = np.round(rand(3, 11) * 3)
    rows = [sorted(range(11), key=lambda j, r=r: (-r[j] if largest else r[j], j))[:k] for r in x]
    want = np.asarray([[r[j] for j in o] if values else o for r, o in zip(x, rows, strict=True)])
    return one(lambda g, i: g.top_k(i, k=k, largest=largest, values=values), [x], want)


case(_topk, [1, 4, 11], [False, True], [False, True])


def _cumsum(exclusive: bool, dims: tuple[int, ...]) -> Case:
    x = rand(*dims)
    return one(lambda g, i: g.cumsum(i, exclusive=exclusive), [x],
               ort("CumSum", [x, np.asarray(-1, np.int64)], exclusive=int(exclusive)))


case(_cumsum, [False, True], [(1,), (3, 7), (2, 2, 1)])

# --- structure ----------------------------------------------------------------------------------------


def _transpose(perm: tuple[int, ...], dtype: str) -> Case:
    x = (rand(2, 3, 5, 1)[(..., *(0,) * (4 - len(perm)))] * 9).astype(dtype)
    return one(lambda g, i: g.transpose(i, perm=perm), [x], ort("Transpose", [x], perm=perm))


case(_transpose, [(1, 0), (2, 0, 1), (0, 2, 1), (3, 1, 0, 2)], ["float32", "int64", "bool"])


def _expand(dims: tuple[int, ...], to: tuple[int, ...]) -> Case:
    x = rand(*dims)
    return one(lambda g, i: g.expand(i, dims=to), [x], ort("Expand", [x, np.asarray(to, np.int64)]))


case(_expand, [(3, 1), (1,), (3, 5)], [(3, 5), (2, 3, 5)])


def _narrow(axis: int, start: int, length: int) -> Case:
    x = rand(3, 5, 7)
    # a unary op around it makes sure that a view of axis 0 is read where it lies
    return one(lambda g, i: g.neg(g.narrow(i, axis=axis, start=start, len=length)), [x],
               -np.take(x, range(start, start + length), axis=axis))


case(_narrow, [0, 1, 2], [0, 1], [1, 2])


def _slice(starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> Case:
    x = rand(6, 7)
    end = tuple(s if s >= 0 else -100 for s in stops)
    want = ort("Slice", [x, *(np.asarray(v, np.int64) for v in (starts, end, (0, 1), steps))])
    return one(lambda g, i: g.slice(i, axes=(0, 1), starts=starts, stops=stops, steps=steps), [x], want)


for _args in [((0, 1), (6, 7), (1, 2)), ((5, 6), (-1, 0), (-2, -3)), ((1, 0), (5, 7), (3, 1))]:
    case(_slice, *[[v] for v in _args])


def _concat(axis: int, count: int) -> Case:
    parts = [rand(*(k + 1 if a == axis else 3 for a in range(3)), seed=k) for k in range(count)]
    return one(lambda g, *i: g.concat(*i, axis=axis), parts, ort("Concat", parts, axis=axis))


case(_concat, [0, 1, 2], [1, 2, 5])


def _reverse(axes: tuple[int, ...]) -> Case:
    x = rand(3, 5, 2)
    index = tuple(slice(None, None, -1) if a in axes else slice(None) for a in range(3))
    return one(lambda g, i: g.reverse(i, axes=axes), [x], x[index])


case(_reverse, [(0,), (1, 2), ()])


def _pad(mode: str, before: tuple[int, ...], after: tuple[int, ...]) -> Case:
    x = rand(4, 5, 3)
    widths = [np.asarray([*before, *after], np.int64)] + ([np.float32(1.5).reshape(())] if mode == "constant" else [])
    return one(lambda g, i: g.pad(i, before=before, after=after, mode=mode, value=1.5 if mode == "constant" else 0.0),
               [x], ort("Pad", [x, *widths], mode=mode))


case(_pad, ["constant", "edge", "reflect"], [(0, 0, 0), (2, 1, 0), (3, 4, 2)], [(1, 0, 2), (0, 3, 0)])
case(_pad, ["constant"], [(-1, 2, 0)], [(1, -2, 0)])


def _kv_append(start: int, dynamic: bool) -> Case:
    cache, rows, at = rand(2, 7, 3), rand(2, 2, 3, seed=1), np.asarray([start], np.int64)
    want = cache.copy()
    want[:, start : start + 2] = rows
    if dynamic:
        return one(lambda g, c, r, p: g.kv_append(c, r, p, axis=1), [cache, rows, at], want)
    return one(lambda g, c, r: g.kv_append(c, r, axis=1, start=start), [cache, rows], want)


case(_kv_append, [0, 3, 5], [False, True])

# --- by index -----------------------------------------------------------------------------------------


def _gather(axis: int, idx: Any, dtype: str) -> Case:
    x, i = rand(4, 5, 3), np.asarray(idx, dtype=dtype)
    return one(lambda g, a, b: g.gather(a, b, axis=axis), [x, i], ort("Gather", [x, i], axis=axis))


case(_gather, [0, 1, 2], [0, [2, -1, 0], [[1], [-2]]], ["int32", "int64"])


def _gather_elements(axis: int) -> Case:
    x, i = rand(3, 4), np.random.default_rng(0).integers(-3, 3, (3, 2) if axis == 1 else (5, 4))
    return one(lambda g, a, b: g.gather_elements(a, b, axis=axis), [x, i], ort("GatherElements", [x, i], axis=axis))


case(_gather_elements, [0, 1])


def _gather_nd(idx: Any) -> Case:
    x, i = rand(3, 4, 2), np.asarray(idx, np.int64)
    return one(lambda g, a, b: g.gather_nd(a, b), [x, i], ort("GatherND", [x, i]))


case(_gather_nd, [[[0, 1], [2, -1]], [[[1]], [[-3]]], [[2, 3, 1]]])


def _scatter_nd() -> Case:
    x, i, u = rand(4, 3), np.asarray([[2], [-4]], np.int64), rand(2, 3, seed=1)
    return one(lambda g, a, b, c: g.scatter_nd(a, b, c), [x, i, u], ort("ScatterND", [x, i, u]))


case(_scatter_nd)


def _scatter_elements(axis: int, reduction: str) -> Case:
    x, u = rand(3, 4), rand(2, 3, seed=1)
    i = np.asarray([[0, 1, 2], [2, 0, 1]], np.int64) if reduction == "none" or axis else np.asarray([[1, 1, 0], [1, -1, 0]])
    return one(lambda g, a, b, c: g.scatter_elements(a, b, c, axis=axis, reduction=reduction), [x, i, u],
               ort("ScatterElements", [x, i, u], opset=18, axis=axis, **({"reduction": reduction} if reduction != "none" else {})))


case(_scatter_elements, [0, 1], ["none", "add", "mul", "max", "min"])


def _scatter_add() -> Case:
    u, i = rand(5, 3), np.asarray([1, 3, 1, 0, 1], np.int64)
    want = np.zeros((4, 3), np.float32)
    for row, at in zip(u, i, strict=True):
        want[at] += row
    return one(lambda g, a, b: g.scatter_add(a, b, out_dim=4), [u, i], want)


case(_scatter_add)

# --- attention ----------------------------------------------------------------------------------------


def _attention(layout: str, mask: str, kv_heads: int, softcap: float) -> Case:
    b, s, t, h, d = 2, 5, 7, 4, 3
    q, k, v = rand(b, h, s, d), rand(b, kv_heads, t, d, seed=1), rand(b, kv_heads, t, d, seed=2)
    extra = {"custom": [(np.arange(s)[:, None] + 2 >= np.arange(t)).astype(np.float32)],
             "bias": [rand(1, h, s, t, seed=3)]}.get(mask, [])
    want = np.zeros((b, h, s, d))
    for n, head, i in itertools.product(range(b), range(h), range(s)):
        kk, vv = (x[n, head // (h // kv_heads)].astype(np.float64) for x in (k, v))
        score = kk @ q[n, head, i] * 0.4
        score = softcap * np.tanh(score / softcap) if softcap else score
        p = i + t - s
        for j in range(t):
            hidden = {"causal": j > p, "sliding_window": j > p or j < p - 2, "custom": extra and extra[0][i, j] == 0 if mask == "custom" else False}
            if hidden.get(mask):
                score[j] = -np.inf
        if mask == "bias":
            score = score + extra[0][0, head, i]
        want[n, head, i] = scipy.special.softmax(score) @ vv
    if layout == "bshd":
        q, k, v, want = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v, want))
    return one(lambda g, *x: g.attention(*x, num_heads=h, head_dim=d, kv_heads=kv_heads, mask_kind=mask, window=2,
                                         score_scale=0.4, softcap=softcap, layout=layout), [q, k, v, *extra], want)


case(_attention, ["bshd", "bhsd"], ["none", "causal", "custom", "bias", "sliding_window"], [4, 2], [0.0, 1.5])


def _rope(n_rot: int, interleaved: bool) -> Case:
    b, s, h, d = 2, 3, 2, 6
    x, angle = rand(b, s, h * d), np.random.default_rng(1).random((s, n_rot // 2)) * 3
    want = x.reshape(b, s, h, d).astype(np.float64)
    for i in range(n_rot // 2):
        p, q = (2 * i, 2 * i + 1) if interleaved else (i, i + n_rot // 2)
        z = (want[..., p] + 1j * want[..., q]) * np.exp(1j * angle[:, i])[:, None]
        want[..., p], want[..., q] = z.real, z.imag
    return one(lambda g, *i: g.rope(*i, head_dim=d, n_rot=n_rot, interleaved=interleaved),
               [x, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)], want.reshape(x.shape))


case(_rope, [2, 4, 6], [False, True])


def _swiglu(first: bool) -> Case:
    x = rand(3, 14)
    a, b = np.split(x.astype(np.float64), 2, axis=1)
    gate, up = (a, b) if first else (b, a)
    g_name = "swi_g_l_u"
    return one(lambda g, i: getattr(g, g_name)(i, gate_first=first), [x], up * gate * scipy.special.expit(gate))


case(_swiglu, [False, True])
