"""Owns ``auto``: several strategies in turn, from the cheapest, until the bound or the end of the budget."""

from __future__ import annotations

from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.exact import refine, searchable
from planner_core.memory.placement.fit import MANY_PAIRS, Placer
from planner_core.memory.placement.greedy import order_of
from planner_core.memory.placement.improve import improve_from
from planner_core.memory.placement.improve_base import Best, first_placed
from planner_core.memory.placement.registry import Found, strategy
from planner_core.memory.placement.structure import pair_count
from planner_core.memory.problem import Budget, Problem

__all__ = ["auto"]

_QUICK = (("breadth", "first"), ("size", "best"), ("area", "best"), ("conflicts", "best"))


@strategy("auto", "First fit, then other orders, exact search, layers and order changes, until the bound is reached.",
          proves=True, aims=True)
def auto(problem: Problem, budget: Budget, target: int = 0) -> Found:
    """Never worse than first fit; stops at the bound. Ctrl-C keeps the best so far."""
    best = Best(problem, Clock(budget), target)
    proved = 0
    try:
        if best.offer(first_placed(best, Placer(problem))):
            return best.offsets, proved
        if pair_count(problem) > MANY_PAIRS:
            return best.offsets, proved
        best.clock.prepare()
        placer = Placer(problem)
        small = searchable(problem)
        for order, fit in _QUICK if small else _QUICK[:1]:  # cheap beside any search, and often enough
            found = best.place(placer, order_of(problem, order), fit)
            if found is None or best.offer(found):
                return best.offsets, proved
        if small:
            offsets, proved = refine(problem, best.offsets, best.clock.share(0.9), budget.seed, target)
            best.goal = max(best.goal, proved)
            best.offer(offsets)
        improve_from(best, placer, budget.seed, share=0.8)
    except KeyboardInterrupt:
        best.clock.stop()
    return best.offsets, min(proved, best.height)
