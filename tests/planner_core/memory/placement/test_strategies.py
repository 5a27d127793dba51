"""Every strategy on every kind of problem, checked by two validators that share no code; the registry."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.errors import OptionError, PlanError
from planner_core.memory import PlanOptions, lower_bound
from planner_core.memory.bounds import bound_of
from planner_core.memory.placement import (
    DOCS,
    STRATEGIES,
    Budget,
    Failure,
    Problem,
    Solution,
    available,
    compare,
    complaints,
    first_fit_scan,
    solve,
    strategy,
)
from planner_core.memory.placement.fit import FITS, Placer, place, place_plain
from planner_core.memory.placement.greedy import ORDERS, order_of
from planner_core.memory.placement.structure import cliques_of, crowding, degrees, pair_count, split_in_time
from planner_core.options import options_of
from tests.planner_core.memory.placement.problems import CORNERS, apart, corner, problems, wide

WORK = 20_000
STACKS = ("xla", "tflite", "tflm", "usmp_size", "usmp_conflicts", "executorch", "onnxruntime", "ggml")


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("case", CORNERS)
def test_corner_cases(name: str, case: str) -> None:
    p = corner(case)
    s = solve(p, name, work=WORK)
    assert apart(p, s.offsets)
    assert s.arena_size == p.height(s.offsets) >= s.lower_bound >= lower_bound(p)[0]
    assert s.proven == (s.arena_size == s.lower_bound)
    if case in ("none", "one", "zero sizes", "no overlap") or (case == "all overlap" and name != "executorch"):
        assert s.proven, s


@pytest.mark.parametrize("name", available())
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_problems(name: str, data: st.DataObject) -> None:
    """Valid by the pairwise check, deterministic, and never below the bound; fixed buffers stay."""
    p = data.draw(problems() | problems(mixed=False) | problems(fixed=True))
    s = solve(p, name, work=WORK, seed=3)
    assert apart(p, s.offsets)
    assert s.lower_bound <= s.arena_size
    assert solve(p, name, work=WORK, seed=3).offsets.tolist() == s.offsets.tolist()


@settings(max_examples=200, deadline=None)
@given(problems() | problems(fixed=True), st.data())
def test_the_validator_agrees_with_the_pairwise_check(p: Problem, data: st.DataObject) -> None:
    offsets = np.asarray(data.draw(st.lists(st.integers(-1, 60), min_size=len(p), max_size=len(p))), dtype=np.int64)
    assert (complaints(p, offsets) == []) == apart(p, offsets)


def test_the_validator_says_what_is_wrong() -> None:
    p = Problem.of([0, 1], [2, 3], [8, 8], alignment=4)
    assert complaints(p, np.asarray([0, 4])) == ["buffer 0 [0, 8) live [0, 2] and buffer 1 [4, 12) live [1, 3] overlap"]
    assert complaints(p, np.asarray([0, 9])) == ["buffer 1 is at 9, wanted a multiple of 4"]
    assert complaints(p, np.asarray([0])) == ["offsets are int64[1], wanted int64[2]"]
    assert complaints(p, np.asarray([0.0, 8.0])) == ["offsets are float64[2], wanted int64[2]"]


@settings(max_examples=150, deadline=None)
@given(problems() | problems(fixed=True), st.sampled_from(FITS), st.sampled_from(ORDERS))
def test_compiled_lists_equal_the_tree(p: Problem, fit: str, order: str) -> None:
    """All three ways of placing in an order give the same offsets, for every fit rule."""
    from planner_core.memory.placement.fit import _leaves, _unit
    from planner_core.memory.placement.kernels import place_in_order
    from planner_core.memory.placement.structure import neighbours
    from planner_core.memory.placement.tree_kernel import place_by_tree

    o = order_of(p, order)
    o = o[np.argsort(p.fixed[o] < 0, kind="stable")]
    if len(p):
        ptr, near = neighbours(p)
        offsets = np.full(len(p), -1, dtype=np.int64)
        height = place_in_order(o, ptr, near, p.size + p.guard, p.alignment, p.fixed, FITS.index(fit), offsets)
        assert offsets.tolist() == place_plain(p, o, fit).tolist()
        assert height == p.height(offsets) or not np.any(p.size + p.guard)
        tree = np.zeros(len(p), dtype=np.int64)
        first, last, leaves = _leaves(p)
        place_by_tree(o, first, last, leaves, p.size + p.guard, p.alignment, p.fixed, _unit(p), FITS.index(fit), tree)
        assert tree.tolist() == offsets.tolist()


@settings(max_examples=100, deadline=None)
@given(problems())
def test_structure(p: Problem) -> None:
    """Neighbour counts, cliques, crowding and cuts, each against its definition."""
    n = len(p)
    meet = (p.birth[:, None] <= p.death[None]) & (p.birth[None] <= p.death[:, None]) & ~np.eye(n, dtype=bool)
    assert degrees(p).tolist() == meet.sum(1).tolist()
    assert pair_count(p) == meet.sum() // 2
    c = cliques_of(p)
    share = (c.first[:, None] <= c.last[None]) & (c.first[None] <= c.last[:, None]) & ~np.eye(n, dtype=bool)
    assert np.array_equal(share, meet)
    need = p.size + p.guard
    live = {t: int(need[(p.birth <= t) & (t <= p.death)].sum()) for t in range(40)}
    assert crowding(p).tolist() == [max(live[t] for t in range(b, d + 1)) for b, d in zip(p.birth, p.death, strict=True)]
    parts = split_in_time(p)
    assert sorted(i for part in parts for i in part.tolist()) == list(range(n))
    for a, b in itertools.pairwise(parts):
        assert p.death[a].max() < p.birth[b].min()


def test_stacks_do_what_their_sources_say() -> None:
    """One hole of 4 between 0 and 4 (above a 6 lies a 2), one of 3 above: who takes which."""
    #        big      low/high blocks          late small one
    p = Problem.of([0, 0, 0, 2], [1, 3, 3, 3], [10, 6, 5, 4])
    assert solve(p, "tflm").offsets.tolist() == [0, 10, 16, 0]
    assert solve(p, "usmp_size").offsets.tolist() == [0, 10, 16, 21]
    assert solve(p, "executorch").offsets.tolist() == [0, 10, 16, 0]
    assert solve(p, "onnxruntime").offsets.tolist() == [0, 10, 16, 0]
    online = Problem.of([0, 0, 0, 0, 0, 2], [1, 5, 1, 5, 5, 3], [4, 1, 4, 1, 9, 4])
    assert solve(online, "onnxruntime").offsets[5] == 0
    assert solve(online, "ggml").offsets[5] == 5
    two = Problem.of([0, 0, 2, 2], [1, 3, 3, 3], [4, 8, 4, 2])
    assert solve(two, "xla").arena_size == 14


def test_best_fit_takes_the_smallest_gap() -> None:
    p = Problem.of([0, 0, 0, 0, 2], [1, 9, 1, 9, 3], [6, 5, 4, 3, 4])  # holes [0, 6) and [11, 15) at step 2
    q = Problem(p.birth, p.death, p.size, p.alignment, p.guard, np.asarray([0, 6, 11, 15, -1]))
    assert solve(q, "best_fit").offsets[4] == 11
    assert solve(q, "first_fit").offsets[4] == 0


def test_every_strategy_is_documented_and_an_option() -> None:
    choices = next(o.choices for o in options_of(PlanOptions) if o.name == "placement")
    assert tuple(STRATEGIES) == choices == tuple(DOCS)
    assert choices[0] == PlanOptions().placement == "first_fit"
    assert all(d.endswith(".") for d in DOCS.values())
    assert set(STACKS) <= set(STRATEGIES)
    for fit in ("first_fit", "best_fit"):
        assert {fit, *(f"{fit}_{o}" for o in ORDERS if o != "size")} <= set(STRATEGIES)


@settings(max_examples=60, deadline=None)
@given(problems(most=20) | problems(most=20, fixed=True), st.sampled_from(["auto", "improve", "windowed", "boxed", "exact"]))
def test_searches_are_never_worse_than_first_fit(p: Problem, name: str) -> None:
    assert solve(p, name, work=WORK).arena_size <= p.height(first_fit_scan(p))


def test_bring_your_own_strategy() -> None:
    """A registered function is solved with, compared and an option; a wrong answer is named as its own."""
    @strategy("mine", "Everything in a row.")
    def mine(problem: Problem, budget: Budget) -> np.ndarray:
        return np.cumsum(problem.size) - problem.size

    try:
        p = Problem.of([0, 1], [2, 3], [8, 8])
        assert solve(p, "mine").arena_size == 16
        assert PlanOptions().replace(placement="mine").placement == "mine"
        with pytest.raises(PlanError, match="registered already"):
            strategy("mine", "Again.")(mine)
        STRATEGIES["mine"] = lambda problem, budget: 0 * problem.size
        with pytest.raises(PlanError, match="strategy 'mine' returned an invalid placement"):
            solve(p, "mine")
    finally:
        del STRATEGIES["mine"], DOCS["mine"]
    with pytest.raises(OptionError, match="no placement strategy 'mine'"):
        solve(Problem.of([0], [1], [4]), "mine")
    with pytest.raises(PlanError, match="no doc"):
        strategy("other", " ")
    with pytest.raises(PlanError, match="wanted letters"):
        strategy("my own", "Doc.")


def own(name: str, function: Any, **how: Any) -> Any:
    """A strategy for the length of a ``with``."""
    @contextlib.contextmanager
    def registered() -> Iterator[None]:
        strategy(name, "Of a test.", **how)(function)
        try:
            yield
        finally:
            STRATEGIES.pop(name)
            DOCS.pop(name)

    return registered()


@pytest.mark.parametrize(("returned", "shown"), [
    (np.asarray([0, 8]), r"int64\[2\]"), ((np.asarray([0, 8]), 2.5), r"\(int64\[2\], float\)"), (None, "NoneType"),
    ((np.asarray([0, 8]), 8, 1), r"\(int64\[2\], int, int\)"), ([0, 8], "list of 2"),
])
def test_a_prover_that_returns_something_else_is_named(returned: Any, shown: str) -> None:
    """Two offsets alone look like a pair; they are no pair."""
    with own("half", lambda p, b: returned, proves=True), pytest.raises(
            PlanError, match=rf"strategy 'half' is declared with proves=True and returned {shown}; wanted \(offsets, bound\)"):
        solve(Problem.of([0, 1], [2, 3], [8, 8]), "half")


def test_a_failing_strategy_is_a_row_and_the_others_go_on() -> None:
    p = Problem.of([0, 1], [2, 3], [8, 8])
    bad = {"raises": lambda q, b: 1 // 0, "ragged": lambda q, b: [[0], [1, 2]], "overlaps": lambda q, b: 0 * q.size}
    with contextlib.ExitStack() as stack:
        for name, fn in bad.items():
            stack.enter_context(own(name, fn))
        rows = compare(p, ["raises", "first_fit", "ragged", "overlaps", "auto"])
        with pytest.raises(PlanError, match="strategy 'raises' failed: ZeroDivisionError"):
            solve(p, "raises")
        with pytest.raises(OptionError, match="no placement strategy 'nobody'"):
            compare(p, ["first_fit", "nobody"])
    assert [r.strategy for r in rows] == ["raises", "first_fit", "ragged", "overlaps", "auto"]
    failed = [r for r in rows if isinstance(r, Failure)]
    assert [f.error.split(": ")[0].split(" (")[0] for f in failed] == [
        "strategy 'raises' failed", "strategy 'ragged' returned list of 2; wanted int64[2] offsets",
        "strategy 'overlaps' returned an invalid placement"]
    assert [r.arena_size for r in rows if isinstance(r, Solution)] == [16, 16]


def test_an_own_strategy_may_be_told_the_capacity() -> None:
    """``target=`` goes to those that ask for it; the budget has the four fields that all share."""
    seen: list[int] = []

    def aiming(p: Problem, budget: Budget, target: int) -> np.ndarray:
        seen.append(target)
        return np.cumsum(p.size) - p.size

    p = Problem.of([0, 1], [2, 3], [8, 8])
    with own("aiming", aiming, aims=True):
        solve(p, "aiming", capacity=100)
        solve(p, "aiming")
    assert seen == [100, 0]
    assert [f.name for f in dataclasses.fields(Budget)] == ["seconds", "work", "seed", "cancel"]


@pytest.mark.parametrize(("rows", "capacity", "message"), [
    (([0, 1], [2, 3], [8, 8], [0, 4]), None,
     r"buffer 0 fixed at \[0, 8\) live \[0, 2\] and buffer 1 fixed at \[4, 12\) live \[1, 3\] overlap"),
    (([0, 1], [2, 3], [8, 8], [96, -1]), 100, r"buffer 0 fixed at \[96, 104\) .* beyond the capacity of 100 bytes"),
    (([0, 1], [2, 3], [8, 8], [6, -1]), None, r"buffer 0 fixed at \[6, 14\) .* not a multiple of its alignment 4"),
])
@pytest.mark.parametrize("name", ["first_fit", "exact", "tflm"])
def test_contradictory_offsets_are_refused_up_front(name: str, rows: Any, capacity: int | None, message: str) -> None:
    """Named by buffer, whatever the strategy, which is not blamed."""
    birth, death, size, fixed = (np.asarray(c, dtype=np.int64) for c in rows)
    p = Problem(birth, death, size, np.full(2, 4), np.zeros(2, np.int64), fixed)
    with pytest.raises(PlanError, match=message) as e:
        solve(p, name, capacity=capacity)
    assert "strategy" not in str(e.value)


@pytest.mark.parametrize("fixed", [-7, -2, (1 << 62) + 1])
def test_only_minus_one_is_free(fixed: int) -> None:
    with pytest.raises(PlanError, match=rf"buffer 1: fixed at {fixed}; wanted an offset from 0 to .*, or -1 \(free\)"):
        Problem(*(np.asarray(c, dtype=np.int64) for c in ([0, 0], [1, 1], [4, 4], [1, 1], [0, 0], [-1, fixed])))


def test_a_bound_names_its_residents() -> None:
    p = Problem.of([0, 1, 4], [2, 3, 5], [8, 16, 3])
    assert (bound_of(p).nbytes, bound_of(p).step, bound_of(p).residents) == (24, 1, (1, 0))


def test_the_bound_uses_the_coarsest_alignment_at_each_step() -> None:
    """Where only 64-aligned buffers live their rounding counts, whatever lives at other steps."""
    p = Problem(*(np.asarray(c, dtype=np.int64) for c in (
        [0, 0, 0, 5], [1, 1, 1, 6], [65, 65, 65, 10], [64, 64, 64, 1], [0] * 4, [-1] * 4)))
    assert lower_bound(p)[0] == 128 + 128 + 65


def test_a_large_problem_stays_first_fit() -> None:
    """The compiled way of a large problem is the reference still."""
    p = wide(25_000, 8)
    order = order_of(p, "size")
    assert np.array_equal(place(p, order), place_plain(p, order))
    dense = wide(2_000, 1_500, seed=2)  # so many neighbours that the tree is compiled, not the lists
    order = order_of(dense, "size")
    placer = Placer(dense)
    assert placer.lists is None or not placer.compiled
    for fit in FITS:
        assert np.array_equal(placer.place(order, fit), place_plain(dense, order, fit))
    small = wide(400, 20)
    assert np.array_equal(place(small, order_of(small, "size")), first_fit_scan(small))


def test_a_strategy_can_neither_wrap_nor_write() -> None:
    """Offsets near 2^63 would wrap to a small arena; what a strategy does to its problem stays with it."""
    p = Problem.of([0, 0, 1], [1, 2, 2], [10, 20, 30])
    wrong = {"wraps": lambda q, b: np.asarray([0, 10, 2**63 - 5]), "unsigned": lambda q, b: np.asarray([0, 10, 2**63 + 5], np.uint64),
             "writes": lambda q, b: (q.size.fill(0), np.zeros(3, np.int64))[1]}
    for name, fn in wrong.items():
        strategy(name, "Wrong on purpose.")(fn)
        try:
            with pytest.raises(PlanError, match=name):
                solve(p, name)
        finally:
            STRATEGIES.pop(name)
        assert p.size.tolist() == [10, 20, 30]


def test_problems_beyond_64_bits_and_odd_arguments_are_refused() -> None:
    with pytest.raises(PlanError, match="would not fit 64 bits"):
        Problem.of([0] * 3, [1] * 3, [1 << 62] * 3)
    p = Problem.of([0], [1], [8])
    for kw in ({"seed": -1}, {"seconds": float("nan")}):
        with pytest.raises(PlanError, match="wanted a seed of 0 or more"):
            solve(p, **kw)


def test_a_claim_that_another_row_disproves_is_the_claimers_failure() -> None:
    """Its bound would stand beside every row, and ratios below 1 with it."""
    p = Problem.of([0, 2, 4], [0, 2, 4], [10, 10, 10])  # one after another: 10 bytes do

    def liar(problem: Problem, budget: Budget) -> tuple[np.ndarray, int]:
        offsets = np.cumsum(problem.size) - problem.size
        return offsets, problem.height(offsets)

    with own("liar", liar, proves=True):
        told, honest = compare(p, ["liar", "first_fit"])
    assert isinstance(told, Failure)
    assert "claims a bound of 30 bytes, above the arena of 10 that 'first_fit' has" in told.error
    assert isinstance(honest, Solution)
    assert (honest.lower_bound, honest.proven) == (10, True)


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from(FITS), st.sampled_from(ORDERS), st.sampled_from([1, 64]))
def test_a_stack_at_the_peak_is_what_the_tree_finds(p: Problem, fit: str, order: str, alignment: int) -> None:
    """What is placed without a look at the tree lies where the tree would put it; pinned plans lie so from end to end."""
    from planner_core.memory.placement import fit as module

    for death in (p.death, np.full(len(p), int(p.death.max(initial=0)))):  # as they are, and all kept to the end
        q = Problem.of(p.birth, death, p.size, alignment=alignment, guard=p.guard)
        o = order_of(q, order)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_at_the_peak", lambda _: None)
            want = place_plain(q, o, fit).tolist()
        assert place_plain(q, o, fit).tolist() == want
