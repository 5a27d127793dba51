"""Owns the registry of placement strategies: one declaration gives a name in options, ``solve`` and compare.

A strategy is a function ``(problem, budget) -> offsets``. One that can prove things is declared with
``proves=True`` and returns ``(offsets, bound)``, ``bound`` bytes being what it proved no placement can beat. One
that can stop early is declared with ``aims=True`` and takes ``target=``, an arena size that is good enough.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner_core.errors import OptionError, PlanError, RlxError
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

    search: Callable[..., Found]

    def __call__(self, problem: Problem, budget: Budget) -> Offsets:
        return self.search(problem, budget)[0]


AIMS: set[str] = set()
"""The names of strategies that take ``target=``."""
NEEDS: dict[str, str] = {}
"""Name -> the package that a strategy can't do without."""


def available() -> list[str]:
    """The strategies whose packages are installed."""
    return [n for n in STRATEGIES if not NEEDS.get(n) or importlib.util.find_spec(NEEDS[n]) is not None]


def strategy(name: str, doc: str, *, proves: bool = False, aims: bool = False,
             needs: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``(problem, budget) -> offsets`` under a name; it then appears in options and comparisons.
    ``proves``: it returns ``(offsets, bound)``; ``aims``: it is called with ``target=`` (bytes, 0: none) as well.

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
        AIMS.discard(name)
        if aims:
            AIMS.add(name)
        return function

    return register


def strategy_named(name: str) -> Strategy:
    """The strategy of a name; ``OptionError`` lists the names."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise OptionError(f"no placement strategy {name!r}; wanted one of {', '.join(STRATEGIES)}") from None


def run(name: str, problem: Problem, budget: Budget, target: int = 0) -> Found:
    """``(offsets, proved bound)``; a bound of 0 where the strategy proves nothing. ``target``: an arena size that is
    good enough. ``PlanError`` names the strategy where it fails or returns something else."""
    chosen = strategy_named(name)
    more = {"target": target} if name in AIMS else {}
    found: Any
    try:
        found = (chosen.search if isinstance(chosen, Prover) else chosen)(problem, budget, **more)
    except (RlxError, MemoryError):
        raise
    except Exception as e:  # a user's function may raise anything; it is told whose mistake it is
        raise PlanError(f"strategy {name!r} failed: {type(e).__name__}: {e}") from e
    bound: Any = 0
    if isinstance(chosen, Prover):
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], int | np.integer)):
            raise PlanError(f"strategy {name!r} is declared with proves=True and returned {_shown(found)}; wanted "
                            "(offsets, bound), the bound an int of bytes (0: nothing proved)")
        found, bound = found
    try:
        return np.asarray(found), int(bound)
    except ValueError:
        raise PlanError(f"strategy {name!r} returned {_shown(found)}; wanted int64[{len(problem)}] offsets") from None


def _shown(found: object) -> str:
    """A value as an error names it: types and lengths, no contents."""
    if isinstance(found, np.ndarray):
        return f"{found.dtype}{list(found.shape)}"
    if isinstance(found, tuple):
        return f"({', '.join(map(_shown, found[:4]))}{', …' if len(found) > 4 else ''})"
    return type(found).__name__ + (f" of {len(found)}" if isinstance(found, list | dict) else "")


CHOICES = STRATEGIES.keys()
"""The registered names, as they are now: what ``PlanOptions.placement`` may be."""
