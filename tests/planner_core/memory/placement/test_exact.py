"""Exact search, improvement, the portfolio: optimal, anytime, deterministic, never worse than first fit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from planner_core.errors import PlanError
from planner_core.memory import lower_bound
from planner_core.memory.placement import Budget, Problem, Solution, available, compare, first_fit, solve
from planner_core.memory.placement.boxed import boxes
from planner_core.memory.placement.clock import Clock
from planner_core.memory.placement.draws import PATIENCE, Drawer
from planner_core.memory.placement.exact import IMPOSSIBLE, OPEN, Searcher
from planner_core.memory.placement.improve import IDEAL_PAIRS, layers
from planner_core.memory.placement.structure import pair_count, subproblem, with_fixed
from planner_core.memory.placement.windowed import window
from tests.planner_core.memory.placement.problems import apart, brute_force, problems, wide

GAP = Problem(*(np.asarray(c, dtype=np.int64) for c in (
    [0, 0, 0], [1, 1, 1], [1, 1, 70], [64, 64, 1], [0, 0, 0], [-1, -1, -1])))
"""72 bytes live at once; two of the three start at multiples of 64, so that no arena below 129 holds them."""


def tight(seed: int, cuts: int = 40, height: int = 240, steps: int = 24) -> Problem:
    """A rectangle cut into pieces by guillotine cuts: its height is optimal, and nothing is wasted at any step."""
    rng = np.random.default_rng(seed)
    pieces = [(0, steps, 0, height)]
    while len(pieces) < cuts:
        k = int(np.argmax([(b - a) * (d - c) * rng.random() for a, b, c, d in pieces]))
        a, b, c, d = pieces.pop(k)
        if (rng.random() < 0.5 and b - a > 1) or d - c < 2:
            if b - a < 2:
                pieces.append((a, b, c, d))
                continue
            x = int(rng.integers(a + 1, b))
            pieces += [(a, x, c, d), (x, b, c, d)]
        else:
            y = int(rng.integers(c + 1, d))
            pieces += [(a, b, c, y), (a, b, y, d)]
    rows = np.asarray(pieces)[rng.permutation(len(pieces))]
    return Problem.of(rows[:, 0], rows[:, 1] - 1, rows[:, 3] - rows[:, 2])


@settings(max_examples=150, deadline=None)
@given(problems(most=6, horizon=5) | problems(most=8, horizon=6, mixed=False) | problems(most=8, horizon=5, fixed=True))
def test_exact_is_brute_force(p: Problem) -> None:
    """Up to 8 buffers, with guards, mixed alignments and fixed offsets: the optimum, proved."""
    s = solve(p, "exact", work=10_000_000)
    assert apart(p, s.offsets)
    assert (s.arena_size, s.proven) == (brute_force(p), True)


@settings(max_examples=25, deadline=None)
@given(problems(most=12, mixed=False))
def test_nothing_beats_what_is_certified(p: Problem) -> None:
    found = [s for s in compare(p, [s for s in available() if s != "cp_sat"], work=50_000) if isinstance(s, Solution)]
    certified = [s.arena_size for s in found if s.proven]
    assert certified
    assert min(s.arena_size for s in found) == min(certified) == max(certified)


def test_a_gap_that_only_search_closes() -> None:
    """The bound rises above the live bytes, by search."""
    s = solve(GAP, "exact")
    assert lower_bound(GAP)[0] == 72
    assert (s.lower_bound, s.arena_size, s.proven, s.optimal) == (129, 129, True, "yes")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["exact", "auto"])
def test_tight_packings_are_found(name: str, seed: int) -> None:
    p = tight(seed)
    s = solve(p, name, work=3_000_000)
    assert (s.arena_size, s.proven) == (240, True)
    assert first_fit(p).max() > 0 and p.height(first_fit(p)) > 240


@pytest.mark.parametrize("name", ["exact", "auto", "improve", "windowed", "boxed"])
def test_never_worse_than_first_fit_and_deterministic(name: str) -> None:
    for seed in range(4):
        p = tight(seed, cuts=90, height=997)
        a, b = (solve(p, name, work=30_000, seed=seed) for _ in range(2))
        assert a.arena_size <= p.height(first_fit(p))
        assert a.offsets.tolist() == b.offsets.tolist()


def test_the_seed_matters_only_to_the_search() -> None:
    p = tight(1, cuts=120, height=9973)
    found = {solve(p, "exact", work=20_000, seed=s).arena_size for s in range(3)}
    assert all(lower_bound(p)[0] <= f <= p.height(first_fit(p)) for f in found)


@pytest.mark.parametrize("name", ["exact", "auto", "improve", "windowed", "boxed"])
def test_cancel_and_interruption_keep_the_best(name: str) -> None:
    """The best so far, and what stays unproven: the bound is below the arena."""
    p = tight(3, cuts=220, height=99_991, steps=60)
    solve(p, name, work=100_000)  # compiled by now
    calls = 0

    def cancel() -> bool:
        nonlocal calls
        calls += 1
        return calls > 5

    def interrupt() -> bool:
        if not cancel():
            return False
        raise KeyboardInterrupt

    for stop in (cancel, interrupt):
        calls = 0
        s = solve(p, name, seconds=60.0, cancel=stop)
        assert apart(p, s.offsets)
        assert s.arena_size <= p.height(first_fit(p))
        assert s.proven or s.optimal.startswith("gap ≤ ")


def test_a_capacity_ends_the_search_or_is_refused() -> None:
    p = tight(0)
    roomy = solve(p, "auto", capacity=p.height(first_fit(p)))
    assert roomy.arena_size == p.height(first_fit(p))
    assert solve(p, "auto", capacity=240).arena_size == 240
    with pytest.raises(PlanError, match=r"no placement fits 239 bytes: \d+ buffers live at step \d+ need 240"):
        solve(p, "auto", capacity=239)
    with pytest.raises(PlanError, match="a search over all of them proves at least 129"):
        solve(GAP, "exact", capacity=128)


def test_parts_are_solved_alone() -> None:
    """Where nothing is live between them, hundreds of tight parts are no harder than each."""
    parts = [tight(s, cuts=20) for s in range(12)]
    p = Problem.of(np.concatenate([q.birth + 100 * k for k, q in enumerate(parts)]),
                   np.concatenate([q.death + 100 * k for k, q in enumerate(parts)]),
                   np.concatenate([q.size for q in parts]))
    s = solve(p, "exact", work=20_000_000)
    assert (s.arena_size, s.proven) == (240, True)


def test_a_run_can_stop_anywhere_and_go_on() -> None:
    """Slices of one choice end where one long run ends."""
    p = tight(2, cuts=30)
    for capacity in (240, 239 + 1):
        runs = [Searcher(p).first_run(capacity, focused) for focused in (False, True)]
        for run in runs:
            clock = Clock(Budget(work=10**9))
            for _ in range(100_000):
                if run.go_on(1, clock) != OPEN:
                    break
            again = Searcher(p).first_run(capacity, run.focused)
            again.go_on(100_000, clock)
            assert (again.ended, again.registers[5]) == (run.ended, run.registers[5])
    assert Searcher(p).first_run(239, False).ended == IMPOSSIBLE


def test_draws_gather_around_what_got_far() -> None:
    """Runs that lean on size get far: draws near them come to dominate; every fourth stays free. What leads no further is forgotten."""
    drawer = Drawer(0)
    sizes = []
    for _ in range(240):
        draw = drawer.next()
        assert abs(sum(draw.weights) - 1) < 1e-9
        sizes.append(draw.weights[1])
        drawer.tell(draw, draw.weights[1])
    late = np.arange(120, 240)
    assert np.mean(np.asarray(sizes)[late[late % 4 != 0]]) > 0.8 > 0.5 > np.mean(np.asarray(sizes)[late[late % 4 == 0]])
    for _ in range(PATIENCE + 1):
        drawer.tell(drawer.next(), 0.5)
    assert max(d for d, _ in drawer.best) <= 0.5
    a, b = Drawer(1), Drawer(1)
    assert [a.next() for _ in range(9)] == [b.next() for _ in range(9)]


def test_fixed_walls_are_searched_around() -> None:
    """A tight packing with a third of its buffers fixed where they belong: found, and never moved."""
    p = tight(1, cuts=60)
    whole = solve(p, "exact", work=10_000_000)
    assert whole.arena_size == 240
    some = np.random.default_rng(0).random(len(p)) < 0.33
    held = with_fixed(p, np.where(some, whole.offsets, -1))
    s = solve(held, "exact", work=10_000_000)
    assert apart(held, s.offsets)
    assert (s.arena_size, s.proven) == (240, True)
    assert first_fit(held)[some].tolist() == whole.offsets[some].tolist()


def test_windows_and_boxes_lower_what_they_are_given() -> None:
    """Not only no worse: each finds something first fit does not."""
    p = tight(3, cuts=120, height=9973)
    first = p.height(first_fit(p))
    assert solve(p, "windowed", work=2_000_000).arena_size < first
    # three that live long, badly stacked by size, and short ones that need the room in one piece
    q = Problem.of([0, 0, 4, 0, 8, 2, 6], [9, 3, 9, 1, 9, 5, 7], [5, 7, 8, 6, 6, 4, 4])
    assert lower_bound(q)[0] <= solve(q, "boxed").arena_size <= q.height(first_fit(q))
    assert [len(b) for b in boxes(q)] == sorted({len(b) for b in boxes(q)})
    assert all(len(window(p, first_fit(p), most, np.random.default_rng(0))) >= most for most in (2, 24))


def test_layers_are_the_largest_buffers() -> None:
    p = wide(20_000, 60)
    found = layers(p)
    assert len(found) > 1
    for ids in found:
        assert p.size[ids].min() > np.delete(p.size, ids).max()
    pairs = [pair_count(subproblem(p, ids)) for ids in found]
    assert abs(np.log(pairs[0] / IDEAL_PAIRS)) == min(abs(np.log(k / IDEAL_PAIRS)) for k in pairs)


def test_improve_on_a_large_problem() -> None:
    p = wide(6_000, 40, seed=1)
    s = solve(p, "improve", seconds=5.0)
    assert s.arena_size < p.height(first_fit(p))


def test_without_numba_the_answers_are_the_same() -> None:
    """The plain inner loops, in a process with compilation off."""
    code = (
        "from tests.planner_core.memory.placement.test_exact import tight\n"
        "from planner_core.memory.placement import solve, jit\n"
        "assert not jit.COMPILED\n"
        "for name in ('exact', 'auto', 'improve', 'windowed', 'boxed'):\n"
        "    print(solve(tight(0, cuts=24), name, work=20_000, seed=1).offsets.tolist())\n")
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    plain = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    here = [str(solve(tight(0, cuts=24), name, work=20_000, seed=1).offsets.tolist())
            for name in ("exact", "auto", "improve", "windowed", "boxed")]
    assert plain.stdout.splitlines() == here


def test_cp_sat_agrees() -> None:
    pytest.importorskip("ortools")
    p = tight(4, cuts=16, height=60, steps=10)
    s = solve(p, "cp_sat", seconds=20)
    assert (s.arena_size, s.proven) == (60, True)
