"""Owns lower bounds: bytes that no placement can do without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner_core.memory.problem import I64, Problem

__all__ = ["Bound", "align_up", "bound_of", "gap_text", "lower_bound"]


def align_up(value: I64, alignment: I64 | int) -> I64:
    """The next multiple of ``alignment``, element by element."""
    return (value + alignment - 1) // alignment * alignment


@dataclass(frozen=True, slots=True)
class Bound:
    """``nbytes`` that no placement can do without: at ``step`` the ``residents`` lie side by side."""

    nbytes: int
    step: int
    residents: tuple[int, ...]


def bound_of(problem: Problem) -> Bound:
    """``lower_bound`` with the buffers that prove it, largest first."""
    nbytes, step = lower_bound(problem)
    need = problem.size + problem.guard
    here = np.flatnonzero((need > 0) & (problem.birth <= step) & (problem.death >= step)) if nbytes else need[:0]
    return Bound(nbytes, step, tuple(here[np.lexsort((here, -need[here]))].tolist()))


def gap_text(arena: int, bound: int, proven: bool) -> str:
    """``yes`` where the arena is proven optimal, else how far above the bound it is: ``gap ≤ 1.25%``."""
    if proven or arena <= bound:
        return "yes"
    return f"gap ≤ {100 * (arena / bound - 1):.2g}%" if bound else "no"


def lower_bound(problem: Problem) -> tuple[int, int]:
    """``(bytes, step)``: at some step all live buffers lie side by side, each from an aligned start.

    At a step with residents R the arena is at least ``Σ_R up(size+guard) - max_R (up(size+guard) -
    (size+guard))``, ``up`` rounding to the smallest alignment in R: only the topmost buffer's rounding may be
    missing. The bound is the largest of these over all steps, or the end of a fixed buffer beyond it.
    """
    busy = problem.size + problem.guard > 0
    pinned = np.flatnonzero(problem.fixed >= 0)
    ends = (problem.fixed + problem.size + problem.guard)[pinned]
    top = int(ends.max(initial=0))
    top_step = int(problem.birth[pinned[ends.argmax()]]) if top else 0
    if not busy.any():
        return top, top_step
    birth, death = problem.birth[busy], problem.death[busy]
    exact, alignment, fixed = (problem.size + problem.guard)[busy], problem.alignment[busy], problem.fixed[busy]
    start = np.maximum(fixed, 0)
    points = np.unique(birth)  # the sum can only grow at a birth: sparse times cost nothing
    first, last = np.searchsorted(points, birth), np.searchsorted(points, death, side="right")

    def sums(weight: I64) -> I64:
        delta = np.zeros(len(points) + 1, dtype=np.int64)
        np.add.at(delta, first, weight)
        np.add.at(delta, last, -weight)
        return np.cumsum(delta[:-1])

    best, at = 0, 0
    units = np.unique(alignment)
    if len(units) > 16 or np.any(start % units[0] > 0):
        units = units[:1] if not np.any(start % units[0] > 0) else np.ones(1, dtype=np.int64)
    for unit in units.tolist():
        rounded = align_up(exact, unit)
        total = sums(rounded)
        finer = (alignment < unit) | (start % unit > 0)
        if finer.any():
            total[sums(finer.astype(np.int64)) > 0] = 0
        order = np.argsort(-total, kind="stable")
        for k in order[:256].tolist():
            if total[k] <= best:
                break
            step = points[k]
            value = int(total[k] - (rounded - exact)[(birth <= step) & (death >= step)].max(initial=0))
            if value > best:
                best, at = value, int(step)
        else:
            if len(order) > 256 and (rest := int(total[order[256]]) - (unit - 1)) > best:
                best, at = rest, int(points[order[256]])  # the slack of any one buffer is below the alignment
    return (top, top_step) if top > best else (best, at)
