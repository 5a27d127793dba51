"""Owns what strategies ask about a problem: when buffers meet, how crowded their steps are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner_core.memory.placement.jit import loops
from planner_core.memory.problem import I64, Problem

__all__ = ["Cliques", "cliques_of", "crowding", "degrees", "neighbours", "pair_count", "split_in_time", "subproblem", "with_fixed"]


def pair_count(problem: Problem) -> int:
    """Pairs of buffers that are live together."""
    return int(degrees(problem).sum()) // 2


def degrees(problem: Problem) -> I64:
    """How many others each buffer is live together with: all, less those dead before and born after."""
    dead = np.searchsorted(np.sort(problem.death), problem.birth, side="left")
    unborn = len(problem) - np.searchsorted(np.sort(problem.birth), problem.death, side="right")
    return np.asarray(len(problem) - 1 - dead - unborn, dtype=np.int64)


def neighbours(problem: Problem) -> tuple[I64, npt.NDArray[np.int32]]:
    """``(ptr, near)``: the buffers live together with ``i`` are ``near[ptr[i]:ptr[i + 1]]``. Size: twice the pairs."""
    ptr = np.zeros(len(problem) + 1, dtype=np.int64)
    np.cumsum(degrees(problem), out=ptr[1:])
    near = np.empty(int(ptr[-1]), dtype=np.int32)
    by_birth = np.argsort(problem.birth, kind="stable")
    loops(len(near) * 2e-7).kernels.fill_neighbours(by_birth, problem.birth, problem.death, ptr[:-1].copy(), near)
    return ptr, near


@dataclass(frozen=True, slots=True)
class Cliques:
    """Maximal sets of buffers live at one step, in time order; buffer ``i`` is in ``first[i]..last[i]``.
    Two buffers meet exactly where they share a clique."""

    first: I64
    last: I64
    count: int
    step: I64

    def sums(self, weight: I64) -> I64:
        """Sum of a weight over the members of each clique."""
        delta = np.zeros(self.count + 1, dtype=np.int64)
        np.add.at(delta, self.first, weight)
        np.add.at(delta, self.last + 1, -weight)
        return np.cumsum(delta[:-1])

    def highest(self, value: I64) -> I64:
        """Per buffer: the largest value among its cliques (a sparse table of range maxima)."""
        table = [np.asarray(value)]
        width = 1
        while 2 * width <= self.count:
            table.append(np.maximum(table[-1][:-width], table[-1][width:]))
            width *= 2
        span = self.last - self.first + 1
        level = np.frexp(span.astype(np.float64))[1] - 1
        out = np.empty(len(span), dtype=np.asarray(value).dtype)
        for k in np.unique(level).tolist():
            here = level == k
            out[here] = np.maximum(table[k][self.first[here]], table[k][self.last[here] - (1 << k) + 1])
        return out


def cliques_of(problem: Problem) -> Cliques:
    """The maximal cliques: births that some death follows before the next birth."""
    births = np.unique(problem.birth)
    deaths = np.sort(problem.death)
    if not len(births):
        return Cliques(births, births, 0, births)
    after = np.append(np.searchsorted(deaths, births[1:]), len(deaths))
    step = births[np.searchsorted(deaths, births) < after]
    first = np.searchsorted(step, problem.birth)
    last = np.searchsorted(step, problem.death, side="right") - 1
    return Cliques(first, last, len(step), step)


def crowding(problem: Problem) -> I64:
    """Per buffer: most bytes live at any step of its life."""
    c = cliques_of(problem)
    return c.highest(c.sums(problem.size + problem.guard)) if c.count else np.zeros(0, dtype=np.int64)


def subproblem(problem: Problem, ids: I64) -> Problem:
    """The problem of some of its buffers."""
    return Problem(problem.birth[ids], problem.death[ids], problem.size[ids], problem.alignment[ids],
                   problem.guard[ids], problem.fixed[ids])


def with_fixed(problem: Problem, fixed: I64) -> Problem:
    """The same buffers, other ones fixed."""
    return Problem(problem.birth, problem.death, problem.size, problem.alignment, problem.guard, fixed)


def split_in_time(problem: Problem) -> list[I64]:
    """Groups of buffers between steps where nothing is live: problems of their own. In time order."""
    if not len(problem):
        return []
    order = np.argsort(problem.birth, kind="stable")
    reach = np.maximum.accumulate(problem.death[order])
    cuts = np.flatnonzero(problem.birth[order][1:] > reach[:-1]) + 1
    return [np.sort(part) for part in np.split(order, cuts)]
