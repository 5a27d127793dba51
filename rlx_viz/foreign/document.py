"""Owns the document of a matched foreign plan: its rows, with our op, shape and family where they match."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner_core.memory import SPACES
from planner_core.memory.problem import I64
from rlx_viz.columns import Column, ColumnDocument, StringTable, Tables
from rlx_viz.foreign.matching import Matched, Order
from rlx_viz.foreign.plan import ForeignPlan, Region
from rlx_viz.snapshot_tables.tensors import NONE, OUTPUT_FLAG
from runtime.compile import Compilation

__all__ = ["ForeignDocument", "foreign_document"]

UNPLACED = SPACES.index("none")


class ForeignDocument(NamedTuple):
    """A foreign plan drawn beside ours. The headline is the comparison's to fill in: it counts like for like."""

    document: ColumnDocument
    other: Column
    """Our row of each of its tensors, or ``NONE``."""
    names: tuple[str, ...]
    """Names of the plan's rows as shown: tokens where redacted."""


class _Rows(NamedTuple):
    """Columns of the tensors table that the plan decides."""

    label: list[str]
    other: Column
    space: I64
    root: I64
    birth: I64
    death: I64
    offset: I64
    size: I64
    guard: I64


def foreign_document(matched: Matched, c: Compilation, ours: ColumnDocument, redact: bool = False) -> ForeignDocument:
    """Draw a matched plan beside ``ours``, the document of ``c``. Our views of matched tensors follow them, and our weights
    stand where the table has none. Rows without a live range are in the table and in no picture."""
    plan = matched.plan
    label = [f"x{row}" if i == NONE else f"t{i}" for row, i in enumerate(matched.other.tolist())] if redact else list(plan.names)
    birth, death, notes = _steps(matched)
    space = np.where(plan.region == Region.WEIGHTS.value, SPACES.index("weights"), SPACES.index("arena"))
    space = np.where(plan.lived & (plan.region != Region.SCRATCH.value), space, UNPLACED)
    guard = plan.problem.guard
    if not plan.includes.guards:  # said of neither side
        has = matched.other != NONE
        guard = np.where(has, c.plan.guard[np.where(has, matched.other, 0)], 0)
    rows = _Rows(list(label), matched.other, space, matched.view_of, birth, death, plan.offsets, plan.problem.size, guard)
    rows = _with_views(c, rows, matched.order, redact)
    rows, more = _with_weights(c, rows, matched.order, redact)
    lost = int((matched.other == NONE).sum())
    notes = [*matched.notes, *notes, *more, *([f"No match among our tensors: {lost} of {len(plan)} rows."] if lost else [])]
    live = _live(plan, birth, death, max(ours.rows("occupancy"), int(rows.death.max(initial=0)) + 1))
    return ForeignDocument(_document(ours, rows, live, notes, "the table" if redact else plan.provenance), rows.other, tuple(label))


def _steps(matched: Matched) -> tuple[I64, I64, list[str]]:
    """Births and deaths to draw: ranks of the table's times where those are far more than its rows."""
    p, lived = matched.plan.problem, matched.plan.lived
    last = int(p.death[lived].max(initial=0))
    if matched.order is not Order.OWN or last <= 4 * len(p) + 1000:
        return p.birth, p.death, []
    events = np.unique(np.concatenate([p.birth[lived], p.death[lived]]))
    birth, death = (np.where(lived, np.searchsorted(events, column), 0) for column in (p.birth, p.death))
    return birth, death, [f"Steps drawn are ranks of the table's {len(events):,} distinct times."]


def _with_views(c: Compilation, rows: _Rows, order: Order, redact: bool) -> _Rows:
    """Our views behind the table's rows: other tools have none. In steps of the table they live as their root does."""
    plan, row_of = c.plan, {i: row for row, i in enumerate(rows.other.tolist()) if i != NONE}
    views = [i for i in plan.assignments if int(plan.root[i]) != i and i not in row_of and int(plan.root[i]) in row_of]
    if not views:
        return rows
    at = np.asarray([row_of[int(plan.root[i])] for i in views])
    within = plan.offset[views] - plan.offset[plan.root[views]]
    own = order is Order.OWN
    birth, death = (rows.birth[at], rows.death[at]) if own else (plan.birth[views], plan.death[views])
    return _more(c, rows, views, redact, rows.space[at], at, birth, death, rows.offset[at] + within)


def _with_weights(c: Compilation, rows: _Rows, order: Order, redact: bool) -> tuple[_Rows, list[str]]:
    """Our weights where the table has none: it speaks of an arena alone."""
    plan, code = c.plan, SPACES.index("weights")
    weights = [i for i in plan.assignments if int(plan.space[i]) == code]
    if not weights or bool((rows.space == code).any()) or not set(rows.other.tolist()).isdisjoint(weights):
        return rows, []
    k = len(rows.label)
    place = {i: k + n for n, i in enumerate(weights)}
    root = np.asarray([place.get(int(plan.root[i]), place[i]) for i in weights])
    own = order is Order.OWN
    last = np.full(len(weights), int(rows.death.max(initial=0)))
    birth, death = (np.zeros_like(last), last) if own else (plan.birth[weights], plan.death[weights])
    found = _more(c, rows, weights, redact, np.full(len(weights), code), root, birth, death, plan.offset[weights])
    return found, ["The table has no row of a weight: ours are shown where they are."]


def _more(c: Compilation, rows: _Rows, nodes: list[int], redact: bool, space: I64, root: I64, birth: I64, death: I64,
          offset: I64) -> _Rows:
    plan = c.plan
    label = [f"t{i}" if redact else c.legal[i].label for i in nodes]

    def both(one: Column, other: Column) -> Column:
        return np.append(one, other).astype(one.dtype)

    return _Rows(rows.label + label, both(rows.other, np.asarray(nodes, dtype=np.uint32)), both(rows.space, space), both(rows.root, root),
                 both(rows.birth, birth), both(rows.death, death), both(rows.offset, offset), both(rows.size, plan.size[nodes]),
                 both(rows.guard, plan.guard[nodes]))


def _document(ours: ColumnDocument, rows: _Rows, live: Column, notes: list[str], title: str) -> ColumnDocument:
    t, strings, n = ours.tables["tensors"], StringTable(), len(rows.label)
    has = rows.other != NONE
    row = np.where(has, rows.other, 0)

    def taken(column: str, without: int = 0) -> Column:
        return np.where(has, t[column][row], without).astype(t[column].dtype)

    def texts(column: str) -> Column:
        return strings.intern_all(ours.strings[int(t[column][i])] if known else "" for i, known in zip(row, has, strict=True))

    u4 = np.uint32
    tensors = {
        "name": strings.intern_all(rows.label), "op": texts("op"), "shape": texts("shape"), "source": texts("source"),
        "dtype": taken("dtype"), "family": taken("family"), "rule": taken("rule"),
        "kind": taken("kind", ours.meta["kinds"].index("activation")), "space": rows.space.astype(np.uint8),
        "flags": (taken("flags") & OUTPUT_FLAG).astype(np.uint8), "guard": rows.guard.astype(u4), "root": rows.root.astype(u4),
        "birth": rows.birth.astype(u4), "death": rows.death.astype(u4), "last_read": rows.death.astype(u4),
        "offset": rows.offset.astype(np.float64), "size": rows.size.astype(np.float64),
    }
    kept = ("classes", "kinds", "spaces", "dtypes", "rules", "families", "footer")
    meta = {k: ours.meta[k] for k in kept if k in ours.meta} | {
        "model": {**ours.meta["model"], "name": title, "nodes": n, "inputs": [], "outputs": []},
        "options": [], "presets": [], "unsupported": {}, "source_is_tensors": True, "notes": notes,
    }
    nothing, edge = np.zeros(len(live)), np.zeros(0, u4)
    occupancy = {"live": live} | {k: live if k == "activations" else nothing for k in meta["classes"]}
    tables: Tables = {"tensors": tensors, "occupancy": occupancy, "edges": {"src": edge, "dst": edge}}
    return ColumnDocument(meta, strings.strings(), tables)


def _live(plan: ForeignPlan, birth: I64, death: I64, steps: int) -> Column:
    """Live arena bytes a step; a buffer lives from its rows' first birth to their last death."""
    rows = plan.rows_of(Region.ARENA)
    rows = rows[plan.lived[rows]]
    heads, at = np.unique(plan.root[rows], return_inverse=True)
    first, last = np.full(len(heads), steps), np.zeros(len(heads), dtype=np.int64)
    np.minimum.at(first, at, birth[rows])
    np.maximum.at(last, at, death[rows])
    delta = np.zeros(steps + 1)
    np.add.at(delta, first, plan.problem.size[heads])
    np.add.at(delta, last + 1, -plan.problem.size[heads])
    return np.cumsum(delta[:-1])
