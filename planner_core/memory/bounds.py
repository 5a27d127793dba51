"""Owns lower bounds: bytes that no placement can do without."""

from __future__ import annotations

import numpy as np

from planner_core.memory.problem import I64, Problem

__all__ = ["align_up", "live_bytes", "lower_bound"]


def align_up(value: I64, alignment: I64 | int) -> I64:
    """The next multiple of ``alignment``, element by element."""
    return (value + alignment - 1) // alignment * alignment


def live_bytes(problem: Problem, weight: I64, steps: int) -> I64:
    """Sum of ``weight`` over the buffers live at each step ``0..steps-1``."""
    delta = np.zeros(steps + 1, dtype=np.int64)
    np.add.at(delta, problem.birth, weight)
    np.add.at(delta, problem.death + 1, -weight)
    return np.cumsum(delta[:-1])


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
    steps = int(problem.death.max()) + 1
    total = live_bytes(problem, rounded, steps)
    order = np.argsort(-total, kind="stable")
    best, at = 0, 0
    for step in order[:256].tolist():
        if total[step] <= best:
            return best, at
        here = (problem.birth <= step) & (problem.death >= step)
        value = int(total[step] - (rounded - exact)[here].max())
        if value > best:
            best, at = value, step
    if len(order) > 256:
        rest = int(total[order[256]]) - (unit - 1)  # the slack of any one buffer is below the alignment
        if rest > best:
            best, at = rest, int(order[256])
    return best, at
