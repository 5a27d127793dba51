"""Graphs that bring their weights along stand on one copy of them, in every cache; other bytes stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.ir import DimBinding, Graph
from runtime.caches import BucketedCompileCache, CompileCache, DynamicDimCompileCache
from runtime.caches.base import NO_SHARE_VARIABLE
from runtime.session import CompiledGraph, Device

LADDER = [(1, 9), (9, 17), (17, 33), (33, 65)]
NBYTES = 4 * (4 * 6 + 6 * 4)


def graph(rows: int | str, seed: int = 0) -> Graph:
    """``y = relu(x w) v`` with data."""
    rng = np.random.default_rng(seed)
    g = Graph("mlp")
    x = g.input("x", (rows, 4))
    w = g.param("w", (4, 6), data=rng.standard_normal((4, 6)).astype(np.float32))
    v = g.param("v", (6, 4), data=rng.standard_normal((6, 4)).astype(np.float32))
    return g.set_outputs(g.mm(g.relu(g.mm(x, w)), v), names=["y"])


def outputs(compiled: CompiledGraph, rows: int) -> np.ndarray:
    return compiled.run({"x": np.ones((rows, 4), np.float32)})["y"]


def expected(rows: int, seed: int = 0) -> np.ndarray:
    weights = graph(1, seed).weights
    return np.maximum(np.ones((rows, 4), np.float32) @ weights["w"], 0) @ weights["v"]


def test_a_ladder_holds_one_copy() -> None:
    cache = BucketedCompileCache(Device.CPU, LADDER)
    made = [cache.get_or_compile(end - 1, graph) for _, end in LADDER]
    assert cache.resident_bytes == NBYTES
    assert [cache.resident_bytes_of(end - 1) for _, end in LADDER] == [NBYTES, 0, 0, 0]
    assert len({m[1].weight_buffer_id for m in made}) == 1
    assert [e.kind for e in cache.timeline()] == ["miss", "miss", "share", "miss", "share", "miss", "share"]
    assert [s.shares for s in cache.entry_stats()] == [False, True, True, True]
    for upper, compiled in made:
        np.testing.assert_allclose(outputs(compiled, upper), expected(upper), rtol=1e-5)


def test_a_padded_run_stands_on_the_copy_too() -> None:
    cache = BucketedCompileCache(Device.CPU, LADDER)
    cache.get_or_compile(8, graph)
    _, got = cache.run_padded(12, 12, graph, [("x", np.ones((12, 4), np.float32), 4)], {"y": 4})
    np.testing.assert_allclose(got["y"].reshape(12, 4), expected(12), rtol=1e-5)
    assert cache.resident_bytes == NBYTES


def test_other_bytes_stay_apart() -> None:
    """The layouts match; the data decides."""
    cache = BucketedCompileCache(Device.CPU, LADDER)
    cache.get_or_compile(8, graph)
    cache.get_or_compile(16, lambda rows: graph(rows, seed=1))
    assert cache.resident_bytes == 2 * NBYTES
    np.testing.assert_allclose(outputs(cache.compiled_for_upper(16), 16), expected(16, 1), rtol=1e-5)
    cache.get_or_compile(32, lambda rows: graph(rows, seed=1))
    assert cache.compiled_for_upper(32).weight_buffer_id == cache.compiled_for_upper(16).weight_buffer_id
    cache.compiled_for_upper(8).set_param("w", np.zeros((4, 6), np.float32))  # written since: no copy of what came
    cache.get_or_compile(64, graph)
    assert cache.resident_bytes == 3 * NBYTES


def test_weights_without_data_are_nobodys_copy() -> None:
    def bare(rows: int) -> Graph:
        made = graph(rows)
        made.weights = {}
        return made

    cache = BucketedCompileCache(Device.CPU, LADDER)
    cache.get_or_compile(8, graph)
    cache.get_or_compile(16, bare)
    assert cache.compiled_for_upper(16).own_weight_bytes > 0
    cache.get_or_compile(32, graph)
    assert cache.compiled_for_upper(32).own_weight_bytes == 0


def test_sharing_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_SHARE_VARIABLE, "on")
    cache = BucketedCompileCache(Device.CPU, LADDER)
    for _, end in LADDER:
        cache.get_or_compile(end - 1, graph)
    assert cache.resident_bytes == 4 * NBYTES


def test_keys_and_specialisations_hold_one_copy() -> None:
    keys = CompileCache(Device.CPU, 4)
    for key in (3, 5, 7):
        keys.get_or_compile(key, lambda key=key: graph(key))
    assert len({keys.get(k).weight_buffer_id for k in keys}) == 1
    dynamic = DynamicDimCompileCache(Device.CPU, 4)
    made = [dynamic.get_or_specialize(n, DimBinding.of(S=n), lambda: graph("S")) for n in (3, 5, 7)]
    assert len({m.weight_buffer_id for m in made}) == 1
    assert [e.kind for e in dynamic.timeline()].count("share") == [e.kind for e in keys.timeline()].count("share") == 2
    for n, compiled in zip((3, 5, 7), made, strict=True):
        np.testing.assert_allclose(outputs(compiled, n), expected(n), rtol=1e-5)
    assert keys.resident_bytes == dynamic.resident_bytes == keys.get(3).weight_bytes
