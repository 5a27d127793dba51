"""``caches.md``, "CompileCache(device, capacity, precision_policy=None)", fact by fact."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from planner_core.ir import DimBinding
from runtime import CompileOptions, RunError
from runtime.caches import CompileCache
from runtime.session import PrecisionPolicy
from tests.runtime.caches.graphs import Counted, expected, mlp, module, params, weight_free

X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def test_any_int_is_a_key_and_build_runs_once_a_resident_key() -> None:
    """"Key: any int the caller chooses … calls `build` at most once per resident key"."""
    cache = CompileCache("cpu", 4)
    for key in (0, -7, 3 << 32 | 128, 1 << 80):
        build = Counted(weight_free)
        first = cache.get_or_compile(key, build)
        assert cache.get_or_compile(key, build) is first
        assert len(build.calls) == 1


@pytest.mark.parametrize("capacity", [0, -3])
def test_capacity_below_one_is_a_value_error(capacity: int) -> None:
    """"`capacity` ≥ 1 or `ValueError`"."""
    with pytest.raises(ValueError, match=f"capacity is {capacity}"):
        CompileCache("cpu", capacity)


def test_a_hit_ignores_params_and_keeps_its_weights() -> None:
    """"A hit ignores any params given"; "keep weights with an entry (a hit never needs them set again)"."""
    cache = CompileCache("cpu", 2)
    cache.ensure_with_params(1, mlp(3), params(0))
    again = cache.ensure_with_params(1, mlp(3), params(1))
    np.testing.assert_allclose(again.run({"x": X})["y"], expected(X, params(0)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cache.get_or_compile(1, weight_free).run({"x": X})["y"], expected(X, params(0)), rtol=1e-5,
                               atol=1e-5)


def test_eviction_is_first_in_first_out() -> None:
    """"Eviction is first-in first-out at `capacity`": a hit doesn't save an entry; `len`, `in`, iteration."""
    cache = CompileCache("cpu", 2)
    cache.get_or_compile(1, weight_free)
    cache.get_or_compile(2, weight_free)
    cache.get_or_compile(1, weight_free)
    cache.get_or_compile(3, weight_free)
    assert list(cache) == [2, 3]
    assert len(cache) == 2
    assert 1 not in cache and 3 in cache
    build = Counted(weight_free)
    cache.get_or_compile(1, build)
    assert len(build.calls) == 1
    assert list(cache) == [3, 1]


def test_a_dropped_entry_stops_being_donor_and_shared_bytes_stay_alive() -> None:
    """"A dropped entry stops being weight donor; bytes that a sharer still holds stay alive"."""
    cache = CompileCache("cpu", 2)
    one = cache.ensure_with_params(1, mlp(3), params())
    two = cache.ensure_with_params(2, mlp(5), params(9))
    assert cache.weight_donor == 1
    assert two.executor.weight_buffer is one.executor.weight_buffer
    gone = weakref.ref(one)
    cache.get_or_compile(3, weight_free)
    assert 1 not in cache
    assert cache.weight_donor is None
    del one
    assert gone() is None
    x = np.ones((5, 4), np.float32)
    np.testing.assert_allclose(two.run({"x": x})["y"], expected(x, params()), rtol=1e-5, atol=1e-5)


def test_ensure_shares_where_layouts_match_and_uploads_where_not() -> None:
    """"then *share* another entry's weight buffer if the layouts match byte for byte, and upload only if not"."""
    cache = CompileCache("cpu", 4)
    one = cache.ensure_with_params(1, mlp(3), params(0))
    two = cache.ensure_with_params(2, mlp(5), params(1))
    other = cache.ensure_with_params(3, mlp(3, hidden=7), params(2, hidden=7))
    assert two.executor.weight_buffer is one.executor.weight_buffer
    assert other.executor.weight_buffer is not one.executor.weight_buffer
    np.testing.assert_allclose(other.run({"x": X})["y"], expected(X, params(2, hidden=7)), rtol=1e-5, atol=1e-5)
    assert [s.resident_bytes for s in cache.entry_stats()] == [one.weight_bytes, 0, other.weight_bytes]
    one.set_param("b", np.full(6, 2, np.float32))
    np.testing.assert_array_equal(two.param("b"), np.full(6, 2, np.float32))


def test_never_shares_with_itself() -> None:
    """"Never shares with itself"."""
    cache = CompileCache("cpu", 2)
    cache.ensure_with_params(1, mlp(3), params())
    assert not cache.try_share_params_from_donor(1)


def test_the_donor_is_tried_first_and_a_success_makes_the_source_the_donor() -> None:
    """"the donor first, then any other entry; a success makes that source the donor"."""
    cache = CompileCache("cpu", 4)
    cache.ensure_with_params(1, mlp(3, hidden=7), params(0, hidden=7))
    cache.ensure_with_params(2, mlp(3), params(0))
    assert cache.weight_donor == 1
    three = cache.get_or_compile(3, lambda: mlp(4))
    assert cache.try_share_params_from_donor(3)
    assert cache.weight_donor == 2
    assert three.executor.weight_buffer is cache.get(2).executor.weight_buffer
    cache.get_or_compile(4, lambda: mlp(2))
    assert cache.try_share_params_from_donor(4)
    assert cache.weight_donor == 2
    assert not cache.try_share_params_from_donor(99)


@pytest.mark.parametrize("value", ["1", "yes"])
def test_no_share_turns_sharing_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """"`RLX_METAL_NO_SHARE` turns sharing off", a flag like any other."""
    monkeypatch.setenv("RLX_METAL_NO_SHARE", value)
    cache = CompileCache("cpu", 4)
    one = cache.ensure_with_params(1, mlp(3), params(0))
    two = cache.ensure_with_params(2, mlp(5), params(1))
    assert not cache.try_share_params_from_donor(2)
    assert two.executor.weight_buffer is not one.executor.weight_buffer
    np.testing.assert_array_equal(two.param("b"), params(1)["b"])


def test_an_entry_without_data_gives_no_weights() -> None:
    """A source whose own params were never set isn't shared: the params given would be lost."""
    cache = CompileCache("cpu", 4)
    cache.get_or_compile(1, lambda: mlp(3))
    two = cache.ensure_with_params(2, mlp(3), params())
    np.testing.assert_allclose(two.run({"x": X})["y"], expected(X, params()), rtol=1e-5, atol=1e-5)


def test_missing_params_are_named_and_nothing_stays() -> None:
    cache = CompileCache("cpu", 4)
    with pytest.raises(RunError, match="no data for params v"):
        cache.ensure_with_params(1, mlp(3), {k: v for k, v in params().items() if k != "v"})
    assert len(cache) == 0


def test_a_module_instead_of_a_graph() -> None:
    """"a variant of `get_or_compile` that takes a high-level module (HIR) instead of a graph"."""
    cache = CompileCache("cpu", 2)
    build = Counted(module)
    options = CompileOptions(dims=DimBinding.batch_seq(2, 3))
    made = cache.get_or_compile_hir(1, build, options)
    assert cache.get_or_compile_hir(1, build, options) is made
    assert len(build.calls) == 1
    assert made.graph.find("x").shape.sizes == (2, 3, 4)


def test_the_precision_policy_of_the_options_beats_the_caches() -> None:
    cache = CompileCache("cpu", 3, precision_policy="auto_mixed")
    assert cache.get_or_compile(1, lambda: mlp(3)).options.precision is PrecisionPolicy.AUTO_MIXED
    f32 = cache.get_or_compile(2, lambda: mlp(3), CompileOptions(precision=PrecisionPolicy.F32))
    assert f32.options.precision is PrecisionPolicy.F32


def test_an_entry_is_dropped_after_its_run() -> None:
    """"wait for work in flight before an entry is dropped (`sync_pending`)"; `sync_all()` and `clear()`."""
    cache = CompileCache("cpu", 1)
    one = cache.get_or_compile(1, weight_free)
    order: list[str] = []
    inside, go = threading.Event(), threading.Event()

    def run() -> None:
        with one._lock:  # as a run holds it
            inside.set()
            go.wait(10)
            order.append("ran")

    def evict() -> None:
        cache.get_or_compile(2, weight_free)
        order.append("evicted")

    threads = [threading.Thread(target=run), threading.Thread(target=evict)]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    threads[1].join(0.05)
    go.set()
    for t in threads:
        t.join(10)
    assert order == ["ran", "evicted"]
    cache.sync_all()
    cache.clear()
    assert len(cache) == 0
    assert cache.totals().resident_bytes == 0


def test_hits_misses_evictions_and_bytes_are_data() -> None:
    """"report hits, misses, evictions and resident bytes as data"."""
    cache = CompileCache("cpu", 1)
    one = cache.ensure_with_params(1, mlp(3), params())
    cache.ensure_with_params(1, mlp(3), params())
    assert cache.totals().resident_bytes == one.weight_bytes
    cache.get_or_compile(2, weight_free)
    t = cache.totals()
    assert (t.hits, t.misses, t.evictions, t.compiled, t.resident_bytes) == (1, 2, 1, 1, 0)
    assert [e.kind for e in cache.timeline()] == ["miss", "upload", "hit", "evict", "miss"]
    frame = cache.stats()
    assert frame["hits"].tolist() == [1, 0]
    assert frame["evictions"].tolist() == [1, 0]
    assert frame["compiled"].tolist() == [False, True]
