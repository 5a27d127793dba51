"""Owns windowed re-solve: exact search of the buffers around the peak, everything else staying where it is.

A placement is as high as its highest buffers. Those, and buffers that live near them in time, are taken out and
searched again as a problem of their own, in which the others are fixed. A window that can't go lower grows; one
that does leaves the next peak to look at. Each step is a placement no higher than the one before.
"""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.exact import minimise, searchable, setup_seconds
from planner_core.memory.placement.fit import Placer
from planner_core.memory.placement.improve_base import Best, first_placed
from planner_core.memory.placement.registry import strategy
from planner_core.memory.placement.structure import subproblem, with_fixed
from planner_core.memory.problem import I64, Budget, Offsets, Problem

__all__ = ["resolve_windows", "window", "windowed"]

SMALLEST, LARGEST = 24, 400
"""Free buffers of a window: the first try's, and where growing ends."""


def window(problem: Problem, offsets: Offsets, most: int, random: np.random.Generator, goal: int = 0) -> I64:
    """The buffers to free: one of the highest, about ``most`` that live within a span around it, and of that span all
    that end in the upper half between goal and arena: were one of them to stay, little could be won."""
    need = problem.size + problem.guard
    end = np.where((problem.fixed < 0) & (need > 0), offsets + need, -1)
    tops = np.flatnonzero(end == end.max())
    top = int(tops[random.integers(len(tops))])
    born, dead = problem.birth - problem.birth.min(), problem.death - problem.birth.min()  # large stamps keep their units
    middle = born[top] / 2 + dead[top] / 2
    # how far a span around the culprit's middle must reach for a buffer to live within it
    reach = np.maximum(np.abs(born - middle), np.abs(dead - middle))
    reach[end < 0] = np.inf
    near = np.argsort(reach, kind="stable")[:most]
    near = near[np.isfinite(reach[near])]
    left, right = problem.birth[near].min(initial=problem.birth[top]), problem.death[near].max(initial=problem.death[top])
    line = int(end.max()) - max((int(end.max()) - goal) // 2, 0) if goal else int(end.max()) - 1
    meeting = np.flatnonzero((end > line) & (problem.birth <= right) & (problem.death >= left))
    return np.unique(np.concatenate([near, meeting, [top]]))


def resolve_windows(best: Best, clock: Clock, seed: int) -> None:
    """Lower ``best`` window by window, until its goal, the clock's end, or windows that no longer grow."""
    p = best.problem
    if not bool(((p.fixed < 0) & (p.size + p.guard > 0)).any()):
        return
    random = np.random.default_rng(seed)
    most, failed = SMALLEST, 0
    while not best.done() and not clock.over() and failed < 40:
        free = window(p, best.offsets, most, random, best.goal)
        fixed = best.offsets.copy()
        fixed[free] = p.fixed[free]
        left, right = p.birth[free].min(), p.death[free].max()
        ids = np.flatnonzero((p.birth <= right) & (p.death >= left) & (p.size + p.guard > 0))
        part = subproblem(with_fixed(p, fixed), ids)
        clock.spend(100 + len(ids))
        setup = setup_seconds(part)
        if not searchable(part) or not clock.room(2 * setup):
            return
        # a window that spends its whole share on its lists would never search
        share = min(max(0.05, 4 * setup / max(clock.seconds_left(), setup)), 1.0)
        found, _ = minimise(part, best.offsets[ids], clock.share(share), seed + failed, best.goal)
        lower = part.height(found) < best.height
        if lower:
            offsets = best.offsets.copy()
            offsets[ids] = found
            best.offsets, best.height = offsets, p.height(offsets)
            failed = 0
        else:
            failed += 1
            most = min(LARGEST, most + most // 4)


@strategy("windowed", "First fit, then exact search of the buffers around each peak, all others fixed where they are.",
          aims=True)
def windowed(problem: Problem, budget: Budget, target: int = 0) -> Offsets:
    """Never worse than first fit. Ctrl-C keeps the best so far."""
    best = Best(problem, Clock(budget), target)
    best.offer(first_placed(best, Placer(problem)))
    try:
        resolve_windows(best, best.clock, budget.seed)
    except KeyboardInterrupt:
        best.clock.stop()
    return best.offsets
