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

_Intervals = tuple[list[int], list[int]]  # sorted disjoint [start, end): starts, ends


def _insert(where: _Intervals, start: int, end: int) -> bool:
    """Add ``[start, end)``, merging what touches; False when it was already covered."""
    starts, ends = where
    lo = bisect_left(ends, start)  # first interval that ends at or after start
    if lo == len(starts):
        starts.append(start)
        ends.append(end)
        return True
    if starts[lo] <= start and end <= ends[lo]:
        return False
    hi = bisect_right(starts, end)  # first interval that starts after end
    if lo == hi:
        starts.insert(lo, start)
        ends.insert(lo, end)
        return True
    first, last = starts[lo], ends[hi - 1]
    starts[lo:hi] = [first if first < start else start]
    ends[lo:hi] = [last if last > end else end]
    return True


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
    leaves = 1 << max(int(problem.death.max() - problem.birth.min()), 0).bit_length()
    cover: list[_Intervals | None] = [None] * (2 * leaves)
    some: list[_Intervals | None] = [None] * (2 * leaves)
    base = leaves - int(problem.birth.min())
    births, deaths = (problem.birth + base).tolist(), (problem.death + base).tolist()
    needs = (problem.size + problem.guard).tolist()
    aligns, fixed = problem.alignment.tolist(), problem.fixed.tolist()
    result = [0] * count
    for i in placement_order(problem):
        need, left, right = needs[i], births[i], deaths[i]
        if need == 0:
            result[i] = max(fixed[i], 0)
            continue
        # the O(log T) nodes whose spans make up the live range
        parts = []
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
        if fixed[i] >= 0:
            at = fixed[i]
        else:
            found: list[_Intervals] = [s for p in parts if (s := some[p]) is not None]
            a, b = left >> 1, right >> 1
            while a:
                c = cover[a]
                if c is not None:
                    found.append(c)
                if a != b:
                    c = cover[b]
                    if c is not None:
                        found.append(c)
                a >>= 1
                b >>= 1
            at = _lowest(found, need, aligns[i])
        result[i] = at
        end = -(-(at + need) // unit) * unit
        for p in parts:
            for tree in (cover, some):
                c = tree[p]
                if c is None:
                    tree[p] = ([at], [end])
                else:
                    _insert(c, at, end)
        # nodes above: a parent's set holds its child's, so stop where nothing is new
        for top in (left, right):
            p = top
            while p:
                c = some[p]
                if c is None:
                    some[p] = ([at], [end])
                elif not _insert(c, at, end) and p not in parts:
                    break
                p >>= 1
    return np.asarray(result, dtype=np.int64)


def _lowest(found: list[_Intervals], need: int, align: int) -> int:
    """The lowest aligned start of ``need`` free bytes between the intervals found."""
    if not found:
        return 0
    if len(found) == 1:
        pairs = list(zip(*found[0], strict=True))
    else:
        pairs = [p for f in found for p in zip(*f, strict=True)]
        pairs.sort()
    at = 0
    for start, end in pairs:
        if start - at >= need:
            return at
        if end > at:
            at = -(-end // align) * align
    return at
