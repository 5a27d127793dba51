"""Shrinks a document to its largest tensors, so that it fits where size is limited; says so in its notes.

Used for pages embedded in notebooks. The headline numbers, the occupancy curve, savings and module groups stay whole;
decisions, commands and the places of single nodes go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx_viz.columns import Column, ColumnDocument, StringTable, Tables
from rlx_viz.reports import render_html
from rlx_viz.snapshot_tables.tensors import NONE

TEXTS = {
    "tensors": ("name", "op", "shape", "source"),
    "groups": ("name",),
    "savings": ("label", "option"),
    "counterfactuals": ("option", "value"),
}
"""Columns that point into the string table, of the tables that a sample keeps."""
WHOLE = ("occupancy", "groups", "group_edges", "savings", "counterfactuals", "cache_entries", "cache_events")
FOLLOWED = {
    "edges": ("src", "dst"), "extensions": ("node", "cause"), "counterfactual_nodes": ("node",), "layout": (), "match": (),
}
EMBED_LIMIT = 2_000_000
"""Bytes of HTML that a notebook output may take."""
_SMALLEST = 64
_LEAST_PER_TENSOR = 24


def sample(doc: ColumnDocument, rows: int) -> ColumnDocument:
    """The `rows` largest tensors of `doc` and the roots of the views among them, in schedule order.

    Adds the column `step`, since a row's number is no longer its step, and drops what no kept row
    uses from the string table. Returns `doc` itself when it is not larger.
    """
    total = doc.rows("tensors")
    if total <= rows:
        return doc
    tensors = doc.tables["tensors"]
    largest = np.argsort(-tensors["size"], kind="stable")[:rows]
    kept = np.unique(np.concatenate([largest, tensors["root"][largest]])).astype(np.int64)
    place = np.full(total, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    strings = StringTable()
    tables: Tables = {"tensors": {name: column[kept] for name, column in tensors.items()}}
    tables["tensors"]["root"] = place[tables["tensors"]["root"]].astype(np.uint32)
    tables["tensors"].setdefault("step", kept.astype(np.uint32))
    for table in WHOLE:
        if table in doc.tables:
            tables[table] = dict(doc.tables[table])
    for table, keys in FOLLOWED.items():
        if table in doc.tables:
            tables[table] = _follow(doc.tables[table], keys, place) if keys else {
                name: column[kept] for name, column in doc.tables[table].items()}
    for table, names in TEXTS.items():
        for name in names:
            if name in tables.get(table, {}):
                tables[table][name] = _again(tables[table][name], doc.strings, strings)
    note = (
        f"Sampled: the {len(kept):,} largest of {total:,} tensors. The numbers and the occupancy curve are "
        "whole; decisions and commands are left out. rlx-viz report writes a page with everything."
    )
    meta: dict[str, Any] = dict(doc.meta)
    meta["notes"] = [note, *doc.meta.get("notes", [])]
    meta["sampled"] = {"shown": len(kept), "total": total}
    return ColumnDocument(meta, strings.strings(), tables)


def render_capped(doc: ColumnDocument, *, title: str, other: ColumnDocument | None = None, limit: int = EMBED_LIMIT) -> str:
    """A page of at most about `limit` bytes: of the whole document when it fits, else of a sample.

    `other`, to compare with, is left out, with a note, where both together do not fit.
    """
    if other is not None:
        if doc.rows("tensors") + other.rows("tensors") <= limit // _LEAST_PER_TENSOR:
            html = render_html(doc, title=title, other=other)
            if len(html) <= limit:
                return html
        note = "Left out for its size: the plan that this one is compared with. rlx-viz report --compare writes a page with both."
        if "verdict" in other.meta:
            note += f" {other.meta['verdict']['sentence']}"
        doc = ColumnDocument({**doc.meta, "notes": [note, *doc.meta.get("notes", [])]}, doc.strings, doc.tables)
    rows = doc.rows("tensors")
    # No document packs a tensor into less: a start near the answer saves rendering what can't fit.
    rows = min(rows, max(_SMALLEST, limit // _LEAST_PER_TENSOR))
    html = render_html(sample(doc, rows), title=title)
    while len(html) > limit and rows > _SMALLEST:
        rows = max(_SMALLEST, min(rows // 2, int(rows * limit / len(html))))
        html = render_html(sample(doc, rows), title=title)
    return html


def _again(column: Column, old: tuple[str, ...], new: StringTable) -> Column:
    """The texts of a column in another string table; what points at nothing stays."""
    nothing = column == NONE
    made = new.intern_all("" if none else old[i] for i, none in zip(column.tolist(), nothing.tolist(), strict=True))
    made[nothing] = NONE
    return made


def _follow(table: dict[str, Column], keys: tuple[str, ...], place: NDArray[np.int64]) -> dict[str, Column]:
    """Rows whose `keys` all point at kept tensors, renumbered."""
    keep = np.ones(len(table[keys[0]]), dtype=bool)
    for key in keys:
        keep &= place[table[key]] >= 0
    return {
        name: place[column[keep]].astype(np.uint32) if name in keys else column[keep]
        for name, column in table.items()
    }
