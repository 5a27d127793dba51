"""Owns the plain candidate scan: first fit as the definition says it, quadratic, for checking."""

from __future__ import annotations

import numpy as np

from planner_core.memory.problem import Budget, Offsets, Problem

__all__ = ["first_fit_scan", "placement_order"]


def placement_order(problem: Problem) -> list[int]:
    """Fixed buffers, then the others by size, largest first, ties in schedule order."""
    index = np.arange(len(problem))
    order: list[int] = np.lexsort((index, -problem.size, problem.fixed < 0)).tolist()
    return order


def first_fit_scan(problem: Problem, budget: Budget | None = None) -> Offsets:
    """Each buffer at the lowest aligned candidate (0 or the end of an overlapping placed buffer) where
    size + guard fits. O(n²) time for the scan, up to O(n³) where many candidates fail."""
    offsets = np.full(len(problem), -1, dtype=np.int64)
    placed: list[int] = []
    for i in placement_order(problem):
        need, align = int(problem.size[i] + problem.guard[i]), int(problem.alignment[i])
        if problem.fixed[i] >= 0:
            offsets[i] = problem.fixed[i]
        else:
            rivals = [j for j in placed
                      if problem.birth[j] <= problem.death[i] and problem.birth[i] <= problem.death[j]
                      and problem.size[j] + problem.guard[j] > 0]
            taken = [(int(offsets[j]), int(offsets[j] + problem.size[j] + problem.guard[j])) for j in rivals]
            candidates = sorted({0, *(-(-end // align) * align for _, end in taken)})
            offsets[i] = next(c for c in candidates
                              if need == 0 or all(c + need <= s or e <= c for s, e in taken))
        placed.append(i)
    return offsets
