"""Mutations of plans, weights, passes and rules: each is caught, and the report names thunk, tensor, byte and culprit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.memory import MemoryPlan, PlanOptions
from runtime import (
    CommandList,
    Compilation,
    CompileOptions,
    HostExecutor,
    PassOptions,
    PrecisionPolicy,
    SanitizeError,
    compile_graph,
    lower_graph,
)
from runtime.command_list import register_kernel
from runtime.passes import Flow
from tests.runtime.gallery import as_written
from tests.runtime.passes.lab import feed_of
from tests.runtime.passes.test_mutations import CASES as UNCHECKED
from tests.runtime.passes.test_mutations import TIGHT
from tests.tamper import writable

PLAIN = CompileOptions(fusion=no_fusion(), passes=PassOptions.none(), plan=PlanOptions(separate_weights=True))


def layers() -> Graph:
    """Two products whose params are 64 bytes each, so that slots in the weights touch; relu lives longest."""
    g, rng = Graph("layers"), np.random.default_rng(0)
    w = [g.param(f"w{k}", (4, 4), data=rng.standard_normal((4, 4)).astype(np.float32)) for k in range(2)]
    x = g.input("x", (4, 4))
    a = g.relu(x, name="a")
    b = g.mm(a, w[0], name="b")
    c = g.mm(b, w[1], name="c")
    g.set_outputs(g.add(c, a, name="d"))
    return g


def made() -> Compilation:
    return compile_graph(layers(), PLAIN)


def found(commands: CommandList, **more: Any) -> SanitizeError:
    """What the audit says of a list, which otherwise runs clean."""
    g = layers()
    assert made().run(feed_of(g), sanitize=True)
    with pytest.raises(SanitizeError) as caught:
        HostExecutor(commands, more.get("weights", g.weights)).run(feed_of(g), sanitize=True)
    e = caught.value
    assert e.blame
    assert e.blame in str(e)
    return e


def relowered(change: Callable[[MemoryPlan, Graph], None]) -> CommandList:
    """The list of a plan that was tampered with."""
    c = made()
    plan = writable(c.plan)
    change(plan, c.legal)
    return lower_graph(c.legal, plan)


def thunk(commands: CommandList, node: str) -> int:
    """Index of the thunk of a named node."""
    return next(i for i, n in enumerate(commands.node_of) if commands.node_names[n].endswith(f"'{node}'"))


def with_operand(field: str, node: str, **change: Any) -> tuple[CommandList, int]:
    c = made().commands
    i = thunk(c, node)
    t: Any = c.thunks[i]
    return replace(c, thunks=(*c.thunks[:i], replace(t, **{field: replace(getattr(t, field), **change)}), *c.thunks[i + 1 :])), i


# --- reads and writes in another's slot ---------------------------------------------------------------


def test_a_read_of_another_live_slot_is_caught() -> None:
    """``c`` reads ``a``, alive, defined and as large, where the graph gives it ``b``."""
    whole = made().commands
    a = next(s for s in whole.slots if s.name == "a")
    field = next(f for f, _, o in whole.thunks[thunk(whole, "c")].operands() if o.space == "arena")
    commands, i = with_operand(field, "c", offset=a.offset)
    e = found(commands)
    assert (e.thunk, e.field, e.offset, e.space) == (i, field, a.offset, "arena")
    assert "none of the values that the graph gives it" in str(e)
    assert "'a'" in e.owner
    assert "lowering of %5 MatMul 'c'" in e.blame


@pytest.mark.parametrize("shift", [4, -4, 64, -64])
def test_a_read_of_the_wrong_weight_bytes_is_caught(shift: int) -> None:
    whole = made().commands
    node = "b" if shift > 0 else "c"
    field = next(f for f, _, o in whole.thunks[thunk(whole, node)].operands() if o.space == "weights")
    at = getattr(whole.thunks[thunk(whole, node)], field).offset
    commands, i = with_operand(field, node, offset=at + shift)
    e = found(commands)
    assert (e.thunk, e.field, e.space) == (i, field, "weights")
    assert e.offset == (at + shift if abs(shift) == 64 else e.offset)
    assert f"'{node}'" in e.blame


def test_a_result_written_to_another_live_slot_is_caught() -> None:
    whole = made().commands
    a = next(s for s in whole.slots if s.name == "a")
    field = next(f.name for f in whole.thunks[thunk(whole, "c")].operand_fields if f.role.value == "out")
    commands, i = with_operand(field, "c", offset=a.offset)
    e = found(commands)
    assert (e.thunk, e.field, e.offset) == (i, field, a.offset)
    assert "written, but its span is none of the results" in str(e)


# --- slots --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "b", "w0"])
def test_a_slot_shifted_by_one_element_is_caught(name: str) -> None:
    def change(plan: MemoryPlan, g: Graph) -> None:
        plan.offset[g.find(name).id] += 4

    c = relowered(change)
    e = found(replace(c, arena_size=c.arena_size + 64, weights_size=c.weights_size + 64))
    assert f"'{name}'" in e.owner
    assert "off the plan's alignment" in str(e)


def test_a_weight_slot_shifted_into_its_neighbour_is_caught() -> None:
    def change(plan: MemoryPlan, g: Graph) -> None:
        plan.offset[g.find("w1").id] = plan.offset[g.find("w0").id]

    e = found(relowered(change))
    assert e.space == "weights"
    assert "'w0'" in str(e)
    assert "'w1'" in str(e)
    assert "overlap in the weights at byte" in str(e)
    assert "placement" in e.blame


def test_an_arena_slot_shifted_into_its_neighbour_is_caught() -> None:
    def change(plan: MemoryPlan, g: Graph) -> None:
        plan.offset[g.find("b").id] = plan.offset[g.find("a").id]

    e = found(relowered(change))
    assert e.thunk is not None
    assert e.node.endswith("'b'")
    assert "another slot lives there" in str(e)
    assert "'a'" in e.owner
    assert "'b'" in e.owner
    assert "placement" in e.blame


def test_a_slot_that_is_not_where_the_plan_has_it_is_caught() -> None:
    c = made().commands
    slots = tuple(replace(s, offset=s.offset + 4) if s.name == "w1" else s for s in c.slots)
    e = found(replace(c, slots=slots, weights_size=c.weights_size + 64))
    assert "is not where the plan has it" in str(e)


def test_an_early_death_is_blamed_on_the_rule_that_set_it() -> None:
    c = compile_graph(layers(), replace(PLAIN, plan=PlanOptions(separate_weights=True, pin_output_ancestors=False)))
    a = c.legal.find("a").id
    plan = writable(c.plan)
    plan.death[a] = a + 1
    commands = lower_graph(c.legal, plan)
    e = found(commands)
    i = thunk(commands, "d")
    assert (e.thunk, e.offset) == (i, int(c.plan.offset[a]))
    assert "no live value is there" in str(e)
    assert "death rule: last read" in e.blame
    assert "'a'" in e.blame


# --- weights ------------------------------------------------------------------------------------------


def test_params_that_overlap_are_caught() -> None:
    c = made().commands
    one, two = c.params
    shifted = replace(two, operand=replace(two.operand, offset=one.operand.offset + 4))
    e = found(replace(c, params=(one, shifted)))
    assert "param 'w0' and param 'w1' overlap in weights" in str(e)
    assert (e.space, e.offset) == ("weights", one.operand.offset + 4)


def test_a_param_beside_its_slot_is_caught() -> None:
    c = made().commands
    one, two = c.params
    shifted = replace(two, operand=replace(two.operand, offset=two.operand.offset + 4))
    e = found(replace(c, params=(one, shifted), weights_size=c.weights_size + 64))
    assert "param 'w1'" in str(e)
    assert "not inside one slot" in str(e)


@pytest.mark.parametrize("space", ["weights", "arena"])
def test_a_param_that_nobody_wrote_is_caught(space: str) -> None:
    """Even if the executor's own list of missing params were wrong."""
    g = layers()
    c = compile_graph(g, replace(PLAIN, plan=PlanOptions(separate_weights=space == "weights")))
    executor = HostExecutor(c.commands, {"w0": g.weights["w0"]})
    executor.weight_buffer.missing.clear()
    with pytest.raises(SanitizeError, match="no live value is there") as caught:
        executor.run(feed_of(g), sanitize=True)
    e = caught.value
    assert (e.thunk, e.space) == (thunk(c.commands, "c"), space)
    assert "'w1'" in e.owner
    executor.set_param("w1", g.weights["w1"])
    assert executor.run(feed_of(g), sanitize=True)


# --- who is to blame ----------------------------------------------------------------------------------


PASS_OF = {"apart": "decode_mlp_separate", "vanishes": "gated_norm", "may_read_later": "residual_rms_norm",
           "may_write_earlier": "narrow_clusters"}


@pytest.mark.parametrize("check", UNCHECKED)
def test_a_wrong_pass_is_named(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flow, check, lambda self, *args, **more: None)
    g = UNCHECKED[check][0]()
    plan: dict[str, Any] = {"separate_weights": True, **TIGHT}
    c = compile_graph(g, CompileOptions(fusion=no_fusion(), plan=PlanOptions(**plan), passes=PassOptions()))
    with pytest.raises(SanitizeError) as caught:
        c.run(feed_of(g), sanitize=True)
    e = caught.value
    assert f"command pass {PASS_OF[check]} at thunk" in e.blame
    assert e.thunk is not None
    assert e.label == c.commands.thunks[e.thunk].trace_label
    assert e.offset is not None


def test_a_reordered_list_is_caught() -> None:
    c = made().commands
    for i in range(len(c) - 1):
        order = [*range(i), i + 1, i, *range(i + 2, len(c))]
        swapped = replace(c, thunks=tuple(c.thunks[k] for k in order), node_of=tuple(c.node_of[k] for k in order))
        e = found(swapped)
        assert e.thunk == i
        assert "no live value is there" in str(e) or "not inside one live slot" in str(e)


def test_a_fusion_rule_is_named() -> None:
    """The fused node's thunk loses a span."""
    g = Graph("fused")
    x, w, bias = g.input("x", (4, 4)), g.param("w", (4, 4), data=np.eye(4, dtype=np.float32)), g.param("bias", (4,), data=np.ones(4, np.float32))
    g.set_outputs(g.relu(g.add(g.mm(x, w), bias), name="y"))
    c = compile_graph(g)
    (rule,) = {d.rule for d in c.fusion_log.applied()}
    (i,) = (k for k, t in enumerate(c.commands.thunks) if t.where != "none")
    victim = next(o for f, r, o in c.commands.thunks[i].operands() if o.shape[-1:] == (4,) and r.value == "in")
    slots = tuple(s for s in c.commands.slots if s.offset != victim.offset or s.space != victim.space)
    with pytest.raises(SanitizeError) as caught:
        HostExecutor(replace(c.commands, slots=slots, params=(), inputs=()), {}).run({}, sanitize=True)
    assert f"fusion rule {rule}" in caught.value.blame
    assert "lowering of" in caught.value.blame


def test_a_fusion_rule_is_named_under_a_precision_policy() -> None:
    """Legalisation put casts in: node ids of the plan are no longer those of fusion."""
    g = Graph("half")
    x, w, bias = g.input("x", (4, 4)), g.param("w", (4, 4), data=np.eye(4, dtype=np.float32)), g.param("bias", (4,), data=np.ones(4, np.float32))
    g.set_outputs(g.neg(g.relu(g.add(g.mm(x, w), bias), name="y"), name="z"))
    c = compile_graph(g, CompileOptions(precision=PrecisionPolicy.AUTO_MIXED))
    assert c.legal is not c.fusion.graph
    slots = tuple(replace(s, death=s.birth) if s.name.startswith("y") else s for s in c.commands.slots)
    with pytest.raises(SanitizeError) as caught:
        HostExecutor(replace(c.commands, slots=slots), g.weights).run(feed_of(g), sanitize=True)
    assert "lowering of" in caught.value.blame
    assert "'y" in caught.value.blame


# --- the user's own kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DType.F32, DType.F16, DType.I8, DType.BOOL])
@pytest.mark.parametrize("skip", [False, True])
def test_a_custom_kernel_runs_once_and_must_fill_its_result(kind: DType, skip: bool) -> None:
    """It may keep state: it is called again only where a result looks unwritten."""
    calls = []

    def kernel(inputs: Any, outputs: Any, attrs: Any) -> None:
        calls.append(1)
        outputs[0][: 4 if skip else None] = inputs[0][: 4 if skip else None]

    register_kernel("test.fills", kernel)
    g = Graph("g")
    x = g.input("x", (5,), kind)
    g.set_outputs(g.custom(x, op_name="test.fills", shape=g[x].shape, name="mine"))
    c = as_written(g)
    feed = {"x": np.asarray([1, 0, 1, 1, 0], kind.numpy)}
    if not skip:
        np.testing.assert_array_equal(c.run(feed, sanitize=True)["mine"], feed["x"])
        assert len(calls) == 1
        return
    with pytest.raises(SanitizeError, match="left unwritten") as caught:
        c.run(feed, sanitize=True)
    o = c.commands.outputs[0].operand
    assert (caught.value.label, caught.value.offset) == ("custom_op:test.fills", o.offset + 4 * o.storage.numpy.itemsize)
    assert len(calls) == 2


def test_an_in_place_takeover_is_named() -> None:
    g = Graph("g")
    g.set_outputs(g.exp(g.neg(g.tanh(g.input("x", (16,)), name="t"), name="n"), name="e"))
    c = compile_graph(g, replace(PLAIN, plan=PlanOptions(in_place=True, pin_output_ancestors=False)))
    assert c.plan.inplace
    head = c.plan.inplace[0][0]
    slots = tuple(replace(s, death=s.birth) if s.node == head else s for s in c.commands.slots)
    with pytest.raises(SanitizeError) as caught:
        HostExecutor(replace(c.commands, slots=slots), {}).run(feed_of(g), sanitize=True)
    assert "in-place rule: %" in caught.value.blame
    assert "changed by a pass, or after planning" in caught.value.blame


def test_a_list_without_a_graph_says_so() -> None:
    c = made().commands
    a = next(s for s in c.slots if s.name == "a")
    slots = tuple(replace(s, death=a.birth) if s is a else s for s in c.slots)
    assert "the list carries no graph" in found(replace(c, slots=slots, provenance=None)).blame
