"""Owns ``ForeignPlan``: what another allocator decided, whatever file it came from, and the check of it.

Readers make one (``table.py``); ``matching.py`` finds our tensors in it. The check is the planner's own validator.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner_core.errors import RlxError
from planner_core.memory import ViolationKind
from planner_core.memory.placement.validate import MOST_OVERLAPS, overlaps
from planner_core.memory.problem import I64, Offsets, Problem

__all__ = ["Buffers", "Ends", "ForeignError", "ForeignPlan", "Includes", "InvalidPlanError", "Mask", "Region", "Violation",
           "require_valid"]

Mask = npt.NDArray[np.bool_]
SHOWN = 10
"""Violations that an error writes out."""


class ForeignError(RlxError):
    """Another tool's plan that can't be read; says which column or row."""


class Ends(Enum):
    """How a source writes the last step of a live range. A ``Problem`` is inclusive whatever the source does."""

    INCLUSIVE = "the last step is the last one of use"
    EXCLUSIVE = "the last step is one past the last use"


class Region(Enum):
    """Address spaces: offsets of two regions never meet."""

    UNSAID = -1
    ARENA = 0
    WEIGHTS = 1
    SCRATCH = 2


@dataclass(frozen=True, slots=True)
class Includes:
    """Parts of memory that a plan's numbers count; the other side is compared without the rest."""

    guards: bool = False
    alignment: bool = False
    weights: bool = False
    scratch: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise of a foreign plan: both buffers, the common steps (inclusive), the common bytes (half-open)."""

    kind: ViolationKind
    a: str
    b: str
    steps: tuple[int, int]
    nbytes: tuple[int, int]
    text: str

    def __str__(self) -> str:
        return self.text


class InvalidPlanError(ForeignError):
    """A plan that no run could follow; ``violations`` has all that were found, the text the first ten."""

    def __init__(self, provenance: str, violations: list[Violation], hint: str = "") -> None:
        self.violations = violations
        lines = [f"  {v}" for v in violations[:SHOWN]]
        if len(violations) > SHOWN:
            lines.append(f"  … {len(violations) - SHOWN} more")
        super().__init__(f"{provenance} is not a valid plan ({'at least ' if len(violations) >= MOST_OVERLAPS else ''}{len(violations):,} found), so no size of it means anything:\n"
                         + "\n".join(lines) + (f"\n{hint}" if hint else ""))


class Buffers(NamedTuple):
    """Buffers of one region, rows that share bytes on purpose (views, hand-overs in place) as one."""

    problem: Problem
    offsets: Offsets
    rows: I64
    """Row of the plan that each buffer is named after."""


@dataclass(frozen=True, slots=True, eq=False)
class ForeignPlan:
    """A plan of another allocator, one row a buffer. ``problem``: live ranges (inclusive), sizes, alignments, guards;
    ``offsets`` in bytes; ``names``; ``provenance``: the file or tool; ``ends``: as the source writes live ranges;
    ``includes``: what the numbers count.

    ``lived`` is False for rows without a live range (their birth and death mean nothing); ``region`` holds ``Region``
    values; ``root`` is the row whose bytes a row shows, itself for a buffer; ``ids`` are numbers that the source gives rows
    beside their names, -1 for none.
    """

    problem: Problem
    offsets: Offsets
    names: tuple[str, ...]
    provenance: str
    ends: Ends = Ends.EXCLUSIVE
    includes: Includes = Includes()
    lived: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))
    region: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    root: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    ids: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.problem)
        usual = {"lived": np.ones(n, dtype=bool), "region": np.full(n, Region.UNSAID.value), "root": np.arange(n), "ids": np.full(n, -1)}
        for name, column in usual.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, column)
        for name in ("offsets", "names", *usual):
            if len(getattr(self, name)) != n:
                raise ForeignError(f"{self.provenance}: {len(getattr(self, name))} {name}, wanted {n}, one a row of the problem")

    def __repr__(self) -> str:
        return (f"<ForeignPlan {self.provenance}: {len(self)} rows, {int(self.lived.sum())} with a live range; "
                ".violations(), .problem, .offsets>")

    def __len__(self) -> int:
        return len(self.problem)

    def replace(self, **changes: object) -> ForeignPlan:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def label(self, row: int) -> str:
        """Quoted name of a row; with the row's number where another row has the same name."""
        name = self.names[row]
        return repr(name) if self.names.count(name) == 1 else f"{name!r} (row {row + 1})"

    def rows_of(self, region: Region) -> I64:
        """Rows of a region; rows that say none count as the arena's."""
        said = np.where(self.region == Region.UNSAID.value, Region.ARENA.value, self.region)
        return np.flatnonzero(said == region.value)

    def height(self, region: Region, guards: bool = True) -> int:
        """Furthest end of bytes in a region, rows without a live range included."""
        held = self.problem.size + (self.problem.guard if guards else 0)
        rows = self.rows_of(region)
        rows = rows[held[rows] > 0]
        return int((self.offsets + held)[rows].max(initial=0))

    def buffers(self, region: Region) -> Buffers:
        """Rows of a region that have a live range, each root with the rows that show its bytes: from the first birth to
        the last death."""
        rows = self.rows_of(region)
        rows = rows[self.lived[rows]]
        root, p = self.root[rows], self.problem
        heads, at = np.unique(root, return_inverse=True)
        birth, death = np.full(len(heads), np.iinfo(np.int64).max), np.full(len(heads), -1, dtype=np.int64)
        np.minimum.at(birth, at, p.birth[rows])
        np.maximum.at(death, at, p.death[rows])
        free = np.full(len(heads), -1, dtype=np.int64)
        return Buffers(Problem(birth, death, p.size[heads], p.alignment[heads], p.guard[heads], free), self.offsets[heads], heads)

    def violations(self) -> list[Violation]:
        """Name every pair of buffers live together on the same bytes, every view outside its root's bytes, every start
        that is no multiple of its alignment; [] where the plan is sound. Rows without a live range are not checked."""
        out = [self._outside(i) for i in np.flatnonzero(self.root != np.arange(len(self))).tolist() if self._is_outside(i)]
        odd = np.flatnonzero(self.offsets % self.problem.alignment != 0)
        for i in odd.tolist():
            at, wanted = int(self.offsets[i]), int(self.problem.alignment[i])
            life = (int(self.problem.birth[i]), int(self.problem.death[i]))
            out.append(Violation(ViolationKind.MISALIGNED, self.names[i], "", life, (at, at + int(self.problem.size[i])),
                                 f"{self.label(i)} starts at {at}, wanted a multiple of {wanted}"))
        for region in (Region.ARENA, Region.WEIGHTS, Region.SCRATCH):
            found = self.buffers(region)
            for o in overlaps(found.problem, found.offsets):
                out.append(self._overlap(found, o.a, o.b, (o.first_step, o.last_step), (o.start, o.end)))
        return out

    def _is_outside(self, i: int) -> bool:
        r, size, at = int(self.root[i]), self.problem.size, self.offsets
        return bool(at[i] < at[r] or at[i] + size[i] > at[r] + size[r])

    def _outside(self, i: int) -> Violation:
        r, p = int(self.root[i]), self.problem
        span = [(int(self.offsets[k]), int(self.offsets[k] + p.size[k])) for k in (i, r)]
        return Violation(ViolationKind.VIEW_OUT_OF_ROOT, self.names[i], self.names[r], (int(p.birth[i]), int(p.death[i])), span[0],
                         f"{self.label(i)} [{span[0][0]}, {span[0][1]}) is a view of {self.label(r)}, outside its bytes "
                         f"[{span[1][0]}, {span[1][1]})")

    def _overlap(self, found: Buffers, a: int, b: int, steps: tuple[int, int], span: tuple[int, int]) -> Violation:
        p, ends = found.problem, found.offsets + found.problem.size
        data = min(int(ends[a]), int(ends[b])) > span[0]
        sides = [f"{self.label(int(found.rows[k]))} [{found.offsets[k]}, {ends[k]}) live {p.birth[k]} to {p.death[k]}" for k in (a, b)]
        shared = f"share bytes [{span[0]}, {span[1]})" + ("" if data else " of a guard")
        when = f"at step {steps[0]}" if steps[0] == steps[1] else f"at steps {steps[0]} to {steps[1]}"
        kind = ViolationKind.OVERLAP if data else ViolationKind.GUARD_OVERRUN
        names = [self.names[int(found.rows[k])] for k in (a, b)]
        return Violation(kind, names[0], names[1], steps, span, f"{sides[0]} and {sides[1]} {shared} {when}")


def require_valid(plan: ForeignPlan, hint: str = "") -> None:
    """Raise ``InvalidPlanError`` with both names, the steps and the bytes of each violation, if there is any."""
    found = plan.violations()
    if found:
        raise InvalidPlanError(plan.provenance, found, hint)
