"""Owns the verdict of a comparison: one sentence with numbers, and the fields it is written from.

``Side`` is one plan in the terms both sides share; ``judge`` weighs two. Command line, report and notebook show the
same sentence. What a side counts is decided in ``rlx_viz/sides.py``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from planner_core.memory.problem import I64, Offsets, Problem

__all__ = ["Deciding", "Side", "Smaller", "Verdict", "judge"]

NAMED = 3
"""Buffers that the sentence names."""


class Smaller(Enum):
    """The side that needs fewer bytes."""

    NEITHER = "neither"
    A = "a"
    B = "b"


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One plan as compared; ``short`` stands for ``label`` where that has been said. ``problem``, ``offsets``, ``names``: the arena's buffers that have a live range; ``arena`` is
    its size, ``bound`` no placement of these live ranges beats; ``weights`` and ``scratch`` are 0 where not compared."""

    label: str
    short: str
    problem: Problem
    offsets: Offsets
    names: tuple[str, ...]
    arena: int
    bound: int
    weights: int = 0
    scratch: int = 0
    unknown: int = 0
    """Tensors of a size unknown before the run: sizes are lower limits."""

    @property
    def total(self) -> int:
        """Bytes that the verdict compares."""
        return self.arena + self.weights + self.scratch

    @property
    def above_bound(self) -> int:
        """Bytes of the arena above its lower bound."""
        return self.arena - self.bound

    def placements(self) -> list[tuple[int, ...]]:
        """Birth, death, size, guard and offset of each buffer that has bytes, sorted: equal in two sides of one plan."""
        p = self.problem
        busy = p.size + p.guard > 0
        return sorted(zip(*(column[busy].tolist() for column in (p.birth, p.death, p.size, p.guard, self.offsets)), strict=True))


class Deciding(NamedTuple):
    """Where the larger side spends what the smaller one saves."""

    region: str
    """arena, weights or scratch."""
    step: int | None
    """Step of the larger side at which ``buffers`` lie there together, None outside the arena."""
    buffers: tuple[str, ...]
    """Buffers of the larger side that end above the smaller one's arena at that step, highest first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a comparison; sizes in bytes, ``difference_bytes`` is B - A. ``compared`` says what is counted."""

    sentence: str
    smaller: Smaller
    same_plan: bool
    difference_bytes: int
    a_bytes: int
    b_bytes: int
    compared: str
    deciding: Deciding | None
    a_above_bound: int
    b_above_bound: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        where = self.deciding._asdict() | {"buffers": list(self.deciding.buffers)} if self.deciding else None
        return asdict(self) | {"smaller": self.smaller.value, "deciding": where, "notes": list(self.notes)}


def judge(a: Side, b: Side, compared: str, moved: int = 0, *, same_steps: bool = True, caveat: str = "",
          notes: tuple[str, ...] = ()) -> Verdict:
    """Weigh two sides. ``compared``: the words for what both count; ``moved``: tensors placed differently; ``caveat``: a last
    clause where they may not be the same buffers. The plans are the same where every buffer has the same live range (in
    ``same_steps``), size, guard and offset in both."""
    difference = b.total - a.total
    smaller = Smaller.NEITHER if not difference else Smaller.A if difference > 0 else Smaller.B
    same = not difference and (a.weights, a.scratch) == (b.weights, b.scratch) and same_steps and a.placements() == b.placements()
    deciding = None
    if smaller is not Smaller.NEITHER:
        less, more = (a, b) if smaller is Smaller.A else (b, a)
        deciding = _deciding(less, more)
        text = _difference(less, more, compared, deciding)
    elif same:
        text = f"The same plan: {compared} {a.total:,} B on both sides"
    else:
        text = f"Equal: {compared} {a.total:,} B on both sides"
        text += f", {moved:,} {'tensor' if moved == 1 else 'tensors'} placed differently" if moved else ", laid out differently"
    text += f"; {_bounds(a, b, same)}" + (f"; {caveat}" if caveat else "")
    if a.unknown or b.unknown:
        text += f"; sizes of {max(a.unknown, b.unknown):,} tensors are unknown before the run, so all are lower limits"
    return Verdict(text[0].upper() + text[1:] + ".", smaller, same, difference, a.total, b.total, compared, deciding, a.above_bound, b.above_bound, notes)


def _difference(less: Side, more: Side, compared: str, where: Deciding) -> str:
    gap = more.total - less.total
    text = f"{less.label} is smaller by {gap:,} B ({_percent(gap, more.total)}): {compared} {less.total:,} B against {more.total:,} B of {more.label}"
    if where.step is None and where.region == "arena":
        return f"{text}; the difference lies in buffers without a live range"
    if where.step is None:
        return f"{text}; the difference lies in {where.region}"
    shown = ", ".join(map(repr, where.buffers[:NAMED])) + (f" and {len(where.buffers) - NAMED} more" if len(where.buffers) > NAMED else "")
    one = len(where.buffers) == 1
    return f"{text}; the difference lies at step {where.step} of {more.short} in {shown}, which {'ends' if one else 'end'} above {less.arena:,} B there"


def _bounds(a: Side, b: Side, same: bool) -> str:
    texts = ["at" if not s.above_bound else f"{s.above_bound:,} B ({_percent(s.above_bound, s.bound)}) above" if s.bound
             else f"{s.above_bound:,} B above" for s in (a, b)]
    if same:
        return f"its arena is {texts[0]} its lower bound"
    if texts[0] == texts[1] == "at":
        return "both arenas are at their lower bound"
    whose = "our arena" if a.short == "ours" else f"the arena of {a.short}"
    return f"{whose} is {texts[0]} its lower bound, that of {b.short} {texts[1]} its own"


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return "under 0.01%" if share < 0.01 else f"{share:.2g}%" if share < 10 else f"{share:,.0f}%"


def _deciding(less: Side, more: Side) -> Deciding:
    """The region that explains the sign of the difference, and in the arena the buffers above the smaller one's end."""
    gaps = {"arena": more.arena - less.arena, "weights": more.weights - less.weights, "scratch": more.scratch - less.scratch}
    region = max(gaps, key=lambda name: gaps[name])
    if region != "arena":
        return Deciding(region, None, ())
    p = more.problem
    end = more.offsets + p.size + p.guard
    above = np.flatnonzero((end > less.arena) & (p.size + p.guard > 0))
    if not len(above):
        return Deciding(region, None, ())
    top = int(above[np.argmax(end[above])])
    step = _fullest(p, int(p.birth[top]), int(p.death[top]))
    there = above[(p.birth[above] <= step) & (p.death[above] >= step)]
    there = there[np.argsort(-end[there], kind="stable")]
    return Deciding(region, step, tuple(more.names[i] for i in there.tolist()))


def _fullest(p: Problem, first: int, last: int) -> int:
    """The first step of ``[first, last]`` with most bytes live: births alone can raise them."""
    births = p.birth[(p.birth > first) & (p.birth <= last)]
    steps: I64 = np.unique(np.append(births, first))
    order, by_death = np.sort(p.birth), np.argsort(p.death, kind="stable")
    born = np.concatenate([[0], np.cumsum(p.size[np.argsort(p.birth, kind="stable")])])[np.searchsorted(order, steps, side="right")]
    died = np.concatenate([[0], np.cumsum(p.size[by_death])])[np.searchsorted(p.death[by_death], steps, side="left")]
    return int(steps[np.argmax(born - died)])
