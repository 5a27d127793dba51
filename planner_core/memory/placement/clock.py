"""Owns the clock of a search: one object that knows deadline, work limit and cancel."""

from __future__ import annotations

import time

from planner_core.memory.placement.jit import COMPILED
from planner_core.memory.problem import Budget

__all__ = ["DEFAULT_WORK", "Clock"]

DEFAULT_WORK = 2_000_000 if COMPILED else 50_000
"""Work units of a search whose budget limits nothing: seconds, and the same plan every time."""


class Clock:
    """``over()`` once the budget's seconds, its work or its patience ran out. A unit of work is about a
    microsecond of compiled code on one machine, counted in steps of inner loops, hence the same on all.

    ``share(part)`` is a clock for a part of what is left; what it spends counts here too.
    """

    def __init__(self, budget: Budget, *, default_work: int | None = DEFAULT_WORK) -> None:
        unlimited = budget.seconds is None and budget.work is None
        work = default_work if unlimited else budget.work
        self.left: float = float("inf") if work is None else work
        self.end = float("inf") if budget.seconds is None else time.monotonic() + budget.seconds
        self.cancel = budget.cancel
        self.stopped = False
        self.parent: Clock | None = None

    def spend(self, units: int) -> None:
        self.left -= units
        if self.parent is not None:
            self.parent.spend(units)

    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def over(self) -> bool:
        if self.stopped or self.left <= 0 or time.monotonic() >= self.end:
            return True
        self.stopped = (self.cancel is not None and self.cancel()) or (self.parent is not None and self.parent.stopped)
        return self.stopped

    def stop(self) -> None:
        """End this search and the ones that it is a share of."""
        self.stopped = True
        if self.parent is not None:
            self.parent.stop()

    def share(self, part: float) -> Clock:
        child = object.__new__(Clock)
        child.left = self.left * part if self.left != float("inf") else self.left
        now = time.monotonic()
        child.end = now + (self.end - now) * part if self.end != float("inf") else self.end
        child.cancel, child.stopped, child.parent = self.cancel, self.stopped, self
        return child

    def chunk(self, most: int) -> int:
        """Units to run before asking again."""
        return int(max(1, min(most, self.left)))
