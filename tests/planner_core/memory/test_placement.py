"""Spec §8: first fit, its ties, no reuse, the safety pass; lower bounds; ``Problem``'s errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.errors import PlanError
from planner_core.ir import Graph
from planner_core.memory import (
    STRATEGIES,
    Budget,
    PlanOptions,
    Problem,
    first_fit,
    first_fit_scan,
    lower_bound,
    plan_graph,
)
from tests.planner_core.memory.checker import checked
from tests.planner_core.memory.graphs import graphs, options


@st.composite
def problems(draw: st.DrawFn, most: int = 25, horizon: int = 12) -> Problem:
    count = draw(st.integers(0, most))
    birth = draw(st.lists(st.integers(0, horizon), min_size=count, max_size=count))
    span = draw(st.lists(st.integers(0, horizon), min_size=count, max_size=count))
    size = draw(st.lists(st.integers(0, 40) | st.sampled_from([64, 100, 1000]), min_size=count, max_size=count))
    guard = draw(st.lists(st.sampled_from([0, 0, 1, 13, 128]), min_size=count, max_size=count))
    align = draw(st.lists(st.sampled_from([1, 2, 8, 64, 256]), min_size=count, max_size=count))
    scale = draw(st.sampled_from([1, 1, 10**12]))  # sparse times cost nothing
    birth = [b * scale for b in birth]
    return Problem(*(np.asarray(c, dtype=np.int64) for c in (
        birth, [b + s * scale for b, s in zip(birth, span, strict=True)], size, align, guard, [-1] * count)))


def apart(p: Problem, offsets: np.ndarray) -> bool:
    for i, j in itertools.combinations(range(len(p)), 2):
        if p.birth[i] <= p.death[j] and p.birth[j] <= p.death[i] and p.size[i] + p.guard[i] and p.size[j] + p.guard[j]:
            a, b = (i, j) if offsets[i] <= offsets[j] else (j, i)
            if offsets[a] + p.size[a] + p.guard[a] > offsets[b]:
                return False
    return bool(np.all(offsets % p.alignment == 0) and np.all(offsets >= 0))


@settings(max_examples=400, deadline=None)
@given(problems())
def test_first_fit_is_the_plain_scan(p: Problem) -> None:
    """§8: the fast placement equals the definition, with mixed alignments and guards."""
    offsets = first_fit(p, Budget())
    assert offsets.tolist() == first_fit_scan(p, Budget()).tolist()
    assert apart(p, offsets)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(problems(most=80, horizon=40))
def test_first_fit_is_the_plain_scan_at_length(p: Problem) -> None:
    """§8: the same on larger problems."""
    assert first_fit(p, Budget()).tolist() == first_fit_scan(p, Budget()).tolist()


@settings(max_examples=80, deadline=None)
@given(graphs(), options(arena_no_reuse=False))
def test_first_fit_is_the_plain_scan_on_graphs(g: Graph, opts: PlanOptions) -> None:
    """§8: ``verify_placement`` re-derives every offset and finds no difference."""
    plan_graph(g, opts.replace(verify_placement=True))


def test_fixed_buffers_stay_where_they_are() -> None:
    p = Problem.of([0, 0, 0], [1, 1, 1], [10, 20, 30])
    p = Problem(p.birth, p.death, p.size, p.alignment, p.guard, np.asarray([15, -1, -1]))
    assert first_fit(p, Budget()).tolist() == first_fit_scan(p, Budget()).tolist() == [15, 55, 25]


def test_largest_first_ties_in_schedule_order() -> None:
    """§8: size, then schedule; each at the lowest aligned hole; ranges inclusive at both ends."""
    p = Problem.of([0, 0, 1, 3], [1, 2, 2, 3], [10, 30, 10, 30], alignment=16)
    # 30s first, in order: %1 at 0, %3 at 0 (born after 2); then the 10s: %0 at 32, %2 meets %0 at step 1
    assert first_fit(p, Budget()).tolist() == [32, 0, 48, 0]
    assert first_fit(Problem.of([0, 2], [1, 3], [8, 8]), Budget()).tolist() == [0, 0]
    assert first_fit(Problem.of([0, 1], [1, 3], [8, 8]), Budget()).tolist() == [0, 8]


def test_a_guard_counts_when_looking_for_a_hole() -> None:
    """§8: size + guard must fit."""
    p = Problem.of([0, 0], [0, 0], [64, 60], alignment=64, guard=[128, 0])
    assert first_fit(p, Budget()).tolist() == [0, 192]


def test_no_reuse_appends_by_size() -> None:
    """§8: with ``arena_no_reuse`` each buffer has its own bytes, in size order; no safety pass."""
    g = Graph()
    a = g.relu(g.input("x", (16,)))
    b = g.concat(a, a, axis=0)
    c = g.neg(b)
    g.set_outputs(c)
    plan = checked(plan_graph(g, PlanOptions(arena_no_reuse=True, alignment=64)), g)
    assert [int(plan.offset[i]) for i in (b, c, 0, a)] == [0, 128, 256, 448]
    assert plan.arena_size == 448 + 64
    assert plan.no_reuse


def test_the_safety_pass_moves_what_overlaps_its_input_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """§8: an output over its own input goes to a fresh slot at the end; the plan records it."""
    g = Graph()
    x = g.input("x", (16,))
    y = g.relu(x)
    g.set_outputs(y)
    monkeypatch.setitem(STRATEGIES, "first_fit", lambda p, b: np.zeros(len(p), dtype=np.int64))
    plan = plan_graph(g, PlanOptions())
    assert plan.safety_moves == (y,)
    assert plan.offset[y] == 64 + 128
    assert plan.arena_size == 256
    checked(plan, g)
    assert plan_graph(g, PlanOptions(arena_no_reuse=True)).safety_moves == ()


def test_the_safety_pass_sees_through_elided_transposes(monkeypatch: pytest.MonkeyPatch) -> None:
    """§2, §8: a folded matmul's own inputs include the transpose's source."""
    g = Graph()
    w = g.relu(g.input("w", (4, 4)))
    y = g.mm(g.input("x", (4, 4)), g.transpose(w, perm=(1, 0)))
    g.set_outputs(y)
    monkeypatch.setitem(STRATEGIES, "first_fit", lambda p, b: np.asarray([0, 192, 384, 192])[: len(p)])  # w0, w, x, y on w
    plan = plan_graph(g, PlanOptions(elide_bank_transposes=True))
    assert plan.safety_moves == (y,)
    checked(plan, g)


def test_verify_placement_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """§8: ``RLX_PLAN_VERIFY=1`` names the first buffer that differs."""
    g = Graph()
    g.set_outputs(g.relu(g.input("x", (16,))))
    monkeypatch.setitem(STRATEGIES, "first_fit", lambda p, b: first_fit_scan(p) + 64)
    with pytest.raises(PlanError, match=r"2 offsets differ from the plain scan, first Input x: got 64, wanted 0"):
        plan_graph(g, PlanOptions.inference({"RLX_PLAN_VERIFY": "1"}))


@settings(max_examples=150, deadline=None)
@given(problems(most=6))
def test_lower_bound_against_brute_force(p: Problem) -> None:
    """The bound's live-bytes part equals the largest sum over steps; it is never above any valid placement."""
    bound, step = lower_bound(p)
    exact = (p.size + p.guard).tolist()
    if len(set(p.alignment.tolist())) == 1:
        unit = int(p.alignment[0])
        best = 0
        for t in {*p.birth.tolist(), *p.death.tolist()}:
            live = [e for e, b, d in zip(exact, p.birth.tolist(), p.death.tolist(), strict=True) if b <= t <= d and e]
            rounded = [-(-e // unit) * unit for e in live]
            best = max(best, sum(rounded) - max((r - e for r, e in zip(rounded, live, strict=True)), default=0))
        assert bound == best
    low = min((p.height(first_order(p, order)) for order in itertools.permutations(range(len(p)))), default=0)
    assert bound <= low
    assert bound == 0 or step in range(int(p.death.max()) + 1)


def first_order(p: Problem, order: tuple[int, ...]) -> np.ndarray:
    """Lowest aligned hole in the order given."""
    offsets = np.zeros(len(p), dtype=np.int64)
    placed: list[int] = []
    for i in order:
        need, align = int(p.size[i] + p.guard[i]), int(p.alignment[i])
        rivals = [(int(offsets[j]), int(offsets[j] + p.size[j] + p.guard[j])) for j in placed
                  if p.birth[j] <= p.death[i] and p.birth[i] <= p.death[j] and p.size[j] + p.guard[j]]
        offsets[i] = next(c for c in sorted({0, *(-(-e // align) * align for _, e in rivals)})
                          if not need or all(c + need <= s or e <= c for s, e in rivals))
        placed.append(i)
    return offsets


def test_a_problem_refuses_what_is_no_problem() -> None:
    with pytest.raises(PlanError, match="birth ≤ death"):
        Problem.of([2], [1], [4])
    with pytest.raises(PlanError, match="power of two"):
        Problem.of([0], [1], [4], alignment=3)
    with pytest.raises(PlanError, match="problem column death"):
        Problem.of([0], [1, 2], [4])
