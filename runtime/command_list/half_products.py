"""Owns products with half operands, of any mixture of widths: widened to f32 strip by strip, in declared scratch, and rounded
once. NumPy's own half product takes two hundred times as long as BLAS's, and sums in halves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.widths import is_half, store, to_f32

__all__ = ["Finish", "product", "product_scratch", "strip_size"]

STRIP = 1 << 18
"""Elements of an operand that are widened at a time: 1 MiB of f32."""
_F32 = np.dtype(np.float32)

Finish = Callable[[Array, slice], None]
"""``finish(part, columns)``: what is done to some columns of the product, in f32 and row-major, before they are rounded."""


def _strips(m: int, k: int, n: int) -> tuple[int, int]:
    """(rows of a, columns of b) that one step takes; the inner axis stays whole, so that sums are rounded once."""
    most = max(STRIP // max(k, 1), 1)
    rows = min(m, most)
    return rows, min(n, most, max(STRIP // max(rows, 1), 1))


def strip_size(m: int, k: int, n: int) -> int:
    """Elements of the result that ``finish`` gets at most."""
    rows, columns = _strips(m, k, n)
    return rows * columns


def _pieces(m: int, k: int, n: int, *halves: bool) -> list[int]:
    """Elements of the strips of a, of b and of the result: none of an operand that is f32 already."""
    rows, columns = _strips(m, k, n)
    a, b, _ = halves
    return [rows * k if a else 0, k * columns if b else 0, rows * columns]


def product_scratch(m: int, k: int, n: int, a: DType, b: DType, c: DType) -> int:
    """What ``product`` takes: nothing where no operand is stored as a half."""
    halves = [is_half(d.numpy) for d in (a, b, c)]
    return scratch_for(*((count, _F32) for count in _pieces(m, k, n, *halves))) if any(halves) else 0


def _wide(part: Array, into: Array) -> Array:
    """The part in f32, its axes in memory as they are."""
    if not is_half(part.dtype):
        return part
    turned = part.strides[0] < part.strides[1]
    x = part.T if turned else part
    to = into[: x.size].reshape(x.shape)
    to_f32(x, to)
    return to.T if turned else to


def product(a: Array, b: Array, c: Array, scratch: Scratch, m: int, k: int, n: int, finish: Finish | None = None) -> None:
    """c = a b for matrices, straight into ``c`` where none is a half. ``m``, ``k``, ``n``: the sizes that the scratch was
    declared for; ``a`` may have fewer rows in an active run."""
    halves = [is_half(x.dtype) for x in (a, b, c)]
    if not any(halves):
        np.matmul(a, b, out=c)
        if finish is not None:
            finish(c, slice(None))
        return
    rows, columns = _strips(m, k, n)
    left, right, made = (scratch.take(count, _F32) for count in _pieces(m, k, n, *halves))
    for j in range(0, b.shape[1], max(columns, 1)):
        wide_b = _wide(b[:, j : j + columns], right)
        for i in range(0, a.shape[0], max(rows, 1)):
            wide_a = _wide(a[i : i + rows], left)
            to = c[i : i + rows, j : j + columns]
            out = made[: to.size].reshape(to.shape)
            np.matmul(wide_a, wide_b, out=out)
            if finish is not None:
                finish(out, slice(j, j + columns))
            store(to, out)
