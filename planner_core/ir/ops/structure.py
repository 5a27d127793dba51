"""Owns ops that move, cut or re-type elements without arithmetic."""

from __future__ import annotations

import math

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, refuse, scalar, unbroadcast
from planner_core.ir.shape import UNKNOWN, Dim, Shape, broadcast_dims, dim
from planner_core.ir.traits import Trait


@op(family="structure", operands="x", traits=(Trait.STATIC,), rows=rows.anywhere)
class Reshape(Op):
    """The same elements in row-major order under new dims (every extent written out, no -1)."""

    dims: tuple[Dim, ...]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        out = Shape(tuple(dim(d) for d in self.dims), x.dtype)
        if x.is_static and out.is_static and x.numel != out.numel:
            raise GraphError(f"can't reshape {x} ({x.numel} elements) to {out} ({out.numel} elements)")
        return out

    def evaluate(self, x: Array, *_: Array) -> Array:
        return x.reshape(Shape(self.dims).sizes)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.reshape(dy, dims=g[inputs[0]].shape.dims),)


@op(family="structure", operands="x", traits=(Trait.STATIC,), rows=rows.transposes)
class Transpose(Op):
    """Axes permuted: output axis i is input axis ``perm[i]``."""

    perm: tuple[int, ...]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if sorted(self.perm) != list(range(x.rank)):
            raise GraphError(f"perm {self.perm} is no permutation of the {x.rank} axes of {x}")
        return Shape(tuple(x.dims[p] for p in self.perm), x.dtype)

    def evaluate(self, x: Array, *_: Array) -> Array:
        return np.asarray(x.transpose(self.perm), order="C")

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.transpose(dy, perm=tuple(self.perm.index(i) for i in range(len(self.perm)))),)


@op(family="structure", operands="x", traits=(Trait.STATIC,), rows=rows.along_one_axis)
class Narrow(Op):
    """``len`` elements of one axis from ``start``."""

    axis: int
    start: int
    len: int

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if not x.rank:
            raise GraphError(f"{x} has no axis to narrow; reshape it to [1] first")
        axis = x.axis(self.axis)
        have = x.dims[axis].value
        if self.start < 0 or self.len < 0 or (have is not None and self.start + self.len > have):
            raise GraphError(f"narrow [{self.start}, {self.start + self.len}) leaves axis {axis} of {x}")
        return Shape((*x.dims[:axis], dim(self.len), *x.dims[axis + 1 :]), x.dtype)

    def evaluate(self, x: Array, *_: Array) -> Array:
        return x[(slice(None),) * (self.axis % x.ndim) + (slice(self.start, self.start + self.len),)]

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x = g[inputs[0]].shape
        axis = x.axis(self.axis)
        after = x.sizes[axis] - self.start - self.len
        return (g.pad(dy, before=tuple(self.start if i == axis else 0 for i in range(x.rank)),
                      after=tuple(after if i == axis else 0 for i in range(x.rank))),)


@op(family="structure", operands="xs*", traits=(Trait.STATIC,), rows=rows.along_one_axis)
class Concat(Op):
    """Operands one after another along an axis."""

    axis: int

    def infer(self, *ins: Shape) -> Shape:
        if not ins:
            raise GraphError("Concat needs at least one operand")
        first, axis = ins[0], ins[0].axis(self.axis)
        if not first.rank:
            raise GraphError(f"{first} has no axis to concatenate along; reshape it to [1] first")
        total = dim(0)
        for s in ins:
            if s.rank != first.rank or s.dtype is not first.dtype:
                raise GraphError(f"can't concatenate {first} and {s}: rank and dtype must agree")
            for i, (a, b) in enumerate(zip(first.dims, s.dims, strict=True)):
                if i != axis and not a.same(b) and not (a.is_unknown or b.is_unknown):
                    raise GraphError(f"can't concatenate {first} and {s} on axis {axis}: axis {i} differs")
            total = s.dims[axis] if total == dim(0) else total + s.dims[axis]
        return Shape((*first.dims[:axis], total, *first.dims[axis + 1 :]), first.dtype)

    def evaluate(self, *ins: Array) -> Array:
        return np.concatenate(ins, axis=self.axis)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        out: list[NodeId] = []
        start, axis = 0, g[node].shape.axis(self.axis)
        for i in inputs:
            n = g[i].shape.sizes[axis]
            out.append(g.narrow(dy, axis=axis, start=start, len=n))
            start += n
        return tuple(out)


@op(family="structure", operands="x", traits=(Trait.STATIC,), rows=rows.aligned)
class Expand(Op):
    """NumPy broadcast of x to ``dims`` (x's axes align right)."""

    dims: tuple[Dim, ...]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        return Shape(broadcast_dims(x, Shape(self.dims)), x.dtype)

    def evaluate(self, x: Array, *_: Array) -> Array:
        return np.asarray(np.broadcast_to(x, np.broadcast_shapes(x.shape, Shape(self.dims).sizes)), order="C")

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (unbroadcast(g, dy, g[inputs[0]].shape),)


@op(family="structure", operands="x", traits=(Trait.STATIC,), rows=rows.anywhere)
class Cast(Op):
    """Each element converted to ``to`` (floats to ints toward zero, anything to bool as ``!= 0``)."""

    to: DType

    def infer(self, x: Shape, *_: Shape) -> Shape:
        return x.with_dtype(self.to)

    def evaluate(self, x: Array, *_: Array) -> Array:
        return x.astype(self.to.numpy)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x = g[inputs[0]]
        return (g.cast(dy, to=x.dtype) if x.dtype.is_float else None,)


@op(family="structure", operands="x", rows=rows.along_axes)
class Reverse(Op):
    """The listed axes back to front."""

    axes: tuple[int, ...]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        for a in self.axes:
            x.axis(a)
        return x

    def evaluate(self, x: Array, *_: Array) -> Array:
        return np.asarray(np.flip(x, self.axes), order="C")

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.reverse(dy, axes=self.axes),)


@op(family="structure", operands="cache rows position?", traits=(Trait.STATEFUL, Trait.APPEND))
class KvAppend(Op):
    """``cache`` with ``rows`` written at ``start`` (or at the int operand ``position``) along ``axis``.

    The result is the cache's own buffer: a view that still writes.
    """

    axis: int = 1
    start: int = 0

    def infer(self, cache: Shape, rows: Shape, *_: Shape) -> Shape:
        axis = cache.axis(self.axis)
        bad = rows.rank != cache.rank or any(
            not a.same(b) for i, (a, b) in enumerate(zip(cache.dims, rows.dims, strict=False)) if i != axis
        )
        have, new = cache.dims[axis].value, rows.dims[axis].value if not bad else None
        if bad or (have is not None and new is not None and self.start + new > have):
            raise GraphError(f"rows {rows} don't fit cache {cache} on axis {axis} from {self.start}")
        return cache

    def evaluate(self, cache: Array, rows: Array, *position: Array) -> Array:
        out = cache.copy()
        start = int(position[0].ravel()[0]) if position else self.start
        out[(slice(None),) * self.axis + (slice(start, start + rows.shape[self.axis]),)] = rows
        return out

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        if len(inputs) > 2:
            refuse(g, node, "the rows' position is known only at the run; give start instead")
        axis, n = g[node].shape.axis(self.axis), g[inputs[1]].shape.sizes[self.axis]
        extent = g[node].shape.sizes[axis]
        written = np.zeros([extent if i == axis else 1 for i in range(g[node].shape.rank)], dtype=bool)
        written[(slice(None),) * axis + (slice(self.start, self.start + n),)] = True
        return (g.where(g.constant(written), scalar(g, 0, dy), dy),  # not an append of zeros, which would write into dy
                g.narrow(dy, axis=axis, start=self.start, len=n))


def shifted(d: Dim, by: int) -> Dim:
    """``d + by`` where ``by`` may be negative (a dim itself can't be)."""
    return d + by if by >= 0 else d - (-by)


@op(family="structure", operands="x")
class Pad(Op):
    """Elements added (cut, where negative) before and after each axis. mode: constant (``value``), edge, reflect."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if len(self.before) != x.rank or len(self.after) != x.rank:
            raise GraphError(f"Pad widths {self.before}, {self.after} don't match the {x.rank} axes of {x}")
        if self.mode not in ("constant", "edge", "reflect"):
            raise GraphError(f"Pad mode {self.mode!r}: wanted constant, edge or reflect")
        for d, b, a in zip(x.dims, self.before, self.after, strict=True):
            if self.mode != "constant" and d.value is not None and max(b, a) > 0 and d.value + min(b, 0) + min(a, 0) < 1:
                raise GraphError(f"Pad of x {x} by {self.before} and {self.after}: nothing is left to repeat; wanted mode constant")
        return x.with_dims(shifted(d, b + a) for d, b, a in zip(x.dims, self.before, self.after, strict=True))

    def evaluate(self, x: Array, *_: Array) -> Array:
        cut = x[tuple(slice(max(-b, 0), n - max(-a, 0))
                      for b, a, n in zip(self.before, self.after, x.shape, strict=True))]
        widths = [(max(b, 0), max(a, 0)) for b, a in zip(self.before, self.after, strict=True)]
        if self.mode == "constant":
            return np.pad(cut, widths, constant_values=self.value)
        return np.pad(cut, widths, mode="edge" if self.mode == "edge" else "reflect")

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        if self.mode != "constant":
            refuse(g, node, f"mode {self.mode} repeats elements; only constant padding is differentiated")
        return (g.pad(dy, before=tuple(-b for b in self.before), after=tuple(-a for a in self.after)),)


@op(family="structure", operands="x", rows=rows.along_axes)
class Slice(Op):
    """``x[start:stop:step]`` along each listed axis, bounds already clamped; steps may be negative."""

    axes: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        dims = list(x.dims)
        for axis, start, stop, step in zip(self.axes, self.starts, self.stops, self.steps, strict=True):
            if step == 0:
                raise GraphError("Slice step 0")
            have = dims[x.axis(axis)].value
            past = step < 0 and have is not None and stop < start == have  # the last element is one before
            if have is not None and (past or not (0 <= start <= have and -1 <= stop <= have)):
                raise GraphError(f"Slice [{start}:{stop}:{step}] of axis {axis} of {x}: wanted bounds within [0, {have}] "
                                 "(a stop of -1: down to the first element)")
            if dims[x.axis(axis)].value is None:
                dims[axis] = UNKNOWN
            else:
                dims[axis] = dim(max(0, math.ceil((stop - start) / step)))
        return Shape(tuple(dims), x.dtype)

    def evaluate(self, x: Array, *_: Array) -> Array:
        index: list[slice] = [slice(None)] * x.ndim
        for axis, start, stop, step in zip(self.axes, self.starts, self.stops, self.steps, strict=True):
            index[axis] = slice(start, None if stop < 0 else stop, step)
        return np.asarray(x[tuple(index)], order="C")

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.slice_backward(dy, axes=self.axes, starts=self.starts, stops=self.stops, steps=self.steps,
                                 dims=g[inputs[0]].shape.dims),)
