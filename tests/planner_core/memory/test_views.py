"""Spec §1 views and §2 elided transposes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from planner_core.ir import DType, Graph
from planner_core.memory import (
    SMALL_M_GROUPED,
    ArenaWidthPolicy,
    PlanOptions,
    ViolationKind,
    collect_view_aliases,
    elided_transposes,
    is_elidable_bank_transpose,
    is_elidable_folded_transpose,
    is_elidable_matmul_transpose,
    is_pure_view,
    is_view,
    live_ranges,
    plan_graph,
    plan_memory,
    resolve_view_root,
    verify_plan,
)
from tests.planner_core.memory.checker import checked

F16, F32, I32 = DType.F16, DType.F32, DType.I32


def _views() -> tuple[Graph, dict[str, int]]:
    g = Graph()
    x = g.input("x", (8, 6))
    ids = {"x": x}
    ids["reshape"] = g.reshape(x, dims=(48,))
    ids["cast"] = g.cast(x, to=F32)
    ids["narrow0"] = g.narrow(x, axis=0, start=3, len=2)
    ids["narrow0 of 0"] = g.narrow(x, axis=0, start=0, len=0)
    ids["append"] = g.kv_append(x, g.input("rows", (1, 6)), axis=0, start=2)
    ids["cast f16"] = g.cast(x, to=F16)
    ids["narrow1"] = g.narrow(x, axis=1, start=1, len=2)
    ids["transpose"] = g.transpose(x, perm=(1, 0))
    ids["slice"] = g.slice(x, axes=(0,), starts=(1,), stops=(3,), steps=(1,))
    ids["expand"] = g.expand(x, dims=(8, 6))
    g.set_outputs(ids["expand"])
    return g, ids


@pytest.mark.parametrize(("what", "view", "pure", "offset"), [
    ("reshape", True, True, 0),
    ("cast", True, True, 0),
    ("narrow0", True, True, 3 * 6 * 4),
    ("narrow0 of 0", True, True, 0),
    ("append", True, False, 0),
    ("cast f16", False, False, 0),
    ("narrow1", False, False, 0),
    ("transpose", False, False, 0),
    ("slice", False, False, 0),
    ("expand", False, False, 0),
    ("x", False, False, 0),
])
def test_view_table(what: str, view: bool, pure: bool, offset: int) -> None:
    """§1: which nodes are views of their first input, and where in it."""
    g, ids = _views()
    node = ids[what]
    assert (is_view(g, node), is_pure_view(g, node)) == (view, pure)
    assert resolve_view_root(g, node) == ((ids["x"], offset) if view else (node, 0))
    assert collect_view_aliases(g).get(node) == ((ids["x"], offset) if view else None)


def test_chain_of_views() -> None:
    """§1, §11: matmul → reshape → same-dtype cast → axis-0 narrow(8, 16): +32 bytes, 64 long."""
    g = Graph()
    m = g.mm(g.input("a", (4, 8)), g.param("w", (8, 16)))
    r = g.reshape(m, dims=(64,))
    c = g.cast(r, to=F32)
    n = g.narrow(c, axis=0, start=8, len=16)
    g.set_outputs(g.relu(n))
    plan = checked(plan_memory(g), g)
    at = plan.assignments[m].offset
    assert [plan.assignments[i].offset for i in (r, c, n)] == [at, at, at + 32]
    assert plan.assignments[n].size == 64
    assert collect_view_aliases(g) == {r: (m, 0), c: (m, 0), n: (m, 32)}


def test_offsets_of_a_chain_add() -> None:
    """§1: narrow of a reshape of a narrow."""
    g = Graph()
    a = g.narrow(g.input("x", (10, 4)), axis=0, start=2, len=6)
    b = g.narrow(g.reshape(a, dims=(3, 8)), axis=0, start=1, len=2)
    g.set_outputs(b)
    assert resolve_view_root(g, b) == (0, (2 * 4 + 8) * 4)


def test_a_view_uses_its_roots_width() -> None:
    """§1: a widened root and its views agree on size and offset."""
    g = Graph()
    m = g.relu(g.input("x", (8, 6), F16))
    n = g.narrow(m, axis=0, start=3, len=2)
    g.set_outputs(g.neg(n))
    for policy, width in ((ArenaWidthPolicy.NATIVE, 2), (ArenaWidthPolicy.F32_UNIFORM, 4)):
        plan = checked(plan_graph(g, PlanOptions(width_policy=policy)), g)
        assert plan.assignments[n].offset == plan.assignments[m].offset + 18 * width
        assert plan.assignments[n].size == 12 * width


def _bank(m: int = 4, dtype: DType = F32, perm: tuple[int, ...] = (0, 2, 1)) -> tuple[Graph, int, int]:
    g = Graph()
    w = g.relu(g.input("w", (2, 5, 5), dtype))
    t = g.transpose(w, perm=perm)
    x, i = g.input("x", (m, 5), dtype), g.input("i", (m,), I32)
    y = g.grouped_mat_mul(x, t, i)
    return g.set_outputs(y), t, y


def _mm(dtype: DType = F32, swap: bool = False) -> tuple[Graph, int, int]:
    g = Graph()
    w = g.relu(g.input("w", (6, 6), dtype))
    t = g.transpose(w, perm=(1, 0))
    x = g.input("x", (6, 6), dtype)
    y = g.mm(t, x) if swap else g.mm(x, t)
    return g.set_outputs(y), t, y


def test_bank_transposes() -> None:
    """§2: rank 3, f32, (0,2,1), only operand 1 of f32 grouped matmuls; small m on demand."""
    assert SMALL_M_GROUPED == 4
    for m in (1, 4, 5):
        g, t, _ = _bank(m)
        assert is_elidable_bank_transpose(g, t)
        assert is_elidable_bank_transpose(g, t, require_small_m=True) == (m <= 4)
    g, t, _ = _bank(dtype=F16)
    assert not is_elidable_bank_transpose(g, t)
    g, t, _ = _bank(perm=(0, 1, 2))
    assert not is_elidable_bank_transpose(g, t)
    g, t, y = _bank()
    assert not is_elidable_bank_transpose(g, 0) and not is_elidable_bank_transpose(g, y)


def test_bank_transposes_with_two_readers() -> None:
    """§2: *every* read must be operand 1; with small m *every* reader small."""
    g, t, y = _bank(4)
    again = g.grouped_mat_mul(g.input("x2", (9, 5)), t, g.input("i2", (9,), I32))
    g.set_outputs(y, again)
    assert is_elidable_bank_transpose(g, t)
    assert not is_elidable_bank_transpose(g, t, require_small_m=True)
    g.set_outputs(y, again, g.relu(t))
    assert not is_elidable_bank_transpose(g, t)


def test_unknown_m_is_not_small() -> None:
    """§2: if m can't be derived, small m is false."""
    g = Graph()
    t = g.transpose(g.input("w", (2, 5, 5)), perm=(0, 2, 1))
    g.set_outputs(g.grouped_mat_mul(g.input("x", ("M", 5)), t, g.input("i", ("M",), I32)))
    assert is_elidable_bank_transpose(g, t)
    assert not is_elidable_bank_transpose(g, t, require_small_m=True)


def test_matmul_transposes() -> None:
    """§2: rank 2, (1,0), read exactly once by a rank-2 × rank-2 f32 matmul."""
    for swap in (False, True):
        g, t, _ = _mm(swap=swap)
        assert is_elidable_matmul_transpose(g, t)
    g, t, _ = _mm(F16)
    assert not is_elidable_matmul_transpose(g, t)
    g, t, y = _mm()
    g.set_outputs(y, g.relu(t))
    assert not is_elidable_matmul_transpose(g, t)
    g = Graph()
    t = g.transpose(g.input("w", (6, 6)), perm=(1, 0))
    g.set_outputs(g.mm(t, t))
    assert not is_elidable_matmul_transpose(g, t), "read twice by one matmul"
    g = Graph()
    t = g.transpose(g.input("w", (6, 6)), perm=(1, 0))
    g.set_outputs(g.mm(g.input("x", (2, 3, 6)), t))
    assert not is_elidable_matmul_transpose(g, t), "a batched matmul"


def test_dead_and_output_transposes_stay() -> None:
    """§2: a dead transpose is dead-code elimination's; a graph output is never elidable."""
    for make in (_bank, _mm):
        g, t, y = make()
        g.set_outputs(y, t)
        assert not is_elidable_folded_transpose(g, t)
    g = Graph()
    x = g.input("w", (6, 6))
    dead2 = g.transpose(x, perm=(1, 0))
    dead3 = g.transpose(g.input("b", (2, 5, 5)), perm=(0, 2, 1))
    g.set_outputs(x)
    assert not is_elidable_folded_transpose(g, dead2) and not is_elidable_folded_transpose(g, dead3)


def test_either_kind() -> None:
    """§2: the 2-D kind counts only without small m; the option drops both kinds."""
    g, t, _ = _mm()
    assert is_elidable_folded_transpose(g, t)
    assert not is_elidable_folded_transpose(g, t, require_small_m=True)
    b, bt, _ = _bank()
    assert is_elidable_folded_transpose(b, bt, require_small_m=True)
    on, small = PlanOptions(elide_bank_transposes=True), PlanOptions(elide_bank_transposes=True, elide_requires_small_m=True)
    assert (elided_transposes(g, PlanOptions()), elided_transposes(g, on), elided_transposes(g, small)) == ([], [t], [])
    assert (elided_transposes(b, on), elided_transposes(b, small)) == ([bt], [bt])


@pytest.mark.parametrize("make", [_bank, _mm])
def test_the_reader_of_an_elided_transpose_reads_its_source(make) -> None:  # type: ignore[no-untyped-def]
    """§2: the source lives to the folded matmul, and the self-check knows."""
    g, t, y = make()
    source = g[t].inputs[0]
    opts = PlanOptions(pin_output_ancestors=False, elide_bank_transposes=True)
    assert live_ranges(g, opts).death[source] == y
    assert live_ranges(g, opts.replace(elide_bank_transposes=False)).death[source] == t
    plan = checked(plan_graph(g, opts), g)
    assert t not in plan.assignments
    death = plan.death.copy()
    death[source] = t
    kinds = {v.kind for v in verify_plan(g, dataclasses.replace(plan, death=death))}
    assert kinds == {ViolationKind.READ_AFTER_DEATH}


def test_the_source_may_be_a_view() -> None:
    """§2: it is a reader of the source's *root*."""
    g = Graph()
    h = g.relu(g.input("w", (36,)))
    r = g.reshape(h, dims=(6, 6))
    t = g.transpose(r, perm=(1, 0))
    x = g.input("x", (6, 6))
    y = g.mm(g.relu(x), t)
    g.set_outputs(y)
    opts = PlanOptions(pin_output_ancestors=False, elide_bank_transposes=True)
    ranges = live_ranges(g, opts)
    assert ranges.death[h] == ranges.death[r] == y
    plan = checked(plan_graph(g, opts), g)
    assert not np.any(plan.elided[[i for i in range(len(g)) if i != t]]) and plan.elided[t]
