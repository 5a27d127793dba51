"""Owns ``solve``: one strategy on one problem, checked, with its bound; and ``compare``: several, as rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np

from planner_core.errors import PlanError
from planner_core.memory.bounds import gap_text, lower_bound
from planner_core.memory.placement import clock
from planner_core.memory.placement.fixed import require_consistent
from planner_core.memory.placement.registry import available, run, strategy_named
from planner_core.memory.placement.validate import require_valid
from planner_core.memory.problem import Budget, Offsets, Problem
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text

__all__ = ["Failure", "Solution", "compare", "solve"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Solution(Shown):
    """A checked placement. ``lower_bound`` bytes no placement can beat, proved by live bytes or by search;
    ``proven``: the arena is that small, so it is optimal."""

    offsets: Offsets
    arena_size: int
    lower_bound: int
    proven: bool
    seconds: float
    strategy: str

    def _facts(self) -> Facts:
        return ("Solution", (
            ("arena", bytes_text(self.arena_size)), ("bound", bytes_text(self.lower_bound)), ("proven", "yes" if self.proven else "no"),
            ("by", self.strategy), ("seconds", f"{self.seconds:.3f}")), "solution.offsets has a place for every buffer")

    @property
    def ratio(self) -> float:
        """Arena over bound, 1.0 at best (and for nothing to place)."""
        return self.arena_size / self.lower_bound if self.lower_bound else 1.0

    @property
    def optimal(self) -> str:
        """``yes``, or how far above the bound at most: ``gap ≤ 1.2%``."""
        return gap_text(self.arena_size, self.lower_bound, self.proven)

    def __str__(self) -> str:
        return (f"{self.strategy}: arena {self.arena_size:,} B, bound {self.lower_bound:,} B, optimal: {self.optimal}, "
                f"{self.seconds:.3f} s")


@dataclass(frozen=True, slots=True)
class Failure:
    """A strategy of a comparison that gave no placement, and why."""

    strategy: str
    error: str
    seconds: float


CHECKING = 1.5e-7
"""Seconds of the check of a placement, a buffer and bit of their number: what a deadline leaves for it."""


def solve(
    problem: Problem,
    strategy: str = "auto",
    capacity: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    *,
    work: int | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Solution:
    """Place a problem. Searches stop at ``seconds`` (check included), at ``work`` units (the same result on every machine), when
    ``cancel()`` says so or on Ctrl-C, each with the best so far; at the bound; and, with a ``capacity``, at the
    first arena that fits it.

    Raises ``PlanError`` for an invalid placement by the strategy, for fixed offsets that contradict each other, or
    where no placement fits the capacity: the bound says which buffers are in the way. An arena above the capacity is returned where that is unproven.
    """
    if seed < 0 or (seconds is not None and seconds != seconds):
        raise PlanError(f"seed {seed}, seconds {seconds}: wanted a seed of 0 or more and a number of seconds")
    start = clock.now()
    require_consistent(problem, capacity)
    bound, step = lower_bound(problem)
    if capacity is not None and bound > capacity:
        here = np.flatnonzero((problem.birth <= step) & (problem.death >= step) & (problem.size + problem.guard > 0))
        raise PlanError(f"no placement fits {capacity} bytes: {len(here)} buffers live at step {step} need {bound} "
                        f"({', '.join(map(str, here[:8].tolist()))}{', …' if len(here) > 8 else ''})")
    own = Problem(*(getattr(problem, f.name).copy() for f in fields(problem)))  # a strategy may write into what it is given
    if seconds is not None:
        check = CHECKING * len(problem) * math.log2(len(problem) + 1)
        seconds = max(seconds - (clock.now() - start) - check, 0.0)
    offsets, proved = run(strategy, own, Budget(seconds, work, seed, cancel), capacity or 0)
    require_valid(problem, offsets, strategy)
    arena = problem.height(offsets)
    if arena < bound:
        raise PlanError(f"strategy {strategy!r}: an arena of {arena} bytes below the bound of {bound}; report the problem")
    if proved > arena:
        raise PlanError(f"strategy {strategy!r} claims a bound of {proved} bytes, above its own arena of {arena}")
    bound = max(bound, proved)
    if capacity is not None and arena > capacity and bound > capacity:
        raise PlanError(f"no placement fits {capacity} bytes: a search over all of them proves at least {bound}")
    return Solution(offsets, arena, bound, arena == bound, clock.now() - start, strategy)


def compare(problem: Problem, strategies: Iterable[str] | None = None, seconds: float | None = None, seed: int = 0,
            work: int | None = None) -> list[Solution | Failure]:
    """One solution a strategy (all that can run here without), in the order given; each gets the best bound of all.
    One that fails is a ``Failure`` in its place, and the others go on. Raises ``OptionError`` for an unknown name."""
    names = available() if strategies is None else list(strategies)
    for name in names:
        strategy_named(name)
    require_consistent(problem)
    found: list[Solution | Failure] = []
    for name in names:
        start = clock.now()
        try:
            found.append(solve(problem, name, seconds=seconds, seed=seed, work=work))
        except PlanError as e:
            found.append(Failure(name, str(e), clock.now() - start))
    best = min((s for s in found if isinstance(s, Solution)), key=lambda s: s.arena_size, default=None)
    for k, s in enumerate(found):
        if isinstance(s, Solution) and best is not None and s.lower_bound > best.arena_size:
            found[k] = Failure(s.strategy, f"strategy {s.strategy!r} claims a bound of {s.lower_bound} bytes, above the arena of "
                               f"{best.arena_size} that {best.strategy!r} has", s.seconds)
    bound = max((s.lower_bound for s in found if isinstance(s, Solution)), default=0)
    return [Solution(s.offsets, s.arena_size, bound, s.arena_size == bound, s.seconds, s.strategy) if isinstance(s, Solution)
            else s for s in found]
