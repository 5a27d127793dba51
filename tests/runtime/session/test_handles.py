"""Resident handles: bound, staged, fed, copied; and what refuses."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.ir import Graph
from runtime import CompileOptions, RunError
from runtime.session import CompiledGraph, Session

KV = 3


def step(rows: int) -> Graph:
    """One step: the new row is ``2 x``; the output adds up the cache's rows."""
    g = Graph("step")
    x = g.input("x", (1, 1, KV))
    k, v = (g.input(f"past_{n}_0", (1, rows, KV)) for n in "kv")
    total = g.add(g.reduce(k, kind="sum", axes=(1,)), g.reduce(v, kind="sum", axes=(1,)))
    return g.set_outputs(total, g.mul(x, g.constant(np.full((1, 1, KV), 2, np.float32))), g.neg(x), names=["total", "k", "v"])


def compiled(rows: int) -> CompiledGraph:
    return Session().compile(step(rows))


def row(v: float) -> np.ndarray:
    return np.full((1, 1, KV), v, np.float32)


def test_bound_handles_are_staged_and_stay() -> None:
    c = compiled(4)
    host = np.arange(12, dtype=np.float32)
    c.bind_gpu_handle("past_k_0", host)
    c.bind_gpu_handle("past_v_0", np.zeros((1, 4, KV), np.float32))
    with pytest.raises(RunError, match="missing input 'past_k_0'"):
        c.run({"x": row(1)})
    assert c.stage_bound_gpu_handles_to_arena() == 2
    for _ in range(3):
        np.testing.assert_array_equal(c.run({"x": row(1)})["total"], host.reshape(4, 3).sum(0)[None])
    host += 1  # a reference is kept: staging again takes the new values
    c.stage_bound_gpu_handles_to_arena()
    np.testing.assert_array_equal(c.run({"x": row(1)})["total"], host.reshape(4, 3).sum(0)[None])
    audited = c.run({"x": row(1)}, sanitize=True)["total"]
    np.testing.assert_array_equal(audited, host.reshape(4, 3).sum(0)[None])


def test_resident_handles_are_neither_needed_nor_taken() -> None:
    c = compiled(2)
    zero = np.zeros((1, 2, KV), np.float32)
    c.run({"x": row(1), "past_k_0": zero + 1, "past_v_0": zero})
    c.prepare_resident_gpu_handle("past_k_0")
    assert c.run({"x": row(1), "past_v_0": zero})["total"].tolist() == [[2] * KV]
    with pytest.raises(RunError, match="'past_k_0' is resident"):
        c.run({"x": row(1), "past_v_0": zero, "past_k_0": zero})
    c.release_resident_gpu_handle("past_k_0")
    assert c.run({"x": row(1), "past_v_0": zero, "past_k_0": zero})["total"].tolist() == [[0] * KV]


def test_rows_are_fed_from_outputs_one_after_another() -> None:
    c = compiled(3)
    for name in ("past_k_0", "past_v_0"):
        c.bind_gpu_handle(name, np.zeros((1, 3, KV), np.float32))
    c.stage_bound_gpu_handles_to_arena()
    c.register_kv_row_feed("past_k_0", "k")
    c.register_kv_row_feed("past_v_0", "v", 0)
    totals = [c.run({"x": row(n)})["total"][0, 0] for n in (1, 2, 3)]
    assert totals == [0, 1, 3]
    np.testing.assert_array_equal(c.handles.view("past_k_0")[:, 0], [2, 4, 6])
    with pytest.raises(RunError, match="'past_k_0' is full: row 3 of 3"):
        c.run({"x": row(4)})


def test_rows_are_copied_between_graphs() -> None:
    a, b = compiled(3), compiled(6)
    a.bind_gpu_handle("past_k_0", np.arange(9, dtype=np.float32))
    a.bind_gpu_handle("past_v_0", np.ones(9, np.float32))
    a.stage_bound_gpu_handles_to_arena()
    names = ["past_k_0", "past_v_0"]
    b.handles.view("past_k_0")[:] = b.handles.view("past_v_0")[:] = 0
    b.seed_resident_kv_prefix_from(a, names, 2)
    assert b.run({"x": row(1)})["total"].tolist() == [[3 + 2, 5 + 2, 7 + 2]]
    b.copy_resident_kv_rows_from(a, names, 2, 3)
    assert b.handles.view("past_k_0")[2].tolist() == [6, 7, 8]
    with pytest.raises(RunError, match="rows 0 to 4"):
        b.copy_resident_kv_rows_from(a, names, 0, 4)


@pytest.mark.parametrize(("call", "text"), [
    (lambda c: c.bind_gpu_handle("past_q", np.zeros(3)), "has no input 'past_q'"),
    (lambda c: c.bind_gpu_handle("past_k_0", np.zeros(3, np.float32)), r"takes float32\[3, 3\]"),
    (lambda c: c.prepare_resident_gpu_handle("nothing"), "has no input 'nothing'"),
    (lambda c: c.register_kv_row_feed("past_k_0", "nothing"), "has no output 'nothing'"),
    (lambda c: c.register_kv_row_feed("past_k_0", "k", 9), "row 9 is not in"),
])
def test_mistakes_are_explained(call, text: str) -> None:
    with pytest.raises(RunError, match=text):
        call(compiled(3))


def test_a_slot_that_others_use_cannot_stay() -> None:
    g = Graph("reuse")
    x = g.input("x", (8, 8))
    g.set_outputs(g.relu(x), names=["y"])
    c = Session().compile(g, CompileOptions())
    import dataclasses

    c.executor.commands = dataclasses.replace(c.commands, slots=(*c.commands.slots, *c.commands.slots))
    with pytest.raises(RunError, match="can't stay resident: its bytes hold other tensors"):
        c.prepare_resident_gpu_handle("x")
