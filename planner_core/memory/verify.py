"""Owns the self-check of spec §10: typed violations of a plan, none when it is sound. Near-linear."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

import numpy as np

from planner_core.errors import PlanError
from planner_core.ir import Graph, NodeId
from planner_core.memory.facts import CONSTANT, I64, INPUT, PARAM, facts_of
from planner_core.memory.plan import NO_SLOT, SPACES, MemoryPlan

__all__ = ["Violation", "ViolationKind", "require_sound", "verify_plan"]


class ViolationKind(Enum):
    OVERLAP = "two buffers are live at once on the same bytes"
    READ_AFTER_DEATH = "a read comes after the buffer's last live step"
    READ_BEFORE_BIRTH = "a read comes before the buffer's first live step"
    VIEW_OUT_OF_ROOT = "a view does not lie within its root's slot"
    OUT_OF_REGION = "a slot lies outside its region"
    MISALIGNED = "a slot does not start at a multiple of the alignment"
    GUARD_OVERRUN = "a buffer lies in another's guard while both live"
    MISSING_SLOT = "a node that is read has no slot"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: ``node`` is at fault or hit, ``other`` the second party (-1: none)."""

    kind: ViolationKind
    node: NodeId
    other: NodeId
    message: str


def verify_plan(graph: Graph, plan: MemoryPlan) -> list[Violation]:
    """Check a plan against its graph, from the reads and the slots alone; [] when it is sound."""
    if len(plan.birth) != len(graph):
        raise PlanError(f"the plan is for {len(plan.birth)} nodes, {graph.name!r} has {len(graph)}")
    out: list[Violation] = []
    _slots(graph, plan, out)
    _reads(graph, plan, out)
    for space in (0, 1):
        _overlaps(graph, plan, space, out)
    return out


def require_sound(graph: Graph, plan: MemoryPlan) -> None:
    """Raise ``PlanError`` listing the first violations, if there are any."""
    found = verify_plan(graph, plan)
    if found:
        shown = "\n".join(f"  {v.kind.name}: {v.message}" for v in found[:10])
        raise PlanError(f"the plan of {graph.name!r} is not sound ({len(found)} violations):\n{shown}")


def _label(graph: Graph, node: int) -> str:
    n = graph[node]
    return f"%{node} {n.op.name}" + (f" {n.name!r}" if n.name else "")


def _slots(graph: Graph, plan: MemoryPlan, out: list[Violation]) -> None:
    count = len(graph)
    has = plan.space != NO_SLOT
    is_root = plan.root == np.arange(count)
    regions = np.asarray([plan.arena_size, plan.weights_size, 0], dtype=np.int64)
    end = plan.offset + plan.size + plan.guard
    for i in np.flatnonzero(has & ((plan.offset < 0) | (end > regions[plan.space]))).tolist():
        space = int(plan.space[i])
        out.append(Violation(ViolationKind.OUT_OF_REGION, i, -1,
                             f"{_label(graph, i)}: [{plan.offset[i]}, {end[i]}) in {SPACES[space]} of {regions[space]}"))
    for i in np.flatnonzero(has & is_root & (plan.offset % plan.options.alignment != 0)).tolist():
        out.append(Violation(ViolationKind.MISALIGNED, i, -1,
                             f"{_label(graph, i)}: offset {plan.offset[i]}, alignment {plan.options.alignment}"))
    root = plan.root
    outside = (plan.space != plan.space[root]) | (plan.offset < plan.offset[root]) | (
        plan.offset + plan.size > plan.offset[root] + plan.size[root])
    for i in np.flatnonzero(has & ~is_root & outside).tolist():
        r = int(root[i])
        out.append(Violation(ViolationKind.VIEW_OUT_OF_ROOT, i, r,
                             f"{_label(graph, i)}: [{plan.offset[i]}, {plan.offset[i] + plan.size[i]}) of "
                             f"{_label(graph, r)}: [{plan.offset[r]}, {plan.offset[r] + plan.size[r]})"))


def _reads(graph: Graph, plan: MemoryPlan, out: list[Violation]) -> None:
    """Every read (outputs are read at the last step) finds a slot, within its root's live range."""
    count = len(graph)
    ptr, flat = graph.edges
    reader = np.repeat(np.arange(count, dtype=np.int64), np.diff(ptr))
    through = plan.elided[flat]
    source = flat.copy()
    source[through] = flat[ptr[flat[through]]]
    keep = ~plan.elided[reader]  # an elided transpose reads nothing itself
    outputs = np.asarray(graph.outputs, dtype=np.int64)
    read = np.concatenate([source[keep], outputs])
    when = np.concatenate([reader[keep], np.full(len(outputs), count, dtype=np.int64)])
    root = plan.root[read]
    f = facts_of(graph)
    exempt = plan.unknown[read] | (plan.size[read] == 0) | plan.unknown[root] | _unallocated(plan, f.boundary)[root]
    for k in np.flatnonzero((plan.space[read] == NO_SLOT) & ~exempt).tolist():
        out.append(Violation(ViolationKind.MISSING_SLOT, int(read[k]), int(when[k]),
                             f"{_label(graph, int(read[k]))} is read at step {when[k]} but has no slot"))
    placed = plan.space[root] != NO_SLOT
    for k in np.flatnonzero(placed & (plan.death[root] < when)).tolist():
        out.append(Violation(ViolationKind.READ_AFTER_DEATH, int(read[k]), int(when[k]),
                             f"{_label(graph, int(root[k]))} dies at step {plan.death[root[k]]}, read at {when[k]}"))
    late = placed & (plan.birth[root] > np.minimum(read, when))
    for k in np.flatnonzero(late).tolist():
        out.append(Violation(ViolationKind.READ_BEFORE_BIRTH, int(read[k]), int(when[k]),
                             f"{_label(graph, int(root[k]))} is born at step {plan.birth[root[k]]}, after {read[k]}"))
    # what writes its slot must live then: every slot's own step lies in its root's range
    own = np.flatnonzero((plan.space != NO_SLOT) & (plan.death[plan.root] < np.arange(count)))
    for i in own.tolist():
        out.append(Violation(ViolationKind.READ_AFTER_DEATH, i, i,
                             f"{_label(graph, i)} is written after its root died at {plan.death[plan.root[i]]}"))


def _unallocated(plan: MemoryPlan, boundary: object) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Boundary roots that have no slot although they are not empty: left out by option."""
    kinds = np.asarray(boundary)
    o = plan.options
    off = np.zeros(len(kinds), dtype=bool)
    for kind, wanted in ((INPUT, o.allocate_inputs), (PARAM, o.allocate_params), (CONSTANT, o.allocate_constants)):
        if not wanted:
            off |= kinds == kind
    return np.asarray(off & (plan.space == NO_SLOT))


def _overlaps(graph: Graph, plan: MemoryPlan, space: int, out: list[Violation]) -> None:
    """Sweep over steps with the live slots sorted by offset: a newcomer may touch only its neighbours."""
    ids: I64 = plan.buffers(space)
    if not len(ids):
        return
    merged = {b for _, b in plan.inplace}
    start, size = plan.offset[ids].tolist(), plan.size[ids].tolist()
    guard = plan.guard[ids].tolist()
    # births of a step come before the deaths of that step: ranges are inclusive
    events = np.lexsort((np.concatenate([np.zeros(len(ids), np.int8), np.ones(len(ids), np.int8)]),
                         np.concatenate([plan.birth[ids], plan.death[ids]])))
    starts: list[int] = []
    who: list[int] = []
    count = len(ids)
    for e in events.tolist():
        k = e if e < count else e - count
        at = bisect_left(starts, start[k])
        if e >= count:
            while who[at] != k:
                at += 1
            del starts[at], who[at]
            continue
        if int(ids[k]) not in merged:
            near: list[int] = []
            left = at - 1
            while left >= 0 and len(near) < 2:  # two deep: a short neighbour may hide a longer one
                near.append(who[left])
                left -= 1
            right = at
            while right < len(starts) and starts[right] < start[k] + size[k] + guard[k]:
                near.append(who[right])
                right += 1
            for j in near:
                _pair(graph, ids, start, size, guard, k, j, out)
        starts.insert(at, start[k])
        who.insert(at, k)


def _pair(graph: Graph, ids: I64, start: list[int], size: list[int], guard: list[int], k: int, j: int,
          out: list[Violation]) -> None:
    low, high = (k, j) if start[k] <= start[j] else (j, k)
    gap = start[high] - start[low] - size[low]
    kind = ViolationKind.OVERLAP if gap < 0 else ViolationKind.GUARD_OVERRUN if gap < guard[low] else None
    if kind is not None:
        a, b = int(ids[low]), int(ids[high])
        out.append(Violation(kind, a, b,
                             f"{_label(graph, a)} [{start[low]}, +{size[low]} guard {guard[low]}) and "
                             f"{_label(graph, b)} [{start[high]}, +{size[high]}) live together"))
