"""Owns elementwise formulas with ``out=``: binary kinds, comparisons, activations (piece by piece in scratch)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.widths import PIECE, is_half, store, wide_dtype, widened
from runtime.errors import RunError

__all__ = [
    "ACTIVATIONS", "BINARIES", "COMPARES", "PIECE", "activate", "activation_scratch", "binary", "binary_scratch",
    "multiply_activated", "multiply_activated_scratch",
]

def erf(x: Any, out: Any = None) -> Any:
    """SciPy's error function, imported by the first kernel that computes one: SciPy takes longer to load than NumPy."""
    from scipy.special import erf

    return erf(x, out=out)


BINARIES: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "pow": np.power, "mod": np.mod, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
    "fmod": np.fmod,
}
_LOGICAL = frozenset({"and", "or", "xor"})
COMPARES: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}


def binary_scratch(kind: str, storage: DType, numel: int) -> int:
    """Integer division keeps its dividend's exact part in scratch; an integer power its base, exponent and a mask."""
    if not storage.is_int or kind not in ("div", "pow"):
        return 0
    whole = (numel, storage.numpy)
    return scratch_for(whole) if kind == "div" else scratch_for(whole, whole, (numel, DType.BOOL.numpy))


def binary(kind: str, a: Array, b: Array, out: Array, scratch: Scratch) -> None:
    """``out = a kind b``; integer division and integer powers go toward zero. ``RunError`` for 0 to a negative power.
    Floats of any widths: where one is a half, in f32, rounded once."""
    if kind == "div" and out.dtype.kind in "iu":
        exact = scratch.take(out.shape, out.dtype)
        np.fmod(a, b, out=exact)
        np.subtract(a, exact, out=exact)
        np.floor_divide(exact, b, out=out)
    elif kind == "pow" and b.size == 1 and b.reshape(-1)[0] == 2:
        binary("mul", a, a, out, scratch)
    elif kind == "pow" and out.dtype.kind == "i" and b.size and b.min() < 0:
        _negative_power(a, b, out, scratch)
    elif kind not in _LOGICAL and (is_half(out.dtype) or is_half(a.dtype) or is_half(b.dtype)):
        BINARIES[kind](a, b, out=out, dtype=np.float32, casting="same_kind")
    else:
        BINARIES[kind](a, b, out=out)


def _negative_power(a: Array, b: Array, out: Array, scratch: Scratch) -> None:
    """Where b < 0 only ±1 has a power that isn't 0: the sign by b's parity."""
    base, power = scratch.take(out.shape, out.dtype), scratch.take(out.shape, out.dtype)
    negative = scratch.take(out.shape, np.bool_)
    np.less(b, 0, out=negative)
    np.copyto(base, a)
    if not np.all(base, where=negative):
        raise RunError("pow of integers: 0 to a negative power has no value; got a base of 0 with an exponent below 0: "
                       "mask those elements, or cast to a float first")
    np.copyto(power, b)
    np.bitwise_and(power, 1, out=power, where=negative)
    np.subtract(2, power, out=power, where=negative)  # even 2, odd 1
    np.abs(base, out=out, where=negative)  # its operands are copied: out may be one of them
    np.greater(out, 1, out=negative, where=negative)
    np.copyto(base, 0, where=negative)
    np.power(base, power, out=out)


# --- activations --------------------------------------------------------------------------------------
# A formula is (x, out, t, alpha, beta); out may be x; t is scratch of x's size where TEMPORARY lists it.

_Formula = Callable[[Array, Array, Array, float, float], Any]


def _sigmoid(x: Array, out: Array) -> Array:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    return np.reciprocal(out, out=out)


def _gelu(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.multiply(x, math.sqrt(0.5), out=t)
    erf(t, out=t)
    t += 1
    t *= 0.5
    np.multiply(x, t, out=out)


def _gelu_approx(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.multiply(x, x, out=t)
    t *= 0.044715
    t += 1
    t *= x
    t *= math.sqrt(2 / math.pi)
    np.tanh(t, out=t)
    t += 1
    t *= 0.5
    np.multiply(x, t, out=out)


def _leaky(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.minimum(x, 0, out=t)
    t *= a
    np.maximum(x, 0, out=out)
    np.add(out, t, out=out)


def _elu(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.minimum(x, 0, out=t)
    np.expm1(t, out=t)
    t *= a
    np.maximum(x, 0, out=out)
    np.add(out, t, out=out)


def _softplus(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.logaddexp(x, x.dtype.type(0), out=out)


def _line(x: Array, out: Array, a: float, b: float) -> None:
    np.multiply(x, a, out=out)
    np.add(out, b, out=out)
    np.clip(out, 0, 1, out=out)


def _hardswish(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    _line(x, t, 1 / 6, 0.5)
    np.multiply(x, t, out=out)


def _silu(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.multiply(x, _sigmoid(x, t), out=out)


def _rsqrt(x: Array, out: Array, t: Array, a: float, b: float) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


ACTIVATIONS: dict[str, _Formula] = {
    "gelu": _gelu,
    "gelu_approx": _gelu_approx,
    "silu": _silu,
    "relu": lambda x, out, t, a, b: np.maximum(x, 0, out=out),
    "sigmoid": lambda x, out, t, a, b: _sigmoid(x, out),
    "tanh": lambda x, out, t, a, b: np.tanh(x, out=out),
    "exp": lambda x, out, t, a, b: np.exp(x, out=out),
    "log": lambda x, out, t, a, b: np.log(x, out=out),
    "sqrt": lambda x, out, t, a, b: np.sqrt(x, out=out),
    "rsqrt": _rsqrt,
    "neg": lambda x, out, t, a, b: np.negative(x, out=out),
    "abs": lambda x, out, t, a, b: np.abs(x, out=out),
    "leaky_relu": _leaky,
    "elu": _elu,
    "erf": lambda x, out, t, a, b: erf(x, out=out),
    "sin": lambda x, out, t, a, b: np.sin(x, out=out),
    "cos": lambda x, out, t, a, b: np.cos(x, out=out),
    "floor": lambda x, out, t, a, b: np.floor(x, out=out),
    "ceil": lambda x, out, t, a, b: np.ceil(x, out=out),
    "round": lambda x, out, t, a, b: np.rint(x, out=out),
    "softplus": _softplus,
    "hardsigmoid": lambda x, out, t, a, b: _line(x, out, a, b),
    "hardswish": _hardswish,
    "clip": lambda x, out, t, a, b: np.clip(x, _bound(x, a), _bound(x, b), out=out),
    "reciprocal": lambda x, out, t, a, b: np.divide(1, x, out=out),
    "not": lambda x, out, t, a, b: np.logical_not(x, out=out),
    "sign": lambda x, out, t, a, b: np.sign(x, out=out),
}
TEMPORARY = frozenset({"gelu", "gelu_approx", "silu", "leaky_relu", "elu", "hardswish"})


def _bound(x: Array, v: float) -> Any:
    if x.dtype.kind not in "iu":
        return x.dtype.type(v)
    info = np.iinfo(x.dtype)
    return x.dtype.type(info.min if v < info.min else info.max if v > info.max else v)


_ROUNDS = TEMPORARY | {"sigmoid", "rsqrt", "hardsigmoid"}
"""Formulas of several steps: halves go through them in f32 and are rounded once."""


def activation_scratch(kind: str, storage: DType, numel: int) -> int:
    """One piece, where the formula needs a temporary; another for halves that go through several steps."""
    dtype, count = storage.numpy, min(numel, PIECE)
    pieces = (kind in TEMPORARY) + (kind in _ROUNDS and is_half(dtype))
    return scratch_for(*[(count, wide_dtype(dtype))] * pieces)


def activate(kind: str, x: Array, out: Array, scratch: Scratch, alpha: float = 0.0, beta: float = 0.0) -> None:
    """``out = kind(x)``; ``out`` may be ``x``. Arrays are row-major."""
    formula = ACTIVATIONS[kind]
    half = is_half(x.dtype)
    if kind not in TEMPORARY and not (half and kind in _ROUNDS):
        formula(x, out, x, alpha, beta)
        return
    mark = scratch.mark
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    count = min(flat_x.size, PIECE)
    t = scratch.take(count if kind in TEMPORARY else 0, wide_dtype(x.dtype))
    wide = scratch.take(count, wide_dtype(x.dtype)) if half else None
    for i in range(0, flat_x.size, PIECE):
        piece, to = widened(flat_x[i : i + PIECE], wide), flat_out[i : i + PIECE]
        made = piece if half else to
        formula(piece, made, t[: piece.size], alpha, beta)
        store(to, made)
    scratch.release(mark)


def multiply_activated_scratch(storage: DType, numel: int) -> int:
    """Two pieces."""
    piece = (min(numel, PIECE), wide_dtype(storage.numpy))
    return scratch_for(piece, piece)


def multiply_activated(kind: str, x: Array, out: Array, scratch: Scratch) -> None:
    """``out *= kind(x)``, piece by piece. Arrays are row-major."""
    mark = scratch.mark
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    t, y = (scratch.take(min(flat_x.size, PIECE), wide_dtype(x.dtype)) for _ in range(2))
    for i in range(0, flat_x.size, PIECE):
        piece = flat_x[i : i + PIECE]
        piece = widened(piece, y) if is_half(x.dtype) else piece
        got = y[: piece.size]
        ACTIVATIONS[kind](piece, got, t[: piece.size], 0.0, 0.0)
        np.multiply(flat_out[i : i + PIECE], got, out=flat_out[i : i + PIECE])
    scratch.release(mark)
