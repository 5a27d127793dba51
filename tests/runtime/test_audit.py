"""The sanitizer: clean thunks pass on an auditing arena, and each kind of breach is caught and named."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from planner_core.ir import DType, Graph
from runtime import CommandList, HostExecutor, SanitizeError
from runtime.command_list import Binding, Operand, SlotLife, Thunk
from runtime.command_list.thunks.elementwise import ActivationInPlace, ActivationOut, BinaryFull, CastTruncF32, Nop
from runtime.command_list.thunks.fused import GeluApproxHost
from runtime.command_list.thunks.matmul import FusedMmBiasAct
from runtime.command_list.thunks.reduce import Softmax
from runtime.command_list.thunks.structure import Copy
from tests.runtime.gallery import as_written
from tests.tamper import writable


def hand_list(thunks: list[Thunk], inputs: list[Operand], output: Operand) -> CommandList:
    """A list whose every operand is a slot that lives throughout."""
    spans = {o.offset: o for t in thunks for _, _, o in t.operands()} | {o.offset: o for o in (*inputs, output)}
    slots = tuple(SlotLife(k, f"t{k}", "Input", "arena", o.offset, o.nbytes, 0, 0, len(thunks))
                  for k, o in enumerate(spans.values()))
    size = max(o.offset + o.nbytes for o in spans.values()) + 64
    return CommandList(
        "hand", tuple(thunks), tuple(range(len(thunks))), size, 0, max(t.scratch_bytes for t in thunks),
        tuple(Binding(f"x{i}", o, o.storage) for i, o in enumerate(inputs)), (Binding("y", output, output.storage),),
        (), (), slots, tuple(f"%{i} {t.name}" for i, t in enumerate(thunks)))


def op(offset: int, *shape: int) -> Operand:
    return Operand("arena", offset, 4 * int(np.prod(shape)), DType.F32, None, shape)


X = np.asarray([[-2.5, 1.5, 0.25], [3.0, -1.0, 2.0]], np.float32)
A, B, W, BIAS = op(0, 2, 3), op(64, 2, 3), op(128, 3, 3), op(192, 3)


@pytest.mark.parametrize(("thunks", "inputs", "output", "want"), [
    ([Nop(), CastTruncF32(A, B, 6)], [(A, X)], B, np.trunc(X)),
    ([ActivationInPlace(A, 6, "silu")], [(A, X)], A, X / (1 + np.exp(-X))),
    ([Softmax(A, 2, 3)], [(A, X)], A, np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    ([FusedMmBiasAct(A, W, BIAS, B, 2, 3, 3, "relu")], [(A, X), (W, np.eye(3, dtype=np.float32)[::-1]), (BIAS, X[0])], B,
     np.maximum(X[:, ::-1] + X[0], 0)),
    ([GeluApproxHost(A, B, 6)], [(A, X)], B, 0.5 * X * (1 + np.tanh(0.7978845608 * (X + 0.044715 * X**3)))),
    ([BinaryFull(A, B, A, 6, "sub")], [(A, X), (B, X * 2)], A, -X),
])
def test_thunks_that_only_passes_make(thunks: list[Thunk], inputs: list[Any], output: Operand, want: Any) -> None:
    commands = hand_list(thunks, [o for o, _ in inputs], output)
    feed = {f"x{i}": np.ascontiguousarray(v) for i, (_, v) in enumerate(inputs)}
    for sanitize in (False, True):
        got = HostExecutor(commands, {}).run(feed, sanitize=sanitize)["y"]
        np.testing.assert_allclose(got, want, rtol=1e-5)


# --- mutations: a thunk class that lies, made without the registry ------------------------------------


class Mutant(Thunk):
    """Stands in for a thunk with the operands of another and a kernel of its own."""

    name, label, partial_extent, where, extension = "Mutant", "mutant", "no", "host", True

    def __init__(self, of: Thunk, run: Any) -> None:
        self._of, self.operand_fields, self.run = of, of.operand_fields, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def chain() -> Graph:
    """x -> relu -> neg -> tanh -> + relu: four buffers, one long-lived."""
    g = Graph("chain")
    x = g.input("x", (40,))
    a = g.relu(x, name="a")
    b = g.neg(a, name="b")
    c = g.tanh(b, name="c")
    g.set_outputs(g.binary(c, a, kind="mul", name="d"))
    return g


FEED = {"x": np.linspace(-1, 1, 40, dtype=np.float32) + 0.01}


def mutate(index: int, run: Any) -> tuple[HostExecutor, CommandList]:
    commands = as_written(chain()).commands
    thunks = list(commands.thunks)
    thunks[index] = Mutant(thunks[index], run)
    changed = dataclasses.replace(commands, thunks=tuple(thunks))
    return HostExecutor(changed, {}), changed


def test_write_outside_the_span_is_caught() -> None:
    executor, commands = mutate(1, None)
    dst = commands.thunks[1].writes()[0]

    def run(src: Any, out: Any, scratch: Any) -> None:
        np.negative(src, out=out)
        executor.arena[dst.offset + dst.nbytes + 3] ^= 1

    commands.thunks[1].run = run
    executor._calls[1] = (commands.thunks[1], executor._calls[1][1], 0)
    with pytest.raises(SanitizeError, match=rf"thunk 1 .*%2 Activation 'b'.* byte {dst.offset + dst.nbytes + 3} changed") as caught:
        executor.run(FEED, sanitize=True)
    e = caught.value
    assert (e.thunk, e.label, e.node, e.field) == (1, "mutant", "%2 Activation 'b'", "")
    assert (e.space, e.offset) == ("arena", dst.offset + dst.nbytes + 3)
    assert "lowering of %2 Activation 'b'" in e.blame


def test_guard_of_an_input_is_watched() -> None:
    executor, commands = mutate(1, None)
    slot = next(s for s in commands.slots if s.name == "x")

    def run(src: Any, out: Any, scratch: Any) -> None:
        np.negative(src, out=out)
        executor.arena[slot.offset + slot.size + 5] = 0

    commands.thunks[1].run = run
    with pytest.raises(SanitizeError, match="the guard of %0 Input 'x'"):
        executor.run(FEED, sanitize=True)


def test_a_declared_read_can_not_be_written() -> None:
    def run(src: Any, out: Any, scratch: Any) -> None:
        src[...] = 0

    executor, _ = mutate(1, run)
    with pytest.raises(SanitizeError, match=r"thunk 1 .*writes its operand src .*read-only") as caught:
        executor.run(FEED, sanitize=True)
    e = caught.value
    assert (e.thunk, e.field, e.node) == (1, "src", "%2 Activation 'b'")
    assert "lowering of %2 Activation 'b'" in e.blame


def test_an_undeclared_read_of_the_destination_is_caught() -> None:
    executor, _ = mutate(1, lambda src, out, scratch: np.add(src, out, out=out))
    with pytest.raises(SanitizeError, match=r"operand dst.*left unwritten, or computed from bytes it may not read"):
        executor.run(FEED, sanitize=True)


def test_an_undeclared_read_elsewhere_is_caught() -> None:
    """A kernel that reads a buffer after its death meets poison."""
    executor, commands = mutate(3, None)
    dead = next(s for s in commands.slots if s.name == "b")

    def run(lhs: Any, rhs: Any, out: Any, scratch: Any) -> None:
        np.multiply(lhs, executor.arena[dead.offset : dead.offset + dead.size].view(np.float32), out=out)

    commands.thunks[3].run = run
    with pytest.raises(SanitizeError):
        executor.run(FEED, sanitize=True)


def test_an_unwritten_tail_is_caught() -> None:
    executor, commands = mutate(2, lambda src, out, scratch: np.tanh(src[:-1], out=out[:-1]))
    last = commands.thunks[2].writes()[0]
    with pytest.raises(SanitizeError, match=f"byte {last.offset + 156} left unwritten"):
        executor.run(FEED, sanitize=True)


def test_scratch_holds_nothing_between_thunks() -> None:
    g = Graph("g")
    g.set_outputs(g.silu(g.silu(g.input("x", (40,)))))
    commands = as_written(g).commands
    executor = HostExecutor(commands, {})

    def run(src: Any, out: Any, scratch: Any) -> None:
        np.multiply(src, scratch.take(40), out=out)

    executor._calls[1] = (Mutant(commands.thunks[1], run), executor._calls[1][1], executor._calls[1][2])
    with pytest.raises(SanitizeError, match="thunk 1"):
        executor.run(FEED, sanitize=True)


def test_a_shifted_slot_is_caught() -> None:
    """The long-lived buffer is moved onto another that lives at the same time."""
    compiled = as_written(chain())
    plan, graph = writable(compiled.plan), compiled.legal
    a, b = graph.find("a").id, graph.find("b").id
    plan.offset[a] = plan.offset[b] + 64
    from runtime.lowering import lower_graph

    with pytest.raises(SanitizeError, match=r"written while another slot lives there.*'a'|'a'"):
        HostExecutor(lower_graph(graph, plan), {}).run(FEED, sanitize=True)


def test_a_shifted_operand_is_caught() -> None:
    commands = as_written(chain()).commands
    t = commands.thunks[2]
    assert isinstance(t, ActivationOut)
    for field in ("src", "dst"):
        moved = dataclasses.replace(getattr(t, field), offset=getattr(t, field).offset + 64)
        thunks = [*commands.thunks]
        thunks[2] = dataclasses.replace(t, **{field: moved})
        changed = dataclasses.replace(commands, thunks=tuple(thunks), arena_size=commands.arena_size + 64)
        with pytest.raises(SanitizeError, match=f"thunk 2 .*operand {field}"):
            HostExecutor(changed, {}).run(FEED, sanitize=True)


def test_a_slot_that_dies_too_early_is_caught() -> None:
    commands = as_written(chain()).commands
    slots = tuple(dataclasses.replace(s, death=2) if s.name == "a" else s for s in commands.slots)
    with pytest.raises(SanitizeError, match=r"thunk 3 .*operand rhs.*no live value"):
        HostExecutor(dataclasses.replace(commands, slots=slots), {}).run(FEED, sanitize=True)


def test_an_output_that_nothing_writes_is_caught() -> None:
    commands = as_written(chain()).commands
    cut = dataclasses.replace(commands, thunks=commands.thunks[:-1], node_of=commands.node_of[:-1])
    with pytest.raises(SanitizeError, match="output 'd' holds poison"):
        HostExecutor(cut, {}).run(FEED, sanitize=True)


def test_copy_of_unwritten_bytes_is_caught() -> None:
    commands = hand_list([Copy(A, B, 6)], [], B)
    with pytest.raises(SanitizeError, match="operand src"):
        HostExecutor(commands, {}).run({}, sanitize=True)
