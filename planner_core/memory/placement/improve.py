"""Owns improvement of large problems, where searching all buffers at once is too much.

*Layers*: the largest buffers alone are a small problem, and the rest mostly fits around them. Exact search
places the largest, as many as it can handle, as low as they go; the rest is placed around them by size.
*Promotion*: the buffers at the top of the arena move forward in the order, and everything is placed again
(the idea of TelaMalloc's and TVM's hill climbing: blame what ends highest).
"""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement.boxed import fill_boxes
from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.exact import minimise, setup_seconds
from planner_core.memory.placement.fit import Placer, place
from planner_core.memory.placement.greedy import order_of
from planner_core.memory.placement.improve_base import Best, first_placed
from planner_core.memory.placement.registry import strategy
from planner_core.memory.placement.structure import pair_count, subproblem, with_fixed
from planner_core.memory.placement.windowed import resolve_windows
from planner_core.memory.problem import I64, Budget, Offsets, Problem

__all__ = ["improve", "improve_from", "layer", "layers", "promote"]

MOST_PAIRS = (100_000, 400_000, 700_000, 1_500_000, 3_000_000)
"""Meetings among the buffers of a first layer, one try each."""
IDEAL_PAIRS = 500_000
"""What a search handles in a second: the layer nearest to it comes first."""


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


def layer(best: Best, ids: I64, clock: Clock, seed: int, placer: Placer) -> Offsets | None:
    """Search the buffers ``ids`` alone, then place the others around them, largest first; None where time is short."""
    problem = best.problem
    part = subproblem(problem, ids)
    if not clock.room(setup_seconds(part) + best.place_seconds):
        return None
    found, _ = minimise(part, place(part, order_of(part, "size")), clock, seed)
    fixed = problem.fixed.copy()
    fixed[ids] = found
    return best.place(placer.on(with_fixed(problem, fixed)), order_of(problem, "size"))


def promote(best: Best, placer: Placer, seed: int) -> None:
    """Order perturbation around the top: what ends highest is placed earlier next time, until the clock is over."""
    p = best.problem
    random = np.random.default_rng(seed)
    end = p.size + p.guard
    weight = np.log2(end + 1.0)
    kept, height = weight.copy(), best.height
    while not best.done():
        offsets = best.place(placer, np.lexsort((np.arange(len(p)), -weight)))
        if offsets is None:
            break
        now_at = p.height(offsets)
        best.offer(offsets)
        if now_at <= height:
            kept, height = weight.copy(), now_at
        else:
            weight = kept.copy()
        top = np.flatnonzero(offsets + end >= now_at - (now_at // 1000))
        chosen = top[random.random(len(top)) < 0.7] if len(top) > 1 else top
        weight[chosen] += random.exponential(1.0, len(chosen))
        if random.random() < 0.3:
            weight += random.normal(0, 0.05, len(p))


@strategy("improve", "For large problems: the largest buffers by exact search, the rest around them; then order changes.",
          aims=True)
def improve(problem: Problem, budget: Budget, target: int = 0) -> Offsets:
    """Never worse than first fit. Ctrl-C keeps the best so far."""
    best = Best(problem, Clock(budget), target)
    placer = Placer(problem)
    best.offer(first_placed(best, placer))
    try:
        if not best.done():
            best.clock.prepare()
            improve_from(best, Placer(problem), budget.seed, share=0.6)
    except KeyboardInterrupt:
        best.clock.stop()
    return best.offsets


def improve_from(best: Best, placer: Placer, seed: int, share: float) -> None:
    """Layers with a share of the clock, boxes with a fifth of the rest, windows and promotion with half of what is left each."""
    p = best.problem
    if bool((p.fixed < 0).all()):
        mine = best.clock.share(share)
        tries = layers(p) if not best.done() else []
        for ids in tries:
            if best.done() or mine.over():
                break
            found = layer(best, ids, mine.share(0.6), seed, placer)
            if found is not None:
                best.offer(found)
    if not best.done():
        fill_boxes(best, best.clock.share(0.2), seed, placer)
    if not best.done():
        resolve_windows(best, best.clock.share(0.5), seed)
    promote(best, placer, seed)
