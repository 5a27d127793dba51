"""Lowers the ops of training graphs: losses, gradients of norms, attention, convolution, indexing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import Node, ops
from planner_core.ir.ops.attention import MASKS
from runtime.command_list import Thunk
from runtime.command_list.thunks import adaln, attention_backward, backward, losses, norm_backward, reduce
from runtime.lowering.compute import around
from runtime.lowering.core import Lowering, lowers

Ints = tuple[int, ...]


def _rows(ctx: Lowering, node: int) -> tuple[int, int]:
    """(rows, last extent)."""
    *lead, h = ctx.dims(node)
    return math.prod(lead), h


# --- losses, activations ------------------------------------------------------------------------------


@lowers(ops.SoftmaxCrossEntropy)
def _cross_entropy(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    logits, labels = n.inputs
    rows, c = _rows(ctx, logits)
    src, dst = ctx.operand(logits, rows, c), ctx.operand(n.id, rows)
    if ctx.graph[labels].dtype.is_int:
        yield losses.SoftmaxCrossEntropyWithLogits(src, ctx.operand(labels, rows), dst, rows, c)
    else:
        yield losses.SoftmaxCrossEntropyDense(src, ctx.operand(labels, rows, c), dst, rows, c)


@lowers(ops.SoftmaxCrossEntropyBackward)
def _cross_entropy_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    logits, labels, dy = n.inputs
    rows, c = _rows(ctx, logits)
    dense = not ctx.graph[labels].dtype.is_int
    yield losses.SoftmaxCrossEntropyBackward(
        ctx.operand(logits, rows, c), ctx.operand(labels, rows, c) if dense else ctx.operand(labels, rows),
        ctx.operand(dy, rows), ctx.operand(n.id, rows, c), rows, c, dense)


@lowers(ops.ActivationBackward)
def _activation_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, dy = n.inputs
    yield backward.ActivationBackward(ctx.flat(x), ctx.flat(dy), ctx.flat(n.id), n.shape.numel, o.kind, o.alpha, o.beta)


@lowers(ops.SoftmaxBackward)
def _softmax_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims = around(ctx.dims(n.id), o.axis)
    y, dy, dx = (ctx.operand(i, *dims) for i in (*n.inputs, n.id))
    yield backward.SoftmaxBackward(y, dy, dx, *dims)


# --- norms --------------------------------------------------------------------------------------------


@lowers(ops.RmsNormBackwardInput)
def _rms_input(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, gamma, dy = n.inputs
    rows, h = _rows(ctx, x)
    yield norm_backward.RmsNormBackwardInput(ctx.operand(x, rows, h), ctx.operand(gamma), None, ctx.operand(dy, rows, h),
                                             ctx.operand(n.id, rows, h), rows, h, o.eps)


@lowers(ops.RmsNormBackwardGamma)
def _rms_gamma(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, dy = n.inputs
    rows, h = _rows(ctx, x)
    yield norm_backward.RmsNormBackwardGamma(ctx.operand(x, rows, h), None, None, ctx.operand(dy, rows, h),
                                             ctx.operand(n.id), rows, h, o.eps)


@lowers(ops.RmsNormBackwardBeta)
def _rms_beta(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    rows, h = _rows(ctx, n.inputs[0])
    yield norm_backward.RmsNormBackwardBeta(None, None, None, ctx.operand(n.inputs[0], rows, h), ctx.operand(n.id), rows, h)


@lowers(ops.LayerNormBackwardInput)
def _ln_input(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, gamma, dy = n.inputs
    rows, h = _rows(ctx, x)
    yield norm_backward.LayerNormBackwardInput(ctx.operand(x, rows, h), ctx.operand(gamma), ctx.operand(dy, rows, h),
                                               ctx.operand(n.id, rows, h), rows, h, o.eps)


@lowers(ops.LayerNormBackwardGamma)
def _ln_gamma(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, dy = n.inputs
    rows, h = _rows(ctx, x)
    yield norm_backward.LayerNormBackwardGamma(ctx.operand(x, rows, h), ctx.operand(dy, rows, h), ctx.operand(n.id), rows, h,
                                               o.eps)


@lowers(ops.LayerNormBackwardBeta)
def _ln_beta(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    rows, h = _rows(ctx, n.inputs[0])
    yield reduce.Reduce(ctx.operand(n.inputs[0], 1, rows, h), ctx.operand(n.id, 1, h), 1, rows, h, "sum")


# --- adaLN --------------------------------------------------------------------------------------------


@lowers(ops.AdaLayerNorm)
def _ada(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, scale, shift = n.inputs
    b, s, h = ctx.dims(x)
    yield adaln.AdaLayerNorm(ctx.operand(x, b * s, h), ctx.operand(scale), ctx.operand(shift), ctx.operand(n.id, b * s, h),
                             b * s, h, o.eps, o.layer_norm, adaln.pack_lead((b, s), (b, 1)))


@lowers(ops.GatedResidual)
def _gated(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, y, gate = n.inputs
    b, s, h = ctx.dims(x)
    yield adaln.GatedResidual(ctx.operand(x, b * s, h), ctx.operand(y, b * s, h), ctx.operand(gate),
                              ctx.operand(n.id, b * s, h), b * s, h, adaln.pack_lead((b, s), (b, 1)))


@lowers(ops.AdaLayerNormBackward)
def _ada_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, scale, dy = n.inputs
    b, s, h = ctx.dims(x)
    yield adaln.AdaLayerNormBackward(ctx.operand(x), ctx.operand(scale), ctx.operand(dy), ctx.operand(n.id), h, o.eps,
                                     o.layer_norm, s, b, o.wrt)


@lowers(ops.GatedResidualBackward)
def _gated_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    other, dy = (ctx.operand(i) for i in n.inputs)
    b, s, h = ctx.dims(n.inputs[1])
    y, gate = (None, other) if o.wrt == "y" else (other, None)
    yield adaln.GatedResidualBackward(y, gate, dy, ctx.operand(n.id), h, s, b, o.wrt)


# --- attention ----------------------------------------------------------------------------------------


@lowers(ops.AttentionBackward)
def _attention_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    q, k, v, dy, *mask = n.inputs
    bhsd = o.layout == "bhsd"
    kv, at = o.kv_heads or o.num_heads, 2 if bhsd else 1
    batch, seq, keys = ctx.dims(q)[0], ctx.dims(q)[at], ctx.dims(k)[at]

    def dims(heads: int, length: int) -> Ints:
        return (batch, heads, length, o.head_dim) if bhsd else (batch, length, heads, o.head_dim)

    of_q, of_k = dims(o.num_heads, seq), dims(kv, keys)
    out = {"q": of_q, "mask": ctx.dims(n.id)}.get(o.wrt, of_k)
    yield attention_backward.AttentionBackward(
        ctx.operand(q, *of_q), ctx.operand(k, *of_k), ctx.operand(v, *of_k), ctx.operand(dy, *of_q),
        ctx.operand(mask[0]) if mask else None, ctx.operand(n.id, *out), batch, seq, keys, o.num_heads, kv, o.head_dim,
        MASKS.index(o.mask_kind), o.window, o.wrt, int(bhsd), o.score_scale, o.softcap)


@lowers(ops.RopeBackward)
def _rope_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dy, cos, sin = n.inputs
    dims, rows = ctx.dims(dy), ctx.dims(cos)
    if len(rows) > 2 or rows[0] not in (1, dims[-2] if len(dims) > 1 else 1):  # the kernel knows one row a position, or one
        yield ctx.host(n)
        return
    hidden, seq = dims[-1], dims[-2] if len(dims) > 1 else 1
    yield attention_backward.RopeBackward(ctx.operand(dy), ctx.operand(cos), ctx.operand(sin), ctx.operand(n.id),
                                          n.shape.numel // (hidden * seq), seq, hidden, o.head_dim, o.n_rot, ctx.dims(cos)[0],
                                          o.interleaved)


# --- scans, indexing, pooling, convolution ------------------------------------------------------------


@lowers(ops.CumsumBackward)
def _cumsum_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    rows, cols = _rows(ctx, n.id)
    yield backward.CumsumBackward(ctx.operand(n.inputs[0], rows, cols), ctx.operand(n.id, rows, cols), rows, cols, o.exclusive)


@lowers(ops.GatherBackward)
def _gather_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dy, idx = n.inputs
    outer, extent, trailing = around(ctx.dims(n.id), o.axis)
    count = ctx.graph[idx].shape.numel
    yield backward.GatherBackward(ctx.operand(dy, outer, count, trailing), ctx.flat(idx),
                                  ctx.operand(n.id, outer, extent, trailing), outer, extent, count, trailing)


@lowers(ops.MaxPool2dBackward)
def _max_pool_backward(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, dy = n.inputs
    if not ctx.storage(n.id).is_float:
        yield ctx.host(n)
        return
    out = ctx.dims(dy)
    yield backward.MaxPool2dBackward(ctx.operand(x), ctx.operand(dy), ctx.operand(n.id), *ctx.dims(x), *out[2:], *o.kernel,
                                     *o.strides, *o.pads[:2])


def _spatial(dims: Ints) -> Ints:
    """N, C, then two spatial axes."""
    return dims if len(dims) == 4 else (*dims[:2], 1, *dims[2:])


def _windows(o: Any) -> Ints:
    """Strides, pads before, dilations of two spatial axes."""
    if len(o.strides) == 1:
        return 1, *o.strides, 0, o.pads[0], 1, *o.dilations
    return *o.strides, *o.pads[:2], *o.dilations


@lowers(ops.ConvBackwardInput)
def _conv_input(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    if n.shape.rank == 5:
        yield ctx.host(n)
        return
    w, dy = n.inputs
    dw, dd, dx = (_spatial(ctx.dims(i)) for i in (w, dy, n.id))
    extents = (*dx, *dd[1:], *dw[2:], *_windows(o), o.groups)
    yield backward.Conv2dBackwardInput(ctx.operand(dy, *dd), ctx.operand(w, *dw), ctx.operand(n.id, *dx), *extents)


@lowers(ops.ConvBackwardWeight)
def _conv_weight(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    if n.shape.rank == 5:
        yield ctx.host(n)
        return
    x, dy = n.inputs
    dx, dd, dw = (_spatial(ctx.dims(i)) for i in (x, dy, n.id))
    extents = (*dx, *dd[1:], *dw[2:], *_windows(o), o.groups)
    yield backward.Conv2dBackwardWeight(ctx.operand(x, *dx), ctx.operand(dy, *dd), ctx.operand(n.id, *dw), *extents)
