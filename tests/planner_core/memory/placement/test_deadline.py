"""Deadlines on a clock that steps at every look: after the end no strategy looks (hence works) on."""

from __future__ import annotations

import pytest

from planner_core.memory.placement import Budget, Problem, available, clock, complaints, first_fit, solve
from planner_core.memory.placement.clock import Clock
from tests.planner_core.memory.placement.problems import wide
from tests.planner_core.memory.placement.test_exact import tight

MORE_LOOKS = 40
"""Every loop ends at its next look; the loops within loops, and the parts of a search, each take one or two."""


class Stepping:
    """A clock that moves on by ``step`` a look."""

    def __init__(self, step: float) -> None:
        self.step, self.at, self.late = step, 0.0, 0
        self.end = float("inf")

    def __call__(self) -> float:
        self.at += self.step
        self.late += self.at > self.end
        return self.at


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Stepping:
    made = Stepping(0.01)
    monkeypatch.setattr(clock, "source", made)
    return made


HARD = {"tight": lambda: tight(3, cuts=220, height=99_991, steps=60), "large": lambda: wide(2_500, 40, seed=1),
        "dense": lambda: wide(700, 400, seed=4)}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("name", [n for n in ("exact", "auto", "improve", "windowed", "boxed", "cp_sat") if n in available()])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.5])
def test_nothing_looks_on_after_the_deadline(stepping: Stepping, name: str, case: str, seconds: float) -> None:
    p = HARD[case]()
    stepping.end = seconds
    if name == "cp_sat":  # the solver has a clock of its own: only what comes before it is ours
        seconds = stepping.end = min(seconds, 0.05)
    s = solve(p, name, seconds=seconds)
    assert stepping.late <= MORE_LOOKS
    assert complaints(p, s.offsets) == []
    assert s.arena_size <= p.height(first_fit(p))


def test_a_phase_that_would_not_end_in_time_does_not_start(stepping: Stepping) -> None:
    c = Clock(Budget(seconds=1.0))
    assert c.room(0.5)
    assert not c.room(1.5)
    assert Clock(Budget(work=10)).room(1e9)
    assert Clock(Budget(work=10)).chunk(5_000, 1.0) == 5_000
    assert Clock(Budget(seconds=1.0)).chunk(5_000, 1e-3) == 10
    assert Clock(Budget(seconds=1e-9)).chunk(5_000, 1e-3) == 1


def test_the_seconds_of_a_solution_are_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call to the checked result, not of the search alone."""
    looks = iter(range(10**6))
    monkeypatch.setattr(clock, "source", lambda: float(next(looks)))
    s = solve(Problem.of([0], [1], [4]), "first_fit")
    assert s.seconds == next(looks) - 1
