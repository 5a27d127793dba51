"""Owns ops that read or write by index. Negative indices count from the end."""

from __future__ import annotations

import math

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, refuse, zeros
from planner_core.ir.ops.operands import wanted
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait


def _wrap(idx: Array, extent: int) -> Array:
    idx = idx.astype(np.int64)
    return np.where(idx < 0, idx + extent, idx)


@op(family="indexing", operands="x indices", traits=(Trait.HOST_INDEXING,), rows=rows.gathers)
class Gather(Op):
    """``x`` taken at ``indices`` along ``axis``: dims before, then the indices' dims, then dims after."""

    axis: int = 0

    def infer(self, x: Shape, idx: Shape, *_: Shape) -> Shape:
        axis = x.axis(self.axis)
        return Shape((*x.dims[:axis], *idx.dims, *x.dims[axis + 1 :]), x.dtype)

    def evaluate(self, x: Array, idx: Array, *_: Array) -> Array:
        return np.take(x, _wrap(idx, x.shape[self.axis]), axis=self.axis)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, idx = inputs
        axis = g[x].shape.axis(self.axis)
        return g.gather_backward(dy, idx, axis=axis, extent=g[x].shape.dims[axis]), None


def _within(op: str, x: Shape, idx: Shape, axis: int) -> None:
    """Refuse indices that reach past x on an axis where they are places of their own."""
    axis = x.axis(axis)
    for i, (have, n) in enumerate(zip(x.dims, idx.dims, strict=True)):
        if i != axis and have.value is not None and n.value is not None and n.value > have.value:
            raise GraphError(f"{op} indices {idx}: axis {i} is longer than that of x {x}; only axis {axis} may be")


@op(family="indexing", operands="x indices", traits=(Trait.HOST_INDEXING,))
class GatherElements(Op):
    """``out[i][j] = x[idx[i][j]][j]`` for axis 0, likewise elsewhere."""

    axis: int

    def infer(self, x: Shape, idx: Shape, *_: Shape) -> Shape:
        if idx.rank != x.rank:
            raise GraphError(f"GatherElements of {x} by {idx}: ranks differ")
        _within("GatherElements", x, idx, self.axis)
        return Shape(idx.dims, x.dtype)

    def evaluate(self, x: Array, idx: Array, *_: Array) -> Array:
        axis = self.axis % x.ndim
        part = x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(idx.shape))]
        return np.take_along_axis(part, _wrap(idx, x.shape[axis]), axis)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, idx = inputs
        return g.scatter_elements(zeros(g, g[x].shape), idx, dy, axis=g[x].shape.axis(self.axis), reduction="add"), None


def _depth(op: str, x: Shape, idx: Shape) -> int:
    """How many leading coordinates a row of indices holds."""
    depth = idx.sizes[-1] if idx.rank else 0
    if not idx.rank or depth > x.rank:
        raise GraphError(f"{op} indices {idx}: wanted at most {x.rank} coordinates in the last axis, for x {x}")
    return depth


@op(family="indexing", operands="x indices", traits=(Trait.HOST_INDEXING,))
class GatherNd(Op):
    """The last axis of ``indices`` holds leading coordinates of ``x``."""

    def infer(self, x: Shape, idx: Shape, *_: Shape) -> Shape:
        depth = _depth("GatherNd", x, idx)
        return Shape((*idx.dims[:-1], *x.dims[depth:]), x.dtype)

    def evaluate(self, x: Array, idx: Array, *_: Array) -> Array:
        return np.asarray(x[tuple(_wrap(idx[..., i], x.shape[i]) for i in range(idx.shape[-1]))])


@op(family="indexing", operands="x indices updates", traits=(Trait.HOST_INDEXING,))
class ScatterNd(Op):
    """``x`` with ``updates`` written at the coordinates in the last axis of ``indices``."""

    def infer(self, x: Shape, idx: Shape, updates: Shape, *_: Shape) -> Shape:
        depth = _depth("ScatterNd", x, idx)
        wanted("ScatterNd", "updates", updates, (*idx.dims[:-1], *x.dims[depth:]), f"one slice of x {x} a row of indices {idx}")
        return x

    def evaluate(self, x: Array, idx: Array, updates: Array, *_: Array) -> Array:
        out = x.copy()
        out[tuple(_wrap(idx[..., i], x.shape[i]) for i in range(idx.shape[-1]))] = updates
        return out

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        _, idx, updates = inputs
        return g.scatter_nd(dy, idx, zeros(g, g[updates].shape)), None, g.gather_nd(dy, idx)


@op(family="indexing", operands="x indices updates", traits=(Trait.HOST_INDEXING,))
class ScatterElements(Op):
    """``x`` with ``updates`` written (or reduced: add, mul, max, min) at ``indices`` along an axis."""

    axis: int
    reduction: str = "none"

    def infer(self, x: Shape, idx: Shape, updates: Shape, *_: Shape) -> Shape:
        if self.reduction not in ("none", "add", "mul", "max", "min"):
            raise GraphError(f"ScatterElements reduction {self.reduction!r}: wanted none, add, mul, max or min")
        if idx.rank != x.rank:
            raise GraphError(f"ScatterElements indices {idx}: wanted the rank of x {x}")
        _within("ScatterElements", x, idx, self.axis)
        wanted("ScatterElements", "updates", updates, idx.dims, f"one a place in indices {idx}")
        return x

    def evaluate(self, x: Array, idx: Array, updates: Array, *_: Array) -> Array:
        out = x.copy()
        where: list[Array] = list(np.indices(idx.shape, sparse=True))
        where[self.axis] = _wrap(idx, x.shape[self.axis])
        if self.reduction == "none":
            out[tuple(where)] = updates
        else:
            ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[self.reduction]
            ufunc.at(out, tuple(where), updates)
        return out

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, idx, updates = inputs
        axis = g[x].shape.axis(self.axis)
        if self.reduction not in ("none", "add"):
            refuse(g, node, f"reduction {self.reduction!r}; only none and add are differentiated")
        cut = dy
        for i, n in enumerate(g[idx].shape.sizes):
            if i != axis and n != g[cut].shape.sizes[i]:
                cut = g.narrow(cut, axis=i, start=0, len=n)
        kept = dy if self.reduction == "add" else g.scatter_elements(dy, idx, zeros(g, g[updates].shape), axis=axis)
        return kept, None, g.gather_elements(cut, idx, axis=axis)


@op(family="indexing", operands="updates indices")
class ScatterAdd(Op):
    """Zeros ``[out_dim, ...]`` with ``updates[i]`` added at row ``indices[i]``; duplicates accumulate."""

    out_dim: int

    def infer(self, updates: Shape, idx: Shape, *_: Shape) -> Shape:
        wanted("ScatterAdd", "updates", updates, (*idx.dims, *updates.dims[idx.rank :]), f"one slice an index of indices {idx}")
        return updates.with_dims((self.out_dim, *updates.dims[idx.rank :]))

    def evaluate(self, updates: Array, idx: Array, *_: Array) -> Array:
        tail = updates.shape[idx.ndim :]
        out = np.zeros((self.out_dim, *tail), dtype=updates.dtype)
        np.add.at(out, idx.reshape(-1).astype(np.int64), updates.reshape(math.prod(idx.shape), *tail))
        return out

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return g.gather(dy, inputs[1], axis=0), None
