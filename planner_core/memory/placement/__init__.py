"""Placement strategies: functions ``(problem, budget) -> offsets``, each checked by the validator."""

from planner_core.memory.placement.first_fit import first_fit
from planner_core.memory.placement.scan import first_fit_scan
from planner_core.memory.problem import Strategy

STRATEGIES: dict[str, Strategy] = {"first_fit": first_fit}

__all__ = ["STRATEGIES", "first_fit", "first_fit_scan"]
