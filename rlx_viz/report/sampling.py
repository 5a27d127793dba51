"""Shrinks a document to its largest tensors, so that it fits where size is limited; says so in its notes.

Used for pages embedded in notebooks. The headline numbers and the occupancy curve stay whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx_viz.columns import Column, ColumnDocument, StringTable, Tables
from rlx_viz.report import render_html

TEXT_COLUMNS = ("name", "op", "shape", "source")
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
    columns: dict[str, Column] = {name: column[kept] for name, column in tensors.items()}
    for name in TEXT_COLUMNS:
        if name in columns:
            columns[name] = strings.intern_all(doc.strings[index] for index in columns[name].tolist())
    columns["root"] = place[columns["root"]].astype(np.uint32)
    columns.setdefault("step", kept.astype(np.uint32))
    tables: Tables = {"tensors": columns}
    if "occupancy" in doc.tables:
        tables["occupancy"] = doc.tables["occupancy"]
    for table, keys in (("edges", ("src", "dst")), ("extensions", ("node", "cause"))):
        if table in doc.tables:
            tables[table] = _follow(doc.tables[table], keys, place)
    note = (
        f"Sampled: the {len(kept):,} largest of {total:,} tensors. The numbers and the occupancy curve are "
        "whole; rlx-viz report writes a page with every tensor."
    )
    meta: dict[str, Any] = dict(doc.meta)
    meta["notes"] = [note, *doc.meta.get("notes", [])]
    meta["sampled"] = {"shown": len(kept), "total": total}
    return ColumnDocument(meta, strings.strings(), tables)


def render_capped(doc: ColumnDocument, *, title: str, limit: int = EMBED_LIMIT) -> str:
    """A page of at most about `limit` bytes: of the whole document when it fits, else of a sample."""
    rows = doc.rows("tensors")
    # No document packs a tensor into less: a start near the answer saves rendering what can't fit.
    rows = min(rows, max(_SMALLEST, limit // _LEAST_PER_TENSOR))
    html = render_html(sample(doc, rows), title=title)
    while len(html) > limit and rows > _SMALLEST:
        rows = max(_SMALLEST, min(rows // 2, int(rows * limit / len(html))))
        html = render_html(sample(doc, rows), title=title)
    return html


def _follow(table: dict[str, Column], keys: tuple[str, ...], place: NDArray[np.int64]) -> dict[str, Column]:
    """Rows whose `keys` all point at kept tensors, renumbered."""
    keep = np.ones(len(table[keys[0]]), dtype=bool)
    for key in keys:
        keep &= place[table[key]] >= 0
    return {
        name: place[column[keep]].astype(np.uint32) if name in keys else column[keep]
        for name, column in table.items()
    }
