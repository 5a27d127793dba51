"""Owns the check of a placement: every strategy's answer goes through it. Shares no code with the strategies.

``meeting_rows`` is the sweep that ``verify_plan`` uses on whole plans too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner_core.errors import PlanError
from planner_core.memory.problem import I64, MOST_BYTES, Offsets, Problem

__all__ = ["Overlap", "complaints", "meeting_rows", "overlaps", "require_valid"]

MOST_OVERLAPS = 1000


class Overlap(NamedTuple):
    """Two buffers that are live together on the same bytes, ``a < b`` in the problem's order."""

    a: int
    b: int
    first_step: int
    """First common step."""
    last_step: int
    """Last common step (inclusive)."""
    start: int
    """First common byte."""
    end: int
    """One past the last common byte."""


def meeting_rows(start: I64, end: I64, birth: I64, death: I64) -> set[tuple[int, int]]:
    """Pairs of rows that share bytes ``[start, end)`` at a step of ``[birth, death]`` (inclusive): at least one
    pair if there is any, empty when all are apart.

    A binary tree over steps: a row *covers* the O(log) nodes that make up its live range and lies *below*
    the nodes above them. Two rows meet in time exactly where one covers a node that the other covers or
    lies below, so that each node needs one sort by offset: O(K log T log K), a few NumPy calls a level.
    """
    busy = np.flatnonzero((end > start) & (birth <= death))
    rows = busy[np.argsort(start[busy], kind="stable")]
    start, end = start[rows], end[rows]
    if not np.any(end[:-1] > start[1:]):
        return set()  # all apart, whenever they live
    # births are the only steps at which a first meeting can happen: sparse times cost nothing
    points = np.unique(birth[rows])
    first = np.searchsorted(points, birth[rows])
    last = np.searchsorted(points, death[rows], side="right") - 1
    leaves = 1 << max(len(points) - 1, 1).bit_length()
    cover_node, cover_row = _cover(first + leaves, last + leaves)
    covered = np.zeros(2 * leaves, dtype=bool)
    covered[cover_node] = True
    below_node, below_row = _below(first + leaves, last + leaves, covered)

    count = len(rows)
    by_node = np.argsort(cover_node * count + cover_row)  # rows are in offset order
    node, row = cover_node[by_node], cover_row[by_node]
    pairs: set[tuple[int, int]] = set()

    def meet(a: I64, b: I64) -> None:
        hit = (start[a] < end[b]) & (start[b] < end[a])
        pairs.update(zip(rows[a[hit]].tolist(), rows[b[hit]].tolist(), strict=True))

    same = node[1:] == node[:-1]
    meet(row[:-1][same], row[1:][same])
    after = np.searchsorted(node * count + row, below_node * count + below_row)
    for at in (after - 1, after):
        inside = (at >= 0) & (at < len(node))
        at, r = at[inside], below_row[inside]
        same = node[at] == below_node[inside]
        meet(row[at[same]], r[same])
    return pairs


def _cover(left: I64, right: I64) -> tuple[I64, I64]:
    """The tree nodes whose spans make up each row's leaves ``left..right``, with the rows."""
    nodes, rows = [], []
    row = np.arange(len(left), dtype=np.int64)
    a, b = left.copy(), right + 1
    while len(row):
        odd = (a & 1) == 1
        nodes.append(a[odd])
        rows.append(row[odd])
        a = (a + 1) >> 1
        odd = (b & 1) == 1
        nodes.append(b[odd] - 1)
        rows.append(row[odd])
        b >>= 1
        left_over = a < b
        a, b, row = a[left_over], b[left_over], row[left_over]
    return np.concatenate(nodes), np.concatenate(rows)


def _below(left: I64, right: I64, covered: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """The covered tree nodes that hold some, not all, of their steps within each row's leaves."""
    nodes, rows = [], []
    row = np.arange(len(left), dtype=np.int64)
    level = 0
    a, b = left, right
    while len(a) and int(a[0]) > 1:
        level += 1
        a, b = a >> 1, b >> 1
        for p, other in ((a, None), (b, a)):
            part = covered[p] & (((p << level) < left) | (((p + 1) << level) - 1 > right))
            if other is not None:
                part &= p != other
            nodes.append(p[part])
            rows.append(row[part])
    empty = np.zeros(0, dtype=np.int64)
    return (np.concatenate(nodes), np.concatenate(rows)) if nodes else (empty, empty)


def overlaps(problem: Problem, offsets: Offsets, most: int = MOST_OVERLAPS) -> list[Overlap]:
    """Name every pair of buffers that share bytes at a common step, guards counted, in the problem's order; the
    first ``most`` of them. Near-linear where there is none, else O(K) a buffer."""
    end = offsets + problem.size + problem.guard
    if not meeting_rows(offsets, end, problem.birth, problem.death):
        return []
    found: list[Overlap] = []
    holds = end > offsets
    for i in np.flatnonzero(holds).tolist():
        rest = slice(i + 1, None)
        hit = holds[rest] & (offsets[rest] < end[i]) & (offsets[i] < end[rest])
        hit &= (problem.birth[rest] <= problem.death[i]) & (problem.birth[i] <= problem.death[rest])
        for j in (np.flatnonzero(hit) + i + 1).tolist():
            found.append(Overlap(i, j, int(max(problem.birth[i], problem.birth[j])), int(min(problem.death[i], problem.death[j])),
                                 int(max(offsets[i], offsets[j])), int(min(end[i], end[j]))))
            if len(found) == most:
                return found
    return found


def complaints(problem: Problem, offsets: Offsets) -> list[str]:
    """What is wrong with a placement, one line each; [] when it is valid."""
    offsets = np.asarray(offsets)
    if offsets.shape != (len(problem),) or offsets.dtype.kind != "i":
        return [f"offsets are {offsets.dtype}{list(offsets.shape)}, wanted int64[{len(problem)}]"]
    bad: list[str] = []
    for i in np.flatnonzero(offsets < 0).tolist():
        bad.append(f"buffer {i} is at {offsets[i]}, below 0")
    far = np.flatnonzero(offsets > MOST_BYTES).tolist()
    if far:  # an end past 64 bits would wrap, and the checks below with it
        return [*bad, *(f"buffer {i} is at {offsets[i]}, beyond {MOST_BYTES}" for i in far)]
    moved = (problem.fixed >= 0) & (offsets != problem.fixed)
    for i in np.flatnonzero(moved).tolist():
        bad.append(f"buffer {i} is at {offsets[i]}, fixed at {problem.fixed[i]}")
    for i in np.flatnonzero((offsets % problem.alignment != 0) & (problem.fixed < 0)).tolist():
        bad.append(f"buffer {i} is at {offsets[i]}, wanted a multiple of {problem.alignment[i]}")
    end = offsets + problem.size + problem.guard
    for i, j in sorted((min(p), max(p)) for p in meeting_rows(offsets, end, problem.birth, problem.death)):
        bad.append(" and ".join(f"buffer {k} [{offsets[k]}, {end[k]}) live [{problem.birth[k]}, {problem.death[k]}]"
                                for k in (i, j)) + " overlap")
    return bad


def require_valid(problem: Problem, offsets: Offsets, strategy: str) -> None:
    """Raise ``PlanError`` that names the strategy and its first mistakes, if there are any."""
    bad = complaints(problem, offsets)
    if bad:
        shown = "\n".join(f"  {line}" for line in bad[:10])
        raise PlanError(f"strategy {strategy!r} returned an invalid placement ({len(bad)} complaints):\n{shown}")
