"""Owns convolution, pooling and resize thunks (NCHW)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner_core.ir import Array, DType
from planner_core.ir.ops.reduce import identity
from runtime.command_list.conv_kernels import (
    ConvGeometry,
    convolve,
    convolve_transposed,
    transposed_scratch,
)
from runtime.command_list.formulas import activate, activation_scratch
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import PIECE, buffers, is_half, store, wide_dtype, wide_scratch, widened


@thunk(name="Conv2D", label="conv2d", partial_extent="scales", where="gpu")
class Conv2D(Thunk):
    """dst = conv(src, weight); ``ph``, ``pw`` pad before, the output extent says how much after."""

    src: In
    weight: In
    dst: Out
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
    dw: int
    groups: int

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry(self.c_in, (self.h, self.w), self.c_out, (self.h_out, self.w_out), (self.kh, self.kw),
                            (self.sh, self.sw), (self.ph, self.pw), (self.dh, self.dw), self.groups)

    @property
    def scratch_bytes(self) -> int:
        return _image_scratch(self)

    def run(self, src: Array, weight: Array, dst: Array, scratch: Scratch) -> None:
        _by_image(self, src, weight, dst, scratch)


@thunk(name="ConvNdBiasAct", label="conv_bias_act", partial_extent="no", where="host", extension=True)
class ConvNdBiasAct(Thunk):
    """dst = act(conv(src, weight) + bias + residual) over two or three spatial axes; act "" = none."""

    src: In
    weight: In
    bias: In | None
    residual: In | None
    dst: Out
    n: int
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    act: str = ""
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry(self.src.shape[1], self.src.shape[2:], self.dst.shape[1], self.dst.shape[2:],
                            self.weight.shape[2:], self.strides, self.pads, self.dilations, self.groups)

    @property
    def scratch_bytes(self) -> int:
        return _image_scratch(self, self.act)

    def run(self, src: Array, weight: Array, bias: Array | None, residual: Array | None, dst: Array,
            scratch: Scratch) -> None:
        def finish(image: int, out: Array) -> None:
            if residual is not None:
                np.add(out, residual[image], out=out)
            if self.act:
                activate(self.act, out, out, scratch, self.alpha, self.beta)

        _by_image(self, src, weight, dst, scratch, bias, finish)


def _copies(t: Conv2D | ConvNdBiasAct) -> list[int]:
    """Elements of the f32 copies of halves: an image of src, the weights, an image of dst."""
    sizes = (t.src, math.prod(t.src.shape[1:])), (t.weight, t.weight.numel), (t.dst, math.prod(t.dst.shape[1:]))
    return [count if is_half(o.storage.numpy) else 0 for o, count in sizes]


def _image_scratch(t: Conv2D | ConvNdBiasAct, act: str = "") -> int:
    dtype = wide_dtype(t.src.storage.numpy)
    own = max(t.geometry.scratch_bytes(dtype), activation_scratch(act, DType.of(wide_dtype(t.dst.storage.numpy)),
                                                                  math.prod(t.dst.shape[1:])))
    return own + scratch_for(*((count, np.dtype(np.float32)) for count in _copies(t)))


def _by_image(t: Conv2D | ConvNdBiasAct, src: Array, weight: Array, dst: Array, scratch: Scratch, bias: Array | None = None,
              finish: Callable[[int, Array], None] | None = None) -> None:
    """Images one by one; halves in f32 until ``finish(image, result)`` is done, then rounded once."""
    x_f32, w_f32, out_f32 = (scratch.take(count, np.float32) if count else None for count in _copies(t))
    weight, g, mark = widened(weight, w_f32), t.geometry, scratch.mark
    for i, (x, out) in enumerate(zip(src, dst, strict=True)):
        made = out if out_f32 is None else out_f32.reshape(out.shape)
        convolve(g, widened(x, x_f32), weight, made, scratch, bias)
        scratch.release(mark)
        if finish is not None:
            finish(i, made)
        store(out, made)


@thunk(name="ConvTranspose2d", label="conv_transpose2d", partial_extent="no", where="gpu")
class ConvTranspose2d(Thunk):
    """dst = transposed conv; weight [c_in, c_out / groups, kh, kw]."""

    src: In
    weight: In
    dst: Out
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
        return ConvGeometry(self.c_in, (self.h, self.w_in), self.c_out, (self.h_out, self.w_out), (self.kh, self.kw),
                            (self.sh, self.sw), (self.ph, self.pw), (self.dh, self.dw), self.groups)

    @property
    def scratch_bytes(self) -> int:
        return transposed_scratch(self.geometry, self.src.storage.numpy)

    def run(self, src: Array, weight: Array, dst: Array, scratch: Scratch) -> None:
        g, mark = self.geometry, scratch.mark
        for x, out in zip(src, dst, strict=True):
            convolve_transposed(g, x, weight, out, scratch)
            scratch.release(mark)


@thunk(name="Pool2D", label="pool2d", partial_extent="scales", where="gpu")
class Pool2D(Thunk):
    """Windows of max or mean. ``ph_end``, ``pw_end`` pad after; padding counts with ``count_include_pad``."""

    src: In
    dst: Out
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
    kind: str
    ph_end: int = 0
    pw_end: int = 0
    count_include_pad: bool = False

    @property
    def scratch_bytes(self) -> int:
        dtype = self.dst.storage.numpy
        if self.kind != "mean":
            return 0
        area = self.h_out * self.w_out
        return scratch_for((area, wide_dtype(dtype))) + wide_scratch(dtype, self._planes * area)

    @property
    def _planes(self) -> int:
        """Planes of halves that are summed at a time."""
        return max(1, min(self.n * self.c, PIECE // max(self.h_out * self.w_out, 1)))

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        planes, outs = src.reshape(-1, self.h, self.w), dst.reshape(-1, self.h_out, self.w_out)
        if self.kind == "max":
            self._merge(np.maximum, planes, outs, identity("max", dst.dtype))
            return
        counts = scratch.take((self.h_out, self.w_out), wide_dtype(dst.dtype))
        np.multiply(self._counts(self.h_out, self.kh, self.sh, self.ph, self.h, self.ph_end)[:, None],
                    self._counts(self.w_out, self.kw, self.sw, self.pw, self.w, self.pw_end), out=counts,
                    casting="unsafe")
        (wide,) = buffers(scratch, dst.dtype, self._planes * self.h_out * self.w_out)
        step = len(outs) if wide is None else self._planes
        for p in range(0, len(outs), max(step, 1)):
            to = outs[p : p + step]
            total = to if wide is None else wide[: to.size].reshape(to.shape)
            self._merge(np.add, planes[p : p + step], total, 0)
            np.divide(total, counts, out=to, casting="unsafe" if to.dtype.kind in "iu" else "same_kind")

    def _merge(self, merge: np.ufunc, x: Array, out: Array, start: Any) -> None:
        """out = ``merge`` of start and the windows of x, tap by tap."""
        out[...] = start
        for i, j in itertools.product(range(self.kh), range(self.kw)):
            y0, y1 = self._inside(i - self.ph, self.sh, self.h_out, self.h)
            x0, x1 = self._inside(j - self.pw, self.sw, self.w_out, self.w)
            if y1 > y0 and x1 > x0:
                top, left = y0 * self.sh + i - self.ph, x0 * self.sw + j - self.pw
                cut = x[:, top : top + (y1 - y0 - 1) * self.sh + 1 : self.sh,
                        left : left + (x1 - x0 - 1) * self.sw + 1 : self.sw]
                place = out[:, y0:y1, x0:x1]
                merge(place, cut, out=place)

    @staticmethod
    def _inside(first: int, step: int, count: int, extent: int) -> tuple[int, int]:
        lo = max(0, -(first // step))
        hi = max(0, min(count, (extent - 1 - first) // step + 1))
        return min(lo, hi), hi

    def _counts(self, out: int, k: int, step: int, before: int, extent: int, after: int) -> Array:
        start = np.arange(out) * step
        low, high = (0, before + extent + after) if self.count_include_pad else (before, before + extent)
        return np.asarray(np.minimum(start + k, high) - np.maximum(start, low))


@thunk(name="ResizeNearest2x", label="resize_nearest_2x", partial_extent="no", where="gpu")
class ResizeNearest2x(Thunk):
    """dst[…, i, j] = src[…, i // 2, j // 2]."""

    src: In
    dst: Out
    n: int
    c: int
    h: int
    w: int

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        _repeat(src.reshape(-1, self.h, self.w), dst.reshape(-1, self.h, 2, self.w, 2))


@thunk(name="ResizeNearest", label="resize_nearest", partial_extent="no", where="host", extension=True)
class ResizeNearest(Thunk):
    """dst[outer, i, j] = src[outer, i // f, j // g] with factors (f, g)."""

    src: In
    dst: Out
    h: int
    w: int
    factors: tuple[int, ...]

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        _repeat(src, dst.reshape(-1, self.h, self.factors[0], self.w, self.factors[1]))


def _repeat(src: Array, dst: Array) -> None:
    # from src each time: rows of dst interleave, and NumPy would buffer a copy between them
    for i, j in itertools.product(range(dst.shape[2]), range(dst.shape[4])):
        np.copyto(dst[:, :, i, :, j], src)
