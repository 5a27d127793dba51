"""Elementwise thunks and casts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.special

from planner_core.ir import DType
from tests.runtime.gallery.base import Array, Case, case, one, ort, rand

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
