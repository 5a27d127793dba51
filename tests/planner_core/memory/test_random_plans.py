"""Random graphs × random options: every plan passes both checkers, and every broken plan fails both."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.ir import Graph
from planner_core.memory import MemoryPlan, PlanOptions, plan_graph, verify_plan
from tests.planner_core.memory.checker import checked, complaints
from tests.planner_core.memory.graphs import graphs, options


def _sound(graph: Graph, opts: PlanOptions) -> None:
    plan = checked(plan_graph(graph, opts), graph)
    assert MemoryPlan.from_json(plan.to_json(), graph) == plan
    assert plan.lower_bound <= plan.arena_size
    assert plan.bytes_saved >= 0
    assert plan.safety_moves == ()


@settings(max_examples=250, deadline=None)
@given(graphs(), options())
def test_every_plan_is_sound(graph: Graph, opts: PlanOptions) -> None:
    """§1–§10 at once."""
    _sound(graph, opts)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(graphs(max_steps=60), options())
def test_every_plan_is_sound_at_length(graph: Graph, opts: PlanOptions) -> None:
    """§1–§10 at once, longer."""
    _sound(graph, opts)


COLUMNS = ("birth", "death", "offset", "size", "guard", "space", "elided", "root", "view_offset", "unknown")


def _broken(data: st.DataObject, plan: MemoryPlan) -> MemoryPlan:
    """A copy of the plan with a few entries changed."""
    columns = {c: getattr(plan, c).copy() for c in COLUMNS}
    count = len(plan.birth)
    for _ in range(data.draw(st.integers(1, 3))):
        column, node = data.draw(st.sampled_from(COLUMNS)), data.draw(st.integers(0, count - 1))
        now = int(columns[column][node])
        if column == "space":
            new = data.draw(st.integers(0, 2))
        elif column in ("elided", "unknown"):
            new = not now
        elif column in ("birth", "death"):
            new = data.draw(st.integers(0, count))
        elif column == "root":
            new = data.draw(st.integers(0, count - 1))
        else:
            new = data.draw(st.sampled_from([0, 1, now - 1, now + 1, now + 4, *columns[column].tolist()]))
        columns[column][node] = new
    sizes = {s: getattr(plan, s) for s in ("arena_size", "weights_size")}
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(sizes)))
        sizes[name] = max(0, sizes[name] - data.draw(st.integers(1, 300)))
    return dataclasses.replace(plan, **columns, **sizes)


def _caught(data: st.DataObject, graph: Graph, opts: PlanOptions) -> None:
    plan = _broken(data, plan_graph(graph, opts))
    wrong = complaints(plan, graph)
    if wrong:
        assert verify_plan(graph, plan) != [], wrong


@settings(max_examples=250, deadline=None)
@given(st.data(), graphs(max_steps=12), options())
def test_verify_reports_whatever_the_checker_does(data: st.DataObject, graph: Graph, opts: PlanOptions) -> None:
    """§10: a broken plan never passes."""
    _caught(data, graph, opts)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(st.data(), graphs(max_steps=30), options())
def test_verify_reports_whatever_the_checker_does_at_length(data: st.DataObject, graph: Graph, opts: PlanOptions) -> None:
    """§10: a broken plan never passes, longer."""
    _caught(data, graph, opts)


@settings(max_examples=60, deadline=None)
@given(graphs(max_steps=12), options())
def test_savings_and_headline_add_up(graph: Graph, opts: PlanOptions) -> None:
    """The waterfall ends at the plan's bytes, the headline's parts are the number to allocate."""
    from planner_core.memory import headline

    plan = plan_graph(graph, opts)
    steps = plan.savings()
    assert steps[0].before == 0
    assert all(a.after == b.before for a, b in itertools.pairwise(steps))
    assert sum(s.delta for s in steps) == plan.arena_size + plan.weights_size
    for scratch in (0, 100):
        h = headline(plan, scratch)
        assert h.allocate == h.weights + h.activations + h.scratch + h.padding
        assert min(h.weights, h.activations, h.scratch, h.padding) >= 0
        assert h.allocate == plan.arena_size + plan.weights_size + max(plan.scratch_size, scratch)
        assert h.saved == h.naive - plan.arena_size >= 0


def test_random_graphs_reach_what_the_tests_are_about() -> None:
    """The strategy is worth its name: each of these ops is common."""
    seen: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(graphs())
    def collect(graph: Graph) -> None:
        seen.update({n.op.name for n in graph.nodes})

    collect()
    for name in ("Narrow", "Reshape", "Cast", "KvAppend", "GroupedMatMul", "MatMul", "Transpose", "Result", "If",
                 "Attention", "Conv3d", "Custom", "DequantMatMul", "Gather"):
        assert seen[name], name
