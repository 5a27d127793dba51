"""Owns what is computed before the first run: values of weights and constants alone, once the patterns are through."""

from __future__ import annotations

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import ANY, LAST, Limits, Outcome, rule
from planner_core.fusion.rules.matmul import owned_by_plan
from planner_core.ir import Array, NodeId, Op
from planner_core.ir.ops import Constant, Param


@rule(anchors=ANY, group="ahead", phase=LAST, reasons=(Refusal.NO_DATA, Refusal.GROWS, Refusal.SAVES_NOTHING))
def bake_static(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """What a run would compute from weights and constants alone is computed now and becomes a weight.

    Weights that only it reads are no longer asked for; setting those later would not be seen (``Fusion.frozen``).
    """
    if not g.static[n] or g.is_view(n) or not _read_in_the_run(g, n):
        return None
    shape = g.shape(n)
    if not shape.is_static:
        return None
    if owned_by_plan(g, n, limits):
        return Refused(Refusal.SAVES_NOTHING, n, facts=(("owner", "the memory plan drops it (elide_bank_transposes)"),))
    below = _below(g, n)
    leaves = [i for i in below if not g.inputs(i)]
    unknown = next((i for i in leaves if isinstance(g.op(i), Param) and g.name(i) not in g.weights), None)
    if unknown is not None:
        return Refused(Refusal.NO_DATA, unknown, facts=(("param", g.name(unknown)),))
    read = sum(g.dtype(i).nbytes(g.shape(i).numel) for i in leaves)
    nbytes = shape.dtype.nbytes(shape.numel)
    if nbytes > read:
        return Refused(Refusal.GROWS, n, facts=(("bytes", nbytes), ("reads", read)))
    value = _value(g, below)
    if value is None or value.shape != shape.sizes or value.dtype != shape.dtype.numpy:
        return None
    r = Rewrite(g, n)
    r.frees_params = True
    r.frozen |= {p for p in g.params_of(n) if p in g.source.weights}
    return r.replace(n, r.param(f"{g.label(n).replace('%', 'node')}.baked", value, shape.dtype)).note(bytes=nbytes, reads=read)


def _read_in_the_run(g: Draft, n: NodeId) -> bool:
    """The graph's output, or read by a node that is computed in every run; views in between are looked through once."""
    return g.is_output(n) or any(not g.static[r] or g.is_view(r) for r in g.readers(n))


def _below(g: Draft, n: NodeId) -> list[NodeId]:
    """``n`` and everything it is computed from, operands first."""
    out: dict[NodeId, None] = {}
    stack = [n]
    while stack:
        i = stack[-1]
        missing = [x for x in g.inputs(i) if x not in out]
        if i not in out and missing:
            stack += missing
            continue
        stack.pop()
        out[i] = None
    return list(out)


def _value(g: Draft, below: list[NodeId]) -> Array | None:
    """The last one's value, at the operands' own width, as a run would compute it."""
    values: dict[NodeId, Array] = {}
    with np.errstate(all="ignore"):
        for i in below:
            op = g.op(i)
            if isinstance(op, Param):
                values[i] = g.weights[g.name(i)]
            elif isinstance(op, Constant):
                values[i] = op.data.array
            elif type(op).evaluate is Op.evaluate:
                return None
            else:
                values[i] = np.asarray(op.evaluate(*[values[x] for x in g.inputs(i)]))
    return np.ascontiguousarray(values[below[-1]])
