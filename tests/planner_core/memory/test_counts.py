"""A plan's arithmetic where numbers are large, shared or smaller than a byte. Expected values: formulas in Python's integers."""

from __future__ import annotations

import pytest

from planner_core.errors import PlanError
from planner_core.ir import DType, Graph
from planner_core.memory import (
    ArenaWidthPolicy,
    PlanOptions,
    SharedWeightLayout,
    plan_graph,
    plan_memory_aligned,
    plan_memory_backward,
    require_sound,
    verify_plan,
)
from tests.tamper import writable

NATIVE = PlanOptions(width_policy=ArenaWidthPolicy.NATIVE)
HUGE = 1 << 55


def test_bytes_of_many_views_of_a_huge_tensor_are_counted_past_64_bits() -> None:
    """9: total_unshared_bytes is the sum of all slots, views included."""
    g = Graph("huge")
    x = g.input("x", (HUGE,), DType.F64)
    views = [g.reshape(x, dims=(2, HUGE // 2)) for _ in range(40)]
    g.set_outputs(*views)
    plan = plan_graph(g, NATIVE)
    assert plan.total_unshared_bytes == 41 * 8 * HUGE > 1 << 63
    assert plan.bytes_saved == 41 * 8 * HUGE - plan.arena_size
    assert plan.arena_size == 8 * HUGE + 128


@pytest.mark.parametrize("no_reuse", [False, True])
def test_buffers_that_64_bits_cannot_count_together_are_refused(no_reuse: bool) -> None:
    g = Graph("huge")
    g.set_outputs(*[g.input(f"x{i}", (HUGE,), DType.F64) for i in range(40)])
    with pytest.raises(PlanError, match=rf"'huge': its 40 buffers take {40 * 8 * HUGE} bytes together, more than a plan can count"):
        plan_graph(g, NATIVE.replace(arena_no_reuse=no_reuse))


def _forward(dtype: DType = DType.F32, dims: tuple[int, ...] = (8, 8), name: str = "w") -> tuple[Graph, int]:
    g = Graph("graph")
    w = g.param(name, dims, dtype)
    g.set_outputs(g.neg(w))
    return g, w


@pytest.mark.parametrize("alignment", [64, 128])
def test_a_backward_plan_with_the_forward_alignment_is_sound(alignment: int) -> None:
    forward, _ = _forward()
    layout = SharedWeightLayout.from_forward(forward, plan_memory_aligned(forward, alignment))
    assert [forward[i].name for i in layout.nodes] == [name for name, _ in layout.slots], "each with its forward id"
    for smaller in (32, alignment):
        require_sound(forward, plan_memory_backward(forward, smaller, layout))


def test_a_backward_plan_with_a_larger_alignment_is_refused_with_both() -> None:
    """The forward plan's weights lie where they lie: their offsets and guards can't follow a larger alignment."""
    forward, _ = _forward()
    layout = SharedWeightLayout.from_forward(forward, plan_memory_aligned(forward, 64))
    with pytest.raises(PlanError, match=r"param 'w': at 0 with a guard of 128 in the forward plan, which doesn't fit alignment 4096 "
                                        r"\(guard 4096\); plan the forward graph with that alignment"):
        plan_memory_backward(forward, 4096, layout)


def test_a_param_of_another_type_does_not_fit_a_slot_of_the_same_bytes() -> None:
    """f16[8, 16] takes the 256 bytes of f32[8, 8]."""
    forward, _ = _forward()
    backward, _ = _forward(DType.F16, (8, 16))
    layout = SharedWeightLayout.from_forward(forward, plan_memory_aligned(forward, 64))
    with pytest.raises(PlanError, match=r"param 'w': f32 in the forward plan, f16 in the backward graph \(f16\[8, 16\]\); cast it"):
        plan_memory_backward(backward, 64, layout)


@pytest.mark.parametrize("dtype", [DType.I4, DType.U4], ids=str)
@pytest.mark.parametrize(("start", "length"), [(0, 4), (1, 4), (1, 1), (2, 3), (3, 5), (7, 2)])
def test_a_narrow_of_nibbles_spans_every_byte_it_touches(dtype: DType, start: int, length: int) -> None:
    """Bytes of nibbles [start, start + length): from ⌊start / 2⌋ to ⌈(start + length) / 2⌉."""
    g = Graph("nibbles")
    p = g.param("p", (9,), dtype)
    v = g.narrow(p, axis=0, start=start, len=length)
    g.set_outputs(v)
    plan = plan_graph(g, NATIVE)
    slot = plan.assignments[v]
    assert (slot.offset - plan.assignments[p].offset, slot.size) == (start // 2, -(-(start + length) // 2) - start // 2)
    assert verify_plan(g, plan) == []
    broken = writable(plan)
    broken.size[v] -= 1
    assert [x.node for x in verify_plan(g, broken)] == [v]
