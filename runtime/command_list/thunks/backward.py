"""Owns the backward thunks of activations, softmax, scans along an axis, gathers, pooling and convolution.

Norms: ``norm_backward.py``; attention and RoPE: ``attention_backward.py``; losses: ``losses.py``; adaLN: ``adaln.py``.
"""

from __future__ import annotations

import itertools

import numpy as np

from planner_core.ir import Array, DType
from planner_core.ir.ops.backward import SLOPE
from runtime.command_list.conv_kernels import (
    ConvGeometry,
    add_weight_gradient,
    convolve_transposed,
    transposed_scratch,
    weight_gradient_scratch,
)
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.reduce import running_scratch, running_sum
from runtime.command_list.thunks.structure import add_rows
from runtime.command_list.widths import PIECE, buffers, is_half, piece_of, store, wide_dtype, wide_scratch, widened
from runtime.errors import RunError


@thunk(name="ActivationBackward", label="activation_backward", partial_extent="scales", where="host", extension=True)
class ActivationBackward(Thunk):
    """dx = dy act'(x), piece by piece (a piece's derivative is made outside the arena)."""

    x: In
    dy: In
    dx: Out
    len: int
    act: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def scratch_bytes(self) -> int:
        return wide_scratch(self.x.storage.numpy, min(self.len, PIECE))

    def run(self, x: Array, dy: Array, dx: Array, scratch: Scratch) -> None:
        slope = SLOPE[self.act]
        (wide,) = buffers(scratch, x.dtype, min(self.len, PIECE))
        for i in range(0, self.len, PIECE):
            part = slice(i, i + PIECE)
            np.multiply(dy[part], slope(widened(x[part], wide), self.alpha, self.beta), out=dx[part], casting="unsafe")


@thunk(name="SoftmaxBackward", label="softmax_backward", partial_extent="no", where="host", extension=True)
class SoftmaxBackward(Thunk):
    """dx = y (dy - Σ dy y) along the middle axis of [outer, axis_dim, inner]; y is the softmax."""

    y: In
    dy: In
    dx: Out
    outer: int
    axis_dim: int
    inner: int

    @property
    def scratch_bytes(self) -> int:
        rows, columns = self._piece
        dtype = self.y.storage.numpy
        return scratch_for((rows * columns, wide_dtype(dtype))) + wide_scratch(dtype, rows * self.axis_dim * columns)

    @property
    def _piece(self) -> tuple[int, int]:
        """All at once, in place, unless they are halves, which are widened a piece at a time."""
        half = is_half(self.y.storage.numpy)
        return piece_of(self.outer, self.axis_dim, self.inner) if half else (self.outer, self.inner)

    def run(self, y: Array, dy: Array, dx: Array, scratch: Scratch) -> None:
        rows, columns = self._piece
        stats = scratch.take((rows, 1, columns), wide_dtype(y.dtype))
        (wide,) = buffers(scratch, y.dtype, rows * self.axis_dim * columns)
        for a, b in itertools.product(range(0, self.outer, rows), range(0, self.inner, columns)):
            part = slice(a, a + rows), slice(None), slice(b, b + columns)
            to = dx[part]
            made = to if wide is None else wide[: to.size].reshape(to.shape)
            stat = stats[: to.shape[0], :, : to.shape[2]]
            np.multiply(dy[part], y[part], out=made, dtype=made.dtype)
            np.add.reduce(made, axis=1, keepdims=True, out=stat)
            np.subtract(dy[part], stat, out=made)
            np.multiply(made, y[part], out=to)


@thunk(name="CumsumBackward", label="cumsum_backward", partial_extent="scales", where="host")
class CumsumBackward(Thunk):
    """dx_i = Σ dy_j over j ≥ i of each row (j > i when exclusive)."""

    dy: In
    dx: Out
    rows: int
    cols: int
    exclusive: bool

    @property
    def scratch_bytes(self) -> int:
        return running_scratch(self.rows, self.cols, self.dx.storage.numpy)

    def run(self, dy: Array, dx: Array, scratch: Scratch) -> None:
        running_sum(dy[:, ::-1], dx[:, ::-1], self.exclusive, scratch)


@thunk(name="GatherBackward", label="gather_backward", partial_extent="scales", where="host")
class GatherBackward(Thunk):
    """dst[outer, axis_dim, trailing] = 0, then dst[:, indices[i]] += dy[:, i]."""

    dy: In
    indices: In
    dst: Out
    outer: int
    axis_dim: int
    num_idx: int
    trailing: int

    @property
    def scratch_bytes(self) -> int:
        return wide_scratch(self.dst.storage.numpy, self.outer * self.trailing)

    def run(self, dy: Array, indices: Array, dst: Array, scratch: Scratch) -> None:
        rows = [int(i) for i in indices.tolist()]
        for at in rows:
            if not -self.axis_dim <= at < self.axis_dim:
                raise RunError(f"index {at} is outside [-{self.axis_dim}, {self.axis_dim})")
        add_rows(dy, rows, dst, scratch)


# --- pooling ------------------------------------------------------------------------------------------


@thunk(name="MaxPool2dBackward", label="maxpool2d_backward", partial_extent="scales", where="host")
class MaxPool2dBackward(Thunk):
    """dx = 0, then each window's dy added at the window's first maximum of x (the last NaN, where there is one); a few planes
    at a time."""

    x: In
    dy: In
    dx: Out
    n: int
    c: int
    h: int
    w: int
    h_out: int
    w_out: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int

    @property
    def _block(self) -> int:
        return max(1, min(self.n * self.c, PIECE // max(self.h_out * self.w_out, 1)))

    @property
    def scratch_bytes(self) -> int:
        count = self._block * self.h_out * self.w_out
        own = scratch_for((count, self.x.storage.numpy), (count, DType.I32.numpy), *[(count, DType.BOOL.numpy)] * 3)
        return own + wide_scratch(self.x.storage.numpy, self._block * self.h * self.w)

    def _cut(self, tap: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """(windows whose tap lies in x, those elements of x)."""
        windows, elements = [], []
        for t, pad, step, out, extent in zip(tap, (self.ph, self.pw), (self.sh, self.sw), (self.h_out, self.w_out),
                                             (self.h, self.w), strict=True):
            first = t - pad
            lo = max(0, -(first // step))
            hi = max(lo, min(out, (extent - 1 - first) // step + 1))
            windows.append(slice(lo, hi))
            elements.append(slice(first + lo * step, first + (hi - 1) * step + 1, step) if hi > lo else slice(0, 0))
        return (windows[0], windows[1]), (elements[0], elements[1])

    def run(self, x: Array, dy: Array, dx: Array, scratch: Scratch) -> None:
        planes, grads, outs = (a.reshape(-1, *a.shape[2:]) for a in (x, dy, dx))
        block, dims = self._block, (self._block, self.h_out, self.w_out)
        best, first = scratch.take(dims, x.dtype), scratch.take(dims, np.int32)
        mask, other, both = (scratch.take(dims, np.bool_) for _ in range(3))
        (wide,) = buffers(scratch, x.dtype, block * self.h * self.w)
        taps = [(k, *self._cut(tap)) for k, tap in enumerate(itertools.product(range(self.kh), range(self.kw)))]
        for p in range(0, len(planes), block):
            part = slice(p, p + block)
            count = len(planes[part])
            best[:count], first[:count] = -np.inf, -1
            for k, w, _ in reversed(taps):  # of nothing but -inf, the first element there is
                np.copyto(first[(slice(0, count), *w)], k)
            total = outs[part] if wide is None else wide[: outs[part].size].reshape(outs[part].shape)
            total[...] = 0
            for k, w, e in taps:
                place = (slice(0, count), *w)
                seen = planes[part][:, e[0], e[1]]
                np.less_equal(seen, best[place], out=mask[place])  # not so for NaN, which is above all
                np.logical_not(mask[place], out=mask[place])
                np.isnan(best[place], out=other[place])
                np.equal(seen, seen, out=both[place])
                np.logical_and(other[place], both[place], out=other[place])
                np.greater(mask[place], other[place], out=mask[place])  # a number doesn't take a NaN's place
                np.copyto(best[place], seen, where=mask[place])
                np.copyto(first[place], k, where=mask[place])
            for k, w, e in taps:
                place = (slice(0, count), *w)
                np.equal(first[place], k, out=mask[place])
                into = total[:, e[0], e[1]]
                np.add(into, grads[part][:, w[0], w[1]], out=into, where=mask[place])
            if wide is not None:
                store(outs[part], total)


# --- convolution --------------------------------------------------------------------------------------


@thunk(name="Conv2dBackwardInput", label="conv2d_backward_input", partial_extent="scales", where="gpu")
class Conv2dBackwardInput(Thunk):
    """dx = the transposed convolution of dy by w[c_out, c_in / groups, kh, kw]."""

    dy: In
    w: In
    dx: Out
    n: int
    c_in: int
    h: int
    w_in: int
    c_out: int
    h_out: int
    w_out: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int
    groups: int

    @property
    def geometry(self) -> ConvGeometry:
        """From dy's side: dy is the input, dx the output."""
        return ConvGeometry(self.c_out, (self.h_out, self.w_out), self.c_in, (self.h, self.w_in), (self.kh, self.kw),
                            (self.sh, self.sw), (self.ph, self.pw), (self.dh, self.dw), self.groups)

    @property
    def scratch_bytes(self) -> int:
        return transposed_scratch(self.geometry, self.dy.storage.numpy)

    def run(self, dy: Array, w: Array, dx: Array, scratch: Scratch) -> None:
        g, mark = self.geometry, scratch.mark
        for grad, out in zip(dy, dx, strict=True):
            convolve_transposed(g, grad, w, out, scratch)
            scratch.release(mark)


@thunk(name="Conv2dBackwardWeight", label="conv2d_backward_weight", partial_extent="scales", where="gpu")
class Conv2dBackwardWeight(Thunk):
    """dw[m, c, t] = Σ over images and outputs p of dy[m, p] x[c, p stride + t dilation - pad]."""

    x: In
    dy: In
    dw: Out
    n: int
    c_in: int
    h: int
    w: int
    c_out: int
    h_out: int
    w_out: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw_dil: int
    groups: int

    @property
    def place(self) -> str:
        return "gpu" if self.n == 1 else "host"

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry(self.c_in, (self.h, self.w), self.c_out, (self.h_out, self.w_out), (self.kh, self.kw),
                            (self.sh, self.sw), (self.ph, self.pw), (self.dh, self.dw_dil), self.groups)

    @property
    def scratch_bytes(self) -> int:
        dtype = self.x.storage.numpy
        return wide_scratch(dtype, self.dw.numel) + weight_gradient_scratch(self.geometry, dtype)

    def run(self, x: Array, dy: Array, dw: Array, scratch: Scratch) -> None:
        g = self.geometry
        (total,) = buffers(scratch, dw.dtype, dw.size)
        into, mark = dw if total is None else total.reshape(dw.shape), scratch.mark
        into[...] = 0
        for image, grad in zip(x, dy, strict=True):
            add_weight_gradient(g, image, grad, into, scratch)
            scratch.release(mark)
        if total is not None:
            store(dw, into)
