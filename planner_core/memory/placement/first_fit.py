"""Owns first fit by size: the reference strategy, in near-linear time.

Occupied bytes are kept in a binary tree over time. Each tree node holds two sets of disjoint byte
intervals: ``cover``, of buffers that live through the node's whole span, and ``some``, of buffers that
live at any step of it. A buffer's rivals are then the ``some`` of the O(log T) nodes that make up its live
range and the ``cover`` of the nodes above them. Touching intervals merge, so the sets stay short.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from planner_core.memory.placement.scan import placement_order
from planner_core.memory.problem import Budget, Offsets, Problem

__all__ = ["first_fit"]

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


def first_fit(problem: Problem, budget: Budget | None = None) -> Offsets:
    """Buffers by size, largest first, ties in schedule order; each at the lowest aligned offset where size +
    guard fits between placed buffers of overlapping (inclusive) live ranges. Spec §8.

    O(K log T) expected for K merged intervals met; equal to ``first_fit_scan``.
    """
    count = len(problem)
    offsets = np.zeros(count, dtype=np.int64)
    if not count:
        return offsets
    unit = int(problem.alignment.min())  # starts are multiples of it, so rounding ends up to it loses nothing
    # steps between which nothing is born or dies are one leaf: sparse times cost nothing
    points = np.unique(np.concatenate([problem.birth, problem.death + 1]))
    leaves = 1 << max(len(points) - 2, 0).bit_length()
    cover: list[_Intervals | None] = [None] * (2 * leaves)
    some: list[_Intervals | None] = [None] * (2 * leaves)
    births = (np.searchsorted(points, problem.birth) + leaves).tolist()
    deaths = (np.searchsorted(points, problem.death + 1) - 1 + leaves).tolist()
    needs = (problem.size + problem.guard).tolist()
    aligns, fixed = problem.alignment.tolist(), problem.fixed.tolist()
    result = [0] * count
    for i in placement_order(problem):
        need, left, right = needs[i], births[i], deaths[i]
        if need == 0:
            result[i] = max(fixed[i], 0)
            continue
        # the O(log T) nodes whose spans make up the live range, and the nodes above them
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
        if fixed[i] >= 0:
            at = fixed[i]
        else:
            found = [c for p in parts if (c := some[p]) is not None]
            found += [c for p in above if (c := cover[p]) is not None]
            at = _lowest(found, need, aligns[i])
        result[i] = at
        end = -(-(at + need) // unit) * unit
        for p in parts:
            for tree in (cover, some):
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
    return np.asarray(result, dtype=np.int64)


def _lowest(found: list[_Intervals], need: int, align: int) -> int:
    """The lowest aligned start of ``need`` free bytes between the intervals found."""
    if not found:
        return 0
    if len(found) == 1:
        pairs = list(zip(found[0][::2], found[0][1::2], strict=True))
    else:
        pairs = [p for f in found for p in zip(f[::2], f[1::2], strict=True)]
        pairs.sort()
    at = 0
    for start, end in pairs:
        if start - at >= need:
            return at
        if end > at:
            at = -(-end // align) * align
    return at
