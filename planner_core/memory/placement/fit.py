"""Owns placing buffers in an order: each at the offset that a fit rule picks, in near-linear time.

Occupied bytes are kept in a binary tree over time. Each tree node holds two sets of disjoint byte
intervals: ``cover``, of buffers that live through the node's whole span, and ``some``, of buffers that
live at any step of it. A buffer's rivals are then the ``some`` of the O(log T) nodes that make up its live
range and the ``cover`` of the nodes above them. Touching intervals merge, so the sets stay short.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from planner_core.memory.placement import jit
from planner_core.memory.placement.structure import neighbours, pair_count
from planner_core.memory.problem import I64, Offsets, Problem

__all__ = ["DENSE", "FITS", "MANY_PAIRS", "Placer", "place", "place_plain"]

_Intervals = list[int]
"""Disjoint ``[start, end)`` that don't touch, flat: start, end, start, end, … in rising order."""


def _insert(where: _Intervals, start: int, end: int) -> None:
    """Add ``[start, end)``, merging what it touches."""
    lo, hi = bisect_left(where, start), bisect_right(where, end)
    if lo == hi and lo & 1:
        return  # within one interval
    # an odd index is inside (or at the end of) an interval, which then keeps its own bound
    if lo & 1:
        where[lo:hi] = () if hi & 1 else (end,)
    else:
        where[lo:hi] = (start,) if hi & 1 else (start, end)


FITS = ("first", "best", "last_best", "top")
"""first: the lowest gap that fits. best: the smallest gap that fits, the lowest of equals; last_best: the highest
of equals. top: above everything live at the same time. Where no gap fits, all go above what is there."""

FEW, FEW_CACHED, DENSE, MANY_PAIRS = 20_000, 5_000, 256, 150_000_000
"""Below ``FEW`` buffers compiling costs more than it saves, below ``FEW_CACHED`` even loading what was compiled before, unless
it is loaded already; from ``DENSE`` neighbours
a buffer on, sorting them costs more than the tree; above ``MANY_PAIRS`` meetings their lists take gigabytes."""


def place(problem: Problem, order: I64, fit: str = "first") -> Offsets:
    """Fixed buffers stay, the others go in ``order``, each where the fit rule (one of ``FITS``) says.

    O(K log T) expected for K merged intervals met. Compiled, where numba is installed: the same tree, or a sorted
    list of placed neighbours a buffer where those are few; same offsets.
    """
    return Placer(problem).place(order, fit)


class Placer:
    """Places one problem in many orders; what depends on the problem alone is made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.compiled = jit.COMPILED and len(problem) > 1 and (
            len(problem) >= FEW or jit.preparing() or (jit.ready() and (jit.loaded() or len(problem) >= FEW_CACHED)))
        self.lists: tuple[I64, npt.NDArray[np.int32]] | None = None
        if self.compiled:
            pairs = pair_count(problem)
            if pairs <= min(MANY_PAIRS, DENSE * len(problem) // 2):
                self.lists = neighbours(problem)
            self.first, self.last, self.leaves = _leaves(problem)

    def on(self, problem: Problem) -> Placer:
        """The same buffers with other ones fixed: the lists stay."""
        other = object.__new__(Placer)
        other.problem, other.compiled, other.lists = problem, self.compiled, self.lists
        if self.compiled:
            other.first, other.last, other.leaves = self.first, self.last, self.leaves
        return other

    def place(self, order: I64, fit: str = "first") -> Offsets:
        p = self.problem
        order = order[np.argsort(p.fixed[order] < 0, kind="stable")]
        if not self.compiled or all(_at_the_peak(p) or (False,)):  # all live at one step: a stack, in one pass
            return place_plain(p, order, fit)
        if self.lists is None:
            from planner_core.memory.placement.tree_kernel import place_by_tree

            offsets = np.zeros(len(p), dtype=np.int64)
            place_by_tree(order, self.first, self.last, self.leaves, p.size + p.guard, p.alignment, p.fixed, _unit(p),
                          FITS.index(fit), offsets)
            return offsets
        from planner_core.memory.placement.kernels import place_in_order

        offsets = np.full(len(p), -1, dtype=np.int64)
        place_in_order(order, *self.lists, p.size + p.guard, p.alignment, p.fixed, FITS.index(fit), offsets)
        return offsets


def _unit(problem: Problem) -> int:
    """Starts are multiples of it, so that rounding ends up to it loses nothing; with fixed buffers anywhere, 1."""
    return 1 if bool((problem.fixed >= 0).any()) else int(problem.alignment.min())


def _leaves(problem: Problem) -> tuple[I64, I64, int]:
    """``(first, last, leaves)`` of the tree over time. Steps between which nothing is born or dies are one leaf:
    sparse times cost nothing."""
    points = np.unique(np.concatenate([problem.birth, problem.death + 1]))
    first = np.searchsorted(points, problem.birth)
    return first, np.searchsorted(points, problem.death + 1) - 1, 1 << max(len(points) - 2, 0).bit_length()


def place_plain(problem: Problem, order: I64, fit_name: str = "first") -> Offsets:
    """``place`` by the tree of intervals: no numba, any number of meetings. ``order`` has fixed buffers first.

    As long as all that is live at the most crowded step makes one stack up to the arena's height, what is live there too
    goes on top, without a look at the tree: gaps below are less than an alignment. Pinned plans are such stacks.
    """
    fit = _FITS[fit_name]
    count = len(problem)
    offsets = np.zeros(count, dtype=np.int64)
    if not count:
        return offsets
    tree = _Tree(problem)
    needs = (problem.size + problem.guard).tolist()
    aligns, fixed = problem.alignment.tolist(), problem.fixed.tolist()
    result = [0] * count
    stacked = _at_the_peak(problem)
    waiting: list[int] = []  # on the stack, not yet in the tree
    height = 0
    for i in order.tolist():
        need = needs[i]
        if need == 0:
            result[i] = max(fixed[i], 0)
            continue
        if stacked is not None and stacked[i]:
            result[i] = at = -(-height // aligns[i]) * aligns[i]
            height = at + need
            waiting.append(i)
            continue
        for k in waiting:
            tree.insert(k, result[k], needs[k])
        waiting.clear()
        result[i] = at = fixed[i] if fixed[i] >= 0 else fit(tree.found(i), need, aligns[i])
        tree.insert(i, at, need)
        if at + need > height:
            stacked, height = None, at + need
    return np.asarray(result, dtype=np.int64)


def _at_the_peak(problem: Problem) -> list[bool] | None:
    """Who is live at the step with most bytes; None where the argument about gaps fails: alignments of several sizes, or
    fixed buffers."""
    if bool((problem.fixed >= 0).any()) or int(problem.alignment.min()) != int(problem.alignment.max()):
        return None
    points, born = np.unique(problem.birth, return_inverse=True)
    dead = np.searchsorted(points, problem.death, side="right")
    need = problem.size + problem.guard
    delta = np.zeros(len(points) + 1, dtype=np.int64)
    np.add.at(delta, born, need)
    np.add.at(delta, dead, -need)
    step = int(points[int(np.cumsum(delta[:-1]).argmax())])
    here: list[bool] = ((problem.birth <= step) & (problem.death >= step)).tolist()
    return here


class _Tree:
    """The binary tree over time: per node the bytes of buffers that live through it, and of those that live in it."""

    def __init__(self, problem: Problem) -> None:
        self.unit = _unit(problem)
        first, last, leaves = _leaves(problem)
        self.cover: list[_Intervals | None] = [None] * (2 * leaves)
        self.some: list[_Intervals | None] = [None] * (2 * leaves)
        self.births, self.deaths = (first + leaves).tolist(), (last + leaves).tolist()

    def nodes(self, i: int) -> tuple[list[int], list[int]]:
        """``(parts, above)``: the O(log T) nodes whose spans make up the live range, and the nodes above them."""
        left, right = self.births[i], self.deaths[i]
        parts, above = [], []
        a, b = left, right + 1
        while a < b:
            if a & 1:
                parts.append(a)
                a += 1
            if b & 1:
                b -= 1
                parts.append(b)
            a >>= 1
            b >>= 1
        if parts[0] > 1:
            a, b, low, high, width = left >> 1, right >> 1, left, right, 1
            while a:
                width <<= 1
                if a * width < low or (a + 1) * width - 1 > high:
                    above.append(a)
                if a != b and (b * width < low or (b + 1) * width - 1 > high):
                    above.append(b)
                a >>= 1
                b >>= 1
        return parts, above

    def found(self, i: int) -> list[_Intervals]:
        """The bytes taken at some step of the buffer's life."""
        parts, above = self.nodes(i)
        return [c for p in parts if (c := self.some[p]) is not None] + [c for p in above if (c := self.cover[p]) is not None]

    def insert(self, i: int, at: int, need: int) -> None:
        """Take ``need`` bytes from ``at`` on for the buffer's life."""
        parts, above = self.nodes(i)
        some, end = self.some, -(-(at + need) // self.unit) * self.unit
        for p in parts:
            for tree in (self.cover, some):
                if (c := tree[p]) is None:
                    tree[p] = [at, end]
                else:
                    _insert(c, at, end)
        for p in above:
            if (c := some[p]) is None:
                some[p] = [at, end]
            elif at == c[-1]:
                c[-1] = end
            elif end > c[1] or at < c[0]:  # not within the first interval, the commonest case
                _insert(c, at, end)


def _pairs(found: list[_Intervals]) -> list[tuple[int, int]]:
    """All intervals, by start."""
    if len(found) == 1:
        return list(zip(found[0][::2], found[0][1::2], strict=True))
    pairs = [p for f in found for p in zip(f[::2], f[1::2], strict=True)]
    pairs.sort()
    return pairs


def _lowest(found: list[_Intervals], need: int, align: int) -> int:
    """The lowest aligned start of ``need`` free bytes between the intervals found."""
    at = 0
    for start, end in _pairs(found) if found else ():
        if start - at >= need:
            return at
        if end > at:
            at = -(-end // align) * align
    return at


def _tightest(found: list[_Intervals], need: int, align: int, last: bool = False) -> int:
    """The start of the smallest gap that fits; of equal gaps the lowest, or the highest."""
    at, best, chosen = 0, -1, -1
    for start, end in _pairs(found) if found else ():
        room = start - at
        if room >= need and (chosen < 0 or room < best or (last and room == best)):
            best, chosen = room, at
        if end > at:
            at = -(-end // align) * align
    return at if chosen < 0 else chosen


def _last_tightest(found: list[_Intervals], need: int, align: int) -> int:
    return _tightest(found, need, align, last=True)


def _above(found: list[_Intervals], need: int, align: int) -> int:
    return -(-max((f[-1] for f in found), default=0) // align) * align


_FITS = {"first": _lowest, "best": _tightest, "last_best": _last_tightest, "top": _above}
