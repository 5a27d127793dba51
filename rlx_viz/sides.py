"""Owns what a comparison counts: two compilations with all their memory, or ours and a foreign plan like for like.

What a foreign plan leaves out (guards, alignment, weights, scratch) is left out of ours too, and said in a note.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from planner_core.memory import ARENA, WEIGHTS, MemoryPlan, lower_bound
from planner_core.memory.bounds import align_up
from planner_core.memory.placement.solve import solve
from planner_core.memory.problem import I64, Problem
from planner_core.units import count_text
from rlx_viz.columns import ColumnDocument, exact_int
from rlx_viz.foreign.matching import Matched, Order
from rlx_viz.foreign.plan import Region
from rlx_viz.snapshot_tables.tensors import NONE
from rlx_viz.verdict import Side
from runtime.compile import Compilation

__all__ = ["LikeForLike", "compiled_sides", "foreign_sides"]


class LikeForLike(NamedTuple):
    """Ours and a foreign plan in the terms both have."""

    a: Side
    b: Side
    compared: str
    """What both sizes count, in words."""
    caveat: str
    """Our buffers that the plan has no row for, and its rows without a live range, in words."""
    a_head: dict[str, Any]
    """Our headline in those terms; what the plan leaves out is the same on both sides."""
    b_head: dict[str, Any]
    notes: tuple[str, ...]


def compiled_sides(a: ColumnDocument, b: ColumnDocument, one: Compilation, two: Compilation) -> tuple[Side, Side]:
    """Both compilations with everything they allocate, labelled by what tells them apart."""
    labels = _labels(a, b)
    return _compiled(a, one, labels[0], "A"), _compiled(b, two, labels[1], "B")


def _labels(a: ColumnDocument, b: ColumnDocument) -> tuple[str, str]:
    names = [str(d.meta["model"]["name"]) for d in (a, b)]
    if a.meta["model"]["hash"] != b.meta["model"]["hash"] and names[0] != names[1]:
        return f"A ({names[0]})", f"B ({names[1]})"
    before = {o["name"]: o["value"] for o in a.meta.get("options", [])}
    changed = [(o["name"], before[o["name"]], o["value"]) for o in b.meta.get("options", []) if before.get(o["name"], o["value"]) != o["value"]]
    if not 1 <= len(changed) <= 2:
        return "A", "B"
    sides = [", ".join(f"{row[0]}={str(row[k]).lower()}" for row in changed) for k in (1, 2)]
    return f"A ({sides[0]})", f"B ({sides[1]})"


def _compiled(doc: ColumnDocument, c: Compilation, label: str, short: str) -> Side:
    plan, ids = c.plan, _slots(c)
    return Side(label, short, plan.problem(ARENA), plan.offset[ids], _names(doc, ids), plan.arena_size, plan.lower_bound, plan.weights_size,
                int(doc.meta["headline"]["scratch"]), int(plan.unknown.sum()))


def _slots(c: Compilation) -> I64:
    return np.asarray([i for i, _ in c.plan.slot_lives(ARENA)], dtype=np.int64)


def _names(doc: ColumnDocument, rows: I64) -> tuple[str, ...]:
    names = doc.tables["tensors"]["name"]
    return tuple(doc.strings[int(names[i])] for i in rows.tolist())


def foreign_sides(ours: ColumnDocument, c: Compilation, matched: Matched, shown: ColumnDocument, names: tuple[str, ...],
                  label: str) -> LikeForLike:
    """Ours and a matched plan in the terms both have; ``shown`` is the plan's document, ``names`` of its rows as shown."""
    plan, inc, raw = c.plan, matched.plan.includes, matched.plan
    notes = ["The table has no live ranges: matched rows have ours."] if matched.order is Order.TAKEN else []
    found = raw.buffers(Region.ARENA)
    unit = _unit(matched, plan.options.alignment)
    a, said = _ours(c, ours, inc.guards, unit or plan.options.alignment)
    notes += said
    theirs = _counted(found.problem, inc.guards, unit)
    b = Side(label, label, theirs, found.offsets, tuple(names[i] for i in found.rows.tolist()), raw.height(Region.ARENA, inc.guards),
             lower_bound(theirs)[0])
    same = a.placements() == b.placements()
    if same:
        b = dataclasses.replace(b, bound=a.bound)
    else:
        a, said = _placed_again(a, c)
        notes += said
    weights, said = _weights(matched, c, inc.guards)
    notes += said
    scratch = (int(ours.meta["headline"]["scratch"]), raw.height(Region.SCRATCH)) if inc.scratch else (0, 0)
    if not inc.scratch and int(ours.meta["headline"]["scratch"]):
        notes.append(f"The table has no scratch: our {int(ours.meta['headline']['scratch']):,} B are on neither side.")
    gone = sorted(set(plan.buffers(ARENA)[plan.size[plan.buffers(ARENA)] > 0].tolist()) - set(matched.other.tolist()))
    caveats = [f"{len(gone)} of our {len(plan.buffers(ARENA))} arena buffers, {int(plan.size[gone].sum()):,} B, have no row in {label}"
               ] if gone and not same else []
    short = _shorter(matched, plan)
    if short and not same:
        caveats.append(f"{count_text(short, 'buffer')} of it {'is' if short == 1 else 'are'} smaller than our {'tensor' if short == 1 else 'tensors'}, so that "
                       "it may not hold this model")
    blind = int((~raw.lived[raw.rows_of(Region.ARENA)]).sum())
    if blind:
        caveats.append(f"{count_text(blind, 'row')} without a live range {'is' if blind == 1 else 'are'} not checked")
    a, b = (dataclasses.replace(side, weights=weights[k], scratch=scratch[k]) for k, side in enumerate((a, b)))
    parts = ["arena", *(["weights"] if any(weights) else []), *(["scratch"] if inc.scratch else [])]
    compared = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    a_head, b_head = _heads(ours, shown, c, matched, a, b, unit)
    if same and a.total == b.total:  # rows without a match, or of several tensors of ours, still are what ours are
        b_head |= {k: a_head[k] for k in ("weights", "activations", "padding", "naive", "saved")}
    return LikeForLike(a, b, compared, "; ".join(caveats), a_head, b_head, tuple(notes))


def _shorter(matched: Matched, plan: MemoryPlan) -> int:
    """Rows of the arena that are smaller than the tensor of ours that they are matched with."""
    rows = np.flatnonzero(matched.other != NONE)
    return int((matched.plan.problem.size[rows] < plan.size[matched.other[rows]]).sum())


def _counted(problem: Problem, guards: bool, alignment: int | None) -> Problem:
    """The problem with what both sides count; ``alignment`` None keeps each buffer's own."""
    guard = problem.guard if guards else np.zeros_like(problem.guard)
    unit = problem.alignment if alignment is None else np.full_like(problem.alignment, alignment)
    return dataclasses.replace(problem, guard=guard, alignment=unit)


def _unit(matched: Matched, ours: int) -> int | None:
    """Alignment that both sides count: the table's where it says one; else ours where its offsets keep that, 1 where they
    don't. None where the table says several: each side has its own."""
    plan = matched.plan
    rows = plan.rows_of(Region.ARENA)
    if plan.includes.alignment:
        said = set(plan.problem.alignment[rows].tolist())
        return said.pop() if len(said) == 1 else None if said else ours
    return 1 if bool((plan.offsets[rows] % ours).any()) else ours


def _ours(c: Compilation, doc: ColumnDocument, guards: bool, unit: int) -> tuple[Side, list[str]]:
    """Our arena as it lies, with what both sides count; notes say what is left out."""
    plan, ids = c.plan, _slots(c)
    whole = plan.problem(ARENA)
    problem, notes = _counted(whole, guards, unit), []
    held = whole.guard[whole.guard > 0]
    if not guards and len(held):
        notes.append(f"The table has no guards: ours ({int(held.sum()):,} B on {count_text(len(held), 'buffer')}) are on neither side.")
    if unit != plan.options.alignment:
        notes.append(f"The table's offsets are aligned to {unit} B, ours to {plan.options.alignment} B: both sides count {unit} B.")
    bound = plan.lower_bound if not notes else lower_bound(problem)[0]
    offsets = plan.offset[ids]
    return Side("ours", "ours", problem, offsets, _names(doc, ids), problem.height(offsets), bound, unknown=int(plan.unknown.sum())), notes


def _placed_again(side: Side, c: Compilation) -> tuple[Side, list[str]]:
    """Our arena placed with what both sides count alone, where that is less than the plan counts: its offsets leave room
    for guards and alignment that the table need not keep."""
    plan = c.plan
    whole = plan.problem(ARENA)
    if plan.no_reuse or (np.array_equal(whole.guard, side.problem.guard) and np.array_equal(whole.alignment, side.problem.alignment)):
        return side, []
    found = solve(side.problem, plan.options.placement)
    if found.arena_size >= side.arena and not bool((side.offsets % side.problem.alignment).any()):
        return side, []
    note = f"Ours is placed again without what the table does not count: {found.arena_size:,} B instead of {side.arena:,} B."
    return dataclasses.replace(side, offsets=found.offsets, arena=found.arena_size, bound=found.lower_bound), [note]


def _weights(matched: Matched, c: Compilation, guards: bool) -> tuple[tuple[int, int], list[str]]:
    """(bytes of weights that each side counts, notes): compared where the table has every one of ours."""
    plan, rows = c.plan, matched.plan.rows_of(Region.WEIGHTS)
    ours = [i for i in plan.buffers(WEIGHTS).tolist() if plan.size[i]]
    if not len(rows):
        return (0, 0), []
    known = set(matched.other[rows].tolist()) - {NONE}
    missing = [i for i in ours if i not in known]
    if missing:
        return (0, 0), [f"Weights are on neither side: {len(missing)} of our {len(ours)} have no row in the table."]
    ends = plan.offset[ours] + plan.size[ours] + (plan.guard[ours] if guards else 0)
    return (int(ends.max(initial=0)), matched.plan.height(Region.WEIGHTS, guards)), []


def _heads(ours: ColumnDocument, shown: ColumnDocument, c: Compilation, matched: Matched, a: Side, b: Side,
           unit: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both headlines. Weights and scratch that are not compared are ours on both sides."""
    start = ours.meta["headline"]
    t, weights, scratch = shown.tables["tensors"], int(start["weights"]), int(start["scratch"])
    regions = c.plan.weights_size
    counted = bool(a.weights or b.weights)
    param = t["kind"] == ours.meta["kinds"].index("param")
    roots = t["root"] == np.arange(len(param))
    placed = t["space"] != ours.meta["spaces"].index("none")
    their_weights = int(t["size"][param & roots & placed].sum())
    live = shown.tables["occupancy"]["live"]
    found = matched.plan.buffers(Region.ARENA)
    busy = ~param[found.rows]
    heads = []
    ids, rows = c.plan.buffers(ARENA), matched.plan.rows_of(Region.ARENA)
    rows = rows[matched.view_of[rows] == rows]
    p, guarded = matched.plan.problem, matched.plan.includes.guards
    naive = [_naive(c.plan.size[ids], c.plan.guard[ids] * guarded, unit or c.plan.options.alignment),
             _naive(p.size[rows], p.guard[rows] * guarded, p.alignment[rows] if unit is None else unit)]
    for side, mine in ((a, True), (b, False)):
        head = {
            "arena": side.arena, "lower_bound": side.bound, "naive": naive[0 if mine else 1],
            "weights": weights if mine else their_weights,
            "activations": int(start["activations"]) if mine else _peak(found.problem, busy),
            "scratch": side.scratch if matched.plan.includes.scratch else scratch,
            "peak_bytes": int(start["peak_bytes"]) if mine else int(live.max(initial=0)),
            "peak_step": int(start["peak_step"]) if mine else int(live.argmax()) if len(live) else 0,
        }
        region = side.weights if counted else regions
        head["allocate"] = head["arena"] + region + head["scratch"]
        head["padding"] = head["allocate"] - head["weights"] - head["activations"] - head["scratch"]
        head["saved"] = head["naive"] - head["arena"]
        heads.append({k: exact_int(v) for k, v in head.items()} | {"unknown": 0, "unknown_names": [], "optimal": side.arena == side.bound})
    return heads[0], heads[1]


def _naive(size: I64, guard: I64, alignment: I64 | int) -> int:
    """The arena with nothing reused: every span rounded up but the last, that of the smallest buffer."""
    if not len(size):
        return 0
    end = size + guard
    spans = align_up(end, alignment)
    last = np.lexsort((np.arange(len(size)), -size))[-1]
    return int(spans.sum() - spans[last] + end[last])


def _peak(problem: Problem, rows: Any) -> int:
    """Most bytes of some buffers live at one step, guards left out."""
    plain = Problem.of(problem.birth[rows], problem.death[rows], problem.size[rows])
    return lower_bound(plain)[0]
