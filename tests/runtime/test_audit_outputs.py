"""What an audit checks at the end: whose bytes the outputs hold, and that nobody changed the list in silence; and that an
integer may come to the poison's value honestly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.ir.ops.region import activation_step, binary_step, result_of, used_inputs
from planner_core.memory import PlanOptions, Target
from runtime import CommandList, CompileOptions, HostExecutor, PassOptions, SanitizeError, compile_graph, lower_graph
from runtime.command_list.thunks.elementwise import Nop
from runtime.command_list.thunks.region import ElementwiseRegion
from runtime.executors.audit_spans import FILL
from tests.runtime.passes.lab import feed_of

IN_PLACE = PlanOptions(in_place=True, pin_output_ancestors=False)


def caught(g: Graph, commands: CommandList) -> SanitizeError:
    with pytest.raises(SanitizeError) as e:
        HostExecutor(commands, g.weights).run(feed_of(g), sanitize=True)
    assert e.value.blame
    return e.value


def test_an_output_that_another_value_was_written_over() -> None:
    """A member of an in-place pair that the plan misplaced: every byte is defined, and one output is another's."""
    g = Graph("over")
    x, y = g.input("x", (16,)), g.input("y", (16,))
    s = g.silu(x, name="s")
    m = g.mul(s, g.neg(y), name="m")
    g.set_outputs(s, m)
    c = compile_graph(g, CompileOptions(fusion=no_fusion(), passes=PassOptions.none(), plan=IN_PLACE))
    assert c.plan.inplace
    offset = c.plan.offset.copy()
    offset[m] = offset[s]
    e = caught(g, lower_graph(c.legal, replace(c.plan, offset=offset)))
    assert "output 's' is the value of %2 Activation 's', but %4 Binary 'm' wrote arena byte" in str(e)
    assert (e.field, e.offset) == ("s", int(offset[s]))


def region() -> tuple[Graph, CommandList, int]:
    g = Graph("region")
    x, p = g.input("x", (2, 8)), g.param("p", (8,), data=np.arange(8, dtype=np.float32))
    a, b = (g.mm(x, g.param(f"w{k}", (8, 8), data=np.eye(8, dtype=np.float32) * k)) for k in (1, 3))
    g.set_outputs(g.tanh(g.mul(g.sub(g.sigmoid(a), p), b)), names=["o"])
    c = compile_graph(g, CompileOptions(target=Target.METAL)).with_options(in_place=True, pin_output_ancestors=False)
    at = next(i for i, t in enumerate(c.commands.thunks) if isinstance(t, ElementwiseRegion))
    assert c.run(feed_of(g), sanitize=True)
    return g, c.commands, at


def test_a_region_in_place_that_is_left_out() -> None:
    g, commands, at = region()
    e = caught(g, replace(commands, thunks=(*commands.thunks[:at], Nop(), *commands.thunks[at + 1 :])))
    assert e.thunk == at
    assert "its input %1 Param 'p' lies, and it never reads that" in str(e)


def test_a_region_that_reads_one_input_for_another() -> None:
    g, commands, at = region()
    r = commands.thunks[at]
    assert isinstance(r, ElementwiseRegion)
    a, p, b = r.inputs
    assert a.nbytes == b.nbytes
    wrong = replace(r, inputs=(a, p, replace(b, offset=a.offset)))
    e = caught(g, replace(commands, thunks=(*commands.thunks[:at], wrong, *commands.thunks[at + 1 :])))
    assert e.thunk == at


def test_a_region_may_leave_an_input_alone() -> None:
    steps = (binary_step("add", 0, 1), activation_step("exp", 2), activation_step("relu", result_of(0)))
    assert used_inputs(steps) == {0, 1}
    assert used_inputs((activation_step("exp", 1),)) == {1}
    g = Graph("ignored")
    x, y, z = (g.input(n, (4,)) for n in "xyz")
    g.set_outputs(g.elementwise_region(x, y, z, steps=steps), names=["o"])
    assert compile_graph(g, CompileOptions(fusion=no_fusion())).run(feed_of(g), sanitize=True)


def plain() -> tuple[Graph, CommandList]:
    g = Graph("plain")
    x, y = g.input("x", (2, 8)), g.input("y", (2, 8))
    g.set_outputs(g.tanh(g.sub(g.neg(x), y)), names=["o"])
    return g, compile_graph(g, CompileOptions(fusion=no_fusion(), passes=PassOptions.none(), plan=IN_PLACE)).commands


@pytest.mark.parametrize("how", ["swapped operands", "run twice", "left out"])
def test_a_list_that_nobody_says_to_have_changed(how: str) -> None:
    g, commands = plain()
    thunks, node_of = list(commands.thunks), list(commands.node_of)
    at = next(i for i, t in enumerate(thunks) if t.label == "binary")
    if how == "swapped operands":
        t = thunks[at]
        thunks[at] = replace(t, lhs=t.rhs, rhs=t.lhs)  # type: ignore[attr-defined, call-arg]
    elif how == "run twice":
        thunks.insert(at + 1, thunks[at])
        node_of.insert(at + 1, node_of[at])
    else:
        thunks[at] = Nop()
    e = caught(g, replace(commands, thunks=tuple(thunks), node_of=tuple(node_of)))
    assert e.thunk in (at, at + 1)
    assert "%3 Binary" in str(e)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.I8])
def test_an_integer_may_be_the_poison(dtype: DType) -> None:
    word = np.full(8, FILL, np.uint16).view(dtype.numpy)
    g = Graph("honest")
    x, y = g.input("x", (len(word),), dtype), g.input("y", (len(word),), dtype)
    g.set_outputs(g.add(x, y), names=["o"])
    one = np.ones(len(word), dtype.numpy)
    out = compile_graph(g).run({"x": word - one, "y": one}, sanitize=True)
    np.testing.assert_array_equal(out["o"], word)
