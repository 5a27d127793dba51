"""Owns ``compare``: two plans side by side - two option sets, two models, or ours and another tool's offsets (CSV).

Tensors of one source graph are matched by the source node whose value they hold, so through any fusion; others by
name, then source, then structural hash (``planner_core.memory.match_nodes``). What has no match is listed. The document
of a comparison is B's with the table ``match`` (``other``, the row of A, and ``change``) and the verdict in its ``meta``.

``verdict.py`` owns the sentence; ``foreign/`` owns another tool's plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.memory import match_nodes
from rlx_viz.columns import Column, ColumnDocument, exact_int
from rlx_viz.sides import compiled_sides, foreign_sides
from rlx_viz.snapshot_tables.tensors import NONE
from rlx_viz.snapshots import snapshot
from rlx_viz.verdict import Verdict, judge
from runtime.compile import Compilation

if TYPE_CHECKING:
    import pandas as pd

    from rlx_viz.foreign import ForeignPlan

__all__ = ["CHANGES", "Comparison", "compare", "compare_documents", "compare_foreign", "comparing"]

CHANGES = ("same", "moved", "resized", "new", "lifetime")
"""``match.change`` by code; a tensor of A without a match is "gone"."""
SAME, MOVED, RESIZED, NEW, LIFETIME = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two documents, the verdict, and which tensor of B is which of A: ``other[row of B]`` is A's row or ``NONE``.

    ``a_head``: A's headline in the terms that both sides have, for another tool's plan; else its own.
    """

    a: ColumnDocument
    b: ColumnDocument
    other: Column
    change: Column
    verdict: Verdict
    a_head: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.verdict}\n<Comparison: {self._counts()}; .to_frame() lists them, .verdict has the numbers>"

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(n)}</li>" for n in self.notes)
        return (f"<div><p><b>{escape(str(self.verdict))}</b></p><p>{escape(self._counts())}; <code>.to_frame()</code> lists "
                f"them.</p>{f'<ul>{notes}</ul>' if notes else ''}</div>")

    def _counts(self) -> str:
        codes = np.bincount(self.change, minlength=len(CHANGES)).tolist()
        return ", ".join(f"{n:,} {name}" for name, n in [*zip(CHANGES, codes, strict=True), ("gone", len(self.only_a))] if n) or "no tensors"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the verdict, then of another tool's plan: what was left out, laid over, listed."""
        return (*self.verdict.notes, *self.b.meta.get("notes", [])) if self.b.meta.get("foreign") else self.verdict.notes

    def document(self) -> ColumnDocument:
        """B with the table ``match`` and the verdict, for a picture that shows A."""
        verdict = {"sentence": str(self.verdict), "notes": list(self.notes),
                   "headline": {k: [exact_int(x), exact_int(y)] for k, (x, y, _) in self.headline.items()}}
        return ColumnDocument({**self.b.meta, "verdict": verdict}, self.b.strings,
                              {**self.b.tables, "match": {"other": self.other, "change": self.change}})

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
        """Bytes of A, of B, and B - A, in terms that both have."""
        old, new = self.a_head, self.b.meta["headline"]
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


def compare(a: Any, b: Any, *, redact: bool = False, name: str = "") -> Comparison:
    """Compare two plans. ``a``: a compilation or what ``rlx_viz.compile`` takes. ``b``: the same; a dict of options for
    ``a``'s graph; or another tool's offsets for it: a ``ForeignPlan``, a path of a ``.csv`` or a frame with the columns
    ``id`` or ``name``, ``offset``, ``size`` and, where known, ``lower`` and ``upper`` (first step, and one past the last).

    ``name`` is shown for ``a``. ``RlxError`` for a file that can't be read, an option that doesn't exist, a table without those columns, an invalid plan.
    """
    import rlx_viz

    one = rlx_viz.compile(a)
    name = name or (Path(a).name if isinstance(a, (str, Path)) else "")
    return comparing(one, b, redact)(snapshot(one, name=name, redact=redact), one)


def comparing(a: Compilation, b: Any, redact: bool = False) -> Callable[[ColumnDocument, Compilation], Comparison]:
    """What compares a document, and the compilation that it shows, with ``b`` (read once); ``a`` is what options in
    ``b`` are over, and whose target a model in ``b`` is compiled for."""
    import rlx_viz
    from rlx_viz.foreign import ForeignPlan, read_foreign

    if isinstance(b, ForeignPlan) or _is_table(b):
        plan = b if isinstance(b, ForeignPlan) else read_foreign(b)
        return lambda first, one: compare_foreign(first, plan, one, redact)
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
    change = _changes(first, second, other, a.legal is b.legal)
    verdict = judge(*compiled_sides(first, second, a, b), "to allocate", int((change == MOVED).sum()))
    return Comparison(first, second, other, change, verdict, first.meta["headline"])


def compare_foreign(first: ColumnDocument, plan: ForeignPlan, c: Compilation, redact: bool = False) -> Comparison:
    """The comparison of a compilation's document with another allocator's plan of it, checked in full.

    ``InvalidPlanError`` (a ``ForeignError``) where two buffers share bytes at a step, with both names, steps and bytes.
    """
    from rlx_viz.foreign import foreign_document, require_valid
    from rlx_viz.foreign.matching import Order, match_plan

    matched = match_plan(plan, c)
    taken = matched.order is Order.TAKEN
    if not taken:
        require_valid(matched.own)  # in steps that its maker knows
    require_valid(matched.plan, "The live ranges are ours, the table has none: add the columns lower and upper (half-open) to check "
                  "it by its own." if taken else "")
    shown, other, names = foreign_document(matched, c, first, redact)
    label = "the table" if redact else plan.provenance
    like = foreign_sides(first, c, matched, shown, names, label)
    second = ColumnDocument({**shown.meta, "headline": like.b_head, "foreign": True}, shown.strings, shown.tables)
    blind = shown.tables["tensors"]["space"] == shown.meta["spaces"].index("none")
    own = matched.order is Order.OWN
    change = _changes(first, second, other, True, lives=not own, blind=blind)
    verdict = judge(like.a, like.b, like.compared, int((change == MOVED).sum()), same_steps=not own, caveat=like.caveat,
                    notes=like.notes)
    return Comparison(first, second, other, change, verdict, first.meta["headline"] | like.a_head)


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


def _changes(first: ColumnDocument, second: ColumnDocument, other: Column, same_steps: bool, *, lives: bool = True,
             blind: Column | None = None) -> Column:
    """Code of each row of B; ``lives`` are compared by their steps where both count the same ones, else by length. Of
    ``blind`` rows of B no live range, so no region, is known."""
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
    known = np.ones(len(i), dtype=bool) if blind is None else ~blind[has]
    code[moved_life & known & lives] = LIFETIME
    code[(old["offset"] != new["offset"]) | ((old["space"] != new["space"]) & known)] = MOVED
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
