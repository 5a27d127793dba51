"""Owns exact search: does any placement fit a capacity? And from that, the smallest arena, with its proof.

The idea of canonical orders with section inference and dominance is MiniMalloc's (Moffitt, "MiniMalloc: A
Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023); ours differs in what it
branches on. If any placement fits, one does in which every buffer rests on the arena's floor or on another
buffer. So a step takes a buffer of which no unplaced neighbour can lie lower, and decides: it lies *here*, on
what is placed, or it rests on a neighbour that is *not placed yet*, hence at least as high as the lowest end
that an unplaced neighbour can have. That second branch is inference that dominance, canonical order and
"nothing above it" pruning all follow from, and every placement is met once.

A branch dies where, in some clique (buffers live at one step: a *section*), the lowest start that an unplaced
member can have plus the bytes still to place exceed the capacity. Where no unplaced buffer crosses a boundary
between cliques, the two sides are problems of their own, solved one after the other; a failure of one undoes
the choice that split them.

Fixed buffers are walls: no choices, but bytes that a buffer's lowest start jumps over. The argument holds with
them: in a placement whose offsets' sum is smallest a buffer lies at its lowest start, or an unplaced neighbour lies
there (else it could move there), and it rests above that one.

Runs are short and restart (Gomes, Selman and Kautz 1998): what overflowed becomes more important in the next run,
as in Boussemart et al.'s weighted degrees (2004). Beside them one run never restarts: it proves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planner_core.memory.bounds import align_up, lower_bound
from planner_core.memory.placement.clock import Clock, now, slow
from planner_core.memory.placement.draws import Draw, Drawer
from planner_core.memory.placement.first_fit import first_fit
from planner_core.memory.placement.jit import loops
from planner_core.memory.placement.registry import Found, strategy
from planner_core.memory.placement.structure import cliques_of, neighbours, pair_count, split_in_time, subproblem
from planner_core.memory.problem import I64, Budget, Offsets, Problem

__all__ = ["FOUND", "IMPOSSIBLE", "OPEN", "Searcher", "exact", "minimise", "searchable"]

FOUND, IMPOSSIBLE, OPEN = 0, 1, 2
MOST_MEETINGS = 3_000_000
"""Cliques' members and neighbours that the search keeps lists of."""


def searchable(problem: Problem) -> bool:
    """Small enough for the search's lists."""
    return pair_count(problem) <= MOST_MEETINGS


def setup_seconds(problem: Problem) -> float:
    """About what making the search's lists takes."""
    return slow() * (1e-3 + 8e-8 * pair_count(problem) + 2e-6 * len(problem))


class Run:
    """One run of the search: its arrays, which keep where it is."""

    def __init__(self, s: Searcher, capacity: int, rank: I64, focus: I64, focused: bool) -> None:
        n, cliques = s.count, s.cliques.count
        self.searcher, self.capacity, self.focused = s, int(align_up(np.asarray(capacity), s.unit)), focused
        zero = np.zeros(n, dtype=np.int64)
        self.buffers = np.stack([s.cliques.first, s.cliques.last, s.need, s.align,
                                 (capacity - s.exact) // s.align * s.align, s.floor, s.floor, zero, rank, focus,
                                 s.exact])
        self.cliques = np.stack([s.load, s.crossings, np.zeros(cliques, dtype=np.int64),
                                 s.member_ptr[:-1]])
        # a frame a choice and part; parts of a frame are cliques that end there: at most two a choice over all
        self.frames = np.zeros((9, 2 * n + cliques + 8), dtype=np.int64)
        self.parts = np.zeros((2, 2 * n + 2 * cliques + 8), dtype=np.int64)
        self.trail = np.zeros((2, 2 * len(s.near) + 24 * n + 4096), dtype=np.int64)
        starts = np.flatnonzero(s.crossings == 0)
        self.parts[0, : len(starts)] = starts
        self.parts[1, : len(starts)] = np.append(starts[1:], cliques)
        self.frames[2, 0], self.frames[4, 0] = -1, len(starts)
        self.registers = np.asarray([0, 0, 1, 0, len(starts), 0, 0, 0], dtype=np.int64)
        self.ended = OPEN if bool((self.buffers[4] >= s.floor).all()) and int(s.total.max()) <= self.capacity else IMPOSSIBLE

    def go_on(self, steps: int, clock: Clock) -> int:
        """At most ``steps`` choices more; FOUND, IMPOSSIBLE, or OPEN where steps, clock or room ran out."""
        s = self.searcher
        while self.ended == OPEN and steps > 0 and not clock.over():
            most = max(1, min(steps, s.slice, int(min(clock.left / s.cost + 1, s.slice))))  # to the end of the work, not past it
            kernels, compiled = loops(min(most, s.plain_slice) * s.cost * 6e-5)
            slice_ = clock.chunk(most if compiled else min(most, s.plain_slice), s.pace)
            start = now()
            before = int(self.registers[5])
            code = kernels.search_steps(self.buffers, self.cliques, s.members, s.member_ptr, s.near, s.near_ptr, s.by_first,
                                s.first_ptr, s.wall_ptr, s.walls, s.side_ptr, s.sides, self.frames, self.parts, self.trail, self.registers, self.capacity,
                                self.focused, slice_)
            done = int(self.registers[5]) - before
            steps -= max(done, 1)
            clock.spend(max(done, 1) * s.cost)
            s.pace = max((now() - start) / max(done, 1), s.pace / 2)
            if code in (FOUND, IMPOSSIBLE):
                self.ended = code
            elif code == 3:
                break
        return self.ended

    @property
    def depth(self) -> int:
        """Most buffers that were down at once."""
        return int(self.registers[7])

    @property
    def offsets(self) -> Offsets:
        """Of all buffers, fixed ones included."""
        offsets = self.searcher.problem.fixed.copy()
        offsets[self.searcher.free] = self.buffers[5]
        return offsets


class Searcher:
    """The search's view of one problem without zero sizes: sizes in multiples of the smallest alignment."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = problem
        self.granule = int(np.gcd.reduce(np.concatenate([
            problem.size + problem.guard, problem.alignment, np.maximum(problem.fixed, 0)])))
        self.free = np.flatnonzero(problem.fixed < 0)
        pinned = np.flatnonzero(problem.fixed >= 0)
        self.wall_ptr, self.walls = _walls(problem, pinned, problem.birth[self.free], problem.death[self.free])
        problem = subproblem(problem, self.free)
        self.count = n = len(problem)
        self.exact = problem.size + problem.guard
        self.align = problem.alignment
        self.unit = 1 if len(pinned) else int(self.align.min())  # a wall may start within a rounded end
        self.need = align_up(self.exact, self.unit)
        self.floor = np.zeros(n, dtype=np.int64)
        if len(pinned):
            clear_of_walls = loops(n * 1e-5).kernels.clear_of_walls
            self.floor[:] = [clear_of_walls(0, i, self.exact, self.align, self.wall_ptr, self.walls) for i in range(n)]
        self.cliques = c = cliques_of(problem)
        self.load = c.sums(self.need)
        self.side_ptr, self.sides = _walls(self.problem, pinned, c.step, c.step)
        filled = np.append(0, np.cumsum(self.sides[1] - self.sides[0]))
        self.total = self.load + filled[self.side_ptr[1:]] - filled[self.side_ptr[:-1]]
        self.crossings = c.sums(np.ones(n, dtype=np.int64))
        self.crossings -= np.bincount(c.first, minlength=c.count)
        span = c.last - c.first + 1
        self.member_ptr = np.append(0, np.cumsum(c.sums(np.ones(n, dtype=np.int64))))
        flat = np.repeat(c.first - np.append(0, np.cumsum(span)[:-1]), span) + np.arange(int(span.sum()))
        self.members = np.repeat(np.arange(n), span)[np.argsort(flat, kind="stable")]
        self.near_ptr, self.near = neighbours(problem)
        self.by_first = np.argsort(c.first, kind="stable")
        self.first_ptr = np.append(0, np.cumsum(np.bincount(c.first, minlength=c.count)))
        self.duration = problem.death - problem.birth + 1
        self.degree = np.diff(self.near_ptr)
        self.weight = np.zeros(c.count)
        self.draws = Drawer(seed)
        self.restarts = 0
        self.unit_steps = max(200, 2 * n)
        self.patience = max(100, n)
        # a step takes about as many microseconds, compiled: its units of work
        self.cost = 1 + int((len(self.near) + 4 * len(self.members)) / n / 60)
        self.slice, self.plain_slice = (max(20, steps // self.cost) for steps in (20_000, 300))
        self.pace = self.cost * 2e-6 * slow()
        self.proofs: dict[int, Run] = {}

    def crowded(self, load: Any) -> tuple[I64, Any]:
        """Rank of each buffer's most important clique (0: the most), and that clique's load."""
        _, level = np.unique(-np.round(load / max(float(load.max()), 1.0), 3), return_inverse=True)
        return -self.cliques.highest(-level.astype(np.int64)), self.cliques.highest(load)

    def first_run(self, capacity: int, focused: bool) -> Run:
        """The run that proves: most crowded first, then longest-lived, then largest."""
        focus, load = self.crowded(self.load.astype(np.float64))
        order = np.lexsort((np.arange(self.count), -self.need, -self.duration, -load))
        rank = np.empty(self.count, dtype=np.int64)
        rank[order] = np.arange(self.count)
        return Run(self, capacity, rank, focus, focused)

    def next_run(self, capacity: int, draw: Draw) -> Run:
        """A short run's order: crowding, duration, size and neighbours weighed as drawn, failures counted in."""
        w = draw.weights
        top = float(self.weight.max())
        focus, load = self.crowded(self.load / self.load.max() + draw.learned * self.weight / (top or 1.0))
        key = (draw.crowd * np.log(load) + w[0] * np.log(self.duration) / 5 + w[1] * np.log(self.need) / 5
               + w[2] * np.log(self.degree + 1) / 2 + draw.noise * self.draws.random.random(self.count))
        rank = np.empty(self.count, dtype=np.int64)
        rank[np.argsort(-key, kind="stable")] = np.arange(self.count)
        self.restarts += 1
        return Run(self, capacity, rank, focus, draw.focused)

    def fits(self, capacity: int, steps: int, clock: Clock) -> tuple[int, Offsets | None]:
        """Spend ``steps`` on one question: the proving run goes on, then short runs."""
        run = self.proofs.get(capacity)
        if run is None:
            while len(self.proofs) >= 4:
                self.proofs.pop(next(iter(self.proofs)))
            run = self.proofs[capacity] = self.first_run(capacity, focused=False)
        # at first it is often enough; later it gets an eighth
        proof = steps if run.registers[5] + steps // 8 < 10 * self.unit_steps else steps // 8
        code = run.go_on(proof, clock)
        if code != OPEN:
            return code, run.offsets if code == FOUND else None
        left = steps - min(proof, steps // 2)
        while left > 0 and not clock.over():
            draw = self.draws.next()
            short = self.next_run(capacity, draw)
            code, depth = OPEN, -1
            while code == OPEN and short.depth > depth and not clock.over():  # as long as it gets further
                depth = short.depth
                code = short.go_on(self.patience, clock)
            self.draws.tell(draw, short.depth / self.count)
            left -= max(int(short.registers[5]), 1)
            failed = short.cliques[2]
            self.weight = 0.9 * self.weight + failed / max(int(failed.sum()), 1)
            if code != OPEN:
                return code, short.offsets if code == FOUND else None
        return OPEN, None


def _walls(problem: Problem, pinned: I64, birth: I64, death: I64) -> tuple[I64, I64]:
    """``(ptr, walls)``: the fixed buffers that live in the k-th range of steps are columns ``ptr[k]:ptr[k + 1]`` of
    rows start and end, by start."""
    pinned = pinned[np.argsort(problem.fixed[pinned], kind="stable")]
    ptr = np.zeros(len(birth) + 1, dtype=np.int64)
    if not len(pinned):
        return ptr, np.zeros((2, 0), dtype=np.int64)
    found = [pinned[(problem.birth[pinned] <= d) & (problem.death[pinned] >= b)]
             for b, d in zip(birth.tolist(), death.tolist(), strict=True)]
    np.cumsum([len(f) for f in found], out=ptr[1:])
    who = np.concatenate(found)
    return ptr, np.stack([problem.fixed[who], (problem.fixed + problem.size + problem.guard)[who]])


def minimise(problem: Problem, offsets: Offsets, clock: Clock, seed: int = 0, target: int = 0,
             found: Callable[[Offsets], None] | None = None, between: bool = True) -> Found:
    """The smallest arena from a first placement, and the bound proved. Stops at the bound, at ``target``, when
    the clock is over. No zero sizes; one buffer is free at least where the bound is open. ``found`` hears of every improvement; without ``between``
    nothing above the target is looked for."""
    low = lower_bound(problem)[0]
    high = problem.height(offsets)
    if high <= max(low, target):
        return offsets, low
    clock.prepare()
    if not clock.room(setup_seconds(problem)):
        return offsets, low
    s = Searcher(problem, seed)
    allowance = 16 * s.unit_steps
    while low < high and high > target and not clock.over():
        floor, goal = low, max(low, target)  # the bound itself first: it is often reached
        share = allowance
        while floor < high and high > target and not clock.over():
            code, better = s.fits(goal, share, clock)
            if code == FOUND and better is not None:
                offsets, high = better, problem.height(better)
                if found is not None:
                    found(offsets)
            elif code == IMPOSSIBLE:
                low = floor = min(goal + s.granule, high)
            else:
                floor = goal + s.granule
                if not between:
                    break
            goal = floor + max(high - floor - 1, 0) // 2 // s.granule * s.granule
            goal = min(goal, high - s.granule)
            share = max(allowance // 20, 4 * s.unit_steps)
        allowance *= 2
    return offsets, low


@strategy("exact", "Exact search, part by part: canonical branching with inference, restarts; proves what it can.",
          proves=True, aims=True)
def exact(problem: Problem, budget: Budget, target: int = 0) -> Found:
    """First fit, improved to the optimum as far as the budget goes. Ctrl-C keeps the best so far."""
    clock = Clock(budget)
    return refine(problem, first_fit(problem), clock, budget.seed, target)


def refine(problem: Problem, offsets: Offsets, clock: Clock, seed: int, target: int = 0) -> Found:
    """Search every part between steps where nothing is live, the one that needs most bytes first."""
    busy = np.flatnonzero(problem.size + problem.guard > 0)
    if not len(busy):
        return offsets, 0
    offsets = offsets.copy()
    groups = [busy[part] for part in split_in_time(subproblem(problem, busy))]
    problems = [subproblem(problem, ids) for ids in groups]
    bounds = [lower_bound(p)[0] for p in problems]
    # a buffer of no bytes may be fixed above all others
    proved = max(*bounds, int((problem.fixed + problem.size + problem.guard).max()))
    goal = max(proved, target)
    open_ = [k for k in np.argsort([-b for b in bounds], kind="stable").tolist()
             if problems[k].height(offsets[groups[k]]) > goal]
    for done, k in enumerate(open_):
        ids, p = groups[k], problems[k]
        if not searchable(p) or clock.over():
            continue
        mine = clock.share(1 / (len(open_) - done))

        def keep(found: Offsets, ids: I64 = ids) -> None:
            offsets[ids] = found

        try:
            _, low = minimise(p, offsets[ids], mine, seed, max(goal, proved), keep, between=not target)
        except KeyboardInterrupt:
            clock.stop()
            break
        proved = max(proved, low)
    return offsets, min(proved, problem.height(offsets))
