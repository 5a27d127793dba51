"""Owns ``fit``: whether a compilation fits into a budget, what is over, and which options would make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from planner_core.errors import RlxError
from rlx_viz.budget import Budget
from rlx_viz.whatif import counterfactuals
from runtime.compile import Compilation

__all__ = ["Contributor", "Fit", "Region", "Remedy", "fit"]

MOST_TOP = 8
_EXACT_BUFFERS = 2_000
"""Tensors up to which the exact placement is tried; it stops by itself, but not at once."""


class Region(Enum):
    """What is compared with the budget."""

    TOTAL = "total"
    ARENA = "arena"

    def needs(self, c: Compilation) -> int:
        """Bytes of the region: all that is allocated, or all of it but the weights (which flash may hold)."""
        return c.allocate_bytes if self is Region.TOTAL else c.allocate_bytes - c.plan.weights_size

    def least(self, c: Compilation) -> int:
        """Bytes that no placement of these live ranges is below."""
        return self.needs(c) - c.plan.arena_size + c.plan.lower_bound

    @property
    def words(self) -> str:
        """The region as a sum."""
        return "weights + arena + scratch" if self is Region.TOTAL else "arena + scratch, weights elsewhere"


@dataclass(frozen=True, slots=True)
class Contributor:
    """A tensor that is live at the peak; ``rule`` says what keeps it ("read": only its reads)."""

    name: str
    nbytes: int
    rule: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """Options to set, and what the model needs then."""

    options: tuple[tuple[str, Any], ...]
    needed: int
    fits: bool

    def __str__(self) -> str:
        return " ".join(f"--set {k}={str(v).lower()}" for k, v in self.options)


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer. ``parts`` sum to ``needed``; ``least`` is what no placement is below; ``remedies`` are single options (or
    several that hold it up together) that lower it, best first; ``best`` is the best combination tried, None where no option helps."""

    budget: Budget
    region: Region
    needed: int
    parts: tuple[tuple[str, int], ...]
    least: int
    peak_step: int
    top: tuple[Contributor, ...]
    remedies: tuple[Remedy, ...]
    best: Remedy | None
    without_weights: int
    """Bytes needed where the weights lie elsewhere."""

    @property
    def fits(self) -> bool:
        return self.needed <= self.budget.nbytes

    @property
    def over(self) -> int:
        """Bytes above the budget; negative: free."""
        return self.needed - self.budget.nbytes

    def redacted(self, names: Mapping[str, str]) -> Fit:
        """A copy with tensors under other names."""
        return dataclasses.replace(self, top=tuple(dataclasses.replace(t, name=names.get(t.name, "")) for t in self.top))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, every number in bytes."""
        return {
            "fits": self.fits, "budget_bytes": self.budget.nbytes, "budget": str(self.budget), "compared": self.region.value,
            "compared_parts": self.region.words, "needed_bytes": self.needed, "over_bytes": max(self.over, 0),
            "free_bytes": max(-self.over, 0), "parts_bytes": dict(self.parts), "least_bytes": self.least, "peak_step": self.peak_step,
            "without_weights_bytes": self.without_weights,
            "top": [{"name": t.name, "bytes": t.nbytes, "kept_by": t.rule} for t in self.top],
            "options": [_remedy(r) for r in self.remedies], "best": None if self.best is None else _remedy(self.best),
        }


def _remedy(r: Remedy) -> dict[str, Any]:
    return {"set": dict(r.options), "needed_bytes": r.needed, "fits": r.fits}


def fit(c: Compilation, budget: Budget, region: Region = Region.TOTAL) -> Fit:
    """Compare, and where it is over, try options: every toggle that lowers it, then the ones that still help together."""
    plan, needed = c.plan, region.needs(c)
    parts = [("arena", plan.arena_size), ("scratch", c.allocate_bytes - plan.weights_size - plan.arena_size)]
    if region is Region.TOTAL:
        parts.insert(0, ("weights", plan.weights_size))
    peak = plan.peak()
    remedies: tuple[Remedy, ...] = ()
    best = None
    if needed > budget.nbytes:
        remedies = tuple(sorted(_single(c, budget, region), key=lambda r: r.needed))
        best = _together(c, budget, region, remedies)
    return Fit(budget, region, needed, tuple(parts), region.least(c), peak.step,
               tuple(Contributor(t.label, t.nbytes, t.rule) for t in peak.tensors[:MOST_TOP]), remedies, best,
               Region.ARENA.needs(c))


def _single(c: Compilation, budget: Budget, region: Region) -> Iterator[Remedy]:
    needed = region.needs(c)
    tried = {o.option: o.value for o in counterfactuals(c) if o.saved > 0 or region is Region.ARENA}
    more: dict[str, Any] = {}
    if c.plan.arena_size > c.plan.lower_bound and len(c.legal) <= _EXACT_BUFFERS:
        more["placement"] = "exact"
    if c.plan.options.alignment > 1:
        more["alignment"] = 1
    several = [dict(h.options) for h in c.holders() if len(h.options) > 1]  # what holds it up together, none alone
    for options in (*({name: value} for name, value in {**tried, **more}.items()), *several):
        then = _needs(c, region, options)
        if then is not None and then < needed:
            yield Remedy(tuple(options.items()), then, then <= budget.nbytes)


def _needs(c: Compilation, region: Region, options: dict[str, Any]) -> int | None:
    try:
        return region.needs(c.with_options(**options))
    except RlxError:
        return None  # no plan that way


def _together(c: Compilation, budget: Budget, region: Region, remedies: tuple[Remedy, ...]) -> Remedy | None:
    """Options one after another, best first, as long as each still lowers it."""
    if not remedies:
        return None
    taken, needed = dict(remedies[0].options), remedies[0].needed
    for r in remedies[1:]:
        if needed <= budget.nbytes:
            break
        then = _needs(c, region, {**taken, **dict(r.options)})
        if then is not None and then < needed:
            taken, needed = {**taken, **dict(r.options)}, then
    return Remedy(tuple(taken.items()), needed, needed <= budget.nbytes)
