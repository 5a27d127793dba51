"""Owns boxing: long-lived tensors share a box of their own at the bottom, short-lived ones go around it.

What lives through most of a run (states, saved activations, running sums) meets everything, so that a hole between
two such buffers is a hole at almost every step. Placed alone they are a small problem, which exact search packs
tightly; the box that it makes is then fixed, and the rest is placed by size. What counts as long is tried from half
the run down.
"""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.exact import minimise, searchable, setup_seconds
from planner_core.memory.placement.fit import Placer, place
from planner_core.memory.placement.greedy import order_of
from planner_core.memory.placement.improve_base import Best, first_placed
from planner_core.memory.placement.registry import strategy
from planner_core.memory.placement.structure import subproblem, with_fixed
from planner_core.memory.problem import I64, Budget, Offsets, Problem

__all__ = ["boxed", "boxes", "fill_boxes"]

PARTS = (2, 4, 8, 16, 32, 64)
"""A buffer is long-lived that lives for one n-th of all steps or more."""


def boxes(problem: Problem) -> list[I64]:
    """The free buffers of each box to try, each set once, the smallest (longest-lived) first."""
    if not len(problem):
        return []
    life = problem.death - problem.birth + 1
    span = int(problem.death.max() - problem.birth.min()) + 1
    out: list[I64] = []
    for n in PARTS:
        ids = np.flatnonzero((life >= span / n) & (problem.fixed < 0) & (problem.size + problem.guard > 0))
        if 1 < len(ids) < len(problem) and (not out or len(ids) > len(out[-1])):
            out.append(ids)
    return out


def fill_boxes(best: Best, clock: Clock, seed: int, placer: Placer) -> None:
    """Offer a placement around each box."""
    p = best.problem
    by_size = order_of(p, "size")
    for ids in boxes(p):
        if best.done() or clock.over():
            return
        part = subproblem(p, ids)
        found = place(part, order_of(part, "size"))
        if searchable(part) and clock.room(setup_seconds(part) + best.place_seconds):
            found, _ = minimise(part, found, clock.share(0.2), seed)
        fixed = p.fixed.copy()
        fixed[ids] = found
        if bool((p.fixed >= 0).any()):
            # the box knows nothing of buffers that are fixed already: it only gives their order
            order = np.concatenate([ids[np.argsort(found, kind="stable")], by_size[~np.isin(by_size, ids)]])
            offsets = best.place(placer, order)
        else:
            offsets = best.place(placer.on(with_fixed(p, fixed)), by_size)
        if offsets is None:
            return
        best.offer(offsets)


@strategy("boxed", "First fit; long-lived buffers packed alone by exact search, the others around them, largest first.",
          aims=True)
def boxed(problem: Problem, budget: Budget, target: int = 0) -> Offsets:
    """The best of first fit and of boxes of several lifetimes. Ctrl-C keeps the best so far."""
    best = Best(problem, Clock(budget), target)
    placer = Placer(problem)
    best.offer(first_placed(best, placer))
    try:
        fill_boxes(best, best.clock, budget.seed, placer)
    except KeyboardInterrupt:
        best.clock.stop()
    return best.offsets
