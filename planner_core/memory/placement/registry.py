"""Owns the registry of placement strategies: one declaration gives a name in options, ``solve`` and compare.

A strategy is a function ``(problem, budget) -> offsets``. One that can prove things is declared with
``proves=True`` and returns ``(offsets, bound)``, ``bound`` bytes being what it proved no placement can beat.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner_core.errors import OptionError, PlanError
from planner_core.memory.problem import Budget, Offsets, Problem, Strategy

__all__ = ["CHOICES", "DOCS", "STRATEGIES", "Prover", "available", "run", "strategy", "strategy_named"]

STRATEGIES: dict[str, Strategy] = {}
"""Name -> strategy, in declaration order. The ``placement`` option's choices are its keys."""
DOCS: dict[str, str] = {}
"""Name -> one line: what it does, and whose stack it follows."""

Found = tuple[Offsets, int]


@dataclass(frozen=True, slots=True)
class Prover:
    """A strategy that also returns the bound it proved; called as a plain one it returns offsets alone."""

    search: Callable[[Problem, Budget], Found]

    def __call__(self, problem: Problem, budget: Budget) -> Offsets:
        return self.search(problem, budget)[0]


NEEDS: dict[str, str] = {}
"""Name -> the package that a strategy can't do without."""


def available() -> list[str]:
    """The strategies whose packages are installed."""
    return [n for n in STRATEGIES if not NEEDS.get(n) or importlib.util.find_spec(NEEDS[n]) is not None]


def strategy(name: str, doc: str, *, proves: bool = False, needs: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``(problem, budget) -> offsets`` under a name; it then appears in options and comparisons.

    Raises ``PlanError`` for a name that is taken or no identifier, and for an empty doc.
    """
    if not name.isidentifier():
        raise PlanError(f"strategy name {name!r}: wanted letters, digits and underscores, such as 'first_fit'")
    if not doc.strip():
        raise PlanError(f"strategy {name!r} has no doc; say in one line what it does")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if name in STRATEGIES:
            raise PlanError(f"strategy {name!r} is registered already ({DOCS[name]}); choose another name")
        STRATEGIES[name] = Prover(function) if proves else function
        DOCS[name], NEEDS[name] = doc.strip(), needs
        return function

    return register


def strategy_named(name: str) -> Strategy:
    """The strategy of a name; ``OptionError`` lists the names."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise OptionError(f"no placement strategy {name!r}; wanted one of {', '.join(STRATEGIES)}") from None


def run(name: str, problem: Problem, budget: Budget) -> Found:
    """``(offsets, proved bound)``; a bound of 0 where the strategy proves nothing."""
    chosen = strategy_named(name)
    if isinstance(chosen, Prover):
        return chosen.search(problem, budget)
    return chosen(problem, budget), 0


CHOICES = STRATEGIES.keys()
"""The registered names, as they are now: what ``PlanOptions.placement`` may be."""
