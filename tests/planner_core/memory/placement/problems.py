"""Problems for the placement tests: random ones, the corner cases, and a quadratic check of their own."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from planner_core.memory.placement import Problem


@st.composite
def problems(draw: st.DrawFn, most: int = 14, horizon: int = 8, mixed: bool = True, fixed: bool = False) -> Problem:
    """Random buffers. ``mixed``: guards and several alignments; ``fixed``: some buffers have their place."""
    count = draw(st.integers(0, most))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    birth, span = column(st.integers(0, horizon)), column(st.integers(0, horizon))
    size = column(st.integers(0, 12) | st.sampled_from([0, 64, 100]))
    guard = column(st.sampled_from([0, 0, 1, 13]) if mixed else st.just(0))
    align = column(st.sampled_from([1, 2, 8, 64]) if mixed else st.just(draw(st.sampled_from([1, 4]))))
    place = [-1] * count
    if fixed:
        at = 0
        for i in draw(st.permutations(range(count))):
            if draw(st.booleans()):
                at = -(-at // align[i]) * align[i]
                place[i] = at  # each above the last: they can't overlap
                at += size[i] + guard[i] + draw(st.integers(0, 20))
    return Problem(*(np.asarray(c, dtype=np.int64) for c in (
        birth, [b + s for b, s in zip(birth, span, strict=True)], size, align, guard, place)))


def corner(name: str) -> Problem:
    """The corner cases by name."""
    n = 12
    steps, ones = np.arange(n), np.ones(n, dtype=np.int64)
    return {
        "none": lambda: Problem.of([], [], []),
        "one": lambda: Problem.of([3], [5], [100], alignment=64, guard=128),
        "zero sizes": lambda: Problem.of(steps, steps + 3, 0 * ones),
        "equal sizes": lambda: Problem.of(steps, steps + 3, 8 * ones),
        "all overlap": lambda: Problem.of(0 * steps, n * ones, steps + 1),
        "no overlap": lambda: Problem.of(2 * steps, 2 * steps + 1, steps + 1),
        "huge alignment": lambda: Problem.of(steps, steps + 2, steps + 1, alignment=1 << 40),
        "sparse times": lambda: Problem.of(steps * 10**12, (steps + 2) * 10**12, steps + 1),
    }[name]()


CORNERS = ("none", "one", "zero sizes", "equal sizes", "all overlap", "no overlap", "huge alignment", "sparse times")


def apart(p: Problem, offsets: np.ndarray) -> bool:
    """Valid, pair by pair."""
    need = (p.size + p.guard).tolist()
    for i, j in itertools.combinations(range(len(p)), 2):
        if p.birth[i] <= p.death[j] and p.birth[j] <= p.death[i] and need[i] and need[j]:
            a, b = (i, j) if offsets[i] <= offsets[j] else (j, i)
            if offsets[a] + need[a] > offsets[b]:
                return False
    free = p.fixed < 0
    return bool(np.all(offsets[free] % p.alignment[free] == 0) and np.all(offsets >= 0)
                and np.all(offsets[~free] == p.fixed[~free]))


def brute_force(p: Problem) -> int:
    """The smallest arena: lowest aligned hole, over every order of the free ones. (Some order gives an optimal placement:
    take the one whose offsets' sum is smallest; in order of offset each lies in its lowest hole.)"""
    pinned = [(i, int(p.fixed[i])) for i in range(len(p)) if p.fixed[i] >= 0]
    need = (p.size + p.guard).tolist()
    base = max((at + need[i] for i, at in pinned), default=0)
    best = [p.height(stacked(p))]
    least = max((int((p.size + p.guard)[(p.birth <= t) & (t <= p.death)].sum()) for t in p.birth.tolist()), default=0)
    least = max(least, base)
    busy = [i for i in range(len(p)) if need[i] and p.fixed[i] < 0]

    def go(placed: list[tuple[int, int]], left: list[int], height: int) -> None:
        if height >= best[0] or best[0] == least:
            return
        if not left:
            best[0] = height
        for i in left:
            rivals = sorted((at, at + need[j]) for j, at in placed
                            if p.birth[j] <= p.death[i] and p.birth[i] <= p.death[j])
            a, at = int(p.alignment[i]), 0
            for start, end in rivals:
                if start - at >= need[i]:
                    break
                at = max(at, -(-end // a) * a)
            go([*placed, (i, at)], [j for j in left if j != i], max(height, at + need[i]))

    go([(i, at) for i, at in pinned if need[i]], busy, base)
    return best[0]


def stacked(p: Problem) -> np.ndarray:
    """Every free buffer above the last and above all fixed ones."""
    out, at = [], max((f + s + g for f, s, g in zip(p.fixed.tolist(), p.size.tolist(), p.guard.tolist(), strict=True)
                       if f >= 0), default=0)
    for size, guard, a, fixed in zip(p.size.tolist(), p.guard.tolist(), p.alignment.tolist(), p.fixed.tolist(), strict=True):
        if fixed >= 0 or size + guard == 0:
            out.append(max(fixed, 0))
            continue
        at = -(-at // a) * a
        out.append(at)
        at += size + guard
    return np.asarray(out, dtype=np.int64)


def wide(count: int, mean_life: int, seed: int = 0) -> Problem:
    """One birth a step, geometric lives, log-uniform sizes: the shape of a large unrolled graph."""
    rng = np.random.default_rng(seed)
    birth = np.arange(count)
    death = birth + rng.geometric(1 / mean_life, count) - 1
    return Problem.of(birth, death, (2 ** rng.uniform(6, 22, count)).astype(np.int64) // 64 * 64, alignment=64)
