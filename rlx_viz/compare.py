"""Owns ``compare``: two plans side by side - two option sets, two models, or ours and another tool's offsets (CSV).

Tensors of one source graph are matched by the source node whose value they hold, so through any fusion; others by
name, then source, then structural hash (``planner_core.memory.match_nodes``). What has no match is listed. The document of a comparison is B's with the table ``match``: ``other``, the row of A, and ``change``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.memory import match_nodes
from rlx_viz.columns import Column, ColumnDocument
from rlx_viz.snapshot import snapshot
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.compile import Compilation

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CHANGES", "Comparison", "compare", "compare_documents", "comparing"]

CHANGES = ("same", "moved", "resized", "new", "lifetime")
"""``match.change`` by code; a tensor of A without a match is "gone"."""
SAME, MOVED, RESIZED, NEW, LIFETIME = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two documents and which tensor of B is which of A: ``other[row of B]`` is A's row or ``NONE``."""

    a: ColumnDocument
    b: ColumnDocument
    other: Column
    change: Column

    def document(self) -> ColumnDocument:
        """B with the table ``match``, for a picture that shows A."""
        return ColumnDocument(self.b.meta, self.b.strings, {**self.b.tables, "match": {"other": self.other, "change": self.change}})

    @property
    def only_a(self) -> list[str]:
        """Names of A's tensors without a match."""
        gone = np.ones(self.a.rows("tensors"), dtype=bool)
        gone[self.other[self.other != NONE]] = False
        return [_text(self.a, "name", i) for i in np.flatnonzero(gone).tolist()]

    @property
    def only_b(self) -> list[str]:
        """Names of B's tensors without a match."""
        return [_text(self.b, "name", i) for i in np.flatnonzero(self.other == NONE).tolist()]

    @property
    def options(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ: name -> (A's value, B's)."""
        before = {o["name"]: o["value"] for o in self.a.meta.get("options", [])}
        return {o["name"]: (before[o["name"]], o["value"]) for o in self.b.meta.get("options", [])
                if o["name"] in before and before[o["name"]] != o["value"]}

    @property
    def headline(self) -> dict[str, tuple[int, int, int]]:
        """Bytes of A, of B, and B - A."""
        old, new = self.a.meta["headline"], self.b.meta["headline"]
        keys = [k for k in ("allocate", "arena", "weights", "activations", "scratch", "padding", "naive", "lower_bound", "peak_bytes")
                if k in old and k in new]
        return {k: (int(old[k]), int(new[k]), int(new[k]) - int(old[k])) for k in keys}

    def to_frame(self) -> pd.DataFrame:
        """One row a tensor of either side that is not the same in both: names, change, offsets, sizes and lives before
        and after, the size's delta, and what explains it."""
        import pandas as pd

        rows = []
        for j, (i, code) in enumerate(zip(self.other.tolist(), self.change.tolist(), strict=True)):
            if code != SAME:
                rows.append(self._row(None if i == NONE else i, j, CHANGES[code]))
        gone = np.setdiff1d(np.arange(self.a.rows("tensors")), self.other[self.other != NONE])
        rows += [self._row(i, None, "gone") for i in gone.tolist()]
        columns = ["name", "name_b", "change", "size_a", "size_b", "size_delta", "offset_a", "offset_b", "birth_a", "death_a",
                   "birth_b", "death_b", "cause"]
        frame = pd.DataFrame(rows, columns=columns)
        numbers = [c for c in columns if c not in ("name", "name_b", "change", "cause")]
        return frame.astype(dict.fromkeys(numbers, "Int64"))

    def _row(self, i: int | None, j: int | None, change: str) -> list[Any]:
        a, b = (_facts(doc, row) for doc, row in ((self.a, i), (self.b, j)))
        delta = (b["size"] or 0) - (a["size"] or 0)
        return [a["name"], b["name"], change, a["size"], b["size"], delta, a["offset"], b["offset"], a["birth"], a["death"],
                b["birth"], b["death"], self._cause(i, j, a, b)]

    def _cause(self, i: int | None, j: int | None, a: dict[str, Any], b: dict[str, Any]) -> str:
        if i is None or j is None:
            return "no match"
        out = []
        for key in ("shape", "dtype", "space"):
            if a[key] != b[key] and a[key] and b[key]:
                out.append(f"{key} {a[key]} -> {b[key]}")
        if a["rules"] is not None and b["rules"] is not None:
            out += [f"rule {r} in A only" for r in sorted(a["rules"] - b["rules"])]
            out += [f"rule {r} in B only" for r in sorted(b["rules"] - a["rules"])]
        if not out:
            out = [f"{k} {_plain(x)} -> {_plain(y)}" for k, (x, y) in self.options.items()]
        if not out:
            out = ["placed differently" if a["offset"] != b["offset"] else "another live range" if a["size"] == b["size"] else "another size"]
        return "; ".join(out)


def compare(a: Any, b: Any, *, redact: bool = False) -> Comparison:
    """Compare two plans. ``a``: a compilation or what ``rlx_viz.compile`` takes. ``b``: the same; a dict of options for
    ``a``'s graph; or another tool's offsets for it: a path of a ``.csv`` or a frame with the columns ``id`` or ``name``,
    ``offset``, ``size`` and, where known, ``lower`` and ``upper`` (first step, and one past the last).

    ``RlxError`` for a file that can't be read, an option that doesn't exist, a table without those columns.
    """
    import rlx_viz

    one = rlx_viz.compile(a)
    name = Path(a).name if isinstance(a, (str, Path)) else ""
    return comparing(one, b, redact)(snapshot(one, name=name, redact=redact), one)


def comparing(a: Compilation, b: Any, redact: bool = False) -> Callable[[ColumnDocument, Compilation], Comparison]:
    """What compares a document, and the compilation that it shows, with ``b`` (read once); ``a`` is what options in
    ``b`` are over, and whose target a model in ``b`` is compiled for."""
    import rlx_viz

    if _is_table(b):
        from rlx_viz.foreign import foreign_document, read_table

        table = read_table(b)

        def with_table(first: ColumnDocument, one: Compilation) -> Comparison:
            second, other = foreign_document(table, one, first, redact)
            return Comparison(first, second, other, _changes(first, second, other, True))

        return with_table
    name = Path(b).name if isinstance(b, (str, Path)) else ""
    if isinstance(b, Mapping):
        two = a.with_options(**b)
    else:
        two = b if isinstance(b, Compilation) else rlx_viz.compile(b, target=a.options.target.value)
    second = snapshot(two, name=name, redact=redact)
    return lambda first, one: compare_documents(first, second, one, two)


def compare_documents(first: ColumnDocument, second: ColumnDocument, a: Compilation, b: Compilation) -> Comparison:
    """The comparison of two documents, given the compilations they were made of."""
    pairs = _pairs(a, b)
    other = np.full(len(b.legal), NONE, dtype=np.uint32)
    other[list(pairs.values())] = list(pairs)
    return Comparison(first, second, other, _changes(first, second, other, a.legal is b.legal))


def _pairs(a: Compilation, b: Compilation) -> dict[int, int]:
    """Node of A -> node of B."""
    if a.legal is b.legal or a.source is not b.source:
        return match_nodes(a.legal, b.legal)
    holds = {max(o): i for i, o in enumerate(a.fusion.origins) if o}
    found = {holds[max(o)]: j for j, o in enumerate(b.fusion.origins) if o and max(o) in holds}
    taken = set(found.values())
    return found | {i: j for i, j in match_nodes(a.legal, b.legal).items() if i not in found and j not in taken}


def _is_table(b: Any) -> bool:
    return (isinstance(b, (str, Path)) and str(b).lower().endswith(".csv")) or hasattr(b, "itertuples")


def _changes(first: ColumnDocument, second: ColumnDocument, other: Column, same_steps: bool) -> Column:
    """Code of each row of B; lives are compared by their steps where both count the same ones, else by length."""
    a, b = first.tables["tensors"], second.tables["tensors"]
    has = other != NONE
    out = np.full(len(other), NEW, dtype=np.uint8)
    i = other[has]
    old, new = {k: v[i] for k, v in a.items()}, {k: v[has] for k, v in b.items()}
    lived = [x["death"].astype(np.int64) - x["birth"] for x in (old, new)]
    moved_life = lived[0] != lived[1]
    if same_steps:
        moved_life |= old["birth"] != new["birth"]
    code = np.full(len(i), SAME, dtype=np.uint8)
    code[moved_life] = LIFETIME
    code[(old["offset"] != new["offset"]) | (old["space"] != new["space"])] = MOVED
    code[(old["size"] != new["size"]) | (old["guard"] != new["guard"])] = RESIZED
    out[has] = code
    return out


def _text(doc: ColumnDocument, column: str, row: int) -> str:
    return doc.strings[int(doc.tables["tensors"][column][row])]


def _facts(doc: ColumnDocument, row: int | None) -> dict[str, Any]:
    if row is None:
        return dict.fromkeys(("size", "offset", "birth", "death", "shape", "dtype", "space", "rules")) | {"name": ""}
    t = doc.tables["tensors"]
    space = doc.meta["spaces"][int(t["space"][row])]
    rules = None
    if "extensions" in doc.tables:
        e = doc.tables["extensions"]
        rules = {doc.meta["rules"][k]["name"] for k in e["rule"][e["node"] == row].tolist()}
    return {
        "name": _text(doc, "name", row), "shape": _text(doc, "shape", row), "dtype": doc.meta["dtypes"][int(t["dtype"][row])],
        "space": space, "size": int(t["size"][row]), "offset": int(t["offset"][row]) if space != "none" else None,
        "birth": int(t["birth"][row]), "death": int(t["death"][row]), "rules": rules,
    }


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
