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
    need = problem.size + problem.guard
    placed = np.zeros(len(problem), dtype=bool)
    for i in placement_order(problem):
        align, wanted = int(problem.alignment[i]), int(need[i])
        if problem.fixed[i] >= 0:
            offsets[i] = problem.fixed[i]
        else:
            rivals = placed & (problem.birth <= problem.death[i]) & (problem.birth[i] <= problem.death) & (need > 0)
            starts, ends = offsets[rivals], (offsets + need)[rivals]
            candidates = sorted({0, *(-(-ends // align) * align).tolist()})
            offsets[i] = next(c for c in candidates
                              if wanted == 0 or not np.any((c < ends) & (starts < c + wanted)))
        placed[i] = True
    return offsets
