"""Owns the inner loops of placement: neighbours, placing in an order, the exact search. Plain loops over int64
arrays, compiled by numba where it is installed (``jit.py``). Callers and explanations: ``fit.py``, ``exact.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner_core.memory.placement.jit import kernel
from planner_core.memory.problem import I64

I32 = npt.NDArray[np.int32]

__all__ = ["bytes_above", "clear_of_walls", "fill_neighbours", "overflows", "place_in_order", "search_steps"]

FAR = np.int64(1 << 62)


@kernel
def sort_spans(starts: I64, ends: I64, count: int) -> None:
    """Both by ``starts``, in place; nearly sorted runs are cheap."""
    if count <= 32:
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
        if found < 0:
            found = at
        offsets[i] = found
        height = max(height, found + size)
    return height


# --- exact search: state as arrays, so that it can stop and go on (exact.py explains) ---------------------

# returns 0 found, 1 impossible, 2 out of steps, 3 out of room for the trail


@kernel
def clear_of_walls(start: Any, i: int, exact: I64, align: I64, wall_ptr: I64, walls: I64) -> Any:
    """The lowest aligned start from ``start`` (aligned) on at which buffer ``i`` meets none of its walls: fixed
    buffers live with it, rows start and end, sorted by start."""
    for q in range(wall_ptr[i], wall_ptr[i + 1]):
        if start + exact[i] <= walls[0, q]:
            break
        if walls[1, q] > start:
            start = -(-walls[1, q] // align[i]) * align[i]
    return start


@kernel
def bytes_above(lowest: Any, s: int, wall_ptr: I64, walls: I64) -> Any:
    """Bytes of clique ``s``'s walls from ``lowest`` on: what its unplaced members can't use."""
    total = 0
    for q in range(wall_ptr[s], wall_ptr[s + 1]):
        if walls[1, q] > lowest:
            total += walls[1, q] - max(walls[0, q], lowest)
    return total


@kernel
def overflows(
    s: int, rest: I64, capacity: int, low: I64, placed: I64, witness: I64, members: I64, member_ptr: I64, walled: bool,
    side_ptr: I64, sides: I64,
) -> bool:
    """Whether clique ``s`` has too little room: from the lowest start of its unplaced members on, for all of them (and
    its walls). One member that starts low enough says no: it is remembered as the witness and asked first, so that
    most answers look at one member."""
    room = capacity - rest[s]
    q = witness[s]
    for _ in range(member_ptr[s], member_ptr[s + 1]):
        i = members[q]
        if not placed[i] and low[i] <= room and (
                not walled or low[i] + bytes_above(low[i], s, side_ptr, sides) <= room):
            witness[s] = q
            return False
        q += 1  # on from there, not from the first: what lies before is mostly placed
        if q == member_ptr[s + 1]:
            q = member_ptr[s]
    return True


@kernel
def search_steps(
    buffers: I64,  # rows: first clique, last clique, need, alignment, highest offset, at, low, placed, rank, focus, exact need
    cliques: I64,  # rows: bytes to place, crossings, failures, witness
    members: I64, member_ptr: I64, near: I32, near_ptr: I64, by_first: I64, first_ptr: I64,
    wall_ptr: I64, walls: I64,  # per buffer: fixed buffers live with it, rows start and end
    side_ptr: I64, sides: I64,  # the same per clique
    frames: I64,  # rows: from clique, to clique, parent, next part, last part, buffer, trail mark, parts mark, end of moves
    parts: I64, trail: I64, registers: I64, capacity: int, focused: bool, steps: int,
) -> int:
    """Go on searching for at most ``steps`` choices; ``registers``: state, frame, frames, trail, parts, choices,
    buffers down, most buffers down at once."""
    first, last, need, align, limit = buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]
    at, low, placed, rank, focus, exact = buffers[5], buffers[6], buffers[7], buffers[8], buffers[9], buffers[10]
    walled = walls.shape[1] > 0
    rest, cross, failures, witness = cliques[0], cliques[1], cliques[2], cliques[3]
    f_from, f_to, f_parent, f_next = frames[0], frames[1], frames[2], frames[3]
    f_last, f_buffer, f_mark, f_parts, f_moved = frames[4], frames[5], frames[6], frames[7], frames[8]
    p_from, p_to = parts[0], parts[1]
    t_key, t_value = trail[0], trail[1]
    down, most = registers[6], registers[7]
    n = buffers.shape[1]
    state, cur, top, tt, pt = registers[0], registers[1], registers[2], registers[3], registers[4]
    room = trail.shape[1] - 2 * n - 16
    count = 0
    result = -1
    while result < 0:
        if state == 0:  # advance: the next part of the frame, or its parent where all are solved
            if f_next[cur] < f_last[cur]:
                k = f_next[cur]
                f_next[cur] += 1
                f_from[top] = p_from[k]
                f_to[top] = p_to[k]
                f_parent[top] = cur
                cur = top
                top += 1
                state = 1
            elif f_parent[cur] < 0:
                result = 0
            else:
                cur = f_parent[cur]
        elif state == 1:  # choose a buffer of the part and put it down
            if count >= steps:
                result = 2
                break
            if tt > room:
                result = 3
                break
            count += 1
            begin, end = f_from[cur], f_to[cur]
            best = -1
            lead = -1
            open_ = False
            for k in range(first_ptr[begin], first_ptr[end]):
                i = by_first[k]
                if placed[i]:
                    continue
                open_ = True
                if at[i] < low[i]:
                    continue  # must rest on a buffer that is not placed yet
                if best < 0 or at[i] < at[best] or (at[i] == at[best] and rank[i] < rank[best]):
                    best = i
                if focused and (lead < 0 or focus[i] < focus[lead] or (focus[i] == focus[lead] and (
                        at[i] < at[lead] or (at[i] == at[lead] and rank[i] < rank[lead])))):
                    lead = i
            if not open_:
                cur = f_parent[cur]
                state = 0
                continue
            if best < 0:
                state = 3
                continue
            if focused:  # down from the leader to what may lie below it
                while True:
                    lower = -1
                    unsure = False
                    for q in range(near_ptr[lead], near_ptr[lead + 1]):
                        d = near[q]
                        if not placed[d] and low[d] < at[lead]:
                            if at[d] < low[d]:
                                unsure = True
                            elif lower < 0 or at[d] < at[lower] or (at[d] == at[lower] and rank[d] < rank[lower]):
                                lower = d
                    if lower >= 0:
                        lead = lower
                    else:
                        if not unsure:
                            best = lead
                        break
            b = best
            f_buffer[cur] = b
            f_mark[cur] = tt
            f_parts[cur] = pt
            placed[b] = 1
            down += 1
            most = max(most, down)
            t_key[tt] = 2 * n + b
            tt += 1
            for s in range(first[b], last[b] + 1):
                rest[s] -= need[b]
                if s > first[b]:
                    cross[s] -= 1
            f_moved[cur] = tt
            left, right = first[b], last[b]
            summit = at[b] + need[b]
            ok = True
            for q in range(near_ptr[b], near_ptr[b + 1]):
                c = near[q]
                if placed[c]:
                    continue
                start = -(-summit // align[c]) * align[c]
                if start > at[c]:
                    if walled:
                        start = clear_of_walls(start, c, exact, align, wall_ptr, walls)
                    t_key[tt] = c
                    t_value[tt] = at[c]
                    tt += 1
                    at[c] = start
                    if start > low[c]:
                        t_key[tt] = n + c
                        t_value[tt] = low[c]
                        tt += 1
                        low[c] = start
                        if start > limit[c]:
                            ok = False
                            failures[first[c]] += 1
                            break
                        left = min(left, first[c])
                        right = max(right, last[c])
            f_moved[cur] = tt
            if ok:
                for s in range(left, right + 1):
                    if rest[s] > 0 and overflows(s, rest, capacity, low, placed, witness, members, member_ptr, walled,
                                                 side_ptr, sides):
                        ok = False
                        failures[s] += 1
                        break
            if not ok:
                state = 2
                continue
            f_next[cur] = pt
            s = begin
            while s < end:
                e = s + 1
                while e < end and cross[e] > 0:
                    e += 1
                if rest[s] > 0:
                    p_from[pt] = s
                    p_to[pt] = e
                    pt += 1
                s = e
            f_last[cur] = pt
            worst = -1  # what failed most goes first: its failure is then found before the rest is solved
            k = f_next[cur]
            if pt - k > 1:
                for q in range(k, pt):
                    failed = 0
                    for s in range(p_from[q], p_to[q]):
                        failed = max(failed, failures[s])
                    if failed > worst:
                        worst = failed
                        k = q
                q = f_next[cur]
                p_from[q], p_from[k] = p_from[k], p_from[q]
                p_to[q], p_to[k] = p_to[k], p_to[q]
            state = 0
        elif state == 2:  # undo the frame's buffer, and say that it rests on one that is not placed yet
            while tt > f_mark[cur]:
                tt -= 1
                key = t_key[tt]
                if key < n:
                    at[key] = t_value[tt]
                elif key < 2 * n:
                    low[key - n] = t_value[tt]
                else:
                    b = key - 2 * n
                    placed[b] = 0
                    down -= 1
                    for s in range(first[b], last[b] + 1):
                        rest[s] += need[b]
                        if s > first[b]:
                            cross[s] += 1
            pt = f_parts[cur]
            top = cur + 1
            b = f_buffer[cur]
            lowest = FAR
            for q in range(near_ptr[b], near_ptr[b + 1]):
                d = near[q]
                if not placed[d]:
                    lowest = min(lowest, max(low[d], at[b]) + need[d])
            if lowest > limit[b]:
                state = 3
                continue
            lowest = -(-lowest // align[b]) * align[b]
            if walled:
                lowest = clear_of_walls(lowest, b, exact, align, wall_ptr, walls)
            ok = lowest <= limit[b]
            t_key[tt] = n + b
            t_value[tt] = low[b]
            tt += 1
            low[b] = lowest
            if ok:
                for s in range(first[b], last[b] + 1):
                    if overflows(s, rest, capacity, low, placed, witness, members, member_ptr, walled, side_ptr, sides):
                        ok = False
                        failures[s] += 1
                        break
            state = 1 if ok else 3
        else:  # the frame's part has no solution: its parent's choice is wrong
            p = f_parent[cur]
            if f_parent[p] < 0:
                result = 1
            else:  # and where that choice moved nothing in this part, every other choice is wrong too
                state = 3
                for q in range(f_mark[p] + 1, f_moved[p]):
                    c = t_key[q] % n
                    if f_from[cur] <= first[c] < f_to[cur]:
                        state = 2
                        break
            cur = p
    registers[0], registers[1], registers[2], registers[3], registers[4] = state, cur, top, tt, pt
    registers[5] += count
    registers[6], registers[7] = down, most
    return result
