"""Who counts a shared weight buffer, and which rows a feed takes from an active run."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.ir import Graph
from runtime.caches import BucketedCompileCache
from runtime.session import Device, Session


def linear(rows: int) -> tuple[Graph, dict[str, np.ndarray]]:
    g = Graph("linear")
    x, w = g.input("x", (rows, 8)), g.param("w", (8, 4))
    g.set_outputs(g.mm(x, w), names=["y"])
    return g, {"w": np.ones((8, 4), np.float32)}


def test_sharing_back_leaves_the_owner_its_bytes() -> None:
    cache = BucketedCompileCache(Device.CPU, [(1, 9), (9, 17)])
    for key in (8, 16):
        cache.ensure_graph_with_params(key, linear)
    before = cache.resident_bytes
    assert before > 0
    assert cache.try_share_params_from_donor(8)
    assert cache.try_share_params_from_donor(16)
    assert cache.resident_bytes == before


def test_a_dropped_owners_bytes_count_while_a_sharer_stands_on_them() -> None:
    cache = BucketedCompileCache(Device.CPU, [(1, 9), (9, 17)])
    for key in (8, 16):
        cache.ensure_graph_with_params(key, linear)
    held = cache.resident_bytes_of(8)
    assert held > 0
    assert cache.evict_one_except(1) == 0
    assert (cache.resident_bytes_of(8), cache.resident_bytes_of(16)) == (0, 0)
    assert cache.resident_bytes == held
    cache.clear()
    assert cache.resident_bytes == 0


def test_an_owner_that_moves_leaves_its_bytes_to_those_that_stand_on_them() -> None:
    cache = BucketedCompileCache(Device.CPU, [(1, 9), (9, 17), (17, 33)])

    def build(rows: int) -> Graph:
        graph, weights = linear(rows)
        graph.weights = {"w": weights["w"] * (rows == 32)}  # the last one brings other data: a buffer of its own
        return graph

    for key in (8, 16):
        cache.get_or_compile(key, build)
    cache.get_or_compile(32, build)
    assert cache.set_weight_donor(32)
    assert cache.try_share_params_from_donor(8)
    alive = {id(cache.compiled_for_upper(u).executor.weight_buffer) for u in (8, 16, 32)}
    assert (len(alive), cache.resident_bytes) == (2, 2 * 4 * 32)


def test_weights_that_a_graph_brings_along_are_counted_and_may_evict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_KV_CACHE_MAX_RESIDENT", "1")
    cache = BucketedCompileCache(Device.CPU, [(1, 9), (9, 17)], large_bytes=128)

    def build(rows: int) -> Graph:
        graph, graph.weights = linear(rows)[0], linear(rows)[1]
        return graph

    cache.get_or_compile(8, build)
    assert cache.resident_bytes_of(8) == cache.resident_bytes == 4 * 8 * 4
    cache.run_padded(16, 16, build, [("x", np.ones((16, 8), np.float32), 8)], {"y": 4})
    assert (cache.compiled_for_key(8), cache.resident_bytes) == (None, 128)


@pytest.mark.parametrize(("extent", "rows"), [(None, 8), ((2, 8), 2)])
def test_a_feed_takes_the_rows_that_the_run_computed(extent: tuple[int, int] | None, rows: int) -> None:
    g = Graph("feed")
    x, past = g.input("x", (8, 4)), g.input("past_k_0", (32, 4))
    g.set_outputs(g.relu(x), g.neg(past), names=["k", "seen"])
    c = Session(Device.CPU).compile(g, bucket_dim={"x": 0})
    c.bind_gpu_handle("past_k_0", np.zeros((32, 4), np.float32))
    c.stage_bound_gpu_handles_to_arena()
    c.register_kv_row_feed("past_k_0", "k", 0)
    c.run({"x": np.full((8, 4), 9, np.float32)})
    c.set_active_extent(extent)
    c.run({"x": np.ones((8, 4), np.float32)})
    held = c.handles.view("past_k_0")
    assert c.handles.rows("past_k_0") == 8 + rows
    assert (held[:8] == 9).all()
    assert (held[8 : 8 + rows] == 1).all()
    assert (held[8 + rows :] == 0).all()
