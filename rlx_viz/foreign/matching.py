"""Owns which of our tensors each row of a foreign plan is, and how its steps lie over ours.

Rows match by name, then by source, then by a size, birth and death that one row and one buffer of ours have; the rest is
listed. Steps of another numbering are laid over ours through the producers of matched rows; where the two orders
disagree each side keeps its own steps.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from planner_core.memory import WEIGHTS, facts_of, lower_bound
from planner_core.memory.facts import NOT_BOUNDARY
from planner_core.memory.problem import I64, Problem
from planner_core.units import count_text
from rlx_viz.columns import Column
from rlx_viz.foreign.plan import ForeignPlan, Region
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.compile import Compilation

__all__ = ["Matched", "Order", "match_plan"]


class Order(Enum):
    """Steps that a matched plan is told in."""

    OURS = "the table numbers steps as we do"
    ALIGNED = "the table's steps, laid over ours through matched producers"
    TAKEN = "the table has no live ranges: ours of the matched rows"
    OWN = "the table's own steps"


class Matched(NamedTuple):
    """A foreign plan whose rows know our nodes."""

    plan: ForeignPlan
    """Live ranges in the steps of ``order``, regions and roots filled in from the matches."""
    own: ForeignPlan
    """The same plan in the table's own steps, where it has any."""
    other: Column
    """Our node of each row, or ``NONE``."""
    order: Order
    view_of: I64
    """Row whose bytes a row shows as a view (``plan.root`` also joins hand-overs in place)."""
    notes: tuple[str, ...]


def match_plan(raw: ForeignPlan, c: Compilation) -> Matched:
    """Match a plan's rows with a compilation's tensors. Notes say what was decided that is not in the table."""
    other, notes = _by_names(raw, c)
    plan, order, said = _laid_over(raw, other, c)
    if order in (Order.OURS, Order.ALIGNED):
        before = int((other != NONE).sum())
        _by_lives(plan, other, c)
        if not before and (other == NONE).all():
            order, said = Order.OWN, ["No row has a name or a live range of ours: steps are the table's own."]
        elif int((other != NONE).sum()) > before:  # theirs have no steps to lay over: they have ours
            plan, order, said = _laid_over(raw, other, c)
    plan, more = _in_regions(plan, other, c)
    view_of = _views(plan, other, c)
    plan = plan.replace(root=_hand_overs(plan, view_of, other, c))
    blind = int((~plan.lived[plan.rows_of(Region.ARENA)]).sum())
    if blind:
        more.append(f"No live range known: {blind} of {len(plan)} rows, left out of the check and of the peak.")
    own = plan if order is Order.TAKEN else plan.replace(problem=raw.problem, lived=raw.lived)
    return Matched(plan, own, other, order, view_of, (*raw.notes, *notes, *said, *more))


def _by_names(raw: ForeignPlan, c: Compilation) -> tuple[Column, list[str]]:
    """By name, then source, then node number. A name on several rows matches in order of birth where as many of ours have it,
    at the same sizes; else it says nothing."""
    names, nodes = raw.names, c.legal.nodes
    other, taken = np.full(len(names), NONE, dtype=np.uint32), set[int]()

    def take(row: int, node: int) -> None:
        if other[row] == NONE and node not in taken:
            other[row] = node
            taken.add(node)

    for row, i in enumerate(raw.ids.tolist()):  # our own tables number their rows
        if 0 <= i < len(nodes) and names[row] in (nodes[i].label, f"t{i}"):
            take(row, i)
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if other[row] == NONE:
            rows_of.setdefault(name, []).append(row)
    for keys in ([(n.label,) for n in nodes], [tuple(map(str, n.source)) for n in nodes]):
        places: dict[str, list[int]] = {}
        for i, texts in enumerate(keys):
            for text in texts:
                places.setdefault(text, []).append(i)
        for name, rows in rows_of.items():
            for row, node in _paired(raw, rows, places.get(name, []), c):
                take(row, node)
    twice = [n for n, rows in rows_of.items() if len(rows) > 1 and any(other[r] == NONE for r in rows)]
    notes = [f"Names on several rows, {len(twice):,} of them ({', '.join(map(repr, twice[:3]))}{', …' if len(twice) > 3 else ''}): "
             "those rows are matched by size and live range."] if twice else []
    if not taken and not twice and all(n.isdigit() for n in names):
        ids = np.asarray([min(int(n), len(nodes)) for n in names], dtype=np.int64)
        if (ids < len(nodes)).all() and np.array_equal(c.plan.size[ids], raw.problem.size):
            other[:] = ids
    return other, notes


def _paired(raw: ForeignPlan, rows: list[int], nodes: list[int], c: Compilation) -> list[tuple[int, int]]:
    """Rows and nodes of one name, where it is clear which is which."""
    if len(rows) == len(nodes) == 1:
        return [(rows[0], nodes[0])]
    nodes = [i for i in nodes if i in c.plan.assignments]
    rows = sorted(rows, key=lambda row: (int(raw.problem.birth[row]), row))
    sizes = [int(raw.problem.size[row]) for row in rows]
    return list(zip(rows, nodes, strict=True)) if sizes == [int(c.plan.size[i]) for i in nodes] else []


def _by_lives(plan: ForeignPlan, other: Column, c: Compilation) -> None:
    """Rows without a match to the buffer that alone has their size, birth and death; into ``other``."""
    ours, p = c.plan, plan.problem
    taken = set(other.tolist())
    key_of: dict[tuple[int, int, int], set[int]] = {}
    for i in ours.assignments:
        if int(ours.root[i]) == i and i not in taken:
            key_of.setdefault((int(ours.size[i]), int(ours.birth[i]), int(ours.death[i])), set()).add(i)
    for i, end in ours.slot_lives():
        if i not in taken:
            key_of.setdefault((int(ours.size[i]), int(ours.birth[i]), end), set()).add(i)
    free = np.flatnonzero((other == NONE) & plan.lived).tolist()
    keys = {row: (int(p.size[row]), int(p.birth[row]), int(p.death[row])) for row in free}
    count = Counter(keys.values())
    for row, key in keys.items():
        found = key_of.get(key, set()) - taken
        if count[key] == 1 and len(found) == 1:
            other[row] = found.pop()
            taken.add(int(other[row]))


def _laid_over(raw: ForeignPlan, other: Column, c: Compilation) -> tuple[ForeignPlan, Order, list[str]]:
    """(the plan in our steps where that is possible, which steps it has, why)."""
    ours, p = c.plan, raw.problem
    has = other != NONE
    node = np.where(has, other, 0).astype(np.int64)
    if not raw.lived.any():
        return _with_lives(raw, has, ours.birth[node], ours.death[node]), Order.TAKEN, []
    made = (facts_of(c.legal).boundary[node] == NOT_BOUNDARY) & (ours.birth[node] == node)
    anchors = np.flatnonzero(has & raw.lived & made)
    filled = has & ~raw.lived
    if np.array_equal(p.birth[anchors], node[anchors]):
        if int(p.death[raw.lived].max()) > 4 * len(raw) + ours.last_step + 1000:
            return raw, Order.OWN, []
        birth, death = np.where(filled, ours.birth[node], p.birth), np.where(filled, ours.death[node], p.death)
        return _with_lives(raw, raw.lived | filled, birth, death), Order.OURS, _short_lives(raw, has, node, c)
    theirs, mine = p.birth[anchors], node[anchors]
    order = np.lexsort((mine, theirs))
    points, first = np.unique(theirs[order], return_index=True)
    low, high = mine[order][first], np.maximum.reduceat(mine[order], first)
    crossed = np.flatnonzero(low[1:] < np.maximum.accumulate(high)[:-1])
    if len(crossed):
        return raw, Order.OWN, [_disagreement(raw, anchors[order], node, first[crossed[0] + 1])]
    birth, death = (_onto(column, points, high, ours.last_step) for column in (p.birth, p.death))
    birth[anchors] = mine
    start, end = int(p.birth[raw.lived].min()), int(p.death[raw.lived].max())
    birth = np.where(has & (p.birth == start) & (ours.birth[node] == 0), 0, birth)
    death = np.where(has & (p.death == end) & (ours.death[node] == ours.last_step), ours.last_step, death)
    laid = _with_lives(raw, raw.lived, birth, np.maximum(birth, death))
    if _interference(laid) != _interference(raw):
        return raw, Order.OWN, ["The table's steps can't be laid over ours without changing what is live together: each side "
                                "is told in its own steps, and no live range is called changed."]
    birth, death = np.where(filled, ours.birth[node], laid.problem.birth), np.where(filled, ours.death[node], laid.problem.death)
    note = f"The table numbers steps in another way: they are laid over ours through {count_text(len(anchors), 'matched producer')}."
    return _with_lives(raw, raw.lived | filled, birth, death), Order.ALIGNED, [note]


def _with_lives(raw: ForeignPlan, lived: Any, birth: I64, death: I64) -> ForeignPlan:
    p = raw.problem
    birth, death = np.where(lived, birth, 0), np.where(lived, death, 0)
    return raw.replace(problem=Problem(birth, death, p.size, p.alignment, p.guard, p.fixed), lived=lived)


def _onto(steps: I64, points: I64, ours: I64, last: int) -> I64:
    """Our step of each foreign one: linear between the producers at ``points``, so never past the next one."""
    at = np.clip(np.searchsorted(points, steps, side="right") - 1, 0, None)
    after = np.minimum(at + 1, len(points) - 1)
    wide = np.maximum(points[after] - points[at], 1)
    rise = np.where(after > at, ours[after] - ours[at], 1)
    wide = np.where(after > at, wide, 1)
    found = ours[at] + np.where(steps >= points[at], (steps - points[at]) * rise // wide, steps - points[at])
    clipped: I64 = np.clip(found, 0, last)
    return clipped


def _interference(plan: ForeignPlan) -> tuple[int, int]:
    """What laying steps over others must keep: the most bytes live at once, and how many pairs share bytes."""
    found = plan.buffers(Region.ARENA)
    return lower_bound(found.problem)[0], len(plan.violations())


def _disagreement(raw: ForeignPlan, rows: I64, node: I64, at: int) -> str:
    """The note of two orders: a row that the table makes after another, and our plan before it."""
    later = int(rows[at])
    earlier = int(rows[:at][np.argmax(node[rows[:at]])])
    steps = raw.problem.birth
    return (f"The two orders differ: the table makes {raw.label(earlier)} (its step {steps[earlier]}) before {raw.label(later)} "
            f"({steps[later]}), our plan after it ({node[earlier]}, {node[later]}). Each side is told in its own steps, and no live "
            "range is called changed.")


def _short_lives(raw: ForeignPlan, has: Any, node: I64, c: Compilation) -> list[str]:
    """A plan can be small by letting go of bytes that are still read."""
    short = np.flatnonzero(has & raw.lived & (raw.problem.death < c.plan.last_read[node]) & (c.plan.root[node] == node))
    if not len(short):
        return []
    i = int(short[0])
    return [f"Ending before our graph's last read: {count_text(len(short), 'row')}, the first {raw.label(i)} at step {raw.problem.death[i]}, "
            f"read at step {c.plan.last_read[node[i]]}."]


def _in_regions(plan: ForeignPlan, other: Column, c: Compilation) -> tuple[ForeignPlan, list[str]]:
    """Rows that say no region have their match's; a table with both in one address space counts each from its own start."""
    unsaid = plan.region == Region.UNSAID.value
    has = other != NONE
    node = np.where(has, other, 0).astype(np.int64)
    region = np.where(unsaid, np.where(has & (c.plan.space[node] == WEIGHTS), Region.WEIGHTS.value, Region.ARENA.value), plan.region)
    plan = plan.replace(region=region)
    if not unsaid.any():
        return plan, []
    arena, weights = plan.rows_of(Region.ARENA), plan.rows_of(Region.WEIGHTS)
    if not len(arena) or not len(weights):
        return plan, []
    for upper, lower, name in ((arena, Region.WEIGHTS, "arena"), (weights, Region.ARENA, "weights")):
        base = int(plan.offsets[upper].min())
        if 0 < plan.height(lower) <= base:
            offsets = plan.offsets.copy()
            offsets[upper] -= base
            return plan.replace(offsets=offsets), [f"Weights and arena lie in one address space: offsets of the {name} count from {base}."]
    return plan, []


def _views(plan: ForeignPlan, other: Column, c: Compilation) -> I64:
    """Root of each row, our views included where their bytes lie within the root's."""
    root, row_of = plan.root.copy(), {i: row for row, i in enumerate(other.tolist()) if i != NONE}
    for i, row in row_of.items():
        at = row_of.get(int(c.plan.root[i]), row)
        if root[row] == row and at != row and _within(plan, row, at):
            root[row] = at
    found: I64 = root[root]
    return found


def _hand_overs(plan: ForeignPlan, view_of: I64, other: Column, c: Compilation) -> I64:
    """Roots once buffers that hand their bytes over in place are one, as in our plan."""
    root, row_of = view_of.copy(), {i: row for row, i in enumerate(other.tolist()) if i != NONE}
    for old, new in c.plan.inplace:
        if old in row_of and new in row_of:
            a, b = row_of[old], row_of[new]
            if plan.offsets[a] == plan.offsets[b] and _within(plan, b, a) and view_of[b] == b:
                root[root == b] = root[a]
    return root


def _within(plan: ForeignPlan, row: int, root: int) -> bool:
    at, size = plan.offsets, plan.problem.size
    return bool(at[row] >= at[root] and at[row] + size[row] <= at[root] + size[root])
