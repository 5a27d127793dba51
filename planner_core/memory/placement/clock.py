"""Owns the clock of a search: one object that knows deadline, work limit and cancel.

Between two looks at the clock at most ``LOOK`` seconds of compiled code should pass; a phase that can't be cut
up asks ``room`` for what it will take before it starts.
"""

from __future__ import annotations

import time

from planner_core.memory.placement import jit
from planner_core.memory.placement.jit import COMPILED
from planner_core.memory.problem import Budget

__all__ = ["DEFAULT_WORK", "LOOK", "Clock", "now", "slow"]

DEFAULT_WORK = 2_000_000 if COMPILED else 50_000
"""Work units of a search whose budget limits nothing: seconds, and the same plan every time."""

LOOK = 0.01
"""Seconds between two looks at the clock, at most as far as a loop can tell."""
PATIENT_SECONDS, PATIENT_WORK = 2.0, 200_000
"""A search of this length is worth compiling the inner loops for, where they aren't yet."""


def slow() -> float:
    """How much longer an inner loop takes now than a compiled one: for estimates of a phase."""
    return 1.0 if jit.ready() else 60.0



source = time.monotonic
"""The clock that every deadline is kept by; tests put their own here."""


def now() -> float:
    """Seconds on that clock."""
    return source()


class Clock:
    """``over()`` once the budget's seconds, its work or its patience ran out. A unit of work is about a
    microsecond of compiled code on one machine, counted in steps of inner loops, hence the same on all.

    ``share(part)`` is a clock for a part of what is left; what it spends counts here too.
    """

    def __init__(self, budget: Budget, *, default_work: int | None = DEFAULT_WORK) -> None:
        unlimited = budget.seconds is None and budget.work is None
        work = default_work if unlimited else budget.work
        self.left: float = float("inf") if work is None else work
        self.end = float("inf") if budget.seconds is None else now() + budget.seconds
        self.patient = budget.seconds >= PATIENT_SECONDS if budget.seconds is not None else self.left >= PATIENT_WORK
        self.cancel = budget.cancel
        self.stopped = False
        self.parent: Clock | None = None

    def spend(self, units: int) -> None:
        self.left -= units
        if self.parent is not None:
            self.parent.spend(units)

    def prepare(self) -> None:
        """Compile or load the inner loops, for a search that has time for it; the seconds that takes don't count."""
        if self.patient:
            took, clock = jit.prepare(), self
            while took and clock is not None:
                clock.end += took
                clock = clock.parent  # type: ignore[assignment]

    def seconds_left(self) -> float:
        return self.end - now()

    def room(self, seconds: float) -> bool:
        """Whether a phase of about so many seconds ends before the deadline; without one, always."""
        return self.end == float("inf") or now() + seconds <= self.end

    def over(self) -> bool:
        if self.stopped or self.left <= 0 or now() >= self.end:
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
        at = now()
        child.end = at + (self.end - at) * part if self.end != float("inf") else self.end
        child.cancel, child.stopped, child.parent, child.patient = self.cancel, self.stopped, self, self.patient
        return child

    def chunk(self, most: int, seconds: float) -> int:
        """Steps of about ``seconds`` each to run before looking again: at most ``most``. The same number wherever
        only work counts, so that the result is the same too."""
        if self.end == float("inf"):
            return most
        return max(1, min(most, int(min(LOOK, max(self.seconds_left(), 0.0) / 2) / seconds)))
