"""Owns row helpers: arrays seen as row-major ``[rows, inner]``, padded to a bucket's extent and cut back.

Any shape and dtype; ``inner`` elements a row. Results share the input's bytes where they can.
"""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array

__all__ = ["pad_rows", "pad_rows_into", "row_count", "slice_rows"]


def row_count(data: Array, inner: int) -> int:
    """Rows of ``inner`` elements in ``data``; ``ValueError`` where they don't come out even."""
    if inner < 1:
        raise ValueError(f"inner is {inner}: a row needs at least 1 element")
    size = np.size(data)
    if size % inner:
        raise ValueError(f"{size} elements are no multiple of inner {inner}: {size // inner} rows and {size % inner} left over")
    return size // inner


def pad_rows(data: Array, inner: int, upper: int) -> Array:
    """``[upper * inner]`` elements: the rows of ``data``, then zeros. Already full: a flat view, no copy.

    ``ValueError`` for ``inner`` 0, a length that is no multiple of it, or more than ``upper`` rows.
    """
    flat = np.asarray(data)
    rows = row_count(flat, inner)
    if rows > upper:
        raise ValueError(f"{rows} rows of {inner} don't fit the bucket's {upper}")
    if rows == upper:
        return flat.reshape(-1)
    out = np.zeros(upper * inner, dtype=flat.dtype)
    out[: flat.size] = flat.reshape(-1)
    return out


def pad_rows_into(out: Array, data: Array, inner: int) -> int:
    """Write the rows of ``data`` to the front of ``out`` and zeros behind them; how many rows were written.

    ``ValueError`` as for ``pad_rows``, for other dtypes, or an ``out`` that is not C-contiguous (nothing would arrive).
    """
    flat = np.asarray(data)
    rows, room = row_count(flat, inner), row_count(out, inner)
    if rows > room:
        raise ValueError(f"{rows} rows of {inner} don't fit the {room} of the buffer")
    if out.dtype != flat.dtype:
        raise ValueError(f"rows are {flat.dtype}, the buffer is {out.dtype}")
    if not out.flags.c_contiguous:
        raise ValueError(f"the buffer's {out.size} elements are not contiguous")
    target = out.reshape(-1)
    target[: flat.size] = flat.reshape(-1)
    target[flat.size :] = 0
    return rows


def slice_rows(data: Array, inner: int, actual: int) -> Array:
    """The first ``actual`` rows, flat: a view. ``ValueError`` as for ``pad_rows``, or for more rows than there are."""
    flat = np.asarray(data)
    rows = row_count(flat, inner)
    if not 0 <= actual <= rows:
        raise ValueError(f"{actual} rows of {inner} asked for, there are {rows}")
    return flat.reshape(-1)[: actual * inner]
