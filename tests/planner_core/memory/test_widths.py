"""Spec §5: slot sizes by policy × dtype × kind, native families, zero sizes, guards."""

from __future__ import annotations

import pytest

from planner_core.ir import UNKNOWN, DType, Graph, Shape
from planner_core.ir.ops import Custom
from planner_core.memory import (
    ArenaWidthPolicy,
    PlanOptions,
    Target,
    arena_width_policy,
    headline,
    native_width_nodes,
    plan_graph,
    storage_dtype,
)
from tests.planner_core.memory.checker import checked

P, D = ArenaWidthPolicy, DType

# policy -> dtype -> bytes of 8 elements, as an activation; params are native under every policy
TABLE = {
    P.F32_UNIFORM: {D.F64: 64, D.F32: 32, D.F16: 32, D.BF16: 32, D.I64: 64, D.I32: 32, D.I8: 32, D.I4: 32, D.U16: 32,
                    D.BOOL: 32, D.C64: 64, D.F8E4M3: 32},
    P.NATIVE: {D.F64: 64, D.F32: 32, D.F16: 16, D.BF16: 16, D.I64: 64, D.I32: 32, D.I8: 8, D.I4: 4, D.U16: 16, D.BOOL: 8,
               D.C64: 64, D.F8E4M3: 8},
    P.HYBRID: {D.F64: 64, D.F32: 32, D.F16: 16, D.BF16: 16, D.I64: 64, D.I32: 32, D.I8: 32, D.I4: 32, D.U16: 32,
               D.BOOL: 32, D.C64: 64, D.F8E4M3: 32},
    P.NATIVE_HALF_WIDENED: {D.F64: 64, D.F32: 32, D.F16: 32, D.BF16: 32, D.I64: 64, D.I32: 32, D.I8: 8, D.I4: 4,
                            D.U16: 16, D.BOOL: 8, D.C64: 64, D.F8E4M3: 8},
    P.NATIVE_BF16_WIDENED: {D.F64: 64, D.F32: 32, D.F16: 16, D.BF16: 32, D.I64: 64, D.I32: 32, D.I8: 8, D.I4: 4,
                            D.U16: 16, D.BOOL: 8, D.C64: 64, D.F8E4M3: 8},
}


@pytest.mark.parametrize(("policy", "dtype", "want"), [(p, d, w) for p, row in TABLE.items() for d, w in row.items()],
                         ids=lambda v: getattr(v, "value", v) if not isinstance(v, DType) else v.text)
def test_policy_by_dtype_by_kind(policy: P, dtype: D, want: int) -> None:
    """§5: the table, for inputs and interior activations as well as params."""
    g = Graph()
    x, p = g.input("x", (8,), dtype), g.param("p", (8,), dtype)
    y = g.concat(g.narrow(x, axis=0, start=0, len=4), g.narrow(p, axis=0, start=0, len=4), axis=0)
    g.set_outputs(y)
    plan = checked(plan_graph(g, PlanOptions(width_policy=policy)), g)
    native = dtype.nbytes(8)
    assert plan.assignments[x].size == plan.assignments[y].size == want
    assert plan.assignments[p].size == native
    assert want >= native, "never narrower than native"
    assert plan.assignments[y].storage is storage_dtype(policy, dtype, False)


def test_every_policy_and_dtype_has_a_storage_dtype() -> None:
    """§5: never narrower than native, whatever the dtype."""
    for policy in P:
        for dtype in D:
            assert storage_dtype(policy, dtype, True) is dtype
            assert storage_dtype(policy, dtype, False).bits >= dtype.bits
            assert storage_dtype(policy, dtype, False) in (dtype, D.I32 if dtype.is_int else D.F32)


def test_sub_byte_dtypes_round_up_per_tensor() -> None:
    """§5: 7 nibbles take 4 bytes."""
    g = Graph()
    p = g.param("p", (7,), D.I4)
    x = g.concat(p, p, p, axis=0)
    g.set_outputs(x)
    plan = checked(plan_graph(g, PlanOptions(width_policy=P.NATIVE)), g)
    assert (plan.assignments[p].size, plan.assignments[x].size) == (4, 11)


@pytest.mark.parametrize(("target", "policy"), [
    (Target.CPU, P.NATIVE_HALF_WIDENED), (Target.METAL, P.NATIVE_BF16_WIDENED), (Target.MLX, P.NATIVE),
    (Target.CUDA, P.NATIVE), (Target.ROCM, P.NATIVE), (Target.WGPU, P.F32_UNIFORM), (Target.TPU, P.F32_UNIFORM)])
def test_policy_of_each_target(target: Target, policy: P) -> None:
    """§5: ``arena_width_policy``."""
    assert arena_width_policy(target) is policy
    assert PlanOptions.for_target(target).width_policy is policy


def _families() -> tuple[Graph, dict[str, int]]:
    g = Graph()
    x = g.input("x", (4, 4), D.BF16)
    a = g.relu(x)
    v = g.reshape(a, dims=(16,))                # a view that a custom op reads
    w = g.narrow(v, axis=0, start=4, len=4)     # another view of the same root
    c = g.add(Custom("mine", Shape.of((4, 4), D.BF16)), v)
    cv = g.reshape(c, dims=(2, 8))
    cache = g.input("cache", (8, 4), D.BF16)
    rows = g.neg(x)
    k = g.kv_append(cache, rows, axis=0, start=0)
    z = g.exp(x)
    g.set_outputs(cv, k, z, w)
    return g, {"x": x, "a": a, "v": v, "w": w, "c": c, "cv": cv, "cache": cache, "rows": rows, "k": k, "z": z}


@pytest.mark.parametrize("policy", list(P))
def test_native_width_nodes(policy: P) -> None:
    """§5: custom ops, KV appends, their inputs, and the whole alias family of each; only when widened."""
    g, n = _families()
    opts = PlanOptions(width_policy=policy)
    found = native_width_nodes(g, opts)
    if not policy.widens_half:
        assert found == set()
        return
    assert found == {n[k] for k in ("a", "v", "w", "c", "cv", "cache", "rows", "k")}
    plan = checked(plan_graph(g, opts), g)
    assert {k: plan.assignments[n[k]].size for k in ("a", "w", "c", "cv", "rows", "k", "x", "z")} == {
        "a": 32, "w": 8, "c": 32, "cv": 32, "rows": 32, "k": 64, "x": 64, "z": 64}
    assert plan.assignments[n["w"]].offset == plan.assignments[n["a"]].offset + 8


@pytest.mark.parametrize("alignment", [1, 64, 256])
def test_zero_size_tensors(alignment: int) -> None:
    """§5, §11: an interior one gets no slot; a boundary one max(alignment, 1) (64 at 64)."""
    g = Graph()
    x = g.input("x", (1, 0, 8))
    p, c = g.param("p", (0,)), g.constant([[]])
    y = g.relu(x)
    v = g.reshape(x, dims=(0,))
    g.set_outputs(y, v)
    plan = checked(plan_graph(g, PlanOptions(alignment=alignment)), g)
    assert [plan.assignments[i].size for i in (x, p, c)] == [alignment] * 3
    assert y not in plan.assignments and v not in plan.assignments


@pytest.mark.parametrize(("alignment", "guard"), [(1, 128), (64, 128), (128, 128), (256, 256), (4096, 4096)])
def test_boundary_slots_have_guards(alignment: int, guard: int) -> None:
    """§5: max(alignment, 128) behind inputs, params and constants, none elsewhere; nothing else inside."""
    g = Graph()
    x, p, c = g.input("x", (5,)), g.param("p", (5,)), g.constant([1.0] * 5)
    y = g.add(g.add(x, p), c)
    g.set_outputs(y)
    plan = checked(plan_graph(g, PlanOptions(alignment=alignment)), g)
    assert [plan.assignments[i].guard for i in (x, p, c, y)] == [guard, guard, guard, 0]
    slots = sorted(plan.assignments.values(), key=lambda s: s.offset)
    assert plan.arena_size == max(s.end + s.guard for s in slots), "§9: the last guard counts"


def test_boundary_views_have_no_guard_of_their_own() -> None:
    g = Graph()
    v = g.reshape(g.input("x", (4, 4)), dims=(16,))
    g.set_outputs(v)
    assert checked(plan_graph(g, PlanOptions()), g).assignments[v].guard == 0


def test_unknown_sizes_have_no_slot_and_are_named() -> None:
    """A tensor of unknowable extent: no slot, listed in the headline; its views neither."""
    g = Graph()
    x = g.input("x", (4,))
    u = g.add(Custom("onnx.NonZero", Shape.of((UNKNOWN,))), x, name="found")
    v = g.reshape(u, dims=(UNKNOWN, 1))
    g.set_outputs(g.neg(v))
    plan = checked(plan_graph(g, PlanOptions()), g)
    assert set(plan.assignments) == {x}
    assert headline(plan).unknown == ("found", "%2", "%3")
