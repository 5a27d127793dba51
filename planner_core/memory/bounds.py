"""Owns lower bounds: bytes that no placement can do without."""

from __future__ import annotations

import numpy as np

from planner_core.memory.problem import I64, Problem

__all__ = ["align_up", "lower_bound"]


def align_up(value: I64, alignment: I64 | int) -> I64:
    """The next multiple of ``alignment``, element by element."""
    return (value + alignment - 1) // alignment * alignment


def lower_bound(problem: Problem) -> tuple[int, int]:
    """``(bytes, step)``: at some step all live buffers lie side by side, each from an aligned start.

    At a step with residents R the arena is at least ``Σ_R up(size+guard) - max_R (up(size+guard) -
    (size+guard))``, ``up`` rounding to the smallest alignment in the problem: only the topmost buffer's
    rounding may be missing. The bound is the largest of these over all steps.
    """
    busy = problem.size + problem.guard > 0
    if not busy.any():
        return 0, 0
    unit = int(problem.alignment[busy].min())
    exact = problem.size + problem.guard
    rounded = align_up(exact, unit)
    points = np.unique(problem.birth)  # the sum can only grow at a birth: sparse times cost nothing
    delta = np.zeros(len(points) + 1, dtype=np.int64)
    np.add.at(delta, np.searchsorted(points, problem.birth), rounded)
    np.add.at(delta, np.searchsorted(points, problem.death, side="right"), -rounded)
    total = np.cumsum(delta[:-1])
    order = np.argsort(-total, kind="stable")
    best, at = 0, 0
    for k in order[:256].tolist():
        if total[k] <= best:
            return best, at
        step = int(points[k])
        here = busy & (problem.birth <= step) & (problem.death >= step)
        value = int(total[k] - (rounded - exact)[here].max(initial=0))
        if value > best:
            best, at = value, step
    if len(order) > 256:
        rest = int(total[order[256]]) - (unit - 1)  # the slack of any one buffer is below the alignment
        if rest > best:
            best, at = rest, int(points[order[256]])
    return best, at
