"""What holds an arena up, and what its order costs at least: against plans made without it, and a formula written out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from planner_core import zoo
from planner_core.ir import Graph, Shape
from planner_core.ir.ops import Custom
from planner_core.memory import ArenaWidthPolicy, MemoryPlan, PlanOptions, holders, largest_step, plan_graph
from planner_core.memory.facts import facts_of
from planner_core.memory.rules import static_mask
from tests.planner_core.memory.checker import checked
from tests.planner_core.memory.graphs import graphs

IN_ORDER = PlanOptions.for_target("cpu", environ={})


def names(plan: MemoryPlan) -> list[str]:
    return [h.name for h in holders(plan)]



@pytest.mark.parametrize("option", ["pin_output_ancestors", "arena_no_reuse"])
def test_a_pin_is_named_with_the_arena_without_it(option: str) -> None:
    g = zoo.build("minilm", layers=2)
    free = checked(plan_graph(g, IN_ORDER), g)
    held = checked(plan_graph(g, IN_ORDER.replace(**{option: True})), g)
    (only,) = [h for h in holders(held) if h.options]
    assert (only.name, only.options, only.arena, only.arena_without) == (option, ((option, False),), held.arena_size, free.arena_size)
    assert only.held == held.arena_size - free.arena_size > 0.5 * held.arena_size
    assert [h for h in holders(free) if h.options] == []


def test_pins_that_hold_together_are_named_together() -> None:
    """Either alone frees nothing, since the other holds the same bytes; both together do."""
    g = zoo.build("minilm", layers=2)
    plan = checked(plan_graph(g, IN_ORDER.replace(pin_output_ancestors=True, arena_no_reuse=True)), g)
    assert "pin_output_ancestors + arena_no_reuse" in names(plan)
    found = next(h for h in holders(plan) if " + " in h.name)
    assert found.arena_without == plan_graph(g, IN_ORDER).arena_size


@pytest.mark.parametrize(("option", "name"), [("host_custom_inputs", "onnx.Anything"), ("onnx_hidden", "onnx.QMatMul")])
def test_rules_for_hosts_are_named(option: str, name: str) -> None:
    g = Graph("host")
    y = g.input("x", (256,))
    for _ in range(10):
        y = g.abs(g.neg(y))
    y = g.layer_norm(g.reshape(y, dims=(1, 256)), g.param("a", (256,)), g.param("b", (256,))) if option == "onnx_hidden" else y
    g.set_outputs(g.add(Custom(name, Shape.of((4,)), num_inputs=1), y))
    plan = checked(plan_graph(g, IN_ORDER.replace(**{option: True})), g)
    assert option in names(plan)
    assert option not in names(checked(plan_graph(g, IN_ORDER), g))


def test_widths_alignment_and_placement_are_named() -> None:
    from planner_core.ir import DType

    g = Graph("halves")
    y = g.input("x", (4096,), DType.F16)
    for _ in range(6):
        y = g.abs(g.neg(y))
    g.set_outputs(y)
    wide = checked(plan_graph(g, IN_ORDER.replace(width_policy=ArenaWidthPolicy.F32_UNIFORM)), g)
    found = next(h for h in holders(wide) if h.name == "width_policy=f32_uniform")
    assert found.arena_without == plan_graph(g, IN_ORDER.replace(width_policy=ArenaWidthPolicy.NATIVE)).arena_size
    coarse = checked(plan_graph(g, IN_ORDER.replace(alignment=1 << 16)), g)
    assert "alignment=65536" in names(coarse)


def test_always_on_rules_are_named_without_an_option() -> None:
    """An input that is read once and kept to the end holds its bytes for the whole run."""
    g = Graph("kept")
    x = g.input("x", (4096,))
    g.set_outputs(g.exp(g.abs(g.neg(x))))
    found = next(h for h in holders(checked(plan_graph(g, IN_ORDER), g)) if h.name == "boundaries")
    assert found.options == () and found.held >= 4096 * 4


def test_a_plan_without_its_graph_says_nothing() -> None:
    g = zoo.build("minilm", layers=1)
    plan = MemoryPlan.from_json(plan_graph(g, IN_ORDER).to_json())
    assert holders(plan) == [] and largest_step(plan) == (0, None)


def floor_of(g: Graph, plan: MemoryPlan) -> int:
    """``max_n Σ size + guard`` over the roots that a command touches or over the outputs, and what lives throughout."""
    f, static = facts_of(g), static_mask(g)
    sized = {i for i in range(len(g)) if plan.space[i] == 0 and plan.root[i] == i}
    whole = {i for i in sized if f.boundary[i] or static[i]}
    need = {i: int(plan.size[i] + plan.guard[i]) for i in sized - whole}

    def source(i: int) -> int:
        return g[i].inputs[0] if plan.elided[i] else i

    loads = [sum(need.get(int(plan.root[outs]), 0) for outs in set(map(int, plan.root[list(g.outputs)])))] if g.outputs else [0]
    for n in g.nodes:
        if f.parent[n.id] >= 0 or plan.elided[n.id]:
            continue
        touched = {int(plan.root[source(i)]) for i in n.inputs} | {int(plan.root[n.id])}
        loads.append(sum(need.get(r, 0) for r in touched))
    return sum(int(plan.size[i] + plan.guard[i]) for i in whole) + max(loads)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_the_order_floor_is_the_largest_step_and_below_every_bound(g: Graph) -> None:
    plan = checked(plan_graph(g, IN_ORDER), g)
    if plan.unknown.any():
        return
    assert largest_step(plan).nbytes == floor_of(g, plan)
    assert largest_step(plan).nbytes <= plan.arena_size
    merged = checked(plan_graph(g, IN_ORDER.replace(in_place=True)), g)
    assert largest_step(merged).nbytes <= merged.arena_size
