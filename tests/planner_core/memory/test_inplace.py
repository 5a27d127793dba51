"""In-place reuse: legal hand-overs merge into one buffer, are recorded, and nothing else changes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import rlx_viz
from planner_core.ir import DType, Graph
from planner_core.ir.ops.region import region_steps
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


TWICE = "s0 = tanh(x0); s1 = mul(s0, x1); s2 = sub(s1, x0)"


def test_a_fused_region_takes_what_it_reads_in_step() -> None:
    """All of a dying operand, read at its own index however often, beside broadcast ones of other buffers."""
    g = Graph()
    x, row = g.input("x", (4, 8)), g.input("row", (8,))
    a = g.relu(x)
    b = g.elementwise_region(a, g.exp(row), steps=region_steps(TWICE))
    c = g.elementwise_region(g.reshape(b, dims=[4, 8]), b, steps=region_steps("s0 = add(x0, x1)"))
    g.set_outputs(c)
    assert checked(plan_graph(g, IN_PLACE), g).inplace == ((a, b), (b, c))
    assert plan_graph(g, IN_PLACE.replace(pin_output_ancestors=True)).inplace == ()  # as the option's help says


@pytest.mark.parametrize("case", ["broadcast", "part", "both", "prologue", "power", "read later", "dtype"])
def test_what_a_fused_region_does_not_take(case: str) -> None:
    """A broadcast or partial read meets bytes that were written over; a power reads while it writes."""
    g = Graph()
    x = g.input("x", (1, 2, 4, 8))
    a = g.relu(x)
    text, more = "s0 = add(x0, x1)", {}
    big = g.exp(g.input("big", (3, 2, 4, 8)))
    if case == "broadcast":  # as large as a's rows repeated: the result is larger
        ins = [a, g.input("more", (3, 2, 4, 8))]
    elif case == "part":
        ins = [g.narrow(big, axis=0, start=1, len=1), x]
    elif case == "both":  # a whole, and its first row again at every row
        half = g.reshape(g.narrow(g.reshape(a, dims=[8, 8]), axis=0, start=0, len=1), dims=[8])  # a view
        ins = [a, half]
    elif case == "prologue":
        ins, more = [a, g.input("up", (1, 2, 8, 16))], {"prologue": "nearest2x"}
    elif case == "power":
        ins, text = [a, x], "s0 = pow(x0, x1)"
    elif case == "read later":
        ins = [a, x]
    else:
        ins, text = [g.cast(a, to=DType.F16)], "s0 = relu(x0)"
    new = g.elementwise_region(*ins, steps=region_steps(text), **more)
    last = g.cast(new, to=DType.F32) if case == "dtype" else new
    g.set_outputs(*([g.mm(last, g.reshape(a, dims=[1, 2, 8, 4]))] if case == "read later" else [last]))
    plan = checked(plan_graph(g, IN_PLACE), g)
    assert (a, new) not in plan.inplace
    assert big not in {old for old, _ in plan.inplace}


def test_fused_runs_in_place_are_audited_clean_and_equal() -> None:
    """Regions that fusion makes, on a target whose rules make them and whose passes split them again."""
    g = Graph()
    x, w = g.input("x", (16, 32)), g.input("w", (32, 32))
    y = g.mm(x, w)
    for k in range(3):
        y = g.mm(g.mul(g.add(g.tanh(g.mul(y, x)), y), g.input(f"s{k}", (32,))), w)
    g.set_outputs(g.add(g.silu(g.sub(y, x)), x))
    rng = np.random.default_rng(0)
    feed = {n.name: rng.standard_normal(n.shape.sizes).astype(np.float32) for n in g.nodes if n.op.name == "Input"}
    taken = 0
    for target in ("cpu", "metal"):
        plain, reused = (rlx_viz.compile(g, in_place=flag, pin_output_ancestors=False, target=target) for flag in (False, True))
        taken += sum(reused.legal[new].op.name == "ElementwiseRegion" for _, new in reused.plan.inplace)
        assert reused.plan.arena_size <= plain.plan.arena_size
        for a, b in zip(plain.run(feed, sanitize=True).values(), reused.run(feed, sanitize=True).values(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert taken > 0


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
