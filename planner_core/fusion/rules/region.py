"""Owns elementwise regions: chains and trees of elementwise ops, batches of equal ones, an upsample read in passing.

A region is grown backwards from its last op, over values that only the region reads; looking forward and growing are
bounded by a kernel's steps, so that an op costs the same in a chain of ten and of ten thousand.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import REGIONS, Limits, Outcome, rule
from planner_core.fusion.rules.cleanup import same_shape
from planner_core.ir import NodeId, Shape
from planner_core.ir.ops import (
    REGION_STEP,
    Activation,
    BatchElementwiseRegion,
    Binary,
    DequantMatMul,
    DequantMatMulBlocked,
    ElementwiseRegion,
    FusedMatMulBiasAct,
    MatMul,
    ResizeNearest,
    RmsNorm,
    result_of,
)
from planner_core.ir.ops.region import (
    BINARY_STEP,
    MAX_BATCH_INPUTS,
    REGION_ACTIVATIONS,
    REGION_BINARIES,
    Step,
    activation_step,
    binary_step,
)
from planner_core.target import Target

_KINDS = {"Binary": frozenset(REGION_BINARIES), "Activation": frozenset(REGION_ACTIVATIONS)}
_PROJECTIONS = (MatMul, FusedMatMulBiasAct, DequantMatMul, DequantMatMulBlocked)
_GATES = frozenset({"silu", "gelu_approx", "gelu"})


def _is_step(g: Draft, n: NodeId) -> bool:
    """An elementwise op that a region has a step for, over data of the run."""
    kinds = _KINDS.get(g.op(n).name)
    return kinds is not None and g.op(n).kind in kinds and not g.static[n]  # type: ignore[attr-defined]


def _is_region(g: Draft, n: NodeId) -> bool:
    op = g.op(n)
    return isinstance(op, ElementwiseRegion) and not op.prologue


def _steps(g: Draft, n: NodeId) -> int:
    op = g.op(n)
    return len(op.steps) if isinstance(op, ElementwiseRegion) else 1


def _readable(x: Shape, out: Shape) -> bool:
    """A region of shape ``out`` can address ``x``: full, one element, or its last axes."""
    if x.dims == out.dims:
        return True
    core = list(x.dims)
    while core and core[0].value == 1:
        core.pop(0)
    tail = out.dims[len(out.dims) - len(core):]
    return len(core) <= len(out.dims) and all(a.same(b) for a, b in zip(core, tail, strict=True))


def _owned_by_pass(g: Draft, n: NodeId, limits: Limits) -> bool:
    """A step that the target's command passes look for: gates, gated norms, a one-row residual."""
    if limits.decode_forms:
        return False
    kind, shape = g.kind(n), g.shape(n)
    one_row = shape.rank > 0 and all(d.value == 1 for d in shape.dims[:-1])
    if kind in _GATES:
        reader = g.only_reader(n)
        return reader is not None and g.kind(reader) == "mul" and _owned_by_pass(g, reader, limits)
    if kind == "mul":
        names = {g.op(i).name for i in g.inputs(n)}
        gated = any(g.kind(i) in _GATES for i in g.inputs(n))
        return gated and (one_row or "RmsNorm" in names)
    return kind == "add" and one_row and (
        any(isinstance(g.op(i), _PROJECTIONS) for i in g.inputs(n)) or
        (g.fan_out(n) <= limits.profile.region_steps and any(isinstance(g.op(r), RmsNorm) for r in g.readers(n))))


@dataclass(slots=True)
class _Growth:
    """A region that ends at ``last``: its members, what they read, and why others stayed outside."""

    last: NodeId
    members: dict[NodeId, None] = field(default_factory=dict)
    steps: int = 0
    inputs: dict[NodeId, None] = field(default_factory=dict)
    outside: dict[NodeId, Refused] = field(default_factory=dict)


def _why_outside(g: Draft, p: NodeId, grown: _Growth, limits: Limits) -> Refused | None:
    """Why ``p``, read by the region, can't be one of its steps; None when it can."""
    out = g.shape(grown.last)
    if not _is_region(g, p):
        if not _is_step(g, p):
            return Refused(Refusal.KIND, p, facts=(("kind", g.kind(p)),))
        if _owned_by_pass(g, p, limits):
            return Refused(Refusal.COMMAND_PASS, p)
    if not same_shape(g.shape(p), out):
        return Refused(Refusal.RECOMPUTE, p, facts=(("elements", str(g.shape(p))), ("read_as", str(out))))
    if g.is_output(p):
        return Refused(Refusal.OUTPUT, p)
    if g.fan_out(p) > limits.profile.region_steps or any(r not in grown.members for r in g.readers(p)):
        return Refused(Refusal.SHARED, p, facts=(("readers", g.fan_out(p)),))
    for i in g.inputs(p):
        if not _readable(g.shape(i), out):
            return Refused(Refusal.BROADCAST, p, nodes=(i,), facts=(("operand", str(g.shape(i))), ("result", str(out))))
    steps = grown.steps + _steps(g, p)
    if steps > limits.profile.region_steps:
        return Refused(Refusal.STEPS, p, facts=(("steps", steps), ("most", limits.profile.region_steps)))
    inputs = len({*grown.inputs, *g.inputs(p)} - {p})
    if inputs > limits.profile.region_inputs:
        return Refused(Refusal.INPUTS, p, facts=(("inputs", inputs), ("most", limits.profile.region_inputs)))
    return None


def _grow(g: Draft, last: NodeId, limits: Limits) -> _Growth:
    """The region that ends at ``last``, grown breadth first."""
    grown = _Growth(last, {last: None}, 1, dict.fromkeys(g.inputs(last)))
    queue = list(g.inputs(last))
    at = 0
    while at < len(queue):
        p = queue[at]
        at += 1
        if p in grown.members or not isinstance(g.op(p), (Binary, Activation, ElementwiseRegion)) or g.static[p]:
            continue
        why = _why_outside(g, p, grown, limits)
        if why is not None:
            grown.outside[p] = why
            continue
        grown.outside.pop(p, None)
        grown.members[p] = None
        grown.steps += _steps(g, p)
        del grown.inputs[p]
        grown.inputs |= dict.fromkeys(i for i in g.inputs(p) if i not in grown.members)
        queue += g.inputs(p)
    return grown


def _furthest(g: Draft, n: NodeId, limits: Limits) -> NodeId:
    """The last op that a region with ``n`` inside could end at: from reader to reader, across forks that join."""
    at, left = n, limits.profile.region_steps - 1
    while left > 0:
        if g.is_output(at) or not 0 < g.fan_out(at) <= limits.profile.region_steps:
            return at
        pending = [(g.place[r], r) for r in g.readers(at)]
        heapq.heapify(pending)
        seen = {r for _, r in pending}
        joined = None
        while pending and left > 0:
            _, r = heapq.heappop(pending)
            if not _is_step(g, r) or not same_shape(g.shape(r), g.shape(n)) or _owned_by_pass(g, r, limits) or not all(
                    _readable(g.shape(i), g.shape(n)) for i in g.inputs(r)):
                return at
            left -= 1
            if not pending:
                joined = r
                break
            if g.is_output(r) or not 0 < g.fan_out(r) <= limits.profile.region_steps:
                return at
            for q in g.readers(r):
                if q not in seen:
                    seen.add(q)
                    heapq.heappush(pending, (g.place[q], q))
        if joined is None:
            return at
        at = joined
    return at


@rule(anchors=(Binary, Activation), group="region", phase=REGIONS, reasons=(
    Refusal.INPUTS, Refusal.STEPS, Refusal.BROADCAST, Refusal.KIND, Refusal.SHARED, Refusal.DTYPE, Refusal.OUTPUT,
    Refusal.RECOMPUTE, Refusal.COMMAND_PASS))
def elementwise_region(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A chain or tree of elementwise ops becomes one kernel: intermediate values stay in registers.

    A value that something outside reads, or that is spread over more elements than it has, is computed outside.
    """
    if g.static[n] or g.shape(n).is_unknown:
        return None
    if not _is_step(g, n):
        return _candidate(g, n, Refused(Refusal.KIND, n, facts=(("kind", g.kind(n)),)))
    if g.dtype(n) not in limits.profile.region_dtypes:
        return _candidate(g, n, Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),)))
    if _owned_by_pass(g, n, limits):
        return _candidate(g, n, Refused(Refusal.COMMAND_PASS, n))
    for i in g.inputs(n):
        if not _readable(g.shape(i), g.shape(n)):
            return _candidate(g, n, Refused(Refusal.BROADCAST, n, nodes=(i,), facts=(("operand", str(g.shape(i))),)))
    last = _furthest(g, n, limits)
    grown = _grow(g, last, limits)
    if n not in grown.members:
        outside = grown.outside.get(n)
        grown = _grow(g, n, limits)
        if len(grown.members) < 2:
            return outside or _first(grown)
    if len(grown.members) < 2:
        return _first(grown)
    return _rewritten(g, grown)


def _candidate(g: Draft, n: NodeId, why: Refused) -> Refused | None:
    """The refusal when an operand is an elementwise op that could have been fused, else nothing."""
    near = any((_is_step(g, i) or _is_region(g, i)) and g.only_reader(i) == n for i in g.inputs(n))
    return why if near and g.dtype(n).is_float else None


def _first(grown: _Growth) -> Refused | None:
    return next(iter(grown.outside.values()), None)


def _rewritten(g: Draft, grown: _Growth) -> Rewrite:
    """The members in order as steps."""
    order: list[NodeId] = []
    stack = [grown.last]
    done: set[NodeId] = set()
    while stack:
        i = stack[-1]
        missing = [p for p in g.inputs(i) if p in grown.members and p not in done]
        if i not in done and missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if i not in done:
            done.add(i)
            order.append(i)
    inputs: dict[NodeId, int] = {}
    made: list[Step] = []
    result: dict[NodeId, int] = {}

    def operand(i: NodeId) -> int:
        return result[i] if i in result else inputs.setdefault(i, len(inputs))

    for m in order:
        op, args = g.op(m), [operand(i) for i in g.inputs(m)]
        if isinstance(op, Binary):
            made.append(binary_step(op.kind, *args))
        elif isinstance(op, Activation):
            made.append(activation_step(op.kind, args[0]))
        else:
            assert isinstance(op, ElementwiseRegion)
            made += _moved(op.steps, args, len(made))
        result[m] = result_of(len(made) - 1)
    r = Rewrite(g, grown.last)
    return r.replace(grown.last, r.add(ElementwiseRegion(tuple(made)), *inputs)).note(steps=len(made), inputs=len(inputs))


def _moved(steps: tuple[Step, ...], inputs: list[int], base: int) -> list[Step]:
    """A region's steps after ``base`` others, its inputs renamed."""
    def to(o: int) -> int:
        return result_of((o ^ REGION_STEP) + base) if o & REGION_STEP else inputs[o]

    return [(k, s, to(a), to(b) if k == BINARY_STEP else 0) for k, s, a, b in steps]


# --- batches ------------------------------------------------------------------------------------------

_DISPATCH_BOUND = frozenset(t for t in Target if t.profile.dispatch_bound)
MOST_NEAR = 16
"""Readers of a value that are looked at for an equal region."""


@rule(anchors=(ElementwiseRegion,), group="region", phase=REGIONS, targets=_DISPATCH_BOUND,
      reasons=(Refusal.ORDER, Refusal.LIMIT))
def batch_elementwise_region(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Equal regions over equal shapes that do not wait for one another become one dispatch, each a slice of it.

    Off where a dispatch costs little: the slices share one buffer, which lives until the last of them is read.
    """
    op = g.op(n)
    assert isinstance(op, ElementwiseRegion)
    if op.prologue or not g.shape(n).is_static or g.shape(n).numel == 0:
        return None
    near = _near(g, n)
    if isinstance(near, Refused):
        return near
    here = (g.place[n], n)
    if any((g.place[i], i) < here for i in near):  # the first of them asks
        return None
    ready = max((g.level[i] for i in g.inputs(n)), default=-1)
    level, chosen, late = g.level[n], [n], None
    for i in near:
        first = max((g.level[x] for x in g.inputs(i)), default=-1)
        if max(ready, first) >= min(level, g.level[i]):
            late = late or Refused(Refusal.ORDER, i)
        elif (len(chosen) + 1) * len(g.inputs(n)) <= min(MAX_BATCH_INPUTS, limits.profile.batch_inputs):
            chosen.append(i)
            ready, level = max(ready, first), min(level, g.level[i])
    if len(chosen) < 2:
        return late
    r = Rewrite(g, n)
    batch = r.add(BatchElementwiseRegion(op.steps, len(chosen)), *(x for i in chosen for x in g.inputs(i)))
    for k, i in enumerate(chosen):
        r.replace(i, r.reshape(r.slice0(batch, k), g.shape(i).dims))
    return r.note(batch=len(chosen))


def _near(g: Draft, n: NodeId) -> list[NodeId] | Refused:
    """Equal regions that read what ``n`` reads, or a sibling of it, in order."""
    op, ins = g.op(n), g.inputs(n)
    shapes = [g.shape(i).dims for i in ins]
    found: dict[NodeId, None] = {}
    crowded: Refused | None = None
    for i in ins:
        if g.static[i]:
            continue
        around = [i]
        for p in g.inputs(i):
            if g.static[p] or g.fan_out(p) > MOST_NEAR:
                continue
            around += [s for s in g.readers(p) if s != i and g.op(s).name == g.op(i).name]
        for s in around:
            if g.fan_out(s) > MOST_NEAR:
                crowded = Refused(Refusal.LIMIT, s, facts=(("readers", g.fan_out(s)), ("most", MOST_NEAR)))
                continue
            for r in g.readers(s):
                if r != n and g.op(r) == op and [g.shape(x).dims for x in g.inputs(r)] == shapes:
                    found[r] = None
    if not found and crowded is not None:
        return crowded
    return sorted(found, key=lambda i: (g.place[i], i))


# --- the upsample in front ----------------------------------------------------------------------------


@rule(anchors=(ResizeNearest,), group="region", phase=REGIONS,
      reasons=(Refusal.KIND, Refusal.SHARED, Refusal.OUTPUT, Refusal.RANK))
def upsample_prologue(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A nearest 2x upsample that only an elementwise region reads is read in passing, never written."""
    op = g.op(n)
    assert isinstance(op, ResizeNearest)
    regions = [r for r in g.readers(n) if isinstance(g.op(r), ElementwiseRegion)] if g.fan_out(n) <= MOST_NEAR else []
    if not regions:
        return None
    if g.shape(n).rank != 4:
        return Refused(Refusal.RANK, n, facts=(("shape", str(g.shape(n))),))
    if op.factors != (1, 1, 2, 2):
        return Refused(Refusal.KIND, n, facts=(("factors", op.factors),))
    if stop := g.shared(n):
        return stop
    reader = regions[0]
    region = g.op(reader)
    assert isinstance(region, ElementwiseRegion)
    if region.prologue:
        return Refused(Refusal.KIND, reader, facts=(("prologue", region.prologue),))
    if not same_shape(g.shape(n), g.shape(reader)):
        return None
    at = g.inputs(reader).index(n)
    if g.inputs(reader).count(n) > 1:
        return None
    r = Rewrite(g, reader)
    ins = tuple(g.inputs(n)[0] if i == n else i for i in g.inputs(reader))
    return r.replace(reader, r.add(ElementwiseRegion(region.steps, "nearest2x", at), *ins))
