"""Lowers matrix products, norms, reductions, attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import Node, NodeId, ops
from runtime.command_list import Thunk
from runtime.command_list.thunks import attention, matmul, picks, reduce
from runtime.command_list.thunks.structure import Copy
from runtime.lowering.core import Lowering, lowers


def _matrices(dims: tuple[int, ...], left: bool) -> tuple[int, ...]:
    if len(dims) > 1:
        return dims
    return (1, *dims) if left else (*dims, 1)


def _source(ctx: Lowering, operand: NodeId) -> tuple[NodeId, bool]:
    """What a matmul reads for an operand: an elided transpose's source, and whether it is one."""
    if ctx.plan.elided[operand]:
        return ctx.graph[operand].inputs[0], True
    return operand, False


@lowers(ops.MatMul, widths="any")
def _matmul(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    (a, a_t), (b, b_t) = (_source(ctx, i) for i in n.inputs)
    da, db = _matrices(ctx.dims(a), True), _matrices(ctx.dims(b), False)
    k, cols = (db[-1], db[-2]) if b_t else (db[-2], db[-1])
    if math.prod(da) * cols * k == 0 and not (a_t or b_t):
        yield ctx.host(n)
    elif len(db) == 2:  # only a right side without a batch dim may be flattened
        m = da[-1] if a_t else math.prod(da[:-1])
        left = ctx.operand(a, *da) if a_t else ctx.operand(a, m, k)
        yield matmul.Sgemm(left, ctx.operand(b, *db), ctx.operand(n.id, m, cols), m, k, cols,
                           ctx.storage(b).text == "f16", b_t, a_t)
    else:
        lead = ctx.dims(n.id)[: -1 if len(ctx.dims(a)) == 1 else -2]
        batch, m = math.prod(lead), da[-2]
        yield matmul.BatchedSgemm(ctx.operand(a, *da), ctx.operand(b, *db), ctx.operand(n.id, *lead, m, cols),
                                  batch, m, k, cols, math.prod(da[:-2]) == 1 < batch, math.prod(db[:-2]) == 1 < batch)


@lowers(ops.GroupedMatMul, widths="any")
def _grouped(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, idx = n.inputs
    w, w_t = _source(ctx, w)
    m, k = ctx.dims(x)
    yield matmul.GroupedMatMul(ctx.operand(x), ctx.operand(w), ctx.flat(idx), ctx.operand(n.id), m, k,
                               ctx.dims(n.id)[1], ctx.dims(w)[0], w_t)


# --- norms --------------------------------------------------------------------------------------------


@lowers(ops.LayerNorm, widths=1)
def _layer_norm(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, g, b = n.inputs
    h = ctx.dims(x)[-1]
    rows = n.shape.numel // h
    yield reduce.LayerNorm(ctx.operand(x, rows, h), ctx.operand(g), ctx.operand(b), ctx.operand(n.id, rows, h),
                           rows, h, o.eps)


@lowers(ops.RmsNorm, widths=1)
def _rms_norm(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, g, *b = n.inputs
    h = ctx.dims(x)[-1]
    rows = n.shape.numel // h
    yield reduce.RmsNorm(ctx.operand(x, rows, h), ctx.operand(g), ctx.operand(b[0]) if b else None,
                         ctx.operand(n.id, rows, h), rows, h, o.eps)


@lowers(ops.LayerNorm2d, widths=1)
def _layer_norm2d(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, g, b = n.inputs
    count, c, h, w = ctx.dims(x)
    yield reduce.LayerNorm2d(ctx.operand(x, count, c, h * w), ctx.operand(g), ctx.operand(b),
                             ctx.operand(n.id, count, c, h * w), count, c, h, w, o.eps)


@lowers(ops.BatchNorm, widths=1)
def _batch_norm(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, *vectors = n.inputs
    dims = ctx.dims(x)
    inner = math.prod(dims[2:])
    g, b, mean, var = (ctx.operand(v) for v in vectors)
    yield reduce.BatchNormInference(ctx.operand(x, dims[0], dims[1], inner), g, b, mean, var,
                                    ctx.operand(n.id, dims[0], dims[1], inner), dims[0], dims[1], inner, o.eps)


# --- reductions ---------------------------------------------------------------------------------------


def around(dims: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(product before, the axis, product after)."""
    axis = axis % max(len(dims), 1)
    return math.prod(dims[:axis]), dims[axis] if dims else 1, math.prod(dims[axis + 1 :])


@lowers(ops.Reduce, widths=1)
def _reduce(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x = n.inputs[0]
    dims = ctx.dims(x)
    axes = sorted({a % len(dims) for a in o.axes}) if dims else []
    if ctx.graph[x].shape.numel == 0 or not (ctx.storage(n.id).is_float or (ctx.storage(n.id).is_int and o.kind != "mean")):
        yield ctx.host(n)
    elif not axes:
        yield Copy(ctx.flat(x), ctx.flat(n.id), n.shape.numel)
    elif axes[-1] - axes[0] == len(axes) - 1:
        outer = math.prod(dims[: axes[0]])
        inner = math.prod(dims[axes[-1] + 1 :])
        reduced = math.prod(dims[axes[0] : axes[-1] + 1])
        yield reduce.Reduce(ctx.operand(x, outer, reduced, inner), ctx.operand(n.id, outer, inner), outer, reduced,
                            inner, o.kind)
    else:
        left = tuple(d for i, d in enumerate(dims) if i not in axes)
        yield reduce.ReduceAxes(ctx.operand(x), ctx.operand(n.id, *left) if left else ctx.operand(n.id),
                                tuple(axes), o.kind)


@lowers(ops.GlobalPool, widths=1)
def _global_pool(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims = ctx.dims(n.inputs[0])
    outer, area = dims[0] * dims[1], math.prod(dims[2:])
    if o.kind == "mean" and not ctx.storage(n.id).is_float:
        yield ctx.host(n)
        return
    yield reduce.Reduce(ctx.operand(n.inputs[0], outer, area, 1), ctx.operand(n.id, outer, 1), outer, area, 1, o.kind)


@lowers(ops.ArgReduce, widths="moves", exact=True)
def _arg_reduce(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    outer, reduced, inner = around(ctx.dims(n.inputs[0]), o.axis)
    yield picks.ArgReduce(ctx.operand(n.inputs[0], outer, reduced, inner), ctx.operand(n.id, outer, inner), outer,
                           reduced, inner, o.kind == "max")


@lowers(ops.TopK, widths="moves", exact=True)
def _topk(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    outer, extent, _ = around(ctx.dims(n.inputs[0]), -1)
    yield picks.TopK(ctx.operand(n.inputs[0], outer, extent), ctx.operand(n.id, outer, o.k), outer, extent, o.k,
                      o.largest, o.values)


@lowers(ops.Cumsum, widths=1)
def _cumsum(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    rows, cols, _ = around(ctx.dims(n.inputs[0]), -1)
    yield reduce.Cumsum(ctx.operand(n.inputs[0], rows, cols), ctx.operand(n.id, rows, cols), rows, cols, o.exclusive)


@lowers(ops.Softmax, widths=1)
def _softmax(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    outer, extent, inner = around(ctx.dims(n.id), o.axis)
    src, dst = ctx.operand(n.inputs[0], outer, extent, inner), ctx.operand(n.id, outer, extent, inner)
    if src == dst and inner == 1:
        yield reduce.Softmax(dst.viewed(outer, extent), outer, extent)
    else:
        yield reduce.SoftmaxOut(src, dst, outer, extent, inner)


# --- attention ----------------------------------------------------------------------------------------

_MASKS = {"none": 0, "causal": 1, "custom": 2, "bias": 3, "sliding_window": 4}


@lowers(ops.Attention, widths=3)
def _attention(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    q, k, v, *mask = n.inputs
    bhsd = o.layout == "bhsd"
    kv = o.kv_heads or o.num_heads
    at = 2 if bhsd else 1
    batch, seq, keys = ctx.dims(q)[0], ctx.dims(q)[at], ctx.dims(k)[at]

    def dims(heads: int, length: int) -> tuple[int, ...]:
        return (batch, heads, length, o.head_dim) if bhsd else (batch, length, heads, o.head_dim)

    yield attention.Attention(
        ctx.operand(q, *dims(o.num_heads, seq)), ctx.operand(k, *dims(kv, keys)), ctx.operand(v, *dims(kv, keys)),
        ctx.operand(mask[0]) if mask else None, ctx.operand(n.id, *dims(o.num_heads, seq)), batch, seq, keys,
        o.num_heads, kv, o.head_dim, _MASKS[o.mask_kind], o.window, int(bhsd), o.score_scale, o.softcap)


@lowers(ops.Rope)
def _rope(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, cos, sin = n.inputs
    dims = ctx.dims(x)
    hidden = dims[-1]
    seq = dims[-2] if len(dims) > 1 else 1
    batch = n.shape.numel // (hidden * seq)
    yield attention.Rope(ctx.operand(x), ctx.operand(cos), ctx.operand(sin), ctx.operand(n.id), batch, seq, hidden,
                         o.head_dim, o.n_rot, hidden, len(ctx.dims(cos)) > 2, o.interleaved)


@lowers(ops.SwiGLU)
def _swiglu(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    half = ctx.dims(n.id)[-1]
    rows = n.shape.numel // half
    yield attention.FusedSwiGLU(ctx.operand(n.inputs[0], rows, 2 * half), ctx.operand(n.id, rows, half), half,
                                n.shape.numel, o.gate_first, ctx.storage(n.inputs[0]).text, ctx.storage(n.id).text)
