"""Spec §9 the plan and its forms, §11 the facts, edge cases, explanations and diffs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings

from planner_core.errors import PlanError, UnboundDimError
from planner_core.ir import DType, Graph, Shape
from planner_core.ir.ops import Custom, If, Loop
from planner_core.memory import (
    RULES,
    ArenaWidthPolicy,
    MemoryPlan,
    PlanOptions,
    diff_plans,
    first_fit_scan,
    headline,
    last_rule,
    live_curve,
    match_nodes,
    naive_bytes,
    plan_graph,
    plan_memory,
    plan_memory_aligned,
    plan_memory_native,
    plan_memory_native_in_order,
)
from planner_core.memory.problem import Problem
from tests.planner_core.memory.checker import checked
from tests.planner_core.memory.graphs import graphs, options

BARE = PlanOptions(pin_output_ancestors=False, dequant_host_fallback=False)


def small() -> Graph:
    """0 x, 1 relu, 2 reshape (view), 3 neg, 4 exp, 5 add(4, 3)."""
    g = Graph("small")
    x = g.input("x", (4, 8))
    a = g.relu(x)
    v = g.reshape(a, dims=(32,))
    b = g.neg(v)
    c = g.exp(b, name="c")
    return g.set_outputs(g.add(c, b))


def test_report() -> None:
    """§9: golden text: header, columns, rows by offset, size, node; the last guard counts in the arena."""
    g = small()
    plan = checked(plan_graph(g, BARE), g)
    assert plan.report() == (
        "# arena_size=640 total_unshared=768 saved=128\n"
        "# offset\tsize\tnode\n"
        "0\t128\t%0\n"
        "256\t128\t%1\n"
        "256\t128\t%2\n"
        "256\t128\t%4\n"
        "384\t128\t%3\n"
        "512\t128\t%5\n")


def test_report_with_weights() -> None:
    """§9: the weight region's rows follow the arena's."""
    g = Graph()
    g.set_outputs(g.mm(g.input("x", (1, 4)), g.param("w", (4, 4))))
    assert checked(plan_graph(g, BARE.replace(separate_weights=True)), g).report() == (
        "# arena_size=208 total_unshared=32 saved=0\n# offset\tsize\tnode\n0\t16\t%0\n192\t16\t%2\n"
        "# weights_size=192\n0\t64\t%1\n")


def test_numbers() -> None:
    """§9: total_unshared counts views, not guards; saved is never negative."""
    g = small()
    plan = checked(plan_graph(g, BARE), g)
    assert plan.total_unshared_bytes == 6 * 128
    assert plan.bytes_saved == 768 - 640
    pinned = checked(plan_graph(g, PlanOptions()), g)
    assert pinned.arena_size > pinned.total_unshared_bytes - 128 and pinned.bytes_saved >= 0
    one = Graph()
    one.set_outputs(one.input("x", (1,)))
    assert checked(plan_memory(one), one).bytes_saved == 0, "4 bytes and a guard of 128"
    assert list(plan.schedule) == list(range(6)) and plan.last_step == 6


def test_json_round_trip_and_equality() -> None:
    """§9: saving and loading back gives an equal plan; reading does not recompute."""
    g = small()
    plan = checked(plan_graph(g, PlanOptions.inference({"RLX_PLAN_VERIFY": "1"}, fold_conv3d_epilogue=True)), g)
    back = MemoryPlan.from_json(plan.to_json(), g)
    assert back == plan and back.options.env == (("RLX_PLAN_VERIFY", "1"),)
    assert back.report() == plan.report() and back.peak() == plan.peak() and back.savings() == plan.savings()
    assert plan.peak() is plan.peak() and plan.savings() is plan.savings()
    assert plan != plan_graph(g, PlanOptions()) and plan != "a plan"
    alone = MemoryPlan.from_json(plan.to_json())
    assert alone == plan and alone.why_alive(1)[0].text == "%1 is produced at step 1"
    with pytest.raises(PlanError, match=r"loaded without its graph; use MemoryPlan.from_json\(text, graph=…\)"):
        alone.savings()


@pytest.mark.parametrize(("text", "message"), [
    ("{", "can't read the plan: JSONDecodeError"),
    ("[]", "can't read the plan: TypeError"),
    ("{}", "can't read the plan: KeyError 'format'"),
    ('{"format":"x","version":1}', "not a plan of this version: 'x' 1"),
])
def test_damaged_json(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        MemoryPlan.from_json(text)


def test_json_with_a_part_missing() -> None:
    value = json.loads(plan_memory(small()).to_json())
    for key in value:
        with pytest.raises(PlanError):
            MemoryPlan.from_json(json.dumps({k: v for k, v in value.items() if k != key}))


# --- §11 ------------------------------------------------------------------------------------------------


def test_a_zero_length_input_gets_a_slot() -> None:
    """§11: f32 [1,0,8] gets at least 64 bytes."""
    g = Graph()
    g.set_outputs(g.relu(g.input("x", (1, 0, 8))))
    assert checked(plan_memory(g), g).assignments[0].size >= 64


def test_a_small_arena_is_bounded() -> None:
    """§11: at most the sum of its slots + 128 × their number."""
    g = small()
    for plan in (plan_memory(g), plan_memory_native(g), plan_graph(g, PlanOptions(arena_no_reuse=True))):
        checked(plan, g)
        assert plan.arena_size <= plan.total_unshared_bytes + 128 * len(plan.assignments)


def layers(count: int) -> Graph:
    g = Graph("layers")
    x = g.input("x", (1, 64))
    for i in range(count):
        width = 32 + i % 7 * 16
        h = g.relu(g.mm(x, g.param(f"a{i}", (64, width))))
        x = g.mm(h, g.param(f"b{i}", (width, 64)))
    return g.set_outputs(x)


def test_two_hundred_layers() -> None:
    """§11: alternating widths at alignment 128: sweep equals scan, more than 400 slots, no overlap."""
    g = layers(200)
    for opts in (BARE.replace(alignment=128), PlanOptions(alignment=128)):
        plan = checked(plan_graph(g, opts), g)
        assert len(plan.assignments) > 400
        ids = plan.buffers()
        problem = Problem.of(plan.birth[ids], plan.death[ids], plan.size[ids], alignment=128, guard=plan.guard[ids])
        assert first_fit_scan(problem).tolist() == plan.offset[ids].tolist()


def test_int64_output_forbids_reuse() -> None:
    """§11: with only a float output reuse; with an int64 output beside it nothing is reused."""
    g = Graph()
    x = g.input("x", (64,))
    h = x
    for _ in range(6):
        h = g.relu(g.neg(h))
    floats = g.set_outputs(h)
    plan = checked(plan_memory_native(floats), floats)
    assert not plan.no_reuse and len({int(plan.offset[i]) for i in plan.buffers()}) < len(plan.buffers())
    g.set_outputs(h, g.argmax(x, axis=0))
    plan = checked(plan_memory_native(g), g)
    assert plan.no_reuse and len({int(plan.offset[i]) for i in plan.buffers()}) == len(plan.buffers())


# --- edges ------------------------------------------------------------------------------------------------


def test_empty_graph() -> None:
    g = Graph()
    plan = checked(plan_memory(g), g)
    assert (plan.arena_size, plan.total_size, plan.bytes_saved, len(plan.assignments), plan.lower_bound) == (0, 0, 0, 0, 0)
    assert plan.report() == "# arena_size=0 total_unshared=0 saved=0\n# offset\tsize\tnode\n"
    assert plan.peak().nbytes == 0 and plan.peak().tensors == ()
    assert headline(plan).allocate == 0 and sum(s.delta for s in plan.savings()) == 0
    assert MemoryPlan.from_json(plan.to_json(), g) == plan


def test_output_that_is_an_input() -> None:
    g = Graph()
    x = g.input("x", (4,))
    g.set_outputs(x)
    plan = checked(plan_memory(g), g)
    assert (plan.birth[x], plan.death[x], plan.arena_size) == (0, 1, 16 + 128)


def test_the_same_output_twice() -> None:
    g = small()
    once = plan_graph(g, BARE)
    g.set_outputs(5, 5, 5)
    assert checked(plan_graph(g, BARE), g) == once


def test_one_element_tensors() -> None:
    g = Graph()
    g.set_outputs(g.relu(g.mul(g.input("x", ()), g.constant(2.0))))
    plan = checked(plan_memory_aligned(g, 1), g)
    assert [s.size for s in plan.assignments.values()] == [4, 4, 4, 4]
    assert plan.arena_size == 2 * (4 + 128) + 8


def test_an_unbound_symbol_is_an_error_that_names_it() -> None:
    g = Graph()
    g.set_outputs(g.relu(g.input("x", ("B", 4))))
    with pytest.raises(UnboundDimError, match=r"dim B of f32\[B, 4\] has no value; bind its symbol"):
        plan_memory(g)
    bound = g.bind({"B": 3})
    assert checked(plan_memory(bound), bound).assignments[0].size == 48


def test_scratch_of_if_is_the_larger_branch() -> None:
    """Control flow: the larger branch's arena; captures live outside."""
    then_body, else_body = Graph("then"), Graph("else")
    then_body.set_outputs(then_body.relu(then_body.input("y", (16,))))
    y = else_body.input("y", (16,))
    else_body.set_outputs(else_body.neg(else_body.exp(else_body.concat(y, y, axis=0))))
    big, little = (plan_graph(b, PlanOptions(), unallocated=frozenset([0])).total_size for b in (else_body, then_body))
    assert little < big
    g = Graph()
    cond, x = g.input("cond", (), DType.BOOL), g.input("x", (16,))
    node = g.add(If(Shape.of((32,)), then_body, else_body), cond, x)
    g.set_outputs(g.relu(node))
    plan = checked(plan_memory(g), g)
    assert plan.scratch_size == big
    assert plan.total_size == plan.arena_size + big
    assert headline(plan).scratch == big and headline(plan, 10 * big).scratch == 10 * big


def test_scratch_of_a_loop_holds_its_own_states() -> None:
    """Control flow: a loop body's iteration, condition and states are its own, captures are not."""
    body = Graph("body")
    it, cond = body.input("i", (), DType.I64), body.input("c", (), DType.BOOL)
    state, captured = body.input("s", (16,)), body.input("w", (1000,))
    body.set_outputs(cond, body.add(state, body.narrow(captured, axis=0, start=0, len=16)))
    g = Graph()
    trip, go = g.input("n", (), DType.I64), g.input("go", (), DType.BOOL)
    loop = g.add(Loop(Shape.of((16,)), body, 1), trip, go, g.input("s", (16,)), g.input("w", (1000,)))
    g.set_outputs(loop)
    plan = checked(plan_memory(g), g)
    inner = plan_graph(body, plan.options, unallocated=frozenset([captured]))
    assert plan.scratch_size == inner.total_size < 4000
    assert {it, cond, state} <= set(inner.assignments) and captured not in inner.assignments


def test_scratch_of_a_loop_does_not_depend_on_where_graph_inputs_live() -> None:
    """``allocate_inputs`` is about the graph's own inputs; nobody else holds a body's iteration and states."""
    body = Graph("body")
    _, cond, state = body.input("i", (), DType.I64), body.input("c", (), DType.BOOL), body.input("s", (16,))
    body.set_outputs(cond, body.neg(body.relu(state)))
    g = Graph()
    trip, go = g.input("n", (), DType.I64), g.input("go", (), DType.BOOL)
    g.set_outputs(g.add(Loop(Shape.of((16,)), body, 1), trip, go, g.input("s", (16,))))
    inside, outside = (checked(plan_graph(g, PlanOptions(allocate_inputs=a)), g) for a in (True, False))
    assert inside.scratch_size == outside.scratch_size > 0


# --- explanations -----------------------------------------------------------------------------------------


def test_why_alive() -> None:
    """Every rule that set an end, with the node that caused it."""
    g = small()
    plan = checked(plan_graph(g, BARE), g)
    assert [(r.rule, r.step, r.cause) for r in plan.why_alive(1)] == [("produced", 1, 1), ("last read", 3, 3)]
    assert plan.why_alive(1)[1].text == "last read through its view %2 by %3 at step 3"
    assert [(r.rule, r.step, r.cause) for r in plan.why_alive(0)] == [("produced", 0, 0), ("last read", 1, 1), ("boundaries", 6, 0)]
    assert [(r.rule, r.step, r.cause) for r in plan.why_alive(5)] == [("produced", 5, 5), ("outputs", 6, 5)]
    assert plan.why_alive(5)[1].text == ("kept to step 6 (was 5) because of %5: A graph output and the buffer it shows "
                                         "live to the last step.")


def test_why_alive_of_an_elided_transposes_source() -> None:
    g = Graph()
    w = g.relu(g.input("w", (6, 6)))
    t = g.transpose(w, perm=(1, 0))
    y = g.mm(g.input("x", (6, 6)), t)
    g.set_outputs(y)
    plan = checked(plan_memory_native_in_order(g), g)
    assert [(r.rule, r.step, r.cause) for r in plan.why_alive(w)] == [("produced", w, w), ("last read", y, y)]


def test_why_alive_of_a_result() -> None:
    g = Graph()
    c = g.add(Custom("split", Shape.of((2,)), num_outputs=2), g.input("x", (4,)), name="split")
    n = g.neg(c)
    r = g.result(c, index=1, shape=Shape.of((2,)))
    g.set_outputs(g.mul(n, r))
    plan = checked(plan_graph(g, BARE), g)
    assert plan.why_alive(r)[0].text == "%3 is produced by split at step 1"


@settings(max_examples=60, deadline=None)
@given(graphs(max_steps=15), options())
def test_reasons_account_for_both_ends(g: Graph, opts: PlanOptions) -> None:
    """The last reason for each end of a range is its value, and every extension chains onto the one before."""
    plan = plan_graph(g, opts)
    rules = last_rule(plan)
    for n in range(len(g)):
        death, birth = int(plan.last_read[n]), None
        for e in plan.extensions_of(n):
            if e.birth:
                assert e.new < e.old and (birth is None or e.old == birth)
                birth = e.new
            else:
                assert e.old == death < e.new
                death = e.new
        assert death == plan.death[n] and (birth is None or birth == plan.birth[n])
        named = {e.rule for e in plan.extensions_of(n) if not e.birth}
        assert (RULES[rules[n]].name in named) if rules[n] >= 0 else not named
        steps = [r.step for r in plan.why_alive(n)]
        root = int(plan.root[n])
        if root == n and g[n].op.name != "Result":  # an unread result lives to its own step, which nothing asks for
            assert (min(steps), max(steps)) == (plan.birth[n], plan.death[n])


@settings(max_examples=60, deadline=None)
@given(graphs(max_steps=15), options())
def test_why_here_names_the_blockers(g: Graph, opts: PlanOptions) -> None:
    """Below a slot every hole that fits is taken by a buffer that is named."""
    plan = plan_graph(g, opts)
    for n in plan.buffers().tolist():
        reasons = plan.why_here(n)
        need, a, at = int(plan.size[n] + plan.guard[n]), opts.alignment, 0
        for r in reasons:
            assert r.offset < plan.offset[n] and r.node != n
            assert plan.no_reuse or (r.birth <= plan.death[n] and plan.birth[n] <= r.death)
            assert plan.no_reuse or r.offset - at < need, "a hole that would have held it"
            at = max(at, -(-r.end // a) * a)
        assert at == plan.offset[n]


def test_peak_and_curve() -> None:
    """Step, bytes, every tensor live there, largest first, each with the rule that keeps it."""
    g = small()
    plan = checked(plan_graph(g, BARE), g)
    assert live_curve(plan).tolist() == [128, 256, 256, 384, 384, 512, 256]
    peak = plan.peak()
    assert (peak.step, peak.nbytes) == (5, 512)
    assert [(t.node, t.label, t.nbytes, t.rule) for t in peak.tensors] == [
        (0, "x", 128, "boundaries"), (3, "%3", 128, "read"), (4, "c", 128, "read"), (5, "%5", 128, "outputs")]


def test_savings_waterfall() -> None:
    """Naive → views → reuse → width → elided transposes → each option, in a fixed order."""
    g = Graph()
    x = g.input("x", (64, 64), DType.F16)
    h = g.reshape(g.neg(g.relu(x)), dims=(64 * 64,))
    g.set_outputs(g.exp(g.abs(g.sin(h))))
    plan = checked(plan_graph(g, BARE.replace(width_policy=ArenaWidthPolicy.NATIVE)), g)
    steps = plan.savings()
    size = 64 * 64 * 4
    assert [s.name for s in steps] == ["every tensor its own bytes", "views", "reuse", "width policy", "elided transposes"]
    assert steps[0].after == 7 * size + 128
    assert steps[1].delta == -size
    assert steps[2].delta == -3 * size, "the input and two of the five others are live at once"
    assert steps[3].delta == -3 * size // 2
    assert steps[-1].after == plan.total_size
    assert naive_bytes(plan) == 6 * size // 2 + 128


def test_savings_show_what_a_pin_costs() -> None:
    """An option that keeps tensors alive is a step upward, after reuse got its credit."""
    g = Graph()
    x = g.input("x", (1024,))
    g.set_outputs(g.exp(g.abs(g.sin(g.neg(x)))))
    steps = checked(plan_graph(g, BARE.replace(pin_output_ancestors=True)), g).savings()
    assert [(s.name, s.delta) for s in steps[2:]] == [
        ("reuse", -2 * 4096), ("width policy", 0), ("elided transposes", 0), ("pin_output_ancestors", 2 * 4096)]


def test_headline() -> None:
    """The number to allocate = weights + activations + scratch + padding."""
    g = layers(4)
    plan = checked(plan_graph(g, BARE.replace(separate_weights=True)), g)
    h = headline(plan, scratch=1000)
    assert h.weights == sum(g[p].shape.nbytes for p in g.params)
    assert h.allocate == h.weights + h.activations + 1000 + h.padding == plan.arena_size + plan.weights_size + 1000
    assert (h.arena, h.lower_bound, h.naive - h.arena) == (plan.arena_size, plan.lower_bound, h.saved)
    assert h.padding >= 8 * 128 + 128


def test_headline_of_a_plan_without_reuse() -> None:
    g = small()
    h = headline(checked(plan_graph(g, BARE.replace(arena_no_reuse=True)), g))
    assert (h.activations, h.peak_bytes, h.saved, h.naive) == (4 * 128, 4 * 128, 0, h.arena)
    assert h.padding == h.arena - 4 * 128


# --- diffs --------------------------------------------------------------------------------------------------


def test_diff_of_equal_plans_is_empty() -> None:
    d = diff_plans(plan_memory(small()), plan_memory(small()))
    assert (d.changes, d.only_a, d.only_b, d.options, d.arena_delta) == ((), (), (), (), 0)


def test_diff_says_what_changed_and_why() -> None:
    """What moved, grew, shrank, lives longer or shorter, and which rule or option explains it."""
    g = small()
    a, b = plan_graph(g, BARE), plan_graph(g, BARE.replace(pin_output_ancestors=True))
    d = diff_plans(a, b)
    assert d.options == (("pin_output_ancestors", False, True),)
    assert d.arena_delta == b.arena_size - a.arena_size == 128
    by_node = {c.a: c for c in d.changes}
    assert by_node[1].kinds == ("longer",)
    assert by_node[1].causes == ("rule output_ancestors", "pin_output_ancestors: False -> True")
    assert "moved" in by_node[4].kinds
    back = {c.a: c.kinds for c in diff_plans(b, a).changes}
    assert back[1] == ("shorter",)
    wide = diff_plans(plan_graph(half(), BARE.replace(width_policy=ArenaWidthPolicy.NATIVE)), plan_graph(half(), BARE))
    assert all("grew" in c.kinds for c in wide.changes) and wide.options[0][0] == "width_policy"
    lost = diff_plans(a, plan_graph(g, BARE.replace(allocate_inputs=False)))
    assert next(c for c in lost.changes if c.a == 0).kinds == ("lost",)


def half() -> Graph:
    g = Graph()
    return g.set_outputs(g.relu(g.input("x", (64,), DType.F16)))


def test_diff_of_two_graphs() -> None:
    """Matched by name, then source, then structure; what has no match is listed."""
    a = small()
    b = Graph("other")
    x = b.input("x", (4, 8))
    h = b.neg(b.reshape(b.relu(x), dims=(32,)))
    c = b.exp(h, name="c")
    b.set_outputs(b.mul(c, h))
    pairs = match_nodes(a, b)
    assert pairs == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    d = diff_plans(plan_memory(a), plan_memory(b))
    assert (d.only_a, d.only_b) == ((5,), (5,))
    with pytest.raises(PlanError, match="diff_plans needs both plans' graphs"):
        diff_plans(MemoryPlan.from_json(plan_memory(a).to_json()), plan_memory(b))


def test_diff_of_graphs_with_bodies() -> None:
    """Structure includes what is in a body."""

    def make(kind: str) -> Graph:
        body = Graph("body")
        body.set_outputs(getattr(body, kind)(body.input("y", (4,))))
        g = Graph()
        cond, x = g.input("cond", (), DType.BOOL), g.input("x", (4,))
        return g.set_outputs(g.add(If(Shape.of((4,)), body, body), cond, x))

    assert match_nodes(make("relu"), make("relu")) == {0: 0, 1: 1, 2: 2}
    assert match_nodes(make("relu"), make("neg")) == {0: 0, 1: 1}


def test_plan_columns_are_arrays() -> None:
    """The plan is columns, one entry a node, built once."""
    g = small()
    plan = plan_memory(g)
    assert all(isinstance(getattr(plan, c), np.ndarray) and len(getattr(plan, c)) == len(g) for c in MemoryPlan._COLUMNS)
    assert g.uses is g.uses
