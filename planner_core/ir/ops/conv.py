"""Owns convolution, pooling and resizing. Layout: batch, channels, then space (NCHW)."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, channel_sum, refuse
from planner_core.ir.ops.elementwise import ACTIVATION, FLAT
from planner_core.ir.ops.reduce import Reduce, identity
from planner_core.ir.ops.structure import shifted
from planner_core.ir.shape import UNKNOWN, Dim, Shape, dim
from planner_core.ir.traits import Trait


def conv_extent(what: str, n: Dim, k: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> Dim:
    """``floor_or_ceil((n + before + after - dilation*(k-1) - 1) / stride) + 1``; a ceil window that would
    start in the padding after the data is dropped (ONNX, PyTorch)."""
    if n.value is None:
        return UNKNOWN if n.is_unknown else (n + (before + after - dilation * (k - 1) - 1 + stride)) // stride
    span = n.value + before + after - dilation * (k - 1) - 1
    if span < 0:
        raise GraphError(f"{what}: window of {dilation * (k - 1) + 1} is wider than the padded extent {n} + {before + after}")
    out = (math.ceil(span / stride) if ceil else span // stride) + 1
    if ceil and (out - 1) * stride >= n.value + before:
        out -= 1
    return dim(out)


def _conv_shape(o: Conv | Conv3d | FusedConvBiasAct, x: Shape, w: Shape) -> Shape:
    space = x.rank - 2
    if w.rank != x.rank or not len(o.strides) == len(o.dilations) == space or len(o.pads) != 2 * space:
        raise GraphError(f"{o.name}: x {x}, w {w}, strides {o.strides}, pads {o.pads}, dilations "
                         f"{o.dilations}: wanted {space} spatial axes in each")
    cin, per = x.dims[1].value, w.dims[1].value
    if cin is not None and per is not None and cin != per * o.groups:
        raise GraphError(f"{o.name}: x {x} has {cin} channels, w {w} wants {per} × groups {o.groups}")
    if w.dims[0].value is not None and w.dims[0].value % o.groups:
        raise GraphError(f"{o.name}: w {w} has {w.dims[0]} output channels, which {o.groups} groups can't share evenly")
    out = [conv_extent(f"{o.name} x {x}, w {w}", x.dims[2 + i], w.sizes[2 + i], o.strides[i], o.pads[i], o.pads[i + space], o.dilations[i])
           for i in range(space)]
    return x.with_dims((x.dims[0], w.dims[0], *out))


def _conv_flops(out: Shape, w: Shape) -> int:
    return 2 * out.numel * math.prod(w.sizes[1:])


def contract(spec: str, a: Array, b: Array) -> Array:
    """``np.einsum`` for any float: NumPy's knows no bf16, which is summed in f32 and rounded once."""
    if np.dtype(a.dtype).kind == "V":
        return np.asarray(np.einsum(spec, a.astype(np.float32), b.astype(np.float32)), dtype=a.dtype)
    return np.asarray(np.einsum(spec, a, b))


def conv_reference(x: Array, w: Array, strides: tuple[int, ...], pads: tuple[int, ...],
                   dilations: tuple[int, ...], groups: int) -> Array:
    """``out[n,m,p] = Σ_{c,t} x[n, c, p·stride + t·dilation - pad] w[m,c,t]``, tap by tap."""
    space = x.ndim - 2
    xp = np.pad(x, [(0, 0), (0, 0), *zip(pads[:space], pads[space:], strict=True)])
    extents = [(xp.shape[2 + i] - dilations[i] * (w.shape[2 + i] - 1) - 1) // strides[i] + 1 for i in range(space)]
    n, m = x.shape[0], w.shape[0]
    out = np.zeros((n, groups, m // groups, *extents), dtype=x.dtype)
    wg = w.reshape(groups, m // groups, *w.shape[1:])
    for tap in itertools.product(*(range(k) for k in w.shape[2:])):
        window = [slice(t * d, t * d + (e - 1) * s + 1, s)
                  for t, d, e, s in zip(tap, dilations, extents, strides, strict=True)]
        cut = xp[(slice(None), slice(None), *window)]
        cut = cut.reshape(n, groups, w.shape[1], *extents)
        out += contract("ngc...,gmc->ngm...", cut, wg.reshape(*wg.shape[:3], -1)[..., np.ravel_multi_index(tap, w.shape[2:])])
    return out.reshape(n, m, *extents)


def _conv_gradient(o: Conv | Conv3d | FusedConvBiasAct, g: Graph, x: NodeId, w: NodeId,
                   dy: NodeId) -> tuple[NodeId, NodeId]:
    how: dict[str, Any] = {"strides": o.strides, "pads": o.pads, "dilations": o.dilations, "groups": o.groups}
    return (g.conv_backward_input(w, dy, **how, dims=g[x].shape.dims),
            g.conv_backward_weight(x, dy, **how, dims=g[w].shape.dims))


@op(family="conv", operands="x w", traits=(Trait.PRODUCT,), rows=rows.images)
class Conv(Op):
    """1-D or 2-D convolution; pads are all begins, then all ends. FLOPs: 2·out·C_in/groups·window."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    def infer(self, x: Shape, w: Shape, *_: Shape) -> Shape:
        if x.rank not in (3, 4):
            raise GraphError(f"Conv is 1-D or 2-D; {x} has {x.rank - 2} spatial axes")
        return _conv_shape(self, x, w)

    def evaluate(self, x: Array, w: Array, *_: Array) -> Array:
        return conv_reference(x, w, self.strides, self.pads, self.dilations, self.groups)

    def flops(self, out: Shape, x: Shape, w: Shape, *_: Shape) -> int:
        return _conv_flops(out, w)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return _conv_gradient(self, g, inputs[0], inputs[1], dy)


@op(family="conv", operands="x w", traits=(Trait.PRODUCT,))
class Conv3d(Op):
    """3-D convolution (NCDHW)."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    def infer(self, x: Shape, w: Shape, *_: Shape) -> Shape:
        if x.rank != 5:
            raise GraphError(f"Conv3d wants NCDHW, got {x}")
        return _conv_shape(self, x, w)

    def evaluate(self, x: Array, w: Array, *_: Array) -> Array:
        return conv_reference(x, w, self.strides, self.pads, self.dilations, self.groups)

    def flops(self, out: Shape, x: Shape, w: Shape, *_: Shape) -> int:
        return _conv_flops(out, w)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return _conv_gradient(self, g, inputs[0], inputs[1], dy)


@op(family="conv", operands="x w bias residual?", traits=(Trait.PRODUCT,), rows=rows.images)
class FusedConvBiasAct(Op):
    """``activation(conv(x, w) + bias (+ residual))`` in 1-D, 2-D or 3-D; activation "" = none.

    ``alpha``, ``beta`` as in ``Activation``.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    activation: str = ""
    alpha: float = 0.0
    beta: float = 0.0

    def infer(self, x: Shape, w: Shape, bias: Shape, *residual: Shape) -> Shape:
        out = _conv_shape(self, x, w)
        if self.activation and self.activation not in ACTIVATION:
            raise GraphError(f"activation {self.activation!r}: wanted one of {', '.join(ACTIVATION)}")
        if bias.rank != 1 or not bias.dims[0].same(out.dims[1]):
            raise GraphError(f"FusedConvBiasAct: bias {bias} doesn't fit {out.dims[1]} output channels of w {w}")
        for r in residual:
            if r.dims != out.dims and r.is_static and out.is_static:
                raise GraphError(f"FusedConvBiasAct: residual {r} doesn't fit the output {out} of x {x}, w {w}")
        return out

    def evaluate(self, x: Array, w: Array, bias: Array, *residual: Array) -> Array:
        y = conv_reference(x, w, self.strides, self.pads, self.dilations, self.groups)
        y = y + bias[(slice(None),) + (None,) * (x.ndim - 2)]
        for r in residual:
            y = y + r
        return np.asarray(ACTIVATION[self.activation](y, self.alpha, self.beta) if self.activation else y, x.dtype)

    def flops(self, out: Shape, x: Shape, w: Shape, *_: Shape) -> int:
        return _conv_flops(out, w) + out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, w, _, *residual = inputs
        if self.activation in FLAT:
            return (None,) * len(inputs)
        if self.activation:
            pre = node  # for these two the output's sign is the operand's, all that the slope asks for
            if self.activation != "relu" and not (self.activation == "leaky_relu" and self.alpha > 0):
                pre = g.add(replace(self, activation="", alpha=0.0, beta=0.0), *inputs)
            dy = g.activation_backward(pre, dy, kind=self.activation, alpha=self.alpha, beta=self.beta)
        return *_conv_gradient(self, g, x, w, dy), channel_sum(g, dy), *(dy for _ in residual)


@op(family="conv", operands="x w", traits=(Trait.PRODUCT,))
class ConvTranspose2d(Op):
    """Transposed 2-D convolution, weight ``[C_in, C_out/groups, kh, kw]`` (PyTorch, ONNX).

    Extent: ``(n-1)·stride + dilation·(k-1) + 1 + output_padding - pads``.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...] = (0, 0)
    groups: int = 1

    def infer(self, x: Shape, w: Shape, *_: Shape) -> Shape:
        if x.rank != 4 or w.rank != 4:
            raise GraphError(f"ConvTranspose2d wants NCHW, got x {x}, w {w}")
        if x.dims[1].value not in (None, w.dims[0].value):
            raise GraphError(f"ConvTranspose2d: x {x} and w {w} disagree on input channels")
        k = w.sizes[2:]
        out = [shifted((x.dims[2 + i] - 1) * self.strides[i], self.dilations[i] * (k[i] - 1) + 1
                       + self.output_padding[i] - self.pads[i] - self.pads[i + 2]) for i in range(2)]
        return x.with_dims((x.dims[0], w.dims[1] * self.groups, *out))

    def evaluate(self, x: Array, w: Array, *_: Array) -> Array:
        n, cin, h, wd = x.shape
        g, per = self.groups, w.shape[1]
        kh, kw = w.shape[2:]
        (sh, sw), (dh, dw) = self.strides, self.dilations
        full = np.zeros((n, g * per, (h - 1) * sh + dh * (kh - 1) + 1 + self.output_padding[0],
                         (wd - 1) * sw + dw * (kw - 1) + 1 + self.output_padding[1]), dtype=x.dtype)
        xg, wg = x.reshape(n, g, cin // g, h, wd), w.reshape(g, cin // g, per, kh, kw)
        for i, j in itertools.product(range(kh), range(kw)):
            add = contract("ngchw,gcm->ngmhw", xg, wg[..., i, j]).reshape(n, g * per, h, wd)
            full[:, :, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (wd - 1) * sw + 1 : sw] += add
        t, l, b, r = self.pads
        return np.asarray(full[:, :, t : full.shape[2] - b, l : full.shape[3] - r], order="C")

    def flops(self, out: Shape, x: Shape, w: Shape, *_: Shape) -> int:
        return 2 * x.numel * math.prod(w.sizes[1:])

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, w = inputs
        like: dict[str, Any] = {"strides": self.strides, "pads": self.pads, "dilations": self.dilations,
            "groups": self.groups}
        if any(p >= s for p, s in zip(self.output_padding, self.strides, strict=True)):
            refuse(g, node, f"output_padding {self.output_padding} is not below the strides {self.strides}")
        return g.conv(dy, w, **like), g.conv_backward_weight(dy, x, **like, dims=g[w].shape.dims)


@op(family="conv", operands="x", rows=rows.images)
class Pool2D(Op):
    """Windows of max or mean over H and W; padding counts in the mean only with ``count_include_pad``."""

    kind: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if self.kind not in ("max", "mean") or x.rank != 4:
            raise GraphError(f"Pool2D kind {self.kind!r} of {x}: wanted max or mean of NCHW")
        out = [conv_extent(f"Pool2D x {x}", x.dims[2 + i], self.kernel[i], self.strides[i], self.pads[i], self.pads[i + 2], 1,
                           self.ceil_mode) for i in range(2)]
        return x.with_dims((*x.dims[:2], *out))

    def evaluate(self, x: Array, *_: Array) -> Array:
        out = self.infer(Shape.of(x.shape)).sizes[2:]
        ends = [max(0, (out[i] - 1) * self.strides[i] + self.kernel[i] - x.shape[2 + i] - self.pads[i])
                for i in range(2)]
        fill = identity("max", x.dtype) if self.kind == "max" else 0
        widths = [(0, 0), (0, 0), (self.pads[0], ends[0]), (self.pads[1], ends[1])]
        xp = np.pad(x, widths, constant_values=fill)
        taps = [xp[:, :, i : i + (out[0] - 1) * self.strides[0] + 1 : self.strides[0],
                   j : j + (out[1] - 1) * self.strides[1] + 1 : self.strides[1]]
                for i, j in itertools.product(*map(range, self.kernel))]
        if self.kind == "max":
            return np.asarray(np.maximum.reduce(taps))
        if self.count_include_pad:
            inside = np.pad(np.ones((1, 1, x.shape[2] + self.pads[0] + self.pads[2],
                                     x.shape[3] + self.pads[1] + self.pads[3])), [(0, 0), (0, 0), (0, 9), (0, 9)])
        else:
            inside = np.pad(np.ones((1, 1, *x.shape[2:])), widths)
        count = sum(inside[:, :, i : i + (out[0] - 1) * self.strides[0] + 1 : self.strides[0],
                           j : j + (out[1] - 1) * self.strides[1] + 1 : self.strides[1]]
                    for i, j in itertools.product(*map(range, self.kernel)))
        return np.asarray(sum(taps) / count, dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return out.numel * math.prod(self.kernel)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        how: dict[str, Any] = {"kernel": self.kernel, "strides": self.strides, "pads": self.pads,
            "ceil_mode": self.ceil_mode}
        if self.kind == "max":
            return (g.max_pool2d_backward(inputs[0], dy, **how),)
        return (g.mean_pool2d_backward(dy, **how, count_include_pad=self.count_include_pad,
                                       dims=g[inputs[0]].shape.dims),)


@op(family="conv", operands="x", rows=rows.images)
class GlobalPool(Op):
    """max or mean over all spatial axes, kept with extent 1."""

    kind: str

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if self.kind not in ("max", "mean") or x.rank < 3:
            raise GraphError(f"GlobalPool kind {self.kind!r} of {x}: wanted max or mean of N, C, space…")
        return x.with_dims((*x.dims[:2], *(1 for _ in x.dims[2:])))

    def evaluate(self, x: Array, *_: Array) -> Array:
        axes = tuple(range(2, x.ndim))
        return Reduce(self.kind, axes, keepdims=True).evaluate(x)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return x.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        axes = tuple(range(2, g[inputs[0]].shape.rank))
        return Reduce(self.kind, axes, keepdims=True).gradient(g, node, inputs, dy)


@op(family="conv", operands="x")
class ResizeNearest(Op):
    """Nearest neighbour by whole factors: ``out[..., i, j] = x[..., i // f, j // g]``, one factor an axis."""

    factors: tuple[int, ...]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if len(self.factors) != x.rank or min(self.factors) < 1:
            raise GraphError(f"ResizeNearest factors {self.factors}: wanted {x.rank} of 1 or more for {x}")
        return x.with_dims(d * f for d, f in zip(x.dims, self.factors, strict=True))

    def evaluate(self, x: Array, *_: Array) -> Array:
        for axis, f in enumerate(self.factors):
            x = np.repeat(x, f, axis=axis) if f > 1 else x
        return x

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x = g[inputs[0]].shape
        dims = [part for d, f in zip(x.dims, self.factors, strict=True) for part in (d, dim(f))]
        return (g.reduce_sum(g.reshape(dy, dims=dims), axes=tuple(range(1, 2 * x.rank, 2))),)
