"""Placement strategies: functions ``(problem, budget) -> offsets``, each checked by the validator.

Start at ``solve``; bring your own with ``@strategy(name, doc)``.
"""

from planner_core.memory.placement import greedy
from planner_core.memory.placement.boxed import boxed
from planner_core.memory.placement.cpsat import cp_sat
from planner_core.memory.placement.exact import exact
from planner_core.memory.placement.first_fit import first_fit
from planner_core.memory.placement.improve import improve
from planner_core.memory.placement.portfolio import auto
from planner_core.memory.placement.registry import DOCS, STRATEGIES, Prover, available, strategy, strategy_named
from planner_core.memory.placement.scan import first_fit_scan
from planner_core.memory.placement.solve import Failure, Solution, compare, solve
from planner_core.memory.placement.validate import complaints, require_valid
from planner_core.memory.placement.windowed import windowed
from planner_core.memory.problem import Budget, Problem, Strategy

__all__ = [
    "DOCS", "STRATEGIES", "Budget", "Failure", "Problem", "Prover", "Solution", "Strategy", "auto", "available", "boxed", "compare", "complaints",
    "cp_sat", "exact", "first_fit", "first_fit_scan", "greedy", "improve", "require_valid", "solve", "strategy", "strategy_named", "windowed",
]
