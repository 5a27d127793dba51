"""Owns the rules that only tidy: dead code, constants, repeated work, pairs and chains that cancel."""

from __future__ import annotations

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import ANY, Limits, Outcome, rule
from planner_core.ir import DType, NodeId, Op, Shape
from planner_core.ir.ops import (
    Activation,
    Binary,
    Cast,
    Concat,
    Constant,
    Expand,
    Narrow,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from planner_core.ir.traits import Trait

"""Anchors at every node that is no boundary."""


@rule(anchors=ANY, group="cleanup")
def dead_code(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """What nothing reads and no output needs is left out."""
    return Rewrite(g, n).drop(n) if g.reads(n) == 0 else None


@rule(anchors=ANY, group="cleanup", reasons=(Refusal.TOO_LARGE,))
def constant_folding(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """What is computed from constants alone is computed now."""
    ins = g.inputs(n)
    if not ins or any(not isinstance(g.op(i), Constant) for i in ins):
        return None
    op, shape = g.op(n), g.shape(n)
    if type(op).evaluate is Op.evaluate or op.bodies() or not shape.is_static:
        return None
    nbytes = shape.dtype.nbytes(shape.numel)
    if nbytes > limits.most_folded:
        return Refused(Refusal.TOO_LARGE, n, facts=(("bytes", nbytes), ("most", limits.most_folded)))
    with np.errstate(all="ignore"):
        value = np.asarray(op.evaluate(*[g.op(i).data.array for i in ins]))  # type: ignore[attr-defined]
    if value.shape != shape.sizes:
        return Refused(Refusal.SHAPE, n)
    r = Rewrite(g, n)
    return r.replace(n, r.constant(value, shape.dtype))


MOST_TWINS = 64
"""Readers of a value that are looked at for one that computes the same."""


@rule(anchors=ANY, group="cleanup", reasons=(Refusal.LIMIT,))
def common_subexpressions(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """What is computed twice from the same operands is computed once."""
    ins, op = g.inputs(n), g.op(n)
    if not ins or op.has(Trait.STATEFUL):
        return None
    through = min(ins, key=g.fan_out)
    if g.fan_out(through) < 2:
        return None
    if g.fan_out(through) > MOST_TWINS:
        return Refused(Refusal.LIMIT, through, facts=(("readers", g.fan_out(through)), ("most", MOST_TWINS)))
    here = g.place[n], n
    for other in g.readers(through):
        if (g.place[other], other) >= here:
            return None
        if g.inputs(other) == ins and type(g.op(other)) is type(op) and g.op(other) == op and g.level[other] <= g.level[n]:
            return Rewrite(g, n).replace(n, other)
    return None


# --- casts --------------------------------------------------------------------------------------------

_DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8e4m3": 4, "f8e5m2": 3}
"""Bits of an integer that a float type holds exactly."""
_WIDER = {"f8e4m3": ("f16", "bf16", "f32", "f64"), "f8e5m2": ("f16", "bf16", "f32", "f64"), "bf16": ("f32", "f64"),
          "f16": ("f32", "f64"), "f32": ("f64",)}


def lossless(a: DType, b: DType) -> bool:
    """Every value of ``a`` is a value of ``b``."""
    if a is b or a is DType.BOOL:
        return b is not DType.C64
    if a.is_float:
        return b.text in _WIDER.get(a.text, ())
    if not a.is_int:
        return False
    bits = a.bits - (a.text[0] == "i")  # of the magnitude
    if b.is_float:
        return bits <= _DIGITS[b.text]
    return b.is_int and bits <= b.bits - (b.text[0] == "i") and (a.text[0] == "u" or b.text[0] == "i")


@rule(anchors=(Cast,), group="cleanup")
def cast_chains(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A cast to a value's own dtype goes; of two casts in a row the first goes where it loses nothing."""
    inner, to = g.inputs(n)[0], g.dtype(n)
    if g.dtype(inner) is to:
        return Rewrite(g, n).replace(n, inner)
    if not isinstance(g.op(inner), Cast):
        return None
    x = g.inputs(inner)[0]
    was, between = g.dtype(x), g.dtype(inner)
    if not lossless(was, between) or (was.is_int and between.is_float and to.is_int and not lossless(was, to)):
        return None  # an int out of range wraps, a float out of range does not
    r = Rewrite(g, n)
    return r.replace(n, x if was is to else r.add(Cast(to), x))


# --- shapes and layouts -------------------------------------------------------------------------------


@rule(anchors=(Reshape, Expand, Concat, Narrow, Pad, Slice), group="cleanup")
def reshape_chains(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Of reshapes in a row the last stays; reshapes, expands, concats, slices and pads that change nothing go."""
    op, ins = g.op(n), g.inputs(n)
    x = ins[0]
    if same_shape(g.shape(x), g.shape(n)) and _keeps_all(op, len(ins)):
        return Rewrite(g, n).replace(n, x)
    if isinstance(op, Reshape) and isinstance(g.op(x), Reshape):
        r = Rewrite(g, n)
        source = g.inputs(x)[0]
        return r.replace(n, source if same_shape(g.shape(source), g.shape(n)) else r.add(op, source))
    return None


def _keeps_all(op: Op, operands: int) -> bool:
    """With an operand of the result's own shape, nothing happens."""
    if isinstance(op, Pad):
        return not any((*op.before, *op.after))
    if isinstance(op, Slice):
        return all(s == 1 for s in op.steps)
    return operands == 1


MOST_BETWEEN = 8
"""Elementwise ops between two transposes that are looked through."""


@rule(anchors=(Transpose,), group="cleanup", reasons=(Refusal.SHARED, Refusal.OUTPUT))
def layout_pairs(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Transposes in a row become one, or none where they cancel, elementwise ops between them or not."""
    op = g.op(n)
    assert isinstance(op, Transpose)
    if _identity(op.perm):
        return Rewrite(g, n).replace(n, g.inputs(n)[0])
    between: list[NodeId] = []
    inner = g.inputs(n)[0]
    while len(between) < MOST_BETWEEN and _per_element(g, inner):
        between.append(inner)
        inner = _large(g, inner)
    first = g.op(inner)
    if not isinstance(first, Transpose):
        return None
    perm = tuple(first.perm[p] for p in op.perm)
    if between and not _identity(perm):
        return None
    for i in between:
        if stop := g.shared(i):
            return stop
    r = Rewrite(g, n)
    x = g.inputs(inner)[0]
    if not _identity(perm):
        x = r.add(Transpose(perm), x)
    for i in reversed(between):
        big = _large(g, i)
        x = r.add(g.op(i), *(x if v == big else v for v in g.inputs(i)))
    return r.replace(n, x)


def _identity(perm: tuple[int, ...]) -> bool:
    return perm == tuple(range(len(perm)))


def _per_element(g: Draft, n: NodeId) -> bool:
    """One operand, or two of which one is a single element of no more axes: the order of axes doesn't matter."""
    if isinstance(g.op(n), (Activation, Cast)):
        return True
    if not isinstance(g.op(n), Binary):
        return False
    a, b = g.inputs(n)
    return a != b and any(all(d == 1 for d in g.dims(i)) and len(g.dims(i)) <= 1 for i in (a, b))


def _large(g: Draft, n: NodeId) -> NodeId:
    """The operand that ``_per_element`` passes through."""
    return max(g.inputs(n), key=lambda i: g.shape(i).rank)


def same_shape(a: Shape, b: Shape) -> bool:
    """Equal dtype and extents known to be equal."""
    return a.dtype is b.dtype and a.rank == b.rank and all(x.same(y) for x, y in zip(a.dims, b.dims, strict=True))
