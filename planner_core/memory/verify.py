"""Owns the self-check of spec §10: typed violations of a plan, none when it is sound. Near-linear."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from planner_core.errors import PlanError
from planner_core.ir import Graph, NodeId
from planner_core.memory.elide import elided_transposes
from planner_core.memory.facts import CONSTANT, DTYPES, I64, INPUT, NOT_BOUNDARY, PARAM, Mask, facts_of
from planner_core.memory.inplace import may_take
from planner_core.memory.placement.validate import meeting_rows
from planner_core.memory.plan import NO_SLOT, SPACES, MemoryPlan
from planner_core.memory.rules import static_mask
from planner_core.memory.widths import MIN_GUARD

__all__ = ["Violation", "ViolationKind", "require_sound", "verify_plan"]


class ViolationKind(Enum):
    OVERLAP = "two buffers are live at once on the same bytes"
    READ_AFTER_DEATH = "a read comes after the buffer's last live step"
    READ_BEFORE_BIRTH = "a read comes before the buffer's first live step"
    VIEW_OUT_OF_ROOT = "a view does not show its root's bytes where it should"
    OUT_OF_REGION = "a slot lies outside its region"
    MISALIGNED = "a slot does not start at a multiple of the alignment"
    GUARD_OVERRUN = "a buffer lies in another's guard while both live"
    MISSING_SLOT = "a node that needs bytes has no slot"
    UNDERSIZED = "a slot or its guard is smaller than what it must hold"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: ``node`` is at fault or hit, ``other`` the second party (-1: none)."""

    kind: ViolationKind
    node: NodeId
    other: NodeId
    message: str


def verify_plan(graph: Graph, plan: MemoryPlan, *, outside: frozenset[NodeId] = frozenset()) -> list[Violation]:
    """Check a plan against its graph, from the reads and the slots alone; [] when it is sound.

    ``outside``: nodes whose bytes live in another plan (a body's captured inputs).
    """
    if len(plan.birth) != len(graph):
        raise PlanError(f"the plan is for {len(plan.birth)} nodes, {graph.name!r} has {len(graph)}")
    out: list[Violation] = []
    elided = np.zeros(len(graph), dtype=bool)
    elided[elided_transposes(graph, plan.options)] = True
    _slots(graph, plan, elided, outside, out)
    _ranges(graph, plan, elided, out)
    for space in (0, 1):
        _overlaps(graph, plan, space, out)
    return out


def require_sound(graph: Graph, plan: MemoryPlan, *, outside: frozenset[NodeId] = frozenset()) -> None:
    """Raise ``PlanError`` listing the first violations, if there are any."""
    found = verify_plan(graph, plan, outside=outside)
    if found:
        shown = "\n".join(f"  {v.kind.name}: {v.message}" for v in found[:10])
        raise PlanError(f"the plan of {graph.name!r} is not sound ({len(found)} violations):\n{shown}")


def _label(graph: Graph, node: int) -> str:
    n = graph[node]
    return f"%{node} {n.op.name}" + (f" {n.name!r}" if n.name else "")


def _slots(graph: Graph, plan: MemoryPlan, elided: Mask, outside: frozenset[NodeId], out: list[Violation]) -> None:
    """Every node that needs bytes has enough of them, aligned, in its region; views lie where they should."""
    f, o = facts_of(graph), plan.options
    count, root = len(graph), f.root
    is_root = root == np.arange(count)
    boundary = f.boundary != NOT_BOUNDARY
    bits = np.asarray([d.bits for d in DTYPES], dtype=np.int64)
    stored = np.maximum(bits[plan.storage[root]], bits[f.dtype[root]])  # never narrower than native
    first = f.view_elements * stored
    need = np.where(f.elements <= 0, 0, -(-(first + f.elements * stored) // 8) - first // 8)  # whole bytes, from the first touched
    need[boundary & (need == 0) & (f.elements == 0)] = max(o.alignment, 1)

    off = np.zeros(count, dtype=bool)
    for kind, wanted in ((INPUT, o.allocate_inputs), (PARAM, o.allocate_params), (CONSTANT, o.allocate_constants)):
        if not wanted:
            off |= f.boundary == kind
    if outside:
        off[sorted(outside)] = True
    has = plan.space != NO_SLOT
    exempt = off[root] | elided[root] | (need == 0) | (f.elements[root] < 0)
    for i in np.flatnonzero(~has & ~exempt).tolist():
        out.append(Violation(ViolationKind.MISSING_SLOT, i, -1, f"{_label(graph, i)} needs {need[i]} bytes, has no slot"))
    for i in np.flatnonzero(elided != plan.elided).tolist():
        out.append(Violation(ViolationKind.MISSING_SLOT, i, -1, f"{_label(graph, i)} is marked as "
                             f"{'elided' if plan.elided[i] else 'kept'}, but these options say otherwise"))
    regions = np.asarray([plan.arena_size, plan.weights_size, 0], dtype=np.int64)
    end = plan.offset + plan.size + plan.guard
    for i in np.flatnonzero(has & ((plan.offset < 0) | (end > regions[plan.space]))).tolist():
        space = int(plan.space[i])
        out.append(Violation(ViolationKind.OUT_OF_REGION, i, -1,
                             f"{_label(graph, i)}: [{plan.offset[i]}, {end[i]}) in {SPACES[space]} of {regions[space]}"))
    for i in np.flatnonzero(has & is_root & (plan.offset % o.alignment != 0)).tolist():
        out.append(Violation(ViolationKind.MISALIGNED, i, -1,
                             f"{_label(graph, i)}: offset {plan.offset[i]}, alignment {o.alignment}"))
    guard = np.where(is_root & boundary, max(o.alignment, MIN_GUARD), 0)
    for i in np.flatnonzero(has & ((plan.size < need) | (plan.guard < guard))).tolist():
        out.append(Violation(ViolationKind.UNDERSIZED, i, -1,
                             f"{_label(graph, i)}: {plan.size[i]} bytes and guard {plan.guard[i]}, wanted {need[i]} "
                             f"and {guard[i]}"))
    start = plan.offset[root] + f.view_elements * stored // 8
    wrong = (plan.root != root) | (plan.space != plan.space[root]) | (plan.offset != start) | (
        start + plan.size > plan.offset[root] + plan.size[root])
    for i in np.flatnonzero(has & wrong & (~is_root | (plan.root != root))).tolist():
        r = int(root[i])
        out.append(Violation(ViolationKind.VIEW_OUT_OF_ROOT, i, r,
                             f"{_label(graph, i)}: [{plan.offset[i]}, {plan.offset[i] + plan.size[i]}) of root "
                             f"%{plan.root[i]}; wanted to start at {start[i]} in {_label(graph, r)}: "
                             f"[{plan.offset[r]}, {plan.offset[r] + plan.size[r]})"))


def _ranges(graph: Graph, plan: MemoryPlan, elided: Mask, out: list[Violation]) -> None:
    """Every read finds its root alive: by an op at its step, through an elided transpose, by the caller
    after the last step (outputs), by the next run (boundaries and static packs, which nothing writes again)."""
    f = facts_of(graph)
    count = len(graph)
    steps = np.arange(count, dtype=np.int64)
    ptr, flat = graph.edges
    reader = np.repeat(steps, np.diff(ptr))
    through = elided[flat]
    source = flat.copy()
    source[through] = flat[ptr[flat[through]]]
    keep = ~elided[reader]  # an elided transpose reads nothing itself
    static = np.asarray(static_mask(graph), dtype=bool) | (f.boundary == INPUT)
    lasting = np.flatnonzero(static)
    ends = np.concatenate([np.asarray(graph.outputs, dtype=np.int64), lasting])
    owned = np.flatnonzero(~elided)  # a node's own write, and a view's own step
    read = np.concatenate([source[keep], ends, owned])
    when = np.concatenate([reader[keep], np.full(len(ends), count, dtype=np.int64), owned])
    root = f.root[read]
    for k in np.flatnonzero((plan.space[root] != NO_SLOT) & (plan.death[root] < when)).tolist():
        out.append(Violation(ViolationKind.READ_AFTER_DEATH, int(read[k]), int(when[k]),
                             f"{_label(graph, int(root[k]))} dies at step {plan.death[root[k]]}, needed at {when[k]}"))
    born = steps.copy()
    for r in f.results.tolist():
        born[r] = born[flat[ptr[r]]]
    born[lasting] = 0
    np.minimum.at(born, f.root[lasting], 0)
    late = (plan.space != NO_SLOT) & (f.root == steps) & (plan.birth > born)
    for i in np.flatnonzero(late).tolist():
        out.append(Violation(ViolationKind.READ_BEFORE_BIRTH, i, -1,
                             f"{_label(graph, i)} is born at step {plan.birth[i]}, needed from {born[i]}"))


def _overlaps(graph: Graph, plan: MemoryPlan, space: int, out: list[Violation]) -> None:
    """Report buffers that share bytes (guards counted) at a step, at least one pair if there is any."""
    who = plan.buffers(space)
    start, end = plan.offset[who], (plan.offset + plan.size + plan.guard)[who]
    who, start, end, birth, death = _alias_rows(graph, plan, who, start, end, plan.birth[who], plan.death[who])
    met = {(int(who[a]), int(who[b])) for a, b in meeting_rows(start, end, birth, death)}
    for a, b in sorted({(min(p), max(p)) for p in met}):
        _report_pair(graph, plan, a, b, out)


def _alias_rows(graph: Graph, plan: MemoryPlan, who: I64, *columns: I64) -> tuple[I64, ...]:
    """Rows with recorded in-place reuse allowed for: the old buffer hands its bytes over at its last step,
    except those that the new one doesn't take. Only where the new one's op reads before it writes."""
    if not plan.inplace:
        return (who, *columns)
    start, end, birth, death = (c.tolist() for c in columns)
    ids = who.tolist()
    place = {node: k for k, node in enumerate(ids)}
    f = facts_of(graph)
    for a, b in plan.inplace:
        if a not in place or b not in place or not may_take(graph, f, a, b):
            continue
        i, j = place[a], place[b]
        if death[i] == birth[j] and start[i] <= start[j] < end[i]:
            for lo, hi in ((start[i], start[j]), (end[j], end[i])):
                if lo < hi:
                    ids, start, end = [*ids, a], [*start, lo], [*end, hi]
                    birth, death = [*birth, death[i]], [*death, death[i]]
            death[i] -= 1
    return tuple(np.asarray(c, dtype=np.int64) for c in (ids, start, end, birth, death))


def _report_pair(graph: Graph, plan: MemoryPlan, a: int, b: int, out: list[Violation]) -> None:
    low, high = (a, b) if plan.offset[a] <= plan.offset[b] else (b, a)
    kind = (ViolationKind.OVERLAP if plan.offset[high] < plan.offset[low] + plan.size[low]
            else ViolationKind.GUARD_OVERRUN)
    shown = [f"{_label(graph, i)} [{plan.offset[i]}, +{plan.size[i]} guard {plan.guard[i]}) live "
             f"[{plan.birth[i]}, {plan.death[i]}]" for i in (low, high)]
    out.append(Violation(kind, low, high, " and ".join(shown)))
