"""Owns convolution on the host: pointwise as one product, depthwise by taps on phase planes, the rest by im2col.

All work piece by piece in declared scratch; products land in the destination directly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.scratch import CHUNK_BYTES, Scratch, scratch_for
from runtime.command_list.widths import buffers, store, wide_dtype, wide_scratch, widened

__all__ = [
    "ConvGeometry", "add_weight_gradient", "convolve", "convolve_transposed", "transposed_scratch", "weight_gradient_scratch",
]

Ints = tuple[int, ...]
_PLANE_BYTES = 2 * CHUNK_BYTES
"""Depthwise pieces: below this, call overhead and short products cost more than the cache gives."""


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Extents of one convolution; ``pads`` are those before each spatial axis, ``out`` implies those after."""

    c_in: int
    space: Ints
    c_out: int
    out: Ints
    kernel: Ints
    strides: Ints
    pads: Ints
    dilations: Ints
    groups: int

    @property
    def pointwise(self) -> bool:
        return (set(self.kernel) == set(self.strides) == {1} and not any(self.pads) and self.space == self.out)

    @property
    def depthwise(self) -> bool:
        return self.groups == self.c_in > 1 and len(self.space) == 2

    def scratch_bytes(self, dtype: np.dtype[Any]) -> int:
        """What ``convolve`` takes."""
        if self.pointwise:
            return 0
        if self.depthwise:
            return scratch_for(*((count, dtype) for count in self.plane_pieces(*self.plane_block(dtype))))
        return scratch_for((self.columns * self.rows(dtype) * math.prod(self.out[1:]), dtype))

    @property
    def columns(self) -> int:
        """Elements of one im2col column."""
        return self.c_in // self.groups * math.prod(self.kernel)

    def rows(self, dtype: np.dtype[Any]) -> int:
        """Output rows (first spatial axis) per im2col piece."""
        one = self.columns * math.prod(self.out[1:]) * dtype.itemsize
        return max(1, min(self.out[0], CHUNK_BYTES // max(one, 1)))

    def plane_shape(self, rows: int) -> tuple[Ints, int]:
        """(phases y, phases x, plane rows, plane columns) of one channel's strip, and the plane's width."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.strides, self.dilations
        wide = self.out[1] + (kw - 1) * dw // sw
        return (sh, sw, rows + (kh - 1) * dh // sh, wide), wide

    def plane_pieces(self, channels: int, rows: int) -> tuple[int, int, int]:
        """Elements of the phase planes, of the shifted copies, of the result, for a strip of some channels."""
        shape, wide = self.plane_shape(rows)
        strip = channels * rows * wide
        return channels * math.prod(shape), strip * math.prod(self.kernel), strip * (self.c_out // self.c_in)

    def plane_block(self, dtype: np.dtype[Any]) -> tuple[int, int]:
        """(channels, output rows) per depthwise piece."""
        limit = _PLANE_BYTES // dtype.itemsize
        rows = self.out[0]
        while rows > 1 and sum(self.plane_pieces(1, rows)) > limit:
            rows = -(-rows // 2)
        return max(1, min(self.c_in, limit // sum(self.plane_pieces(1, rows)))), rows


def _valid(first: int, step: int, count: int, extent: int) -> tuple[int, int]:
    """The range of i in [0, count) with 0 <= first + i * step < extent."""
    lo = max(0, -(first // step))
    hi = max(0, min(count, (extent - 1 - first) // step + 1))
    return min(lo, hi), hi


def convolve(g: ConvGeometry, x: Array, w: Array, out: Array, scratch: Scratch, bias: Array | None = None) -> None:
    """One image: x ``[c_in, space…]``, w ``[c_out, c_in / groups, kernel…]``, out ``[c_out, out…]``."""
    if g.pointwise:
        area = math.prod(g.out)
        np.matmul(w.reshape(g.groups, -1, g.c_in // g.groups), x.reshape(g.groups, -1, area),
                  out=out.reshape(g.groups, -1, area))
        if bias is not None:
            flat = out.reshape(g.c_out, area)
            np.add(flat, bias[:, None], out=flat)
    elif g.depthwise:
        _depthwise(g, x, w, out, scratch, bias)
    else:
        _by_columns(g, x, w, out, scratch, bias)


def _fill_planes(g: ConvGeometry, x: Array, planes: Array, row0: int) -> None:
    """planes[c, a, b, r, q] = x[c, (row0 + r)·sh + a - ph, q·sw + b - pw], zero outside."""
    (sh, sw), (ph, pw) = g.strides, g.pads
    for a, b in itertools.product(range(planes.shape[1]), range(planes.shape[2])):
        plane = planes[:, a, b]
        y, z = row0 * sh + a - ph, b - pw
        r0, r1 = _valid(y, sh, plane.shape[1], g.space[0])
        q0, q1 = _valid(z, sw, plane.shape[2], g.space[1])
        plane[:, :r0] = 0
        plane[:, r1:] = 0
        plane[:, r0:r1, :q0] = 0
        plane[:, r0:r1, q1:] = 0
        if r1 > r0 and q1 > q0:
            np.copyto(plane[:, r0:r1, q0:q1],
                      x[:, y + r0 * sh : y + (r1 - 1) * sh + 1 : sh, z + q0 * sw : z + (q1 - 1) * sw + 1 : sw])


def _depthwise(g: ConvGeometry, x: Array, w: Array, out: Array, scratch: Scratch, bias: Array | None) -> None:
    """Each tap is a shift of a flat phase plane; a channel's taps, copied side by side, take one product."""
    (kh, kw), (sh, sw), (dh, dw) = g.kernel, g.strides, g.dilations
    times = g.c_out // g.c_in
    block, rows = g.plane_block(x.dtype)
    shape, wide = g.plane_shape(rows)
    planes, shifted, product = (scratch.take(count, x.dtype) for count in g.plane_pieces(block, rows))
    planes = planes.reshape(block, *shape)
    flat = planes.reshape(block, sh, sw, -1)
    taps = [((i * dh) % sh, (j * dw) % sw, (i * dh) // sh * wide + (j * dw) // sw)
            for i, j in itertools.product(range(kh), range(kw))]
    weights = w.reshape(g.c_in, times, kh * kw)
    result = out.reshape(g.c_in, times, *g.out)
    for c, r in itertools.product(range(0, g.c_in, block), range(0, g.out[0], rows)):
        n, count = min(block, g.c_in - c), min(rows, g.out[0] - r)
        span = count * wide
        length = span - wide + g.out[1]
        _fill_planes(g, x[c : c + n], planes[:n], r)
        copies = shifted[: n * len(taps) * length].reshape(n, len(taps), length)
        for t, (a, b, shift) in enumerate(taps):
            np.copyto(copies[:, t], flat[:n, a, b, shift : shift + length])
        got = product[: n * times * span].reshape(n, times, span)
        np.matmul(weights[c : c + n], copies, out=got[:, :, :length])
        rect = got.reshape(n, times, count, wide)[..., : g.out[1]]
        into = result[c : c + n, :, r : r + count]
        if bias is None:
            np.copyto(into, rect)
        else:
            np.add(rect, bias.reshape(g.c_in, times)[c : c + n, :, None, None], out=into)


def _by_columns(g: ConvGeometry, x: Array, w: Array, out: Array, scratch: Scratch, bias: Array | None) -> None:
    per_in, per_out = g.c_in // g.groups, g.c_out // g.groups
    rows, rest, area = g.rows(x.dtype), g.out[1:], math.prod(g.out[1:])
    columns = scratch.take(g.columns * rows * area, x.dtype)
    taps = list(itertools.product(*(range(k) for k in g.kernel)))
    for group, r in itertools.product(range(g.groups), range(0, g.out[0], rows)):
        count = min(rows, g.out[0] - r)
        piece = columns[: g.columns * count * area].reshape(per_in, len(taps), count, *rest)
        image = x[group * per_in : (group + 1) * per_in]
        for t, tap in enumerate(taps):
            _fill_tap(g, image, piece[:, t], tap, r)
        part = slice(group * per_out, (group + 1) * per_out)
        into = out.reshape(g.c_out, -1)[part, r * area : (r + count) * area]
        np.matmul(w[part].reshape(per_out, g.columns), piece.reshape(g.columns, -1), out=into)
        if bias is not None:
            np.add(into, bias[part, None], out=into)


def _fill_tap(g: ConvGeometry, x: Array, into: Array, tap: Ints, row0: int) -> None:
    inside, source, whole = [slice(None)], [slice(None)], True
    for axis, k in enumerate(tap):
        step = g.strides[axis]
        first = (row0 * step if axis == 0 else 0) + k * g.dilations[axis] - g.pads[axis]
        lo, hi = _valid(first, step, into.shape[axis + 1], g.space[axis])
        whole = whole and lo == 0 and hi == into.shape[axis + 1]
        inside.append(slice(lo, hi))
        source.append(slice(first + lo * step, first + max(hi - 1, lo) * step + 1, step) if hi > lo else slice(0, 0))
    if not whole:
        into[...] = 0
    if all(s.start is None or s.stop > s.start for s in inside):
        np.copyto(into[tuple(inside)], x[tuple(source)])


def weight_gradient_scratch(g: ConvGeometry, dtype: np.dtype[Any]) -> int:
    """What ``add_weight_gradient`` takes."""
    wide = wide_dtype(dtype)
    strip = g.rows(wide) * math.prod(g.out[1:])
    own = scratch_for((g.columns * strip, wide), (g.c_out // g.groups * g.columns, wide))
    return own + wide_scratch(dtype, g.c_out // g.groups * strip)


def add_weight_gradient(g: ConvGeometry, x: Array, dy: Array, dw: Array, scratch: Scratch) -> None:
    """One image: dw ``[c_out, c_in / groups, kernel…]`` += dy times the im2col columns of x, a strip of rows at a time.
    Halves are widened there: dw is then f32."""
    per_in, per_out, wide = g.c_in // g.groups, g.c_out // g.groups, wide_dtype(x.dtype)
    rows, rest, area = g.rows(wide), g.out[1:], math.prod(g.out[1:])
    columns = scratch.take(g.columns * rows * area, wide)
    product = scratch.take((per_out, g.columns), wide)
    (grads,) = buffers(scratch, x.dtype, per_out * rows * area)
    taps = list(itertools.product(*(range(k) for k in g.kernel)))
    for group, r in itertools.product(range(g.groups), range(0, g.out[0], rows)):
        count = min(rows, g.out[0] - r)
        piece = columns[: g.columns * count * area].reshape(per_in, len(taps), count, *rest)
        for t, tap in enumerate(taps):
            _fill_tap(g, x[group * per_in : (group + 1) * per_in], piece[:, t], tap, r)
        part = slice(group * per_out, (group + 1) * per_out)
        strip = widened(dy[part].reshape(per_out, -1)[:, r * area : (r + count) * area], grads)
        np.matmul(strip, piece.reshape(g.columns, -1).T, out=product)
        into = dw[part].reshape(per_out, g.columns)
        np.add(into, product, out=into)


def transposed_rows(g: ConvGeometry, dtype: np.dtype[Any]) -> int:
    """Input rows per piece of ``convolve_transposed``."""
    one = g.c_out // g.groups * math.prod(g.kernel) * math.prod(g.space[1:]) * dtype.itemsize
    return max(1, min(g.space[0], CHUNK_BYTES // max(one, 1)))


def _transposed_copies(g: ConvGeometry, rows: int) -> tuple[int, int, int]:
    """Elements, of one group, of the weights, a strip of x and the sum: what halves are widened in."""
    per_in, per_out = g.c_in // g.groups, g.c_out // g.groups
    return per_in * per_out * math.prod(g.kernel), per_in * rows * g.space[1], per_out * math.prod(g.out)


def transposed_scratch(g: ConvGeometry, dtype: np.dtype[Any]) -> int:
    """What ``convolve_transposed`` takes."""
    wide = wide_dtype(dtype)
    rows = transposed_rows(g, wide)
    own = scratch_for((g.c_out // g.groups * math.prod(g.kernel) * rows * g.space[1], wide))
    return own + wide_scratch(dtype, *_transposed_copies(g, rows))


def convolve_transposed(g: ConvGeometry, x: Array, w: Array, out: Array, scratch: Scratch) -> None:
    """One image: x ``[c_in, h, w]``, w ``[c_in, c_out / groups, kh, kw]``; each input pixel adds a window. Halves: a group
    at a time in f32."""
    per_in, per_out, dtype = g.c_in // g.groups, g.c_out // g.groups, wide_dtype(x.dtype)
    rows, wide = transposed_rows(g, dtype), g.space[1]
    windows = scratch.take(per_out * math.prod(g.kernel) * rows * wide, dtype)
    weights, strips, total = buffers(scratch, x.dtype, *_transposed_copies(g, rows))
    for group in range(g.groups):
        bank = widened(w[group * per_in : (group + 1) * per_in], weights).reshape(per_in, -1).T
        target = out[group * per_out : (group + 1) * per_out]
        into = target if total is None else total.reshape(target.shape)
        into[...] = 0
        for r in range(0, g.space[0], rows):
            count = min(rows, g.space[0] - r)
            flat = windows[: per_out * math.prod(g.kernel) * count * wide]
            strip = widened(x[group * per_in : (group + 1) * per_in, r : r + count], strips)
            np.matmul(bank, strip.reshape(per_in, -1), out=flat.reshape(-1, count * wide))
            piece = flat.reshape(per_out, *g.kernel, count, wide)
            for i, j, (y0, y1), (x0, x1) in _windows(g, r, count):
                top = (r + y0) * g.strides[0] + i * g.dilations[0] - g.pads[0]
                left = x0 * g.strides[1] + j * g.dilations[1] - g.pads[1]
                place = into[:, top : top + (y1 - y0 - 1) * g.strides[0] + 1 : g.strides[0],
                             left : left + (x1 - x0 - 1) * g.strides[1] + 1 : g.strides[1]]
                np.add(place, piece[:, i, j, y0:y1, x0:x1], out=place)
        if total is not None:
            store(target, into)


def _windows(g: ConvGeometry, r: int, count: int) -> Iterator[tuple[int, int, tuple[int, int], tuple[int, int]]]:
    for i, j in itertools.product(range(g.kernel[0]), range(g.kernel[1])):
        ys = _valid(r * g.strides[0] + i * g.dilations[0] - g.pads[0], g.strides[0], count, g.out[0])
        xs = _valid(j * g.dilations[1] - g.pads[1], g.strides[1], g.space[1], g.out[1])
        if ys[1] > ys[0] and xs[1] > xs[0]:
            yield i, j, ys, xs
