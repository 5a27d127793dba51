"""Owns reductions, scans along an axis, softmax and norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from planner_core.ir import Array
from planner_core.ir.ops.reduce import identity
from runtime.command_list.operand import In, InOut, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import PIECE, buffers, is_half, piece_of, store, wide_dtype, wide_scratch, widened

REDUCERS: dict[str, Any] = {
    "sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}


_SUMS = frozenset({"sum", "mean", "prod"})
_F32 = np.dtype(np.float32)


def _reduce(kind: str, src: Array, axis: int | tuple[int, ...], dst: Array, count: int) -> None:
    if not count and kind in ("max", "min"):  # of nothing: the identity, as in ONNX
        dst[...] = identity(kind, dst.dtype)
        return
    REDUCERS[kind].reduce(src, axis=axis, out=dst, dtype=dst.dtype)
    if kind == "mean":
        np.divide(dst, count, out=dst, casting="same_kind" if dst.dtype.kind not in "iu" else "unsafe")


@thunk(name="Reduce", label="reduce", partial_extent="scales", where="gpu")
class Reduce(Thunk):
    """dst[outer, inner] = op over the middle axis of src[outer, reduced, inner]; halves are summed in f32, a piece of dst
    at a time."""

    src: In
    dst: Out
    outer: int
    reduced: int
    inner: int
    op: str

    @property
    def scratch_bytes(self) -> int:
        return wide_scratch(self.dst.storage.numpy, math.prod(piece_of(self.outer, 1, self.inner))) if self.op in _SUMS else 0

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        if self.op not in _SUMS or not is_half(dst.dtype):
            _reduce(self.op, src, 1, dst, self.reduced)
            return
        rows, columns = piece_of(self.outer, 1, self.inner)
        total = scratch.take((rows, columns), _F32)
        for a in range(0, self.outer, rows):
            for b in range(0, self.inner, columns):
                to = dst[a : a + rows, b : b + columns]
                part = total[: to.shape[0], : to.shape[1]]
                _reduce(self.op, src[a : a + rows, :, b : b + columns], 1, part, self.reduced)
                store(to, part)


@thunk(name="ReduceAxes", label="reduce_axes", partial_extent="no", where="host", extension=True, proven=True)
class ReduceAxes(Thunk):
    """dst = op over ``axes`` of src, which need not be neighbours; halves are summed in f32, some of the first axis at a
    time where it stays."""

    src: In
    dst: Out
    axes: tuple[int, ...]
    op: str

    @property
    def _rows(self) -> int:
        """Of dst's first axis, how many at a time; 0: it is all one piece."""
        if 0 in self.axes or not self.dst.shape:
            return 0
        count = self.dst.shape[0]
        return max(1, min(count, PIECE * count // max(self.dst.numel, 1)))

    @property
    def scratch_bytes(self) -> int:
        if self.op not in _SUMS:
            return 0
        whole = self.dst.numel
        return wide_scratch(self.dst.storage.numpy, whole * self._rows // max(self.dst.shape[0], 1) if self._rows else whole)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        count = math.prod(src.shape[a] for a in self.axes)
        if self.op not in _SUMS or not is_half(dst.dtype):
            _reduce(self.op, src, self.axes, dst, count)
            return
        rows = self._rows
        if not rows:
            total = scratch.take(dst.shape, _F32)
            _reduce(self.op, src, self.axes, total, count)
            store(dst, total)
            return
        total = scratch.take((rows, *dst.shape[1:]), _F32)
        for r in range(0, dst.shape[0], rows):
            to = dst[r : r + rows]
            _reduce(self.op, src[r : r + rows], self.axes, total[: len(to)], count)
            store(to, total[: len(to)])


def running_scratch(rows: int, cols: int, dtype: np.dtype[Any]) -> int:
    """What ``running_sum`` takes: halves' pieces, before and after."""
    count = math.prod(_running_piece(rows, cols))
    return wide_scratch(dtype, count, count)


def _running_piece(rows: int, cols: int) -> tuple[int, int]:
    columns = min(cols, PIECE)
    return max(1, min(rows, PIECE // max(columns, 1))), columns


def running_sum(src: Array, dst: Array, exclusive: bool, scratch: Scratch) -> None:
    """dst = the running sums of src's rows; exclusive leaves the element itself out. Halves: in f32, piece by piece, the
    sum so far carried on."""
    rows, cols = src.shape
    if exclusive and cols:
        dst[:, 0] = 0
        src, dst = src[:, :-1], dst[:, 1:]
    if not is_half(dst.dtype):
        np.cumsum(src, axis=1, out=dst, dtype=dst.dtype)
        return
    some, columns = _running_piece(rows, cols)
    before, after = scratch.take((some, columns), _F32), scratch.take((some, columns), _F32)
    for r in range(0, rows, some):
        n = min(some, rows - r)
        for c in range(0, src.shape[1], columns):
            m = min(columns, src.shape[1] - c)
            x, y = before[:n, :m], after[:n, :m]
            np.copyto(x, src[r : r + n, c : c + m])
            if c:  # pieces before this one are full
                np.add(x[:, 0], after[:n, columns - 1], out=x[:, 0])
            np.cumsum(x, axis=1, out=y)
            store(dst[r : r + n, c : c + m], y)


@thunk(name="Cumsum", label="cumsum", partial_extent="scales", where="gpu")
class Cumsum(Thunk):
    """Running sum of each row; exclusive leaves the element itself out."""

    src: In
    dst: Out
    rows: int
    cols: int
    exclusive: bool

    @property
    def scratch_bytes(self) -> int:
        return running_scratch(self.rows, self.cols, self.dst.storage.numpy)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        running_sum(src, dst, self.exclusive, scratch)


def _softmax_scratch(outer: int, middle: int, inner: int, dtype: np.dtype[Any]) -> int:
    if not is_half(dtype):
        return scratch_for((outer * inner, dtype))
    count = math.prod(piece_of(outer, middle, inner))
    return wide_scratch(dtype, count * middle, count)


def _softmax(src: Array, dst: Array, scratch: Scratch) -> None:
    """Along the middle of three axes; halves in f32, a piece at a time. dst may be src."""
    outer, middle, inner = src.shape
    if not is_half(src.dtype):
        _softmax_of(src, dst, scratch.take((outer, 1, inner), src.dtype))
        return
    rows, columns = piece_of(outer, middle, inner)
    wide, stat = scratch.take((rows, middle, columns), _F32), scratch.take((rows, 1, columns), _F32)
    for a in range(0, outer, rows):
        for b in range(0, inner, columns):
            cut, to = src[a : a + rows, :, b : b + columns], dst[a : a + rows, :, b : b + columns]
            x = wide[: cut.shape[0], :, : cut.shape[2]]
            np.copyto(x, cut)
            _softmax_of(x, x, stat[: cut.shape[0], :, : cut.shape[2]])
            store(to, x)


def _softmax_of(src: Array, dst: Array, stat: Array) -> None:
    np.maximum.reduce(src, axis=1, keepdims=True, out=stat)
    np.subtract(src, stat, out=dst)
    np.exp(dst, out=dst)
    np.add.reduce(dst, axis=1, keepdims=True, out=stat)
    np.divide(dst, stat, out=dst)


@thunk(name="Softmax", label="softmax", partial_extent="scales", where="gpu")
class Softmax(Thunk):
    """Each row of data[rows, cols] becomes exp(x - max) / sum, in place."""

    data: InOut
    rows: int
    cols: int

    @property
    def scratch_bytes(self) -> int:
        return _softmax_scratch(self.rows, self.cols, 1, self.data.storage.numpy)

    def run(self, data: Array, scratch: Scratch) -> None:
        rows = data[:, :, None]
        _softmax(rows, rows, scratch)


@thunk(name="SoftmaxOut", label="softmax_out", partial_extent="no", where="host", extension=True, proven=True)
class SoftmaxOut(Thunk):
    """dst = softmax of src[outer, axis_dim, inner] along the middle axis."""

    src: In
    dst: Out
    outer: int
    axis_dim: int
    inner: int

    @property
    def scratch_bytes(self) -> int:
        return _softmax_scratch(self.outer, self.axis_dim, self.inner, self.src.storage.numpy)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        _softmax(src, dst, scratch)


# --- norms --------------------------------------------------------------------------------------------


def row_dots(a: Array, b: Array, out: Array) -> None:
    """out[i] = Σ a[i] b[i], one dot product a row; halves are widened piece by piece."""
    if a.dtype == out.dtype:
        np.matmul(a[:, None, :], b[:, :, None], out=out[:, None, None])
    else:
        np.einsum("ij,ij->i", a, b, out=out, dtype=out.dtype, casting="unsafe")


def normalize(src: Array, dst: Array, stat: Array, eps: float, centre: bool) -> None:
    """dst = x / sqrt(mean(x²) + eps) by row, x = src less its mean where centred; ``stat``, of ``wide_dtype``, keeps the
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


def norm_scratch(rows: int, h: int, dtype: np.dtype[Any]) -> int:
    """What ``norm_rows`` takes: a divisor a row, and, of halves, a block of rows."""
    block = _norm_block(rows, h) if is_half(dtype) else rows
    return scratch_for((block, wide_dtype(dtype))) + wide_scratch(dtype, block * h)


def _norm_block(rows: int, h: int) -> int:
    return max(1, min(rows, PIECE // max(h, 1)))


def norm_rows(terms: tuple[Array, ...], g: Array, b: Array | None, dst: Array, eps: float, centre: bool,
              scratch: Scratch) -> None:
    """dst = norm(the sum of terms) * g (+ b) by row. Halves: in f32, a block of rows at a time, rounded once. dst may be the
    first term."""
    rows, h = dst.shape
    block = _norm_block(rows, h) if is_half(dst.dtype) else rows
    stat = scratch.take(block, wide_dtype(dst.dtype))
    (wide,) = buffers(scratch, dst.dtype, block * h)
    for r in range(0, rows, max(block, 1)):
        to, (x, *more) = dst[r : r + block], (t if t.ndim == 1 else t[r : r + block] for t in terms)
        y = to if wide is None else widened(x, wide)
        for term in more:
            np.add(x if wide is None else y, term, out=y)
            x = y
        normalize(x if wide is None else y, y, stat[: len(y)], eps, centre)
        np.multiply(y, g, out=y)
        if b is not None:
            np.add(y, b, out=y)
        store(to, y)


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
        return norm_scratch(self.rows, self.h, self.src.storage.numpy)

    def run(self, src: Array, g: Array, b: Array, dst: Array, scratch: Scratch) -> None:
        norm_rows((src,), g, b, dst, self.eps, True, scratch)


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
        return norm_scratch(self.rows, self.h, self.src.storage.numpy)

    def run(self, src: Array, g: Array, b: Array | None, dst: Array, scratch: Scratch) -> None:
        norm_rows((src,), g, b, dst, self.eps, False, scratch)


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
        dtype = wide_dtype(self.src.storage.numpy)
        own = scratch_for((self._block, dtype), (self.c * self._block, dtype))
        return own + wide_scratch(self.src.storage.numpy, self.c * self._block)

    def run(self, src: Array, g: Array, b: Array, dst: Array, scratch: Scratch) -> None:
        block, wide = self._block, wide_dtype(src.dtype)
        stats, squares = scratch.take(block, wide), scratch.take(self.c * block, wide)
        (rounded_later,) = buffers(scratch, src.dtype, self.c * block)
        for image, out in zip(src, dst, strict=True):
            for i in range(0, self.h * self.w, block):
                x, into = widened(image[:, i : i + block], rounded_later), out[:, i : i + block]
                y = into if rounded_later is None else x
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
                store(into, y)


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
    def _channels(self) -> int:
        return min(self.c, max(1, PIECE // max(self.inner, 1)))

    @property
    def scratch_bytes(self) -> int:
        dtype = self.src.storage.numpy
        own = scratch_for((self.c, wide_dtype(dtype)), (self.c, wide_dtype(dtype)))
        return own + wide_scratch(dtype, self._channels * self.inner)

    def run(self, src: Array, gamma: Array, beta: Array, mean: Array, var: Array, dst: Array,
            scratch: Scratch) -> None:
        wide = wide_dtype(src.dtype)
        scale, shift = scratch.take(self.c, wide), scratch.take(self.c, wide)
        (product,) = buffers(scratch, src.dtype, self._channels * self.inner)
        np.add(var, self.eps, out=scale, dtype=wide)
        np.sqrt(scale, out=scale)
        np.divide(gamma, scale, out=scale)
        np.multiply(mean, scale, out=shift)
        np.subtract(beta, shift, out=shift)
        for image, out in zip(src, dst, strict=True):
            for c in range(0, self.c, self._channels):
                part = slice(c, c + self._channels)
                x, to = image[part], out[part]
                y = to if product is None else product[: x.size].reshape(x.shape)
                np.multiply(x, scale[part, None], out=y)
                np.add(y, shift[part, None], out=to)
