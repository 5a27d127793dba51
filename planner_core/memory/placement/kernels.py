"""Owns the inner loops of placement: neighbours, placing in an order, the exact search. Plain loops over int64
arrays, compiled by numba where it is installed (``jit.py``). Callers and explanations: ``fit.py``, ``exact.py``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner_core.memory.placement.jit import kernel
from planner_core.memory.problem import I64

I32 = npt.NDArray[np.int32]

__all__ = ["fill_neighbours", "place_in_order"]

FAR = np.int64(1 << 62)


@kernel
def fill_neighbours(by_birth: I64, birth: I64, death: I64, fill: I64, out: I32) -> None:
    """Symmetric lists of buffers that are live together: ``out[ptr[i]:ptr[i + 1]]``, by a sweep over births.
    ``fill`` starts as ``ptr[:-1]`` and is worked in."""
    live = np.empty(len(by_birth), np.int64)
    count = 0
    for k in range(len(by_birth)):
        i = by_birth[k]
        kept = 0
        for q in range(count):
            j = live[q]
            if death[j] >= birth[i]:
                live[kept] = j
                kept += 1
                out[fill[j]] = i
                fill[j] += 1
                out[fill[i]] = j
                fill[i] += 1
        live[kept] = i
        count = kept + 1


@kernel
def place_in_order(order: I64, ptr: I64, near: I32, need: I64, align: I64, fixed: I64, rule: int, offsets: I64) -> int:
    """Place buffers one by one by a fit rule (an index into ``fit.FITS``); ``offsets`` holds -1 for what is not placed yet. The height."""
    most = 1
    for i in range(len(order)):
        most = max(most, ptr[i + 1] - ptr[i])
    starts = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    height = 0
    for k in range(len(order)):
        i = order[k]
        size = need[i]
        if fixed[i] >= 0:
            offsets[i] = fixed[i]
            height = max(height, fixed[i] + size)
            continue
        if size == 0:
            offsets[i] = 0
            continue
        count = 0
        for q in range(ptr[i], ptr[i + 1]):
            j = near[q]
            if offsets[j] >= 0 and need[j] > 0:
                starts[count] = offsets[j]
                ends[count] = offsets[j] + need[j]
                count += 1
        if count <= 24:
            for a in range(1, count):
                s, e = starts[a], ends[a]
                b = a - 1
                while b >= 0 and starts[b] > s:
                    starts[b + 1] = starts[b]
                    ends[b + 1] = ends[b]
                    b -= 1
                starts[b + 1] = s
                ends[b + 1] = e
        else:
            by_start = np.argsort(starts[:count])
            ends[:count] = ends[:count][by_start]
            starts[:count] = starts[:count][by_start]
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
        if found < 0:
            found = at
        offsets[i] = found
        height = max(height, found + size)
    return height
