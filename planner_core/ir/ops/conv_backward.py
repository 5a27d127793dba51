"""Owns the backward ops of convolution and pooling. Layouts and attributes as in ``conv.py``."""

from __future__ import annotations

import itertools
import math

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.conv import Conv, Conv3d, Pool2D, contract
from planner_core.ir.shape import Dim, Shape


def _check(o: ConvBackwardInput | ConvBackwardWeight, x: Shape, w: Shape, dy: Shape) -> None:
    """``GraphError`` unless a convolution of x by w gives dy's dims."""
    fwd = (Conv3d if x.rank == 5 else Conv)(o.strides, o.pads, o.dilations, o.groups)
    want = fwd.infer(x, w)
    if dy.rank != want.rank or not all(a.same(b) for a, b in zip(dy.dims, want.dims, strict=True)):
        raise GraphError(f"{o.name}: dy {dy}, but a convolution of {x} by {w} gives {want}")


def _windows(o: ConvBackwardInput | ConvBackwardWeight, kernel: tuple[int, ...],
             out: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """(tap, the padded input's elements it meets) for every tap of the kernel."""
    return [(tap, tuple(slice(t * d, t * d + (e - 1) * s + 1, s)
                        for t, d, e, s in zip(tap, o.dilations, out, o.strides, strict=True)))
            for tap in itertools.product(*map(range, kernel))]


@op(family="backward", operands="w dy")
class ConvBackwardInput(Op):
    """``dx[n,c,p·stride + t·dilation - pad] += Σ_m w[m,c,t] dy[n,m,p]`` in 1-D, 2-D or 3-D; w ``[M,C/groups,k…]``,
    dy ``[N,M,…]``, result ``dims``, those of x."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    dims: tuple[Dim, ...]

    def infer(self, w: Shape, dy: Shape, *_: Shape) -> Shape:
        x = Shape(self.dims, dy.dtype)
        _check(self, x, w, dy)
        return x

    def evaluate(self, w: Array, dy: Array, *_: Array) -> Array:
        dims, g = Shape(self.dims).sizes, self.groups
        space = len(dims) - 2
        n, m, out = dims[0], w.shape[0], dy.shape[2:]
        full = np.zeros((n, g, w.shape[1], *(e + self.pads[i] + self.pads[i + space] for i, e in enumerate(dims[2:]))),
                        dtype=dy.dtype)
        wg, dyg = w.reshape(g, m // g, *w.shape[1:]), dy.reshape(n, g, m // g, *out)
        for tap, window in _windows(self, w.shape[2:], out):
            full[(slice(None),) * 3 + window] += contract("ngm...,gmc->ngc...", dyg, wg[(slice(None),) * 3 + tap])
        cut = tuple(slice(self.pads[i], self.pads[i] + e) for i, e in enumerate(dims[2:]))
        return np.asarray(full[(slice(None),) * 3 + cut], order="C").reshape(dims)

    def flops(self, out: Shape, w: Shape, dy: Shape, *_: Shape) -> int:
        return 2 * dy.numel * math.prod(w.sizes[1:])


@op(family="backward", operands="x dy")
class ConvBackwardWeight(Op):
    """``dw[m,c,t] = Σ_{n,p} x[n,c,p·stride + t·dilation - pad] dy[n,m,p]`` in 1-D, 2-D or 3-D; x ``[N,C,…]``,
    dy ``[N,M,…]``, result ``dims``, those of w ``[M,C/groups,k…]``."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    dims: tuple[Dim, ...]

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        w = Shape(self.dims, dy.dtype)
        _check(self, x, w, dy)
        return w

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        dims, g = Shape(self.dims).sizes, self.groups
        space = len(dims) - 2
        n, m, out = x.shape[0], dims[0], dy.shape[2:]
        xp = np.pad(x, [(0, 0), (0, 0), *zip(self.pads[:space], self.pads[space:], strict=True)])
        xg, dyg = xp.reshape(n, g, dims[1], *xp.shape[2:]), dy.reshape(n, g, m // g, -1)
        dw = np.zeros((g, m // g, *dims[1:]), dtype=dy.dtype)
        for tap, window in _windows(self, dims[2:], out):
            cut = xg[(slice(None),) * 3 + window].reshape(n, g, dims[1], -1)
            dw[(slice(None),) * 3 + tap] = contract("ngcp,ngmp->gmc", cut, dyg)
        return dw.reshape(dims)

    def flops(self, out: Shape, x: Shape, dy: Shape, *_: Shape) -> int:
        return 2 * dy.numel * math.prod(out.sizes[1:])


def _pool_padded(o: MaxPool2dBackward | MeanPool2dBackward, dims: tuple[int, ...],
                 out: tuple[int, ...]) -> tuple[int, int]:
    """Extents of the padded input that all windows fit in."""
    h, w = (max(dims[2 + i] + o.pads[i], (out[i] - 1) * o.strides[i] + o.kernel[i]) for i in range(2))
    return h, w


def _taps(o: MaxPool2dBackward | MeanPool2dBackward, out: tuple[int, ...]) -> list[tuple[slice, ...]]:
    return [tuple(slice(t, t + (e - 1) * s + 1, s) for t, e, s in zip(tap, out, o.strides, strict=True))
            for tap in itertools.product(*map(range, o.kernel))]


@op(family="backward", operands="x dy", builders={"max_pool2d_backward": {}})
class MaxPool2dBackward(Op):
    """Each window's dy added at the window's first maximum of x, zero elsewhere; x and the result NCHW, dy as
    ``Pool2D(max)`` gives. Of NaNs the last is the maximum; of −inf alone, the first within x (PyTorch)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool = False

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        want = Pool2D("max", self.kernel, self.strides, self.pads, self.ceil_mode).infer(x)
        if dy.rank != want.rank or not all(a.same(b) for a, b in zip(dy.dims, want.dims, strict=True)):
            raise GraphError(f"MaxPool2dBackward: dy {dy}, but the pool of {x} gives {want}")
        return x

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        out = dy.shape[2:]
        h, w = _pool_padded(self, x.shape, out)
        top, left = self.pads[:2]
        xp, within = np.zeros((*x.shape[:2], h, w), dtype=x.dtype), np.zeros((h, w), dtype=bool)
        xp[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
        within[top : top + x.shape[2], left : left + x.shape[3]] = True
        taps = _taps(self, out)
        best, first = np.zeros(dy.shape, dtype=x.dtype), np.full(dy.shape, -1)
        for k, t in enumerate(taps):
            v = xp[(slice(None), slice(None), *t)]
            better = within[t] & ((first < 0) | (v > best) | (v != v))
            best, first = np.where(better, v, best), np.where(better, k, first)
        dx = np.zeros_like(xp)
        for k, t in enumerate(taps):
            dx[(slice(None), slice(None), *t)] += np.where(first == k, dy, 0)
        return np.asarray(dx[:, :, top : top + x.shape[2], left : left + x.shape[3]], order="C")

    def flops(self, out: Shape, x: Shape, dy: Shape, *_: Shape) -> int:
        return dy.numel * math.prod(self.kernel)


@op(family="backward", operands="dy", builders={"mean_pool2d_backward": {}})
class MeanPool2dBackward(Op):
    """Each window's dy / count added to all its elements; result ``dims``, those of x (NCHW); attributes as in
    ``Pool2D(mean)``."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool
    dims: tuple[Dim, ...]

    def infer(self, dy: Shape, *_: Shape) -> Shape:
        x = Shape(self.dims, dy.dtype)
        want = Pool2D("mean", self.kernel, self.strides, self.pads, self.ceil_mode).infer(x)
        if dy.rank != want.rank or not all(a.same(b) for a, b in zip(dy.dims, want.dims, strict=True)):
            raise GraphError(f"MeanPool2dBackward: dy {dy}, but the pool of {x} gives {want}")
        return x

    def evaluate(self, dy: Array, *_: Array) -> Array:
        dims, out = Shape(self.dims).sizes, dy.shape[2:]
        h, w = _pool_padded(self, dims, out)
        counts = []
        for i in range(2):
            start = np.arange(out[i]) * self.strides[i] - self.pads[i]
            low, high = (-self.pads[i], dims[2 + i] + self.pads[i + 2]) if self.count_include_pad else (0, dims[2 + i])
            counts.append(np.minimum(start + self.kernel[i], high) - np.maximum(start, low))
        share = (dy / np.outer(*counts)).astype(dy.dtype)
        dx = np.zeros((*dims[:2], h, w), dtype=dy.dtype)
        for t in _taps(self, out):
            dx[(slice(None), slice(None), *t)] += share
        top, left = self.pads[:2]
        return np.asarray(dx[:, :, top : top + dims[2], left : left + dims[3]], order="C")

    def flops(self, out: Shape, dy: Shape, *_: Shape) -> int:
        return dy.numel * (math.prod(self.kernel) + 1)
