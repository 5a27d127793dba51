"""Owns another tool's offsets (CSV: id or name, offset, size[, lower, upper]) as a document beside one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from planner_core.errors import RlxError
from planner_core.memory import SPACES
from rlx_viz.columns import Column, ColumnDocument, StringTable, exact_int
from rlx_viz.snapshot_tables.tensors import NONE, OUTPUT_FLAG
from runtime.compile import Compilation

__all__ = ["ForeignError", "foreign_document", "read_table"]


MOST = 1 << 62
"""Bytes that a sum of two can still hold."""


class ForeignError(RlxError):
    """A table of offsets that can't be read; says which column or row."""


def foreign_document(table: Any, c: Compilation, ours: ColumnDocument, redact: bool = False) -> tuple[ColumnDocument, Column]:
    """(the document, our row of each of its tensors or ``NONE``).

    Rows are matched by our tensors' names, then by their source, then by equal first step, last step and size where
    just one of ours has them; ids that are numbers and no names mean our rows. A row without steps has its match's.
    """
    frame, notes = _placed(read_table(table))
    size, offset = (_whole(frame, k) for k in ("size", "offset"))
    label = [str(v).strip() for v in frame["name" if "name" in frame.columns else "id"]]
    spans = (_whole(frame, "lower"), _whole(frame, "upper") - 1) if {"lower", "upper"} <= set(frame.columns) else None
    other = _match(label, size, spans, c)
    plan, has = c.plan, other != NONE
    last = plan.last_step
    birth, death = spans if spans is not None else (np.zeros(len(label), np.int64), np.full(len(label), last))
    if spans is None:
        birth[has], death[has] = plan.birth[other[has]], plan.death[other[has]]
    if redact:
        label = [f"x{row}" if i == NONE else f"t{i}" for row, i in enumerate(other.tolist())]
    numbers = {"birth": birth, "death": death, "offset": offset, "size": size}
    other = _with_views(c, label, other, numbers, redact)
    other = _with_weights(c, label, other, numbers, redact, notes)
    rows = {i: row for row, i in enumerate(other.tolist()) if i != NONE}
    root = np.asarray([row if i == NONE else rows.get(int(plan.root[i]), row) for row, i in enumerate(other.tolist())], np.uint32)
    return _document(ours, label, other, numbers, root, notes), other


def _with_views(c: Compilation, label: list[str], other: Column, numbers: dict[str, Column], redact: bool) -> Column:
    """Our views of matched tensors follow them: other tools' tables have no rows for views. Adds to ``label`` and
    ``numbers``; returns ``other`` with the rows added."""
    plan, rows = c.plan, {i: row for row, i in enumerate(other.tolist()) if i != NONE}
    views = [i for i in plan.assignments if int(plan.root[i]) != i and i not in rows and int(plan.root[i]) in rows]
    at = [int(numbers["offset"][rows[int(plan.root[i])]] + plan.offset[i] - plan.offset[plan.root[i]]) for i in views]
    return _added(c, label, other, numbers, redact, views, at)


def _with_weights(c: Compilation, label: list[str], other: Column, numbers: dict[str, Column], redact: bool,
                  notes: list[str]) -> Column:
    """Our weights where the table has none: it speaks of an arena alone, and weights stay as they are."""
    plan = c.plan
    weights = [i for i in plan.assignments if SPACES[int(plan.space[i])] == "weights"]
    if not weights or not set(other.tolist()).isdisjoint(weights):
        return other
    notes.append("The table has no row of a weight: ours are shown where they are.")
    return _added(c, label, other, numbers, redact, weights, [int(plan.offset[i]) for i in weights])


def _added(c: Compilation, label: list[str], other: Column, numbers: dict[str, Column], redact: bool, nodes: list[int],
           offsets: list[int]) -> Column:
    """Rows of ours behind the table's: to ``label`` and ``numbers``; returns ``other`` with them."""
    plan = c.plan
    label += [f"t{i}" if redact else c.legal[i].label for i in nodes]
    for key, more in (("birth", plan.birth[nodes]), ("death", plan.death[nodes]), ("size", plan.size[nodes]), ("offset", offsets)):
        numbers[key] = np.append(numbers[key], np.asarray(more, dtype=np.int64))
    return np.append(other, np.asarray(nodes, dtype=np.uint32))


def read_table(table: Any) -> Any:
    """The frame of a path or frame, column names in lower case. ``ForeignError`` says what is missing."""
    import pandas as pd

    frame = table
    if isinstance(table, (str, Path)):
        try:
            frame = pd.read_csv(table, skipinitialspace=True, keep_default_na=False)  # NA is a name like any other
        except FileNotFoundError:
            raise ForeignError(f"{table}: no such file; wanted a CSV with id or name, offset, size[, lower, upper]") from None
        except (ValueError, OSError) as e:
            raise ForeignError(f"{table}: not a CSV table ({e}); wanted columns id or name, offset, size[, lower, upper]") from e
    frame = frame.rename(columns=lambda c: str(c).strip().lower())
    missing = [k for k in ("offset", "size") if k not in frame.columns]
    if not {"id", "name"} & set(frame.columns):
        missing.insert(0, "id (or name)")
    if missing:
        raise ForeignError(f"the table has the columns {', '.join(map(str, frame.columns))}; missing: {', '.join(missing)}")
    return frame


def _placed(frame: Any) -> tuple[Any, list[str]]:
    """(the rows that have an offset, what was left out)."""
    blank = frame["offset"].isna() | frame["offset"].astype(str).str.strip().isin(("", "<NA>"))
    notes = [f"{int(blank.sum())} of {len(frame)} rows have no offset and are left out."] if blank.any() else []
    return frame[~blank].reset_index(drop=True), notes


def _whole(frame: Any, column: str) -> Column:
    import pandas as pd

    values = pd.to_numeric(frame[column], errors="coerce")
    bad = values.isna() | (values < 0) | (values % 1 != 0)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ForeignError(f"row {row + 1}, column {column}: got {str(frame[column].iloc[row])!r}, wanted a whole number ≥ 0")
    big = values > MOST
    if big.any():
        row = int(np.flatnonzero(big)[0])
        raise ForeignError(f"row {row + 1}, column {column}: got {frame[column].iloc[row]}, wanted at most 2^62: no memory is that large")
    return np.asarray(values, dtype=np.int64)


def _match(label: list[str], size: Column, spans: tuple[Column, Column] | None, c: Compilation) -> Column:
    nodes, plan = c.legal.nodes, c.plan
    other, taken = np.full(len(label), NONE, dtype=np.uint32), set[int]()

    def assign(keys: list[Any], places: dict[Any, list[int]]) -> None:
        for row, key in enumerate(keys):
            free = [i for i in places.get(key, ()) if i not in taken] if other[row] == NONE else []
            if free:
                other[row] = free[0]
                taken.add(free[0])

    by_name: dict[Any, list[int]] = {}
    by_source: dict[Any, list[int]] = {}
    for n in nodes:
        by_name.setdefault(n.label, []).append(n.id)
        for s in n.source:
            by_source.setdefault(str(s), []).append(n.id)
    assign(list(label), by_name)
    assign(list(label), by_source)
    if not taken:
        assign([int(t) if t.isdigit() else -1 for t in label], {i: [i] for i in range(len(nodes))})
    if spans is not None:
        shape: dict[Any, list[int]] = {}
        for i in plan.assignments:
            if int(plan.root[i]) == i:
                shape.setdefault((int(plan.birth[i]), int(plan.death[i]), int(plan.size[i])), []).append(i)
        keys = list(zip(spans[0].tolist(), spans[1].tolist(), size.tolist(), strict=True))
        assign(keys, {k: v for k, v in shape.items() if len(v) == 1})
    return other


def _document(ours: ColumnDocument, label: list[str], other: Column, numbers: dict[str, Column], root: Column,
              notes: list[str]) -> ColumnDocument:
    """Numbers of the table; op, shape and family of the match."""
    t, strings, n = ours.tables["tensors"], StringTable(), len(label)
    has = other != NONE
    row = np.where(has, other, 0)
    arena = ours.meta["spaces"].index("arena")

    def taken(column: str, without: int = 0) -> Column:
        return np.where(has, t[column][row], without).astype(t[column].dtype)

    def texts(column: str) -> Column:
        return strings.intern_all(ours.strings[int(t[column][i])] if known else "" for i, known in zip(row, has, strict=True))

    tensors = {
        "name": strings.intern_all(label), "op": texts("op"), "shape": texts("shape"), "source": texts("source"),
        "dtype": taken("dtype"), "family": taken("family"), "rule": taken("rule"),
        "kind": taken("kind", ours.meta["kinds"].index("activation")), "space": taken("space", arena),
        "flags": (taken("flags") & OUTPUT_FLAG).astype(np.uint8), "guard": taken("guard"), "root": root,
        "birth": numbers["birth"].astype(np.uint32), "death": numbers["death"].astype(np.uint32),
        "last_read": numbers["death"].astype(np.uint32),
        "offset": numbers["offset"].astype(np.float64), "size": numbers["size"].astype(np.float64),
    }
    owns = (tensors["space"] == arena) & (root == np.arange(n))
    live = _live(numbers, owns, max(ours.rows("occupancy"), int(numbers["death"].max(initial=0)) + 1))
    ends = numbers["offset"] + numbers["size"]
    regions = {s: int(ends[tensors["space"] == ours.meta["spaces"].index(s)].max(initial=0)) for s in ("arena", "weights")}
    naive = int(numbers["size"][owns].sum())
    peak = int(live.argmax()) if len(live) else 0
    weights = int(numbers["size"][(tensors["space"] == ours.meta["spaces"].index("weights")) & (root == np.arange(n))].sum())
    head = {
        "allocate": sum(regions.values()), "weights": weights, "activations": int(live.max(initial=0)),
        "scratch": 0, "padding": sum(regions.values()) - weights - int(live.max(initial=0)), "arena": regions["arena"], "naive": naive,
        "saved": naive - regions["arena"], "lower_bound": int(live.max(initial=0)), "peak_bytes": int(live.max(initial=0)),
        "peak_step": peak,
    }
    kept = ("classes", "kinds", "spaces", "dtypes", "rules", "families", "footer")
    meta = {k: ours.meta[k] for k in kept if k in ours.meta} | {
        "model": {**ours.meta["model"], "name": "another tool's offsets", "nodes": n, "inputs": [], "outputs": []},
        "headline": {k: exact_int(v) for k, v in head.items()} | {
            "unknown": 0, "unknown_names": [], "optimal": regions["arena"] == int(live.max(initial=0))},
        "options": [], "presets": [], "unsupported": {}, "source_is_tensors": True,
        "notes": [*notes, *([f"No match among our tensors: {int((~has).sum())} of {n} rows"] if not has.all() else [])],
    }
    if int(live.max(initial=0)) > regions["arena"]:
        meta["notes"].append("These offsets overlap: more bytes are live at once than the arena has.")
    nothing = np.zeros(len(live))
    occupancy = {"live": live} | {k: live if k == "activations" else nothing for k in meta["classes"]}
    edge = np.zeros(0, np.uint32)
    return ColumnDocument(meta, strings.strings(), {"tensors": tensors, "occupancy": occupancy, "edges": {"src": edge, "dst": edge}})


def _live(numbers: dict[str, Column], arena: Column, steps: int) -> Column:
    delta = np.zeros(steps + 1)
    np.add.at(delta, numbers["birth"][arena], numbers["size"][arena])
    np.add.at(delta, numbers["death"][arena] + 1, -numbers["size"][arena])
    return np.cumsum(delta[:-1])
