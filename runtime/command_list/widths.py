"""Owns how kernels treat halves: sums, exponentials and products are kept in f32, in scratch, and rounded once; and how a
value that is stored wider than its type is brought to what the type can hold.

A half sum of ones stalls at 2048 (f16) or 256 (bf16), and a square of 300 overflows f16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.scratch import Scratch, scratch_for

__all__ = ["PIECE", "buffers", "convert", "convert_scratch", "is_half", "piece_of", "store", "to_f32", "wide_dtype",
           "wide_scratch", "widened"]

PIECE = 1 << 15
"""Elements that a kernel takes at a time where it works piece by piece."""
_F32 = np.dtype(np.float32)
_F16 = np.dtype(np.float16)
_SMALL = 1 << 12
"""Elements up to which NumPy's own f16 to f32 takes no longer than four calls."""
_EXPONENT_GAP = np.float32(2.0**112)
_NO_SIGN_COPIES = np.int32(~0x70000000)
_PAST_F16 = np.float32(2.0**16)


def is_half(dtype: np.dtype[Any]) -> bool:
    """f16 or bf16 (an eight-bit float is never computed in; a short integer is exact)."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


def to_f32(src: Array, dst: Array) -> None:
    """dst = src, exactly. NumPy converts f16 element by element; here its bits move to where f32 has them, and a power of two
    makes up for the exponents' difference: four times as fast. Infinities and NaN go NumPy's way. Subnormal halves are subnormal
    f32 in between: a thread that flushes those (no CPU does by default) loses them."""
    if src.dtype != _F16 or src.size < _SMALL:
        np.copyto(dst, src)
        return
    bits = dst.view(np.int32)
    np.copyto(bits, src.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _NO_SIGN_COPIES, out=bits)
    np.multiply(dst, _EXPONENT_GAP, out=dst)
    if dst.max() >= _PAST_F16 or dst.min() <= -_PAST_F16:  # what an infinity or NaN has become
        np.copyto(dst, src)


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums over ``dtype`` are kept in: f32 for halves."""
    return _F32 if is_half(dtype) else dtype


def wide_scratch(dtype: np.dtype[Any], *counts: int) -> int:
    """Scratch of f32 pieces that only halves take."""
    return scratch_for(*((count, _F32) for count in counts)) if is_half(dtype) else 0


def widened(a: Array, into: Array | None) -> Array:
    """``a`` itself, or, given an f32 buffer, its values there."""
    if into is None:
        return a
    at = into.reshape(-1)[: a.size].reshape(a.shape)
    to_f32(a, at)
    return at


def store(dst: Array, values: Array) -> None:
    """dst = values, rounded to dst's width; nothing where they are dst's own."""
    if values is not dst:
        np.copyto(dst, values, casting="same_kind")


def convert_scratch(storage: DType, to: DType, count: int) -> int:
    """What ``convert`` takes: a piece of ``to``, where it is stored as something else."""
    return 0 if storage is to else scratch_for((min(count, PIECE), to.numpy))


def convert(src: Array, dst: Array, to: DType, scratch: Scratch) -> None:
    """dst = src as values of ``to``, by NumPy's cast whatever dst is stored as: floats rounded to even (past the largest:
    inf), integers modulo 2ⁿ, floats to integers toward zero, anything to bool as ``!= 0``. Arrays are flat; dst may be src."""
    if to is DType.BOOL:
        np.not_equal(src, 0, out=dst)
        return
    if dst.dtype == to.numpy:
        if src.dtype == _F16 and dst.dtype == _F32:
            for i in range(0, src.size, 2 * PIECE):
                to_f32(src[i : i + 2 * PIECE], dst[i : i + 2 * PIECE])
        else:
            np.copyto(dst, src, casting="unsafe")
        return
    piece = scratch.take(min(src.size, PIECE), to.numpy)
    for i in range(0, src.size, PIECE):
        narrow = piece[: len(src[i : i + PIECE])]
        np.copyto(narrow, src[i : i + PIECE], casting="unsafe")
        np.copyto(dst[i : i + PIECE], narrow, casting="unsafe")


def piece_of(outer: int, middle: int, inner: int) -> tuple[int, int]:
    """(outer rows, inner columns) of [outer, middle, inner] that one step takes: about ``PIECE`` elements, the middle
    axis whole."""
    columns = min(inner, max(PIECE // max(middle, 1), 1))
    return min(outer, max(PIECE // max(columns * middle, 1), 1) if columns == inner else 1), columns


def buffers(scratch: Scratch, dtype: np.dtype[Any], *counts: int) -> list[Array | None]:
    """An f32 buffer a count for halves, None each otherwise: what ``widened`` asks for."""
    return [scratch.take(count, _F32) for count in counts] if is_half(dtype) else [None] * len(counts)
