"""Owns reductions and scans along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, refuse, scalar, spread, zeros
from planner_core.ir.shape import Shape, dim

REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod,
}


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    """What max or min of nothing is, as in ONNX: ∓inf, or the least or greatest integer."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max
    if dtype.kind == "b":
        return kind == "min"
    return -np.inf if kind == "max" else np.inf


@op(family="reduce", operands="x", builders={f"reduce_{k}": {"kind": k} for k in REDUCE}, rows=rows.along_axes)
class Reduce(Op):
    """sum, mean, max, min or prod over ``axes``, which are dropped or kept with extent 1. Of nothing: 0, NaN (an integer's
    mean: 0), the least, the greatest, 1."""

    kind: str
    axes: tuple[int, ...]
    keepdims: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if self.kind not in REDUCE:
            raise GraphError(f"reduce kind {self.kind!r}: wanted one of {', '.join(REDUCE)}")
        axes = {x.axis(a) for a in self.axes}
        kept = (dim(1) if i in axes else d for i, d in enumerate(x.dims) if self.keepdims or i not in axes)
        return x.with_dims(kept)

    def evaluate(self, x: Array, *_: Array) -> Array:
        if self.kind == "mean" and math.prod(x.shape[a] for a in self.axes) == 0:  # NumPy's mean warns
            nothing = np.sum(x, axis=self.axes, keepdims=self.keepdims)
            return np.full(nothing.shape, np.nan if x.dtype.kind not in "iub" else 0, dtype=x.dtype)
        more = {"initial": identity(self.kind, x.dtype)} if self.kind in ("max", "min") and not x.size else {}
        return np.asarray(REDUCE[self.kind](x, axis=self.axes, keepdims=self.keepdims, **more), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return x.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        (x,) = inputs
        shape = g[x].shape
        if self.kind == "sum":
            return (spread(g, dy, shape, self.axes),)
        axes = {shape.axis(a) for a in self.axes}
        if self.kind == "mean":
            count = math.prod(shape.sizes[a] for a in axes)
            return (spread(g, g.mul(dy, scalar(g, 1 / count, dy)), shape, self.axes),)
        if self.kind == "prod":
            refuse(g, node, "prod divides by its operands, which may be zero; write it as exp(sum(log(x)))")
        here = g.eq(x, spread(g, node, shape, self.axes))  # ties share evenly, as in PyTorch's amax
        ties = g.reduce_sum(g.cast(here, to=shape.dtype), axes=self.axes, keepdims=self.keepdims)
        return (g.where(here, spread(g, g.div(dy, ties), shape, self.axes), scalar(g, 0, dy)),)


@op(family="reduce", operands="x", builders={"argmax": {"kind": "max"}, "argmin": {"kind": "min"}}, rows=rows.reduces_one_axis)
class ArgReduce(Op):
    """Index of the first max or min along an axis, as i64."""

    kind: str
    axis: int
    keepdims: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        axis = x.axis(self.axis)
        if x.dims[axis].value == 0:
            raise GraphError(f"ArgReduce({self.kind}) of {x} along axis {self.axis}: it has no element to point at; wanted at "
                             "least one")
        return Shape(tuple(dim(1) if i == axis else d for i, d in enumerate(x.dims)
                           if self.keepdims or i != axis), DType.I64)

    def evaluate(self, x: Array, *_: Array) -> Array:
        fn = np.argmax if self.kind == "max" else np.argmin
        return np.asarray(fn(x, axis=self.axis, keepdims=self.keepdims), dtype=np.int64)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (None,)


@op(family="reduce", operands="x", rows=rows.along_last_axis)
class TopK(Op):
    """The ``k`` largest (or smallest) along the last axis, in order: their indices (i64) or values."""

    k: int
    largest: bool = True
    values: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        have = x.dims[-1].value
        if have is not None and not 0 <= self.k <= have:
            raise GraphError(f"TopK k={self.k} of {x}: wanted at most {have}")
        return Shape((*x.dims[:-1], dim(self.k)), x.dtype if self.values else DType.I64)

    def evaluate(self, x: Array, *_: Array) -> Array:
        order = np.argsort(-x if self.largest else x, axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, order, -1) if self.values else order.astype(np.int64)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        if not self.values:
            return (None,)
        (x,) = inputs
        at = g.top_k(x, k=self.k, largest=self.largest)
        return (g.scatter_elements(zeros(g, g[x].shape), at, dy, axis=g[x].shape.rank - 1, reduction="add"),)


@op(family="reduce", operands="x", rows=rows.along_last_axis)
class Cumsum(Op):
    """Running sum along the last axis, inclusive or exclusive."""

    exclusive: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        x.axis(-1)
        return x

    def evaluate(self, x: Array, *_: Array) -> Array:
        y = np.cumsum(x, axis=-1, dtype=x.dtype)
        return y - x if self.exclusive else y

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.cumsum_backward(dy, exclusive=self.exclusive),)
