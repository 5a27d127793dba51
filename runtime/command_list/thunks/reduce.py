"""Owns reductions, scans along an axis, softmax and norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.formulas import PIECE
from runtime.command_list.operand import In, InOut, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk

REDUCERS: dict[str, Any] = {
    "sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}


def _reduce(kind: str, src: Array, axis: int | tuple[int, ...], dst: Array, count: int) -> None:
    REDUCERS[kind].reduce(src, axis=axis, out=dst, dtype=dst.dtype)
    if kind == "mean":
        np.divide(dst, count, out=dst)


@thunk(name="Reduce", label="reduce", partial_extent="scales", where="gpu")
class Reduce(Thunk):
    """dst[outer, inner] = op over the middle axis of src[outer, reduced, inner]."""

    src: In
    dst: Out
    outer: int
    reduced: int
    inner: int
    op: str

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        _reduce(self.op, src, 1, dst, self.reduced)


@thunk(name="ReduceAxes", label="reduce_axes", partial_extent="no", where="host", extension=True)
class ReduceAxes(Thunk):
    """dst = op over ``axes`` of src, which need not be neighbours."""

    src: In
    dst: Out
    axes: tuple[int, ...]
    op: str

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        _reduce(self.op, src, self.axes, dst, math.prod(src.shape[a] for a in self.axes))


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
        """Outer rows and inner columns that one step takes."""
        columns = min(self.inner, max(PIECE // max(self.reduced, 1), 1))
        return min(self.outer, max(PIECE // max(columns * self.reduced, 1), 1) if columns == self.inner else 1), columns

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


@thunk(name="TopK", label="topk", partial_extent="scales", where="gpu")
class TopK(Thunk):
    """Indices (or ``values``) of the k largest or smallest of each row, in order, first ones first."""

    src: In
    dst: Out
    outer: int
    axis_dim: int
    k: int
    largest: bool = True
    values: bool = False

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.axis_dim, self.src.storage.numpy))

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        key = scratch.take(self.axis_dim, src.dtype)
        for row, out in zip(src, dst, strict=True):
            if self.largest:  # a stable sort of the mirrored row keeps the first of equals first
                np.copyto(key, row[::-1])
                order = self.axis_dim - 1 - np.argsort(key, kind="stable")[::-1][: self.k]
            else:
                order = np.argsort(row, kind="stable")[: self.k]
            out[...] = row[order] if self.values else order


@thunk(name="Cumsum", label="cumsum", partial_extent="scales", where="gpu")
class Cumsum(Thunk):
    """Running sum of each row; exclusive leaves the element itself out."""

    src: In
    dst: Out
    rows: int
    cols: int
    exclusive: bool

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        if not self.exclusive:
            np.cumsum(src, axis=1, out=dst, dtype=dst.dtype)
        elif self.cols:
            dst[:, 0] = 0
            np.cumsum(src[:, :-1], axis=1, out=dst[:, 1:], dtype=dst.dtype)


def _softmax(src: Array, dst: Array, axis: int, scratch: Scratch) -> None:
    dims = list(src.shape)
    dims[axis] = 1
    stat = scratch.take(dims, src.dtype)
    np.maximum.reduce(src, axis=axis, keepdims=True, out=stat)
    np.subtract(src, stat, out=dst)
    np.exp(dst, out=dst)
    np.add.reduce(dst, axis=axis, keepdims=True, out=stat)
    np.divide(dst, stat, out=dst)


@thunk(name="Softmax", label="softmax", partial_extent="scales", where="gpu")
class Softmax(Thunk):
    """Each row of data[rows, cols] becomes exp(x - max) / sum, in place."""

    data: InOut
    rows: int
    cols: int

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.rows, self.data.storage.numpy))

    def run(self, data: Array, scratch: Scratch) -> None:
        _softmax(data, data, 1, scratch)


@thunk(name="SoftmaxOut", label="softmax_out", partial_extent="no", where="host", extension=True)
class SoftmaxOut(Thunk):
    """dst = softmax of src[outer, axis_dim, inner] along the middle axis."""

    src: In
    dst: Out
    outer: int
    axis_dim: int
    inner: int

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.outer * self.inner, self.src.storage.numpy))

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        _softmax(src, dst, 1, scratch)


# --- norms --------------------------------------------------------------------------------------------


def row_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What a row's sums are kept in: f32 for halves, whose squares would overflow."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def row_dots(a: Array, b: Array, out: Array) -> None:
    """out[i] = Σ a[i] b[i], one dot product a row; halves are widened piece by piece."""
    if a.dtype == out.dtype:
        np.matmul(a[:, None, :], b[:, :, None], out=out[:, None, None])
    else:
        np.einsum("ij,ij->i", a, b, out=out, dtype=out.dtype, casting="unsafe")


def normalize(src: Array, dst: Array, stat: Array, eps: float, centre: bool) -> None:
    """dst = x / sqrt(mean(x²) + eps) by row, x = src less its mean where centred; ``stat``, of ``row_dtype``, keeps the
    divisors. dst may be src."""
    h = src.shape[1]
    if centre:
        np.add.reduce(src, axis=1, out=stat, dtype=stat.dtype)
        stat /= h
        np.subtract(src, stat[:, None], out=dst, casting="same_kind")
        src = dst
    row_dots(src, src, stat)
    stat /= h
    stat += eps
    np.sqrt(stat, out=stat)
    np.divide(src, stat[:, None], out=dst, casting="same_kind")


@thunk(name="LayerNorm", label="layer_norm", partial_extent="scales", where="gpu")
class LayerNorm(Thunk):
    """dst = (x - mean) / sqrt(var + eps) * g + b over the last axis."""

    src: In
    g: In
    b: In
    dst: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.rows, row_dtype(self.src.storage.numpy)))

    def run(self, src: Array, g: Array, b: Array, dst: Array, scratch: Scratch) -> None:
        normalize(src, dst, scratch.take(self.rows, row_dtype(src.dtype)), self.eps, True)
        np.multiply(dst, g, out=dst)
        np.add(dst, b, out=dst)


@thunk(name="RmsNorm", label="rms_norm", partial_extent="scales", where="gpu")
class RmsNorm(Thunk):
    """dst = x / sqrt(mean(x²) + eps) * g (+ b) over the last axis."""

    src: In
    g: In
    b: In | None
    dst: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.rows, row_dtype(self.src.storage.numpy)))

    def run(self, src: Array, g: Array, b: Array | None, dst: Array, scratch: Scratch) -> None:
        normalize(src, dst, scratch.take(self.rows, row_dtype(src.dtype)), self.eps, False)
        np.multiply(dst, g, out=dst)
        if b is not None:
            np.add(dst, b, out=dst)


@thunk(name="LayerNorm2d", label="layer_norm2d", partial_extent="no", where="gpu")
class LayerNorm2d(Thunk):
    """LayerNorm over C at each pixel of NCHW, a block of pixels at a time."""

    src: In
    g: In
    b: In
    dst: Out
    n: int
    c: int
    h: int
    w: int
    eps: float

    @property
    def _block(self) -> int:
        return max(1, min(self.h * self.w, PIECE // max(self.c, 1)))

    @property
    def scratch_bytes(self) -> int:
        dtype = self.src.storage.numpy
        return scratch_for((self._block, dtype), (self.c * self._block, dtype))

    def run(self, src: Array, g: Array, b: Array, dst: Array, scratch: Scratch) -> None:
        block = self._block
        stats, squares = scratch.take(block, src.dtype), scratch.take(self.c * block, src.dtype)
        for image, out in zip(src, dst, strict=True):
            for i in range(0, self.h * self.w, block):
                x, y = image[:, i : i + block], out[:, i : i + block]
                stat = stats[: x.shape[1]]
                sq = squares[: x.size].reshape(x.shape)
                np.add.reduce(x, axis=0, out=stat)
                stat /= self.c
                np.subtract(x, stat, out=y)
                np.multiply(y, y, out=sq)
                np.add.reduce(sq, axis=0, out=stat)
                stat /= self.c
                stat += self.eps
                np.sqrt(stat, out=stat)
                np.divide(y, stat, out=y)
                np.multiply(y, g[:, None], out=y)
                np.add(y, b[:, None], out=y)


@thunk(name="BatchNormInference", label="batch_norm", partial_extent="no", where="host", extension=True)
class BatchNormInference(Thunk):
    """dst = x * scale + (beta - mean * scale) with scale = gamma / sqrt(var + eps), on src[n, c, inner]."""

    src: In
    gamma: In
    beta: In
    mean: In
    var: In
    dst: Out
    n: int
    c: int
    inner: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        dtype = self.src.storage.numpy
        return scratch_for((self.c, dtype), (self.c, dtype))

    def run(self, src: Array, gamma: Array, beta: Array, mean: Array, var: Array, dst: Array,
            scratch: Scratch) -> None:
        scale, shift = scratch.take(self.c, src.dtype), scratch.take(self.c, src.dtype)
        np.add(var, self.eps, out=scale)
        np.sqrt(scale, out=scale)
        np.divide(gamma, scale, out=scale)
        np.multiply(mean, scale, out=shift)
        np.subtract(beta, shift, out=shift)
        for image, out in zip(src, dst, strict=True):
            for c in range(0, self.c, max(1, PIECE // max(self.inner, 1))):
                part = slice(c, c + max(1, PIECE // max(self.inner, 1)))
                np.multiply(image[part], scale[part, None], out=out[part])
                np.add(out[part], shift[part, None], out=out[part])
