"""Owns thunks that move elements: copies, slices, concatenation, permutes, padding, gathers and scatters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from planner_core.ir import Array
from runtime.command_list.operand import In, InOut, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import buffers, is_half, store, wide_scratch, widened
from runtime.errors import RunError

_I64 = np.dtype(np.int64)


@thunk(name="Copy", label="copy", partial_extent="scales", where="gpu")
class Copy(Thunk):
    """dst = src."""

    src: In
    dst: Out
    len: int

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        np.copyto(dst, src)


@thunk(name="Narrow", label="narrow", partial_extent="scales", where="gpu")
class Narrow(Thunk):
    """dst[outer, len] = src[outer, start : start + len]."""

    src: In
    dst: Out
    outer: int
    src_axis: int
    start: int
    len: int

    @property
    def bytes_read(self) -> int:
        return self.dst.nbytes

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        np.copyto(dst, src[:, self.start : self.start + self.len])


@thunk(name="SliceSteps", label="slice_steps", partial_extent="no", where="host", extension=True, proven=True)
class SliceSteps(Thunk):
    """dst = src[start:stop:step] on every axis; stop -1 with a negative step = past the first element."""

    src: In
    dst: Out
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def bytes_read(self) -> int:
        return self.dst.nbytes

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        cut = tuple(slice(a, None if b < 0 else b, s)
                    for a, b, s in zip(self.starts, self.stops, self.steps, strict=True))
        np.copyto(dst, src[cut])


@thunk(name="Concat", label="concat", partial_extent="scales", where="gpu")
class Concat(Thunk):
    """dst[outer, dst_axis, inner] = the inputs one after another on the middle axis."""

    dst: Out
    outer: int
    dst_axis: int
    inner: int
    inputs: tuple[In, ...]

    def run(self, dst: Array, inputs: tuple[Array, ...], scratch: Scratch) -> None:
        at = 0
        for x in inputs:
            np.copyto(dst[:, at : at + x.shape[1]], x)
            at += x.shape[1]


@thunk(name="Transpose", label="transpose", partial_extent="conditional", where="gpu")
class Transpose(Thunk):
    """dst[i] = src[Σ i_k in_strides_k]: permute or broadcast, strides in elements (0 = broadcast)."""

    src: In
    dst: Out
    total: int
    out_dims: tuple[int, ...]
    in_strides: tuple[int, ...]

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        step = src.dtype.itemsize
        np.copyto(dst, as_strided(src, self.out_dims, tuple(s * step for s in self.in_strides), writeable=False))


@thunk(name="Reverse", label="reverse", partial_extent="full_ok", where="host")
class Reverse(Thunk):
    """dst = src with the axes in ``rev_mask`` back to front."""

    src: In
    dst: Out
    dims: tuple[int, ...]
    rev_mask: tuple[bool, ...]
    elem_bytes: int

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        np.copyto(dst, src[tuple(slice(None, None, -1 if r else 1) for r in self.rev_mask)])


@thunk(name="Pad", label="pad", partial_extent="no", where="host", extension=True)
class Pad(Thunk):
    """dst = src with ``before``/``after`` elements added (removed where negative). mode: constant, edge, reflect."""

    src: In
    dst: Out
    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str
    value: float

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        into, cut = [], []
        for b, a, n, total in zip(self.before, self.after, src.shape, dst.shape, strict=True):
            into.append(slice(max(b, 0), total - max(a, 0)))
            cut.append(slice(max(-b, 0), n - max(-a, 0)))
        if self.mode == "constant":
            dst[...] = self.value
        dst[tuple(into)] = src[tuple(cut)]
        if self.mode == "constant":
            return
        for axis, (s, total) in enumerate(zip(into, dst.shape, strict=True)):
            self._extend(dst, axis, s.start, s.stop, total, tuple(into[axis + 1 :]))

    def _extend(self, dst: Array, axis: int, lo: int, hi: int, total: int, rest: tuple[slice, ...]) -> None:
        """Fill one axis outside [lo, hi) from inside it; earlier axes are complete, later ones not yet."""
        lead = (slice(None),) * axis
        n = hi - lo
        period = max(2 * (n - 1), 1)
        for i in (*range(lo - 1, -1, -1), *range(hi, total)):
            if self.mode == "edge":
                j = lo if i < lo else hi - 1
            else:
                k = (i - lo) % period
                j = lo + (k if k < n else period - k)
            into: tuple[Any, ...] = (*lead, slice(i, i + 1), *rest)  # slices: of one axis an index is no array
            source: tuple[Any, ...] = (*lead, slice(j, j + 1), *rest)
            np.copyto(dst[into], dst[source])


@thunk(name="KvAppendRows", label="kv_append", partial_extent="no", where="host", extension=True)
class KvAppendRows(Thunk):
    """cache[outer, start + i, inner] = rows[outer, i, inner]; start from ``position`` where there is one."""

    cache: InOut
    rows: In
    position: In | None
    start: int

    def run(self, cache: Array, rows: Array, position: Array | None, scratch: Scratch) -> None:
        start = self.start if position is None else int(position.reshape(-1)[0])
        if not 0 <= start <= cache.shape[1] - rows.shape[1]:
            raise RunError(f"append of {rows.shape[1]} rows at {start} leaves a cache of {cache.shape[1]} rows")
        np.copyto(cache[:, start : start + rows.shape[1]], rows)


# --- by index -----------------------------------------------------------------------------------------


def _check_range(idx: Array, extent: int) -> None:
    if idx.size and not (-extent <= idx.min() and idx.max() < extent):
        bad = idx.reshape(-1)[np.flatnonzero((idx.reshape(-1) < -extent) | (idx.reshape(-1) >= extent))[0]]
        raise RunError(f"index {bad} is outside [-{extent}, {extent})")


def _take(table: Array, idx: Array, dst: Array, scratch: Scratch) -> None:
    _check_range(idx, table.shape[1])
    if idx.dtype != np.intp:
        wide = scratch.take(idx.shape, np.intp)
        np.copyto(wide, idx, casting="unsafe")
        idx = wide
    if table.dtype == dst.dtype:
        np.take(table, idx, axis=1, out=dst, mode="wrap")
        return
    out = dst.reshape(dst.shape[0], -1, *dst.shape[1 + idx.ndim :])
    for outer, rows in zip(table, out, strict=True):
        _take_rows(outer, idx.reshape(-1), rows)


def _take_rows(rows: Array, at: Array, dst: Array) -> None:
    """dst[i] = rows[at[i]]; widths may differ, which np.take's ``out`` does not convert."""
    if rows.dtype == dst.dtype:
        np.take(rows, at, axis=0, out=dst, mode="wrap")
        return
    for i, k in enumerate(at.tolist()):
        np.copyto(dst[i : i + 1], rows[k : k + 1] if k != -1 else rows[-1:], casting="unsafe")


@thunk(name="Gather", label="gather", partial_extent="scales", where="gpu")
class Gather(Thunk):
    """dst[i, trailing] = table[idx[i], trailing]."""

    table: In
    idx: In
    dst: Out
    num_idx: int
    trailing: int

    @property
    def bytes_read(self) -> int:
        return self.dst.nbytes + self.idx.nbytes  # the rows picked, not the table

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.num_idx, _I64))

    def run(self, table: Array, idx: Array, dst: Array, scratch: Scratch) -> None:
        _take(table[None], idx, dst[None], scratch)


@thunk(name="GatherAxis", label="gather_axis", partial_extent="scales", where="gpu")
class GatherAxis(Thunk):
    """dst[outer, i, trailing] = table[outer, idx[i], trailing]."""

    table: In
    idx: In
    dst: Out
    outer: int
    axis_dim: int
    num_idx: int
    trailing: int

    @property
    def bytes_read(self) -> int:
        return self.dst.nbytes + self.idx.nbytes  # the rows picked, not the table

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.num_idx, _I64))

    def run(self, table: Array, idx: Array, dst: Array, scratch: Scratch) -> None:
        _take(table, idx, dst, scratch)


def add_rows(updates: Array, at: list[int], dst: Array, scratch: Scratch) -> None:
    """dst[outer, rows, trailing] = 0, then dst[:, at[i]] += updates[:, i]. Halves: a row's updates one after another, in an
    f32 row that is rounded once."""
    dst[...] = 0
    if not is_half(dst.dtype):
        for i, row in enumerate(at):
            np.add(dst[:, row], updates[:, i], out=dst[:, row])
        return
    total = scratch.take((dst.shape[0], *dst.shape[2:]))
    mine: dict[int, list[int]] = {}
    for i, row in enumerate(at):
        mine.setdefault(row % dst.shape[1], []).append(i)
    for row, places in mine.items():
        total[...] = 0
        for i in places:
            np.add(total, updates[:, i], out=total)
        store(dst[:, row], total)


@thunk(name="ScatterAdd", label="scatter_add", partial_extent="scales", where="gpu")
class ScatterAdd(Thunk):
    """dst[out_dim, trailing] = 0, then dst[idx[i]] += updates[i]."""

    updates: In
    indices: In
    dst: Out
    num_updates: int
    out_dim: int
    trailing: int

    @property
    def scratch_bytes(self) -> int:
        return wide_scratch(self.dst.storage.numpy, self.trailing)

    def run(self, updates: Array, indices: Array, dst: Array, scratch: Scratch) -> None:
        _check_range(indices, self.out_dim)
        add_rows(updates[None], [int(i) for i in indices.tolist()], dst[None], scratch)


@thunk(name="CpuIndexing", label="cpu_indexing", partial_extent="no", where="host")
class CpuIndexing(Thunk):
    """``thunk``: gather_nd, gather_elements, scatter_nd or scatter_elements; element addresses in scratch."""

    thunk: str
    data: In
    indices: In
    updates: In | None
    dst: Out
    axis: int = 0
    reduction: str = "none"

    @property
    def _addresses(self) -> int:
        count = self.indices.numel
        return count // max(self.indices.shape[-1], 1) if self.thunk.endswith("_nd") else count

    @property
    def scratch_bytes(self) -> int:
        own = scratch_for(*[(self._addresses, _I64)] * (2 if self.thunk.endswith("_nd") else 1))
        return own + (wide_scratch(self.dst.storage.numpy, self.dst.numel) if self._sums else 0)

    @property
    def _sums(self) -> bool:
        return self.updates is not None and self.reduction in ("add", "mul")

    def run(self, data: Array, indices: Array, updates: Array | None, dst: Array, scratch: Scratch) -> None:
        if self.thunk.endswith("_nd"):
            depth, lead = indices.shape[-1], self._nd(indices, data.shape, scratch)
            tail = math.prod(data.shape[depth:])
            flat = data.reshape(-1, tail)
            if updates is None:
                _take_rows(flat, lead, dst.reshape(-1, tail))
            else:
                np.copyto(dst, data)
                dst.reshape(-1, tail)[lead] = updates.reshape(-1, tail)
            return
        at = self._elements(indices, data.shape, scratch)
        if updates is None:
            _take_rows(data.reshape(-1), at, dst.reshape(-1))
            return
        np.copyto(dst, data)
        if self.reduction == "none":
            dst.reshape(-1)[at] = updates.reshape(-1)
        else:
            ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[self.reduction]
            (wide,) = buffers(scratch, dst.dtype, dst.size) if self._sums else (None,)
            into: Array = dst.reshape(-1)
            ufunc.at(into if wide is None else widened(into, wide), at, updates.reshape(-1))
            if wide is not None:
                store(into, wide)

    def _nd(self, indices: Array, dims: tuple[int, ...], scratch: Scratch) -> Array:
        flat = indices.reshape(-1, indices.shape[-1])
        at, one = scratch.take(flat.shape[0], _I64), scratch.take(flat.shape[0], _I64)
        at[...] = 0
        for k in range(flat.shape[1]):
            _check_range(flat[:, k], dims[k])
            np.copyto(one, flat[:, k], casting="unsafe")
            np.mod(one, dims[k], out=one)
            at *= dims[k]
            at += one
        return at

    def _elements(self, indices: Array, dims: tuple[int, ...], scratch: Scratch) -> Array:
        _check_range(indices, dims[self.axis])
        at = scratch.take(indices.shape, _I64)
        np.copyto(at, indices, casting="unsafe")
        np.mod(at, dims[self.axis], out=at)
        at *= math.prod(dims[self.axis + 1 :])
        for k, n in enumerate(indices.shape):
            if k != self.axis:
                along = np.arange(n) * math.prod(dims[k + 1 :])
                at += along.reshape((-1,) + (1,) * (indices.ndim - k - 1))
        return at.reshape(-1)
