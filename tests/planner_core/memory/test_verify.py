"""Spec §10: every kind of broken plan is caught with the right violation; sound plans pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.errors import PlanError
from planner_core.ir import DType, Graph, Shape
from planner_core.ir.ops import Custom, If
from planner_core.memory import (
    NO_SLOT,
    WEIGHTS,
    MemoryPlan,
    PlanOptions,
    ViolationKind,
    plan_graph,
    require_sound,
    verify_plan,
)
from tests.planner_core.memory.checker import checked, complaints

K = ViolationKind


def model() -> tuple[Graph, dict[str, int], MemoryPlan]:
    """x, w → mm → reshape → narrow → chain of unary ops; an elided transpose; a result."""
    g = Graph()
    n: dict[str, int] = {}
    n["x"] = g.input("x", (8, 8))
    n["w"] = g.param("w", (8, 8))
    n["mm"] = g.mm(n["x"], n["w"])
    n["view"] = g.reshape(n["mm"], dims=(64,))
    n["narrow"] = g.narrow(n["view"], axis=0, start=16, len=48)
    n["a"] = g.relu(n["narrow"])
    n["b"] = g.neg(n["a"])
    n["c"] = g.exp(n["b"])
    n["source"] = g.sin(n["x"])
    n["t"] = g.transpose(n["source"], perm=(1, 0))
    n["gap"] = g.cos(n["c"])
    n["folded"] = g.mm(n["x"], n["t"])
    n["split"] = g.add(Custom("split", Shape.of((4,)), num_outputs=2), n["gap"])
    n["result"] = g.result(n["split"], index=1, shape=Shape.of((4,)))
    n["sum"] = g.add(n["split"], n["result"])
    n["pack"] = g.relu(n["w"])
    n["last"] = g.mul(n["folded"], n["pack"])
    g.set_outputs(n["last"], n["sum"])
    plan = plan_graph(g, PlanOptions(pin_output_ancestors=False, elide_bank_transposes=True, separate_weights=False))
    return g, n, checked(plan, g)


def changed(plan: MemoryPlan, **columns: dict[int, Any] | int) -> MemoryPlan:
    new: dict[str, Any] = {}
    for name, v in columns.items():
        if isinstance(v, dict):
            new[name] = getattr(plan, name).copy()
            for i, x in v.items():
                new[name][i] = x
        else:
            new[name] = v
    return dataclasses.replace(plan, **new)


MUTATIONS: dict[str, tuple[Callable[[MemoryPlan, dict[str, int]], MemoryPlan], set[K]]] = {
    "shifted slot": (lambda p, n: changed(p, offset={n["b"]: p.offset[n["a"]] + 64}), {K.OVERLAP}),
    "slot on its input": (lambda p, n: changed(p, offset={n["last"]: p.offset[n["folded"]]}), {K.OVERLAP}),
    "shortened range": (lambda p, n: changed(p, death={n["a"]: n["b"] - 1}), {K.READ_AFTER_DEATH}),
    "range ends at a view, not its reader": (lambda p, n: changed(p, death={n["mm"]: n["narrow"]}), {K.READ_AFTER_DEATH}),
    "late birth": (lambda p, n: changed(p, birth={n["c"]: n["c"] + 1}), {K.READ_BEFORE_BIRTH}),
    "late birth behind a view": (lambda p, n: changed(p, birth={n["mm"]: n["view"]}), {K.READ_BEFORE_BIRTH}),
    "result born at its own step": (lambda p, n: changed(p, birth={n["result"]: n["result"]}), {K.READ_BEFORE_BIRTH}),
    "range turned round": (lambda p, n: changed(p, birth={n["c"]: n["c"] + 1}, death={n["c"]: n["c"]}),
                           {K.READ_BEFORE_BIRTH, K.READ_AFTER_DEATH}),
    "param born late": (lambda p, n: changed(p, birth={n["w"]: 1}), {K.READ_BEFORE_BIRTH}),
    "param freed after its last read": (lambda p, n: changed(p, death={n["w"]: n["pack"]}), {K.READ_AFTER_DEATH}),
    "input freed": (lambda p, n: changed(p, death={n["x"]: n["folded"]}), {K.READ_AFTER_DEATH}),
    "static pack made late": (lambda p, n: changed(p, birth={n["pack"]: n["pack"]}), {K.READ_BEFORE_BIRTH}),
    "dropped view": (lambda p, n: changed(p, space={n["narrow"]: NO_SLOT}), {K.MISSING_SLOT}),
    "dropped slot": (lambda p, n: changed(p, space={n["b"]: NO_SLOT}), {K.MISSING_SLOT}),
    "dropped unread slot": (lambda p, n: changed(p, space={n["last"]: NO_SLOT}), {K.MISSING_SLOT}),
    "swapped offsets": (lambda p, n: changed(p, offset={n["x"]: p.offset[n["c"]], n["c"]: p.offset[n["x"]]}),
                        {K.OVERLAP, K.GUARD_OVERRUN}),
    "overrun guard": (lambda p, n: changed(p, offset={n["result"]: p.offset[n["x"]] + 256}), {K.GUARD_OVERRUN}),
    "guard dropped": (lambda p, n: changed(p, guard={n["x"]: 0}), {K.UNDERSIZED}),
    "misaligned": (lambda p, n: changed(p, offset={n["last"]: p.arena_size + 4}, arena_size=p.arena_size + 300),
                   {K.MISALIGNED}),
    "outside the arena": (lambda p, n: changed(p, offset={n["last"]: p.arena_size}), {K.OUT_OF_REGION}),
    "before the arena": (lambda p, n: changed(p, offset={n["last"]: -6400}), {K.OUT_OF_REGION}),
    "arena without its last guard": (lambda p, n: changed(p, arena_size=p.arena_size - 1), {K.OUT_OF_REGION}),
    "view past its root": (lambda p, n: changed(p, size={n["narrow"]: 196}), {K.VIEW_OUT_OF_ROOT}),
    "view moved": (lambda p, n: changed(p, offset={n["narrow"]: p.offset[n["mm"]]}), {K.VIEW_OUT_OF_ROOT}),
    "view of another root": (lambda p, n: changed(p, root={n["narrow"]: n["a"]}), {K.VIEW_OUT_OF_ROOT}),
    "view in the other region": (lambda p, n: changed(p, space={n["narrow"]: WEIGHTS}, weights_size=10**6),
                                 {K.VIEW_OUT_OF_ROOT}),
    "shrunk slot": (lambda p, n: changed(p, size={n["b"]: 4}), {K.UNDERSIZED}),
    "narrowed storage": (lambda p, n: changed(p, storage={n["b"]: 2}, size={n["b"]: 96}), {K.UNDERSIZED}),
    "weights region overlap": (lambda p, n: changed(p, space={n["w"]: WEIGHTS, n["pack"]: WEIGHTS},
                                                    offset={n["w"]: 0, n["pack"]: 0}, weights_size=1000), {K.OVERLAP}),
    "elided source freed too early": (lambda p, n: changed(p, death={n["source"]: n["t"]}), {K.READ_AFTER_DEATH}),
    "elided without being so": (lambda p, n: changed(p, elided={n["b"]: True}, space={n["b"]: NO_SLOT}), {K.MISSING_SLOT}),
    "output killed before the end": (lambda p, n: changed(p, death={n["last"]: n["last"]}), {K.READ_AFTER_DEATH}),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_broken_plans_are_caught(what: str) -> None:
    """§10: the right violation types, and nothing else; the quadratic checker agrees."""
    g, n, plan = model()
    mutate, kinds = MUTATIONS[what]
    broken = mutate(plan, n)
    found = verify_plan(g, broken)
    assert {v.kind for v in found} == kinds, [v.message for v in found]
    assert what == "narrowed storage" or complaints(broken, g)


def test_every_violation_kind_is_met() -> None:
    assert {k for _, kinds in MUTATIONS.values() for k in kinds} == set(ViolationKind)


def test_messages_say_what_and_where() -> None:
    g, n, plan = model()
    (v,) = verify_plan(g, changed(plan, space={n["b"]: NO_SLOT}))
    assert (v.node, v.other, v.message) == (n["b"], -1, "%6 Activation needs 192 bytes, has no slot")
    (v,) = verify_plan(g, changed(plan, death={n["a"]: n["a"]}))
    assert v.message == "%5 Activation dies at step 5, needed at 6"
    with pytest.raises(PlanError, match=r"the plan of 'graph' is not sound \(1 violations\):\n  MISSING_SLOT: %6 Activation"):
        require_sound(g, changed(plan, space={n["b"]: NO_SLOT}))
    with pytest.raises(PlanError, match="the plan is for 17 nodes, 'graph' has 0"):
        verify_plan(Graph(), plan)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 30), st.integers(0, 12), st.booleans()),
                min_size=2, max_size=30))
def test_overlaps_hidden_behind_short_neighbours(rows: list[tuple[int, int, int, int, bool]]) -> None:
    """§10: any rectangles at all, guards included: reported exactly when two of them meet."""
    g = Graph()
    nodes = [g.input(f"x{i}", (1,)) for i in range(len(rows))]
    g.set_outputs(nodes[0])
    plan = plan_graph(g, PlanOptions(alignment=1))
    birth, span, offset, size, guarded = (np.asarray(c) for c in zip(*rows, strict=True))
    plan = dataclasses.replace(plan, birth=birth, death=birth + span, offset=offset, size=size, arena_size=1000,
                               guard=np.where(guarded, 3, 0))
    end = offset + size + plan.guard
    meet = {(i, j) for i in range(len(rows)) for j in range(i)
            if birth[i] <= plan.death[j] and birth[j] <= plan.death[i] and offset[i] < end[j] and offset[j] < end[i]
            and end[i] > offset[i] and end[j] > offset[j]}
    found = [v for v in verify_plan(g, plan) if v.kind in (K.OVERLAP, K.GUARD_OVERRUN)]
    assert bool(found) == bool(meet)
    assert {(max(v.node, v.other), min(v.node, v.other)) for v in found} <= meet


def inplace() -> tuple[Graph, MemoryPlan, int, int, int]:
    """relu(x) handed over to neg in place: recorded like a view."""
    g = Graph()
    x = g.input("x", (16,))
    a = g.relu(x)
    b = g.neg(a)
    c = g.exp(b)
    g.set_outputs(c)
    plan = plan_graph(g, PlanOptions(pin_output_ancestors=False, arena_no_reuse=True))
    return g, changed(plan, offset={b: plan.offset[a]}), a, b, c


def test_recorded_in_place_reuse_is_no_violation() -> None:
    """§10: in-place reuse is recorded as an alias and not reported; unrecorded it is an overlap."""
    g, plan, a, b, _c = inplace()
    assert [(v.kind, v.node, v.other) for v in verify_plan(g, plan)] == [(K.OVERLAP, a, b)]
    recorded = dataclasses.replace(plan, inplace=((a, b),))
    assert verify_plan(g, recorded) == [] and complaints(recorded, g) == []


def test_in_place_reuse_hides_nothing_else() -> None:
    """§10: the alias covers its own pair, at the hand-over step only."""
    g, plan, a, b, c = inplace()
    recorded = dataclasses.replace(plan, inplace=((a, b),))
    assert {v.kind for v in verify_plan(g, changed(recorded, offset={c: plan.offset[b]}))} == {K.OVERLAP}
    assert {v.kind for v in verify_plan(g, changed(recorded, death={a: c}))} == {K.OVERLAP}
    over_input = changed(recorded, offset={b: plan.offset[0] + 64, a: plan.offset[0] + 64})
    assert K.GUARD_OVERRUN in {v.kind for v in verify_plan(g, over_input)}


def test_a_body_with_captures_checks_itself() -> None:
    """§10: a body's captured inputs live outside its plan; checking it says nothing about them."""
    g, body = Graph(), Graph("body")
    body.set_outputs(body.neg(body.relu(body.input("y", (4,)))))
    cond, x = g.input("cond", (), DType.BOOL), g.input("x", (4,))
    g.set_outputs(g.add(If(Shape.of((4,)), body, body), cond, x))
    checked(plan_graph(g, PlanOptions(verify_memory=True)), g)
