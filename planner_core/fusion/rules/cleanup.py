"""Owns the rules that only tidy: dead code, constants, repeated work, pairs and chains that cancel."""

from __future__ import annotations

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.ir import NodeId, Op, Shape
from planner_core.ir.ops import Transpose

ANY = ("*",)
"""Anchors at every node that is no boundary."""


@rule(anchors=ANY, group="cleanup")
def dead_code(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """What nothing reads and no output needs is left out."""
    return Rewrite(g, n).drop(n) if g.reads(n) == 0 else None


@rule(anchors=ANY, group="cleanup", reasons=(Refusal.TOO_LARGE,))
def constant_folding(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """What is computed from constants alone is computed now."""
    ins = g.inputs(n)
    if not ins or any(g.op(i).name != "Constant" for i in ins):
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


@rule(anchors=("Transpose",), group="cleanup")
def layout_pairs(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Transposes in a row become one, or none where they cancel."""
    op = g.op(n)
    assert isinstance(op, Transpose)
    if op.perm == tuple(range(len(op.perm))):
        return Rewrite(g, n).replace(n, g.inputs(n)[0])
    inner = g.inputs(n)[0]
    first = g.op(inner)
    if not isinstance(first, Transpose):
        return None
    perm = tuple(first.perm[p] for p in op.perm)
    r = Rewrite(g, n)
    x = g.inputs(inner)[0]
    return r.replace(n, x if perm == tuple(range(len(perm))) else r.add(Transpose(perm), x))


def same_shape(a: Shape, b: Shape) -> bool:
    """Equal dtype and extents known to be equal."""
    return a.dtype is b.dtype and a.rank == b.rank and all(x.same(y) for x, y in zip(a.dims, b.dims, strict=True))
