"""Owns what picks elements of a row: the index of its largest, its k largest in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import piece_of


@thunk(name="ArgReduce", label="argreduce", partial_extent="full_ok", where="host")
class ArgReduce(Thunk):
    """dst[outer, inner] = index of the first max or min along the middle axis."""

    src: In
    dst: Out
    outer: int
    reduced: int
    inner: int
    is_max: bool

    @property
    def scratch_bytes(self) -> int:
        rows, columns = self._piece
        turned = (rows * columns * self.reduced, self.src.storage.numpy) if self.inner > 1 else (0, self.src.storage.numpy)
        return scratch_for((rows * columns, np.dtype(np.intp)), turned)

    @property
    def _piece(self) -> tuple[int, int]:
        return piece_of(self.outer, self.reduced, self.inner)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        rows, columns = self._piece
        if not rows or not columns:
            return
        search = np.argmax if self.is_max else np.argmin
        found = scratch.take((rows, columns), np.intp)
        turned = scratch.take((rows, columns, self.reduced), src.dtype) if self.inner > 1 else None
        for a in range(0, self.outer, rows):
            for b in range(0, self.inner, columns):
                cut, to = src[a : a + rows, :, b : b + columns].swapaxes(1, 2), dst[a : a + rows, b : b + columns]
                if turned is not None:  # NumPy would copy all of an axis that isn't last; here a piece, in scratch
                    np.copyto(turned[: cut.shape[0], : cut.shape[1]], cut)
                    cut = turned[: cut.shape[0], : cut.shape[1]]
                at = found[: to.shape[0], : to.shape[1]]
                search(cut, axis=2, out=at)
                np.copyto(to, at, casting="unsafe")


_PAIR = np.dtype(np.complex128)
_IOTA = 4096


def pair_dtype(storage: np.dtype[Any]) -> np.dtype[Any]:
    """What holds (value, place) exactly: a complex number, which NumPy sorts in place by one, then the other."""
    return np.dtype(np.clongdouble) if storage.kind in "iu" and storage.itemsize == 8 else _PAIR


def fill_places(pairs: Array, sign: int) -> None:
    """pairs.imag = 0, ±1, ±2, …"""
    for i in range(0, len(pairs), _IOTA):
        some = pairs.imag[i : i + _IOTA]
        np.multiply(np.arange(i, i + len(some)), sign, out=some)


def sort_first(pairs: Array, count: int) -> Array:
    """The ``count`` least pairs in order, in place."""
    if count < len(pairs):
        pairs.partition(count)
    first = pairs[:count]
    first.sort()
    return first


@thunk(name="TopK", label="topk", partial_extent="scales", where="gpu")
class TopK(Thunk):
    """Indices (or ``values``) of the k largest or smallest of each row, in order, first ones first. NaN is largest."""

    src: In
    dst: Out
    outer: int
    axis_dim: int
    k: int
    largest: bool = True
    values: bool = False

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.axis_dim, pair_dtype(self.src.storage.numpy)))

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        pairs = scratch.take(self.axis_dim, pair_dtype(src.dtype))
        for row, out in zip(src, dst, strict=True):
            np.copyto(pairs.real, row)
            fill_places(pairs, -1 if self.largest else 1)
            if self.largest:  # from the far end of the order: of equals the first has the largest negated place
                if self.k < self.axis_dim:
                    pairs.partition(self.axis_dim - self.k - 1)
                best = pairs[self.axis_dim - self.k :]
                best.sort()
                best = best[::-1]
            else:
                best = sort_first(pairs, self.k)
            if self.values:
                np.copyto(out, best.real, casting="unsafe")
            else:
                np.abs(best.imag, out=out, casting="unsafe")
