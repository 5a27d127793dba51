"""Owns handlers of ops with subgraphs: If, Loop, Scan. Bodies see the outer graph as captured inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_opaque import outputs_as_values
from planner_core.importers.onnx_value import Value
from planner_core.ir import UNKNOWN, Dim, DType, Shape, dim, ops

if TYPE_CHECKING:
    import onnx

    from planner_core.importers.onnx_build import Builder

_ROUNDS = 4


def _body(c: Call, name: str) -> onnx.GraphProto:
    for a in c.node.attribute:
        if a.name == name:
            found: onnx.GraphProto = a.g
            return found
    raise Unsupported(f"it has no {name}")


def _results(b: Builder, g: onnx.GraphProto) -> list[Value]:
    out = []
    for o in g.output:
        v = b.find(o.name)
        if v is None:
            raise Unsupported(f"output {o.name!r} of {g.name!r} is given by no node")
        out.append(v)
    return out


def _inline(c: Call, g: onnx.GraphProto) -> list[Value]:
    """Run a body's nodes in the outer graph; its names are dropped after."""
    b = c.builder
    outer = dict(b.env)
    b.add_initializers(g)
    b.run(g.node)
    found = _results(b, g)
    b.env = outer
    return found


def _common(a: Shape, b: Shape) -> Shape:
    """What is sure of a tensor that is one or the other."""
    if a.rank != b.rank:
        return Shape((UNKNOWN,), a.dtype)
    return Shape(tuple(x if x.same(y) else UNKNOWN for x, y in zip(a.dims, b.dims, strict=True)), a.dtype)


@onnx_op("If")
def if_op(c: Call) -> list[Value]:
    """Only the branch taken where the condition is known, else both."""
    then, other = _body(c, "then_branch"), _body(c, "else_branch")
    cond = c[0]
    if cond.array is not None:
        return _inline(c, then if bool(cond.array.reshape(-1)[0]) else other)
    a, b = (c.builder.child(g.name or side) for g, side in ((then, "then"), (other, "else")))
    a.add_initializers(then)
    a.run(then.node)
    left = _results(a, then)
    for v in left:
        a.place(v)
    for v, _ in list(a.captures.values()):
        b.capture(v)
    b.add_initializers(other)
    b.run(other.node)
    right = _results(b, other)
    for v in right:
        b.place(v)
    for v, _ in list(b.captures.values()):
        a.capture(v)
    bodies = [x.finish(found, [o.name for o in g.output])
              for x, found, g in ((a, left, then), (b, right, other))]
    shapes = [_common(x.shape, y.shape) for x, y in zip(left, right, strict=True)]
    captured = [v for v, _ in a.captures.values()]
    first = c.emit(ops.If(shapes[0], bodies[0], bodies[1]), cond, *captured)
    return _marked(outputs_as_values(c, first, shapes), [
        x.rankless or y.rankless or x.shape.rank != y.shape.rank for x, y in zip(left, right, strict=True)])


def _marked(outs: list[Value], rankless: Sequence[bool]) -> list[Value]:
    for v, unsure in zip(outs, rankless, strict=False):
        v.rankless = v.rankless or unsure
    return outs


def _formals(c: Call, b: Builder, g: onnx.GraphProto, shapes: Sequence[Shape]) -> list[Value]:
    out = []
    for v, shape in zip(g.input, shapes, strict=True):
        made = b.add_input(v.name, shape, b.model.source(v.name, "input"))
        made.rankless = shape.dims == (UNKNOWN,)
        b.env[v.name] = made
        out.append(made)
    return out


def _stable(c: Call, g: onnx.GraphProto, name: str, lead: Sequence[Shape], states: list[Shape],
            tail: Sequence[Shape], skip: int) -> tuple[Builder, list[Value], list[Value], list[Shape]]:
    """Build the body until its states' shapes hold from one turn to the next."""
    log = c.builder.model.opaque
    for _ in range(_ROUNDS):
        before = Counter(log)
        b = c.builder.child(name)
        formals = _formals(c, b, g, [*lead, *states, *tail])
        b.add_initializers(g)
        b.run(g.node)
        found = _results(b, g)
        after = [v.shape for v in found[skip : skip + len(states)]]
        merged = [_common(x, y) for x, y in zip(states, after, strict=True)]
        if [s.dims for s in merged] == [s.dims for s in states]:
            return b, formals, found, states
        states = merged
        log.clear()
        log.update(before)
    raise Unsupported("the shapes of its states don't settle")


@onnx_op("Loop")
def loop(c: Call) -> list[Value]:
    """A missing trip count is the largest i64, a missing condition is True."""
    g = _body(c, "body")
    trip, cond = c.get(0), c.get(1)
    start = [c[i] for i in range(2, len(c.ins))]
    count, go = Shape((), DType.I64), Shape((), DType.BOOL)
    b, formals, found, states = _stable(c, g, g.name or "loop", [count, go], [v.shape for v in start], [], 1)
    holds = found[0] is formals[1] or (found[0].array is not None and bool(found[0].array.all()))
    starts = cond is None or (cond.array is not None and bool(cond.array.all()))
    turns = UNKNOWN
    if trip is not None and trip.array is not None and holds and starts:
        turns = dim(max(0, int(trip.array.reshape(-1)[0])))
    body = b.finish(found, [o.name for o in g.output])
    captured = [v for v, _ in b.captures.values()]
    scans = [Shape((turns, *v.shape.dims), v.shape.dtype) for v in found[1 + len(states) :]]
    shapes = [*states, *scans]
    operands = [trip if trip is not None else c.const(np.asarray(2**63 - 1, np.int64)),
                cond if cond is not None else c.const(np.asarray(True)), *start, *captured]
    first = c.emit(ops.Loop(shapes[0], body, len(states)), *operands)
    unsure = [s.dims == (UNKNOWN,) for s in states] + [v.rankless for v in found[1 + len(states) :]]
    return _marked(outputs_as_values(c, first, shapes), unsure)


@onnx_op("Scan")
def scan(c: Call) -> list[Value]:
    g = _body(c, "body")
    if c.opset < 9:
        raise Unsupported("opset 8's batched form")
    scanned = int(c.attr("num_scan_inputs"))
    carried = len(c.ins) - scanned
    ins = [c[i] for i in range(len(c.ins))]
    axes = c.ints("scan_input_axes", (0,) * scanned) or ()
    axes = tuple(v.shape.axis(a) for v, a in zip(ins[carried:], axes, strict=True))
    slices = [Shape(tuple(d for i, d in enumerate(v.shape.dims) if i != a), v.shape.dtype)
              for v, a in zip(ins[carried:], axes, strict=True)]
    b, _, found, states = _stable(c, g, g.name or "scan", [], [v.shape for v in ins[:carried]], slices, 0)
    turns: Dim = ins[carried].shape.dims[axes[0]] if scanned else UNKNOWN
    stacked = found[carried:]
    out_axes = c.ints("scan_output_axes", (0,) * len(stacked)) or ()
    body = b.finish(found, [o.name for o in g.output])
    shapes = list(states)
    placed: list[int] = []
    for v, a in zip(stacked, out_axes, strict=True):
        at = a % (v.shape.rank + 1)
        placed.append(at)
        shapes.append(Shape((*v.shape.dims[:at], turns, *v.shape.dims[at:]), v.shape.dtype))
    captured = [v for v, _ in b.captures.values()]
    back_in = tuple(bool(x) for x in c.ints("scan_input_directions", (0,) * scanned) or ())
    back_out = tuple(bool(x) for x in c.ints("scan_output_directions", (0,) * len(stacked)) or ())
    made = ops.Scan(shapes[0], body, carried, scanned, axes if any(axes) else (), tuple(placed) if any(placed) else (),
                    back_in if any(back_in) else (), back_out if any(back_out) else ())
    return _marked(outputs_as_values(c, c.emit(made, *ins, *captured), shapes), [s.dims == (UNKNOWN,) for s in states])
