"""Owns what the members of improvement share: the best placement so far, with its clock and its goal."""

from __future__ import annotations

import numpy as np

from planner_core.memory.bounds import lower_bound
from planner_core.memory.placement.clock import Clock, now
from planner_core.memory.placement.fit import Placer
from planner_core.memory.placement.scan import placement_order
from planner_core.memory.placement.structure import pair_count
from planner_core.memory.problem import I64, Offsets, Problem

__all__ = ["Best", "first_placed"]


class Best:
    """The best placement so far, what one more costs, and when to stop."""

    def __init__(self, problem: Problem, clock: Clock, target: int = 0) -> None:
        self.problem, self.clock = problem, clock
        self.bound = lower_bound(problem)[0]
        self.goal = max(self.bound, target)
        self.offsets: Offsets = problem.fixed
        self.height = -1
        self.place_seconds = 0.0
        self.place_work = len(problem) + pair_count(problem) // 10

    def offer(self, offsets: Offsets) -> bool:
        """Take a placement if it is better; whether the search is over."""
        height = self.problem.height(offsets)
        if self.height < 0 or height < self.height:
            self.offsets, self.height = offsets, height
        return self.done()

    def done(self) -> bool:
        return 0 <= self.height <= self.goal or self.clock.over()

    def place(self, placer: Placer, order: I64, fit: str = "first") -> Offsets | None:
        """One placement in an order, offered by the caller; None where the deadline leaves no time for it."""
        if not self.clock.room(1.1 * self.place_seconds):
            self.clock.stop()
            return None
        start = now()
        offsets = placer.place(order, fit)
        self.place_seconds = max(now() - start, self.place_seconds / 2)
        self.clock.spend(self.place_work)
        return offsets


def first_placed(best: Best, placer: Placer) -> Offsets:
    """First fit by size, whatever the clock says; what it takes is what one more will."""
    start = now()
    offsets = placer.place(np.asarray(placement_order(best.problem), dtype=np.int64))
    best.place_seconds = now() - start
    return offsets
