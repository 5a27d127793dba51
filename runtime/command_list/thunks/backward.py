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
from runtime.command_list.formulas import PIECE
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
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

    def run(self, x: Array, dy: Array, dx: Array, scratch: Scratch) -> None:
        slope = SLOPE[self.act]
        for i in range(0, self.len, PIECE):
            part = slice(i, i + PIECE)
            np.multiply(dy[part], slope(x[part], self.alpha, self.beta), out=dx[part], casting="unsafe")


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
        return scratch_for((self.outer * self.inner, self.y.storage.numpy))

    def run(self, y: Array, dy: Array, dx: Array, scratch: Scratch) -> None:
        stat = scratch.take((self.outer, 1, self.inner), y.dtype)
        np.multiply(dy, y, out=dx)
        np.add.reduce(dx, axis=1, keepdims=True, out=stat)
        np.subtract(dy, stat, out=dx)
        np.multiply(dx, y, out=dx)


@thunk(name="CumsumBackward", label="cumsum_backward", partial_extent="scales", where="host")
class CumsumBackward(Thunk):
    """dx_i = Σ dy_j over j ≥ i of each row (j > i when exclusive)."""

    dy: In
    dx: Out
    rows: int
    cols: int
    exclusive: bool

    def run(self, dy: Array, dx: Array, scratch: Scratch) -> None:
        if not self.exclusive:
            np.cumsum(dy[:, ::-1], axis=1, out=dx[:, ::-1], dtype=dx.dtype)
        elif self.cols:
            dx[:, -1] = 0
            np.cumsum(dy[:, :0:-1], axis=1, out=dx[:, :-1][:, ::-1], dtype=dx.dtype)


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

    def run(self, dy: Array, indices: Array, dst: Array, scratch: Scratch) -> None:
        dst[...] = 0
        for i, row in enumerate(indices.tolist()):
            at = int(row)
            if not -self.axis_dim <= at < self.axis_dim:
                raise RunError(f"index {at} is outside [-{self.axis_dim}, {self.axis_dim})")
            np.add(dst[:, at], dy[:, i], out=dst[:, at])


# --- pooling ------------------------------------------------------------------------------------------


@thunk(name="MaxPool2dBackward", label="maxpool2d_backward", partial_extent="scales", where="host")
class MaxPool2dBackward(Thunk):
    """dx = 0, then each window's dy added at the window's first maximum of x; a few planes at a time."""

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
        return scratch_for((count, self.x.storage.numpy), (count, DType.I32.numpy), (count, DType.BOOL.numpy))

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
        best, first, mask = scratch.take(dims, x.dtype), scratch.take(dims, np.int32), scratch.take(dims, np.bool_)
        taps = [(k, *self._cut(tap)) for k, tap in enumerate(itertools.product(range(self.kh), range(self.kw)))]
        outs[...] = 0
        for p in range(0, len(planes), block):
            part = slice(p, p + block)
            count = len(planes[part])
            best[:count], first[:count] = -np.inf, -1
            for k, w, e in taps:
                place = (slice(0, count), *w)
                np.greater(planes[part][:, e[0], e[1]], best[place], out=mask[place])
                np.copyto(best[place], planes[part][:, e[0], e[1]], where=mask[place])
                np.copyto(first[place], k, where=mask[place])
            for k, w, e in taps:
                place = (slice(0, count), *w)
                np.equal(first[place], k, out=mask[place])
                into = outs[part][:, e[0], e[1]]
                np.add(into, grads[part][:, w[0], w[1]], out=into, where=mask[place])


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
        return weight_gradient_scratch(self.geometry, self.x.storage.numpy)

    def run(self, x: Array, dy: Array, dw: Array, scratch: Scratch) -> None:
        g, mark = self.geometry, scratch.mark
        dw[...] = 0
        for image, grad in zip(x, dy, strict=True):
            add_weight_gradient(g, image, grad, dw, scratch)
            scratch.release(mark)
