"""Owns the compiled inner loop of placing in an order: ``fit.py``'s tree over time, its interval sets in one pool.

Plain loops over int64 arrays, compiled by numba where it is installed (``jit.py``). Explanation: ``fit.py``.
"""

from __future__ import annotations

import numpy as np

from planner_core.memory.placement.jit import kernel
from planner_core.memory.placement.kernels import sort_spans
from planner_core.memory.problem import I64

__all__ = ["place_by_tree"]

FAR = np.int64(1 << 62)
ROOM = 4
"""Numbers that a node's first set has room for: two intervals. Sets that outgrow it move to the pool's end."""


@kernel
def _insert(pool: I64, top: int, node: int, sets: I64, start: int, end: int) -> tuple[I64, int]:
    """Add ``[start, end)`` to a node's set, merging what it touches. Rows of ``sets``: where, length, room."""
    at, size = sets[0, node], sets[1, node]
    low, high = 0, size
    while low < high:  # bisect_left(start)
        middle = (low + high) // 2
        if pool[at + middle] < start:
            low = middle + 1
        else:
            high = middle
    first = low
    high = size
    while low < high:  # bisect_right(end)
        middle = (low + high) // 2
        if pool[at + middle] <= end:
            low = middle + 1
        else:
            high = middle
    last = low
    if first == last and first & 1:
        return pool, top  # within one interval
    # an odd index is inside (or at the end of) an interval, which then keeps its own bound
    keeps_start = first & 1 == 0
    keeps_end = last & 1 == 0
    grown = int(keeps_start) + int(keeps_end) - (last - first)
    if size + grown > sets[2, node]:
        room = max(ROOM, 2 * sets[2, node])
        if top + room > len(pool):
            bigger = np.empty(2 * len(pool) + room, np.int64)
            bigger[:top] = pool[:top]
            pool = bigger
        for q in range(size):
            pool[top + q] = pool[at + q]
        at = top
        sets[0, node], sets[2, node] = at, room
        top += room
    if grown > 0:
        for q in range(size - 1, last - 1, -1):
            pool[at + q + grown] = pool[at + q]
    elif grown < 0:
        for q in range(last, size):
            pool[at + q + grown] = pool[at + q]
    if keeps_start:
        pool[at + first] = start
        first += 1
    if keeps_end:
        pool[at + first] = end
    sets[1, node] = size + grown
    return pool, top


@kernel
def place_by_tree(order: I64, first: I64, last: I64, leaves: int, need: I64, align: I64, fixed: I64, unit: int, rule: int,
                  offsets: I64) -> int:
    """Place ``order`` one by one by a fit rule (an index into ``fit.FITS``), on leaves ``first..last`` of a tree
    with ``leaves`` leaves; ends round up to ``unit``. Fills ``offsets``; the height."""
    cover = np.zeros((3, 2 * leaves), np.int64)
    some = np.zeros((3, 2 * leaves), np.int64)
    pool = np.empty(ROOM * (4 * leaves + len(order)) + 64, np.int64)
    top = 0
    parts = np.empty(160, np.int64)
    above = np.empty(160, np.int64)
    starts = np.empty(1024, np.int64)
    ends = np.empty(1024, np.int64)
    height = 0
    for k in range(len(order)):
        i = order[k]
        size = need[i]
        if size == 0:
            offsets[i] = max(fixed[i], 0)
            continue
        left, right = first[i] + leaves, last[i] + leaves
        n_parts = n_above = 0
        a, b = left, right + 1
        while a < b:
            if a & 1:
                parts[n_parts] = a
                n_parts += 1
                a += 1
            if b & 1:
                b -= 1
                parts[n_parts] = b
                n_parts += 1
            a >>= 1
            b >>= 1
        if parts[0] > 1:
            a, b, width = left >> 1, right >> 1, 1
            while a:
                width <<= 1
                if a * width < left or (a + 1) * width - 1 > right:
                    above[n_above] = a
                    n_above += 1
                if a != b and (b * width < left or (b + 1) * width - 1 > right):
                    above[n_above] = b
                    n_above += 1
                a >>= 1
                b >>= 1
        at = fixed[i]
        if at < 0:
            count = 0
            sorted_ = True
            for q in range(n_parts + n_above):
                if q < n_parts:
                    where, size_ = some[0, parts[q]], some[1, parts[q]]
                else:
                    where, size_ = cover[0, above[q - n_parts]], cover[1, above[q - n_parts]]
                if count + size_ // 2 > len(starts):
                    more = np.empty(2 * len(starts) + size_, np.int64)
                    more[:count] = starts[:count]
                    starts = more
                    more = np.empty(len(starts), np.int64)
                    more[:count] = ends[:count]
                    ends = more
                sorted_ = sorted_ and (count == 0 or size_ == 0)
                for z in range(where, where + size_, 2):
                    starts[count] = pool[z]
                    ends[count] = pool[z + 1]
                    count += 1
            if not sorted_:
                sort_spans(starts, ends, count)
            at = 0
            found = -1
            gap = FAR
            for q in range(count):
                room = starts[q] - at
                if room >= size and rule != 3:
                    if rule == 0:
                        found = at
                        break
                    if room < gap or (rule == 2 and room == gap):
                        gap = room
                        found = at
                if ends[q] > at:
                    at = -(-ends[q] // align[i]) * align[i]
            if found >= 0:
                at = found
        offsets[i] = at
        height = max(height, at + size)
        end = -(-(at + size) // unit) * unit
        for q in range(n_parts):
            pool, top = _insert(pool, top, parts[q], cover, at, end)
            pool, top = _insert(pool, top, parts[q], some, at, end)
        for q in range(n_above):
            pool, top = _insert(pool, top, above[q], some, at, end)
    return height
