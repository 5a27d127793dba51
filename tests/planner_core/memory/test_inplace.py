"""In-place reuse: legal hand-overs merge into one buffer, are recorded, and nothing else changes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import rlx_viz
from planner_core.ir import Graph
from planner_core.memory import PlanOptions, headline, plan_graph, verify_plan
from planner_core.memory.verify import ViolationKind
from tests.planner_core.memory.checker import checked, complaints
from tests.planner_core.memory.graphs import graphs, options

FREE = PlanOptions(pin_output_ancestors=False)
IN_PLACE = FREE.replace(in_place=True)


def chain(length: int = 5) -> tuple[Graph, list[int]]:
    g = Graph()
    x = g.input("x", (64,))
    ids = [g.relu(x)]
    for _ in range(length - 1):
        ids.append(g.exp(ids[-1]))
    g.set_outputs(ids[-1])
    return g, ids


def test_a_chain_is_one_buffer() -> None:
    g, ids = chain()
    plan = checked(plan_graph(g, IN_PLACE), g)
    assert plan.inplace == tuple(itertools.pairwise(ids))
    assert len({int(plan.offset[i]) for i in ids}) == 1
    assert plan.arena_size == 256 + 128 + 256 < plan_graph(g, FREE).arena_size
    assert plan.is_optimal
    assert plan.safety_moves == ()
    assert plan.slot_lives() == [(0, len(g)), (ids[0], len(g))]
    assert len(plan.problem()) == 2
    assert plan_graph(g, FREE).inplace == ()


def test_what_is_not_taken() -> None:
    """An input read later, a boundary, a broadcast operand, another size, a part of a buffer, no elementwise op."""
    g = Graph()
    x, w = g.input("x", (8, 8)), g.param("w", (8, 8))
    on_input = g.relu(x)
    late = g.exp(on_input)
    both = g.add(late, on_input)  # takes late or on_input: both die here, the first does
    wide = g.add(g.narrow(both, axis=0, start=0, len=1), both)  # reads row 0 of both again for every row
    product = g.mm(wide, w)
    half = g.narrow(product, axis=0, start=4, len=4)
    part = g.neg(half)
    g.set_outputs(g.sigmoid(part))
    plan = checked(plan_graph(g, IN_PLACE), g)
    assert plan.inplace == ((late, both), (part, part + 1))
    assert {on_input, wide, product, half, part}.isdisjoint({new for _, new in plan.inplace})


def test_an_illegal_record_is_an_overlap() -> None:
    """A matmul can't take its operand's bytes, recorded or not: both checkers say so."""
    g = Graph()
    a = g.relu(g.input("x", (8, 8)))
    b = g.mm(a, g.input("w", (8, 8)))
    g.set_outputs(b)
    plan = plan_graph(g, FREE)
    offset = plan.offset.copy()
    offset[b] = offset[a]
    forged = dataclasses.replace(plan, offset=offset, inplace=((a, b),))
    assert ViolationKind.OVERLAP in {v.kind for v in verify_plan(g, forged)}
    assert complaints(forged, g)


@settings(max_examples=200, deadline=None)
@given(graphs(), options(arena_no_reuse=False, in_place=True))
def test_random_graphs_in_place(g: Graph, opts: PlanOptions) -> None:
    """Sound by both checkers; the numbers at the top still add up; JSON keeps the record."""
    plan = checked(plan_graph(g, opts), g)
    h = headline(plan)
    assert h.padding >= 0
    assert h.allocate == h.weights + h.activations + h.scratch + h.padding
    assert plan.lower_bound <= plan.arena_size
    assert type(plan).from_json(plan.to_json()).inplace == plan.inplace


def test_its_own_row_in_the_waterfall() -> None:
    g, _ = chain(6)
    plan = plan_graph(g, IN_PLACE.replace(alignment=1))
    row = next(s for s in plan.savings() if s.name == "in_place")
    assert row.delta < 0
    assert sum(s.delta for s in plan.savings()) == plan.arena_size + plan.weights_size


def test_it_runs_the_same() -> None:
    """The executor computes the same with outputs over inputs."""
    g = Graph()
    x = g.input("x", (4, 32))
    y = g.gelu(g.mul(g.silu(g.exp(g.relu(x))), x))
    g.set_outputs(g.sub(g.tanh(y), x))
    values = {"x": np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)}
    plain, reused = (rlx_viz.compile(g, in_place=flag, fusion=False) for flag in (False, True))
    assert len(reused.plan.inplace) >= 4
    assert reused.plan.arena_size < plain.plan.arena_size
    for a, b in zip(plain.run(values).values(), reused.run(values).values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("placement", ["auto", "exact", "best_fit", "executorch"])
def test_any_placement_with_any_options(placement: str) -> None:
    """A plan by another strategy is sound, no larger than first fit where that is promised, and says how good it is."""
    g, _ = chain(9)
    plan = checked(plan_graph(g, IN_PLACE.replace(placement=placement)), g)
    reference = plan_graph(g, IN_PLACE)
    assert placement == "executorch" or plan.arena_size <= reference.arena_size
    assert plan.optimal == "yes" if plan.is_optimal else plan.optimal.startswith("gap ≤ ")


@settings(max_examples=40, deadline=None)
@given(graphs(), options(arena_no_reuse=False, placement="auto"))
def test_random_graphs_placed_by_auto(g: Graph, opts: PlanOptions) -> None:
    plan = checked(plan_graph(g, opts), g)
    assert plan.arena_size <= plan_graph(g, opts.replace(placement="first_fit")).arena_size
