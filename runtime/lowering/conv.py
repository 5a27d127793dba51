"""Lowers convolution, pooling and resize; one spatial axis becomes two with height 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import Node, ops
from runtime.command_list import Thunk
from runtime.command_list.thunks import conv as t
from runtime.command_list.thunks.structure import Copy, Transpose
from runtime.lowering.core import Lowering, lowers
from runtime.lowering.structure import row_strides

Ints = tuple[int, ...]


def _spatial(dims: Ints) -> Ints:
    """N, C, then at least two spatial axes."""
    return dims if len(dims) > 3 else (*dims[:2], 1, *dims[2:])


@lowers(ops.Conv, widths="any")
def _conv(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, out = (_spatial(ctx.dims(i)) for i in (*n.inputs, n.id))
    flat = len(o.strides) == 1
    (sh, sw), (dh, dw) = ((1, *v) if flat else v for v in (o.strides, o.dilations))
    ph, pw = (0, o.pads[0]) if flat else o.pads[:2]
    yield t.Conv2D(ctx.operand(n.inputs[0], *x), ctx.operand(n.inputs[1], *w), ctx.operand(n.id, *out), x[0], x[1],
                   x[2], x[3], out[1], out[2], out[3], w[2], w[3], sh, sw, ph, pw, dh, dw, o.groups)


def _general(ctx: Lowering, n: Node, o: Any, act: str = "", alpha: float = 0.0, beta: float = 0.0) -> Iterator[Thunk]:
    x, w, *more = n.inputs
    one: Ints = (1,) if len(o.strides) == 1 else ()
    zero: Ints = (0,) if one else ()
    residual = ctx.operand(more[1], *_spatial(ctx.dims(more[1]))) if len(more) > 1 else None
    yield t.ConvNdBiasAct(
        ctx.operand(x, *_spatial(ctx.dims(x))), ctx.operand(w, *_spatial(ctx.dims(w))),
        ctx.operand(more[0]) if more else None, residual, ctx.operand(n.id, *_spatial(ctx.dims(n.id))),
        ctx.dims(x)[0], one + o.strides, zero + o.pads[: len(o.strides)], one + o.dilations, o.groups, act, alpha, beta)


@lowers(ops.Conv3d, widths="any")
def _conv3d(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield from _general(ctx, n, o)


@lowers(ops.FusedConvBiasAct, widths="any")
def _fused_conv(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield from _general(ctx, n, o, o.activation, o.alpha, o.beta)


@lowers(ops.ConvTranspose2d)
def _conv_transpose(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, out = (ctx.dims(i) for i in (*n.inputs, n.id))
    yield t.ConvTranspose2d(ctx.operand(n.inputs[0]), ctx.operand(n.inputs[1]), ctx.operand(n.id), x[0], x[1], x[2],
                            x[3], out[1], out[2], out[3], w[2], w[3], o.strides[0], o.strides[1], o.pads[0], o.pads[1],
                            o.dilations[0], o.dilations[1], o.groups)


@lowers(ops.Pool2D, exact=lambda n: n.op.kind == "max")  # type: ignore[attr-defined]
def _pool(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    if not ctx.storage(n.id).is_float:
        yield ctx.host(n)
        return
    x, out = ctx.dims(n.inputs[0]), ctx.dims(n.id)
    yield t.Pool2D(ctx.operand(n.inputs[0]), ctx.operand(n.id), x[0], x[1], x[2], x[3], out[2], out[3], o.kernel[0],
                   o.kernel[1], o.strides[0], o.strides[1], o.pads[0], o.pads[1], o.kind, o.pads[2], o.pads[3],
                   o.count_include_pad)


@lowers(ops.ResizeNearest, widths="moves", exact=True)
def _resize(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x = n.inputs[0]
    dims, factors = ctx.dims(x), o.factors
    if all(f == 1 for f in factors):
        yield Copy(ctx.flat(x), ctx.flat(n.id), n.shape.numel)
    elif len(dims) == 4 and factors == (1, 1, 2, 2):
        yield t.ResizeNearest2x(ctx.operand(x), ctx.operand(n.id), *dims)
    elif len(dims) > 1 and set(factors[:-2]) <= {1}:
        outer = math.prod(dims[:-2])
        yield t.ResizeNearest(ctx.operand(x, outer, *dims[-2:]),
                              ctx.operand(n.id, outer, dims[-2] * factors[-2], dims[-1] * factors[-1]),
                              dims[-2], dims[-1], factors[-2:])
    else:  # a broadcast over one axis of length f after each axis
        wide = tuple(e for d, f in zip(dims, factors, strict=True) for e in (d, f))
        strides = tuple(e for s in row_strides(dims) for e in (s, 0))
        yield Transpose(ctx.operand(x), ctx.operand(n.id, *wide), n.shape.numel, wide, strides)
