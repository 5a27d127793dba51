"""Owns the product with packed rows: never more than one block of rows is held as floats."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType, QuantScheme
from planner_core.ir.packed import dequantize
from runtime.command_list.scratch import CHUNK_BYTES, Scratch, scratch_for

__all__ = ["packed_matmul", "packed_scratch"]

_F32 = DType.F32.numpy


def _rows(n: int, k: int) -> int:
    """Rows dequantised at a time."""
    return max(1, min(n, CHUNK_BYTES // (4 * max(k, 1))))


def packed_scratch(m: int, k: int, n: int, x: DType, dst: DType) -> int:
    """Bytes that ``packed_matmul`` takes: a block of rows, and f32 copies where an operand is half."""
    rows = _rows(n, k)
    half = [(m * k, _F32)] if x is not DType.F32 else []
    half += [(m * rows, _F32)] if dst is not DType.F32 else []
    return scratch_for((rows * k, _F32), *half)


def packed_matmul(x: Array, packed: Array, dst: Array, k: int, scheme: QuantScheme, scratch: Scratch) -> None:
    """``dst[m,n] = x[m,k] dequant(packed[n,row_bytes])ᵀ`` in f32, a block of rows at a time.

    The ``gguf`` package makes temporaries of a few blocks of rows beyond the scratch.
    """
    n = packed.shape[0]
    rows = _rows(n, k)
    mark = scratch.mark
    block = scratch.take((rows, k), _F32)
    if x.dtype != _F32:
        wide = scratch.take(x.shape, _F32)
        np.copyto(wide, x)
        x = wide
    part = scratch.take(len(x) * rows, _F32) if dst.dtype != _F32 else None
    for i in range(0, n, rows):
        count = min(rows, n - i)
        np.copyto(block[:count], dequantize(packed[i : i + count], scheme, k))
        into = dst[:, i : i + count] if part is None else part[: len(x) * count].reshape(len(x), count)
        np.matmul(x, block[:count].T, out=into)
        if part is not None:
            np.copyto(dst[:, i : i + count], into, casting="unsafe")
    scratch.release(mark)
