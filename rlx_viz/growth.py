"""Owns ``Growth``: two plans as headline numbers before and after, the tensors that grew, and a limit on it. For CI.

A side is a model or a summary that ``rlx-viz plan --json`` wrote. Two models are matched by ``rlx_viz.compare``, summaries by
tensor names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from planner_core.errors import RlxError
from planner_core.units import bytes_text
from rlx_viz.outputs import DIFF
from runtime.compile import Compilation

__all__ = ["NUMBERS", "Change", "Grown", "Growth", "Limit", "growth", "limit_of", "read_summary"]

NUMBERS = {"allocate": "to allocate", "weights": "weights", "activations": "activations", "scratch": "scratch", "padding": "padding",
           "arena": "arena", "naive": "naive", "lower_bound": "lower bound"}
"""Headline number -> its words; in a summary each is ``<number>_bytes``."""
MOST_GROWN = 10


@dataclass(frozen=True, slots=True)
class Change:
    """A headline number of A and of B."""

    number: str
    before: int
    after: int

    @property
    def delta(self) -> int:
        return self.after - self.before

    @property
    def percent(self) -> float | None:
        """Of A's; None where that is 0."""
        return 100 * self.delta / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class Grown:
    """A tensor with a slot of its own that is larger in B, or new there (``before`` 0)."""

    name: str
    before: int
    after: int
    cause: str


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may be added: a share of what was, or bytes."""

    text: str
    percent: Fraction | None = None
    nbytes: int = 0

    def allows(self, change: Change) -> bool:
        """The growth is at most the limit (of nothing, a share is nothing)."""
        allowed = Fraction(self.nbytes) if self.percent is None else change.before * self.percent / 100
        return change.delta <= allowed


@dataclass(frozen=True, slots=True)
class Growth:
    """Two plans side by side. ``number`` is what ``limit`` is on."""

    a: str
    b: str
    changes: tuple[Change, ...]
    grown: tuple[Grown, ...]
    number: str = "allocate"
    limit: Limit | None = None

    @property
    def measured(self) -> Change:
        """The number that the limit is on."""
        return next(c for c in self.changes if c.number == self.number)

    @property
    def fails(self) -> bool:
        """It grew by more than the limit allows."""
        return self.limit is not None and not self.limit.allows(self.measured)

    @property
    def verdict(self) -> str:
        """One sentence."""
        c = self.measured
        moved = "is unchanged" if not c.delta else (f"{'grew' if c.delta > 0 else 'shrank'} by {bytes_text(abs(c.delta))}{_percent(c)}")
        words = f"{self.b}: {NUMBERS[self.number]} {moved}, {bytes_text(c.before)} -> {bytes_text(c.after)}"
        return words if self.limit is None else f"{words}; allowed {self.limit.text}: {'too much' if self.fails else 'ok'}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, in bytes."""
        return DIFF.document({"a": self.a, "b": self.b, "verdict": self.verdict, "fails": self.fails, "number": self.number,
                "limit": None if self.limit is None else self.limit.text,
                "changes": {c.number: {"before_bytes": c.before, "after_bytes": c.after, "delta_bytes": c.delta, "percent": c.percent}
                            for c in self.changes},
                "grown": [{"name": g.name, "before_bytes": g.before, "after_bytes": g.after, "cause": g.cause} for g in self.grown]})

    def to_text(self) -> str:
        """Aligned lines; the verdict first."""
        out = [self.verdict]
        out += [f"  {NUMBERS[c.number]:<12}{bytes_text(c.before):>12} -> {bytes_text(c.after):>10}  {_signed(c.delta)}{_percent(c)}"
                for c in self.changes]
        if self.grown:
            out.append("  tensors that grew:")
            out += [f"    {_signed(g.after - g.before):>11}  {g.name}: {_before(g)} -> {bytes_text(g.after)}"
                    + (f", {g.cause}" if g.cause else "") for g in self.grown]
        return "\n".join(out)

    def to_markdown(self) -> str:
        """A summary for a pull request: the verdict, a table of numbers, a table of what grew."""
        out = [f"**{'❌' if self.fails else '✅'} {_cell(self.verdict)}**", "", f"| | {_cell(self.a)} | {_cell(self.b)} | change |",
               "|---|---:|---:|---:|"]
        out += [f"| {NUMBERS[c.number]} | {bytes_text(c.before)} | {bytes_text(c.after)} | {_signed(c.delta)}{_percent(c)} |"
                for c in self.changes]
        if self.grown:
            out += ["", "| grew | before | after | change | why |", "|---|---:|---:|---:|---|"]
            out += [f"| {_cell(g.name)} | {_before(g)} | {bytes_text(g.after)} | {_signed(g.after - g.before)} | {_cell(g.cause)} |"
                    for g in self.grown]
        return "\n".join(out) + "\n"


def _signed(n: int) -> str:
    return f"+{bytes_text(n)}" if n > 0 else bytes_text(n)


def _percent(c: Change) -> str:
    return "" if not c.delta or c.percent is None else f" ({c.percent:+.2f}%)"


def _before(g: Grown) -> str:
    return bytes_text(g.before) if g.before else "new"


def _cell(text: str) -> str:
    """Text that no Markdown renderer takes for markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#~$&@!])", r"\\\1", re.sub(r"\s+", " ", text))


def limit_of(text: str) -> Limit:
    """``5%``, ``0``, bytes or a size such as ``64KiB``. ``RlxError`` for anything else."""
    from rlx_viz.budget import bytes_of

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if found is not None:
        return Limit(text.strip(), Fraction(found.group(1)))
    nbytes = bytes_of(text)
    if nbytes is None:
        raise RlxError(f"--fail-if-grows {text}: wanted a share such as 5%, or bytes such as 0, 65536 or 64KiB")
    return Limit(text.strip() if not text.strip().isdecimal() else f"{nbytes:,} B", None, nbytes)


def read_summary(path: str | Path) -> dict[str, Any] | None:
    """A summary that ``plan --json`` wrote; None for any other file (a graph saved as JSON, an ONNX model)."""
    path = Path(path)
    if path.suffix.lower() == ".onnx" or not path.is_file():
        return None
    with path.open("rb") as f:
        if f.read(1) not in (b"{", b" ", b"\n"):
            return None
    try:
        value = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict) or "allocate_bytes" not in value or "tensors" not in value:
        return None
    wrong = [k for k in NUMBERS if type(value.get(f"{k}_bytes")) is not int]
    if wrong or not all(isinstance(t, Mapping) and {"name", "op", "size_bytes", "id", "root", "space"} <= t.keys() for t in value["tensors"]):
        raise RlxError(f"{path}: a summary without {', '.join(f'{k}_bytes' for k in wrong) or 'whole rows of tensors'}; write it again with "
                       "rlx-viz plan MODEL --json FILE")
    return value


def growth(a: Compilation | Mapping[str, Any], b: Compilation | Mapping[str, Any], *, names: tuple[str, str] = ("", ""),
           number: str = "allocate", limit: Limit | None = None) -> Growth:
    """Compare two compilations or summaries. ``RlxError`` for a number that there is none of."""
    if number not in NUMBERS:
        raise RlxError(f"no number {number!r}; wanted one of {', '.join(NUMBERS)}")
    one, two = (_summary(side, name) for side, name in zip((a, b), names, strict=True))
    changes = tuple(Change(k, int(one[f"{k}_bytes"]), int(two[f"{k}_bytes"])) for k in NUMBERS)
    both = isinstance(a, Compilation) and isinstance(b, Compilation)
    grown = _matched(a, b, two) if both else _by_name(one, two)
    grown.sort(key=lambda g: (g.before - g.after, g.name))
    return Growth(names[0] or one["model"], names[1] or two["model"], changes, tuple(grown[:MOST_GROWN]), number, limit)


def _summary(side: Compilation | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(side, Compilation):
        return side
    from rlx_viz.snapshots import snapshot
    from rlx_viz.summary import summary_dict

    return summary_dict(snapshot(side, name=name))


def _own(summary: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Name and op -> size of the tensors with bytes of their own. (A nameless node is called by its number, which another
    graph has for another op.)"""
    return {(str(t["name"]), str(t["op"])): int(t["size_bytes"]) for t in summary["tensors"]
            if t["root"] == t["id"] and t["space"] != "none"}


def _by_name(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[Grown]:
    before = _own(one)
    return [Grown(key[0], before.get(key, 0), size, "" if key in before else "no match") for key, size in _own(two).items()
            if size > before.get(key, 0)]


def _matched(a: Any, b: Any, two: Mapping[str, Any]) -> list[Grown]:
    from rlx_viz.comparison import compare

    own = {name for name, _ in _own(two)}
    frame = compare(a, b).to_frame()
    rows = frame[(frame["size_delta"] > 0) & frame["name_b"].isin(own)]
    return [Grown(r["name_b"], 0 if r["change"] == "new" else int(r["size_a"]), int(r["size_b"]), r["cause"])
            for r in rows.to_dict("records")]
