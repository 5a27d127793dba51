"""Owns one small run of every compiled inner loop, so that none is compiled within a search's time (``jit.prepare``)."""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.exact import minimise
from planner_core.memory.placement.fit import FITS, Placer
from planner_core.memory.placement.structure import with_fixed
from planner_core.memory.problem import Budget, Problem

__all__ = ["run_every_loop"]


def run_every_loop() -> None:
    """Place and search a problem of twelve buffers that first fit doesn't solve, with walls and without. Both ways of
    placing, by neighbours and by the tree; called by ``jit.prepare`` alone, which makes all of them compiled."""
    random = np.random.default_rng(0)
    birth = random.integers(0, 8, 12)
    problem = Problem.of(birth, birth + random.integers(1, 5, 12), random.integers(1, 9, 12))
    order = np.arange(12)
    placer = Placer(problem)
    tree = placer.on(problem)
    tree.lists = None
    for fit in FITS:
        placer.place(order, fit)
        tree.place(order, fit)
    stacked = np.cumsum(problem.size) - problem.size
    minimise(problem, stacked, Clock(Budget(work=2_000)))
    fixed = problem.fixed.copy()
    fixed[:2] = stacked[:2]
    minimise(with_fixed(problem, fixed), stacked, Clock(Budget(work=2_000)))
