"""Lowers ops that move elements, and ops that read or write by index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import Node, ops
from runtime.command_list import Thunk
from runtime.command_list.thunks import structure as t
from runtime.lowering.core import Lowering, lowers
from runtime.lowering.elementwise import broadcast_strides


def row_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a row-major array."""
    return tuple(math.prod(dims[i + 1 :]) for i in range(len(dims)))


@lowers(ops.Reshape, widths="moves", exact=True)
def _reshape(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield t.Copy(ctx.flat(n.inputs[0]), ctx.flat(n.id), n.shape.numel)


@lowers(ops.Transpose, widths="moves", exact=True)
def _transpose(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    strides = row_strides(ctx.dims(n.inputs[0]))
    yield t.Transpose(ctx.operand(n.inputs[0]), ctx.operand(n.id), n.shape.numel, ctx.dims(n.id),
                      tuple(strides[p] for p in o.perm))


@lowers(ops.Expand, widths="moves", exact=True)
def _expand(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    out = ctx.dims(n.id)
    yield t.Transpose(ctx.operand(n.inputs[0]), ctx.operand(n.id), n.shape.numel, out,
                      broadcast_strides(ctx.dims(n.inputs[0]), out))


@lowers(ops.Narrow, widths="moves", exact=True)
def _narrow(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims = ctx.dims(n.inputs[0])
    axis = o.axis % len(dims)
    outer, tail = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    yield t.Narrow(ctx.operand(n.inputs[0], outer, dims[axis] * tail), ctx.operand(n.id, outer, o.len * tail),
                   outer, dims[axis] * tail, o.start * tail, o.len * tail)


@lowers(ops.Slice, widths="moves", exact=True)
def _slice(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims = ctx.dims(n.inputs[0])
    starts, stops, steps = [0] * len(dims), list(dims), [1] * len(dims)
    for axis, start, stop, step in zip(o.axes, o.starts, o.stops, o.steps, strict=True):
        k = axis % len(dims)
        starts[k], stops[k], steps[k] = start, stop, step
    yield t.SliceSteps(ctx.operand(n.inputs[0]), ctx.operand(n.id), tuple(starts), tuple(stops), tuple(steps))


@lowers(ops.Concat, widths="moves", exact=True)
def _concat(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims = ctx.dims(n.id)
    axis = o.axis % len(dims)
    outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    parts = tuple(ctx.operand(i, outer, ctx.dims(i)[axis], inner) for i in n.inputs if ctx.dims(i)[axis])
    yield t.Concat(ctx.operand(n.id, outer, dims[axis], inner), outer, dims[axis], inner, parts)


@lowers(ops.Reverse, widths="moves", exact=True)
def _reverse(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims = ctx.dims(n.id)
    flip = {a % len(dims) for a in o.axes} if dims else set()
    yield t.Reverse(ctx.operand(n.inputs[0]), ctx.operand(n.id), dims, tuple(i in flip for i in range(len(dims))),
                    ctx.storage(n.id).bits // 8)


@lowers(ops.Pad, widths="moves")
def _pad(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield t.Pad(ctx.operand(n.inputs[0]), ctx.operand(n.id), o.before, o.after, o.mode, o.value)


@lowers(ops.KvAppend, widths="moves", exact=True)
def _kv_append(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    dims, rows = ctx.dims(n.id), n.inputs[1]
    axis = o.axis % len(dims)
    outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    position = ctx.operand(n.inputs[2]) if len(n.inputs) > 2 else None
    yield t.KvAppendRows(ctx.operand(n.id, outer, dims[axis], inner),
                         ctx.operand(rows, outer, ctx.dims(rows)[axis], inner), position, o.start)


# --- by index -----------------------------------------------------------------------------------------


@lowers(ops.Gather, widths="moves", exact=True)
def _gather(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    table, idx = n.inputs
    dims = ctx.dims(table)
    axis = o.axis % len(dims)
    outer, trailing = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    count = ctx.graph[idx].shape.numel
    if axis == 0:
        yield t.Gather(ctx.operand(table, dims[0], trailing), ctx.flat(idx), ctx.operand(n.id, count, trailing),
                       count, trailing)
    else:
        yield t.GatherAxis(ctx.operand(table, outer, dims[axis], trailing), ctx.flat(idx),
                           ctx.operand(n.id, outer, count, trailing), outer, dims[axis], count, trailing)


def _indexing(kind: str, ctx: Lowering, n: Node, axis: int = 0, reduction: str = "none") -> Thunk:
    data, idx, *updates = n.inputs
    return t.CpuIndexing(kind, ctx.operand(data), ctx.operand(idx), ctx.operand(updates[0]) if updates else None,
                         ctx.operand(n.id), axis % max(n.shape.rank, 1), reduction)


@lowers(ops.GatherNd, widths="moves", exact=True)
def _gather_nd(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield _indexing("gather_nd", ctx, n)


@lowers(ops.GatherElements, widths="moves", exact=True)
def _gather_elements(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield _indexing("gather_elements", ctx, n, o.axis)


@lowers(ops.ScatterNd, exact=True)
def _scatter_nd(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield _indexing("scatter_nd", ctx, n)


@lowers(ops.ScatterElements)
def _scatter_elements(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield _indexing("scatter_elements", ctx, n, o.axis, o.reduction)


@lowers(ops.ScatterAdd)
def _scatter_add(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    updates, idx = n.inputs
    count, trailing = ctx.graph[idx].shape.numel, math.prod(ctx.dims(n.id)[1:])
    yield t.ScatterAdd(ctx.operand(updates, count, trailing), ctx.flat(idx), ctx.operand(n.id, o.out_dim, trailing),
                       count, o.out_dim, trailing)
