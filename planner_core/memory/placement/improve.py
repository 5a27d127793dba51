"""Owns improvement of large problems, where searching all buffers at once is too much.

*Layers*: the largest buffers alone are a small problem, and the rest mostly fits around them. Exact search
places the largest, as many as it can handle, as low as they go; the rest is placed around them by size.
*Promotion*: the buffers at the top of the arena move forward in the order, and everything is placed again
(the idea of TelaMalloc's and TVM's hill climbing: blame what ends highest).
"""

from __future__ import annotations

import numpy as np

from planner_core.memory.bounds import lower_bound
from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.exact import minimise
from planner_core.memory.placement.first_fit import first_fit
from planner_core.memory.placement.fit import Placer
from planner_core.memory.placement.greedy import order_of
from planner_core.memory.placement.registry import strategy
from planner_core.memory.placement.structure import pair_count, subproblem
from planner_core.memory.problem import I64, Budget, Offsets, Problem

__all__ = ["Best", "improve", "layer", "layers", "promote"]

MOST_PAIRS = (100_000, 400_000, 700_000, 1_500_000, 3_000_000)
"""Meetings among the buffers of a first layer, one try each."""
IDEAL_PAIRS = 500_000
"""What a search handles in a second: the layer nearest to it comes first."""


class Best:
    """The best placement so far, and when to stop."""

    def __init__(self, problem: Problem, clock: Clock, target: int | None) -> None:
        self.problem, self.clock = problem, clock
        self.bound = lower_bound(problem)[0]
        self.goal = max(self.bound, target or 0)
        self.offsets: Offsets = problem.fixed
        self.height = -1

    def offer(self, offsets: Offsets) -> bool:
        """Take a placement if it is better; whether the search is over."""
        height = self.problem.height(offsets)
        if self.height < 0 or height < self.height:
            self.offsets, self.height = offsets, height
        return self.done()

    def done(self) -> bool:
        return 0 <= self.height <= self.goal or self.clock.over()


def layers(problem: Problem) -> list[I64]:
    """First layers to try: all buffers from some size up; the first has about ``IDEAL_PAIRS`` meetings."""
    sizes = -np.unique(-problem.size[problem.size > 0])
    out: list[I64] = []
    at = 0
    for most in MOST_PAIRS:
        low, high = at, len(sizes)  # the last size whose layer has at most so many meetings
        while low < high:
            middle = (low + high) // 2
            if pair_count(subproblem(problem, np.flatnonzero(problem.size >= sizes[middle]))) <= most:
                low = middle + 1
            else:
                high = middle
        if low > at:
            at = low
            out.append(np.flatnonzero(problem.size >= sizes[at - 1]))
    tries = [ids for ids in out if 1 < len(ids) < len(problem)]
    pairs = {id(ids): pair_count(subproblem(problem, ids)) for ids in tries}
    return sorted(tries, key=lambda ids: abs(np.log(max(pairs[id(ids)], 1) / IDEAL_PAIRS)))


def layer(problem: Problem, ids: I64, clock: Clock, seed: int, placer: Placer) -> Offsets:
    """Search the buffers ``ids`` alone, then place the others around them, largest first."""
    part = subproblem(problem, ids)
    found, _ = minimise(part, first_fit(part), clock, seed)
    fixed = problem.fixed.copy()
    fixed[ids] = found
    pinned = Problem(problem.birth, problem.death, problem.size, problem.alignment, problem.guard, fixed)
    return placer.on(pinned).place(order_of(problem, "size"))


def promote(best: Best, placer: Placer, seed: int) -> None:
    """Order perturbation around the top: what ends highest is placed earlier next time, until the clock is over."""
    p, clock = best.problem, best.clock
    random = np.random.default_rng(seed)
    end = p.size + p.guard
    weight = np.log2(end + 1.0)
    kept, height = weight.copy(), best.height
    cost = len(p) + pair_count(p) // 10
    while not best.done():
        order = np.lexsort((np.arange(len(p)), -weight))
        offsets = placer.place(order)
        clock.spend(cost)
        now = p.height(offsets)
        best.offer(offsets)
        if now <= height:
            kept, height = weight.copy(), now
        else:
            weight = kept.copy()
        top = np.flatnonzero(offsets + end >= now - (now // 1000))
        chosen = top[random.random(len(top)) < 0.7] if len(top) > 1 else top
        weight[chosen] += random.exponential(1.0, len(chosen))
        if random.random() < 0.3:
            weight += random.normal(0, 0.05, len(p))


@strategy("improve", "For large problems: the largest buffers by exact search, the rest around them; then order changes.")
def improve(problem: Problem, budget: Budget) -> Offsets:
    """Never worse than first fit. Ctrl-C keeps the best so far."""
    best = Best(problem, Clock(budget), budget.target)
    best.offer(first_fit(problem))
    try:
        improve_from(best, Placer(problem), budget.seed, share=0.6)
    except KeyboardInterrupt:
        best.clock.stop()
    return best.offsets


def improve_from(best: Best, placer: Placer, seed: int, share: float) -> None:
    """Layers with a share of the clock, promotion with the rest."""
    p = best.problem
    if bool((p.fixed < 0).all()):
        mine = best.clock.share(share)
        tries = layers(p) if not best.done() else []
        for ids in tries:
            if best.done() or mine.over():
                break
            best.offer(layer(p, ids, mine.share(0.6), seed, placer))
    promote(best, placer, seed)
