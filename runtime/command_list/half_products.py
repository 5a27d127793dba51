"""Owns products with half operands: widened to f32 strip by strip, in declared scratch, and rounded once. NumPy's own half
product takes two hundred times as long as BLAS's, and sums in halves."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.widths import is_half

__all__ = ["product", "product_scratch"]

STRIP = 1 << 18
"""Elements of an operand that are widened at a time: 1 MiB of f32."""
_F32 = np.dtype(np.float32)
_HALVES = frozenset({DType.F16, DType.BF16})


def _strips(m: int, k: int, n: int) -> tuple[int, int]:
    """(rows of a, columns of b) that one step takes; the inner axis stays whole, so that sums are rounded once."""
    most = max(STRIP // max(k, 1), 1)
    rows = min(m, most)
    return rows, min(n, most, max(STRIP // max(rows, 1), 1))


def product_scratch(m: int, k: int, n: int, *storages: DType) -> int:
    """What ``product`` takes: nothing where no operand is stored as a half."""
    if _HALVES.isdisjoint(storages):
        return 0
    rows, columns = _strips(m, k, n)
    return scratch_for((rows * k, _F32), (k * columns, _F32), (rows * columns, _F32))


def product(a: Array, b: Array, c: Array, scratch: Scratch, m: int, k: int, n: int) -> None:
    """c = a b for matrices, straight into ``c`` where none is a half. ``m``, ``k``, ``n``: the sizes that the scratch was
    declared for; ``a`` may have fewer rows in an active run."""
    if not (is_half(a.dtype) or is_half(b.dtype) or is_half(c.dtype)):
        np.matmul(a, b, out=c)
        return
    rows, columns = _strips(m, k, n)
    left, right, made = (scratch.take(count, _F32) for count in (rows * k, k * columns, rows * columns))
    for j in range(0, b.shape[1], columns):
        part = b[:, j : j + columns]
        wide_b = right[: part.size].reshape(part.shape)
        np.copyto(wide_b, part)
        for i in range(0, a.shape[0], rows):
            some = a[i : i + rows]
            wide_a = left[: some.size].reshape(some.shape)
            np.copyto(wide_a, some)
            to = c[i : i + rows, j : j + columns]
            out = made[: to.size].reshape(to.shape)
            np.matmul(wide_a, wide_b, out=out)
            np.copyto(to, out, casting="same_kind")
