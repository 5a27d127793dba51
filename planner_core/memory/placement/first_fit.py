"""Owns first fit by size, the reference strategy of spec §8."""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement.fit import place
from planner_core.memory.placement.registry import strategy
from planner_core.memory.placement.scan import placement_order
from planner_core.memory.problem import Budget, Offsets, Problem

__all__ = ["first_fit"]


@strategy("first_fit", "Largest first, each at the lowest gap that fits; ties in schedule order. The reference.")
def first_fit(problem: Problem, budget: Budget | None = None) -> Offsets:
    """Buffers by size, largest first, ties in schedule order; each at the lowest aligned offset where size +
    guard fits between placed buffers of overlapping (inclusive) live ranges. Spec §8.

    O(K log T) expected for K merged intervals met; equal to ``first_fit_scan``.
    """
    return place(problem, np.asarray(placement_order(problem), dtype=np.int64))
