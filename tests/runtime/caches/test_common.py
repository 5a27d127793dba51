"""``caches.md``: "All of them: keep weights with an entry …, wait for work in flight before an entry is dropped
(`sync_pending`), offer `sync_all()` and `clear()`, and report hits, misses, evictions and resident bytes as data"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from planner_core.ir import DimBinding
from runtime.caches import BucketedCompileCache, CompileCache, DynamicDimCompileCache, base
from runtime.caches.base import CacheBase
from runtime.session import CompiledGraph
from tests.runtime.caches.graphs import mlp, module, params


@dataclass
class Kind:
    """A cache of two entries, however it is asked for them."""

    make: Callable[[], CacheBase]
    get: Callable[[CacheBase, int], CompiledGraph]
    x: np.ndarray


KINDS = {
    "compile": Kind(lambda: CompileCache("cpu", 2), lambda c, k: c.get_or_compile(k, lambda: mlp(2)), np.ones((2, 4), np.float32)),
    "bucketed": Kind(lambda: BucketedCompileCache("cpu", [(0, 1), (1, 2), (2, 3)]),
                     lambda c, k: c.get_or_compile(k, lambda upper: mlp(2))[1], np.ones((2, 4), np.float32)),
    "dynamic": Kind(lambda: DynamicDimCompileCache("cpu", 2),
                    lambda c, k: c.get_or_specialize(k, DimBinding.batch_seq(1, 2), module), np.ones((1, 2, 4), np.float32)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def load(made: CompiledGraph) -> None:
    data = params() if "w" in made.param_names else {"up.w": np.ones((4, 5), np.float32), "up.b": np.zeros(5, np.float32)}
    made.set_params(data)


def test_a_hit_never_needs_its_weights_again(kind: Kind) -> None:
    cache = kind.make()
    load(kind.get(cache, 0))
    first = kind.get(cache, 0).run({"x": kind.x})["y"]
    kind.get(cache, 1)
    np.testing.assert_array_equal(kind.get(cache, 0).run({"x": kind.x})["y"], first)


class Held:
    """A run that is in flight until it is let go."""

    def __init__(self, made: CompiledGraph) -> None:
        self.made, self.go, self.inside, self.over = made, threading.Event(), threading.Event(), 0.0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.inside.wait(10)

    def _run(self) -> None:
        with self.made._lock:  # what a run holds
            self.inside.set()
            self.go.wait(10)
            self.over = time.perf_counter()

    def during(self, call: Callable[[], object]) -> float:
        """When the call returned, the run being let go shortly after it began."""
        threading.Timer(0.05, self.go.set).start()
        call()
        at = time.perf_counter()
        self.thread.join(10)
        return at


@pytest.mark.parametrize("how", ["sync_all", "clear"])
def test_sync_all_and_clear_wait_for_runs(how: str, kind: Kind) -> None:
    cache = kind.make()
    held = Held(kind.get(cache, 0))
    at = held.during(getattr(cache, how))
    assert at >= held.over
    assert cache.totals().compiled == (0 if how == "clear" else 1)


def test_eviction_waits_for_runs(kind: Kind) -> None:
    cache = kind.make()
    held = Held(kind.get(cache, 0))
    kind.get(cache, 1)
    if isinstance(cache, BucketedCompileCache):
        at = held.during(lambda: cache.evict_except(1))
    else:
        at = held.during(lambda: kind.get(cache, 2))
    assert at >= held.over
    assert cache.totals().evictions == 1


def test_counters_frames_and_events(kind: Kind) -> None:
    cache = kind.make()
    for key in (0, 1, 0, 0):
        kind.get(cache, key)
    t = cache.totals()
    assert (t.hits, t.misses, t.evictions, t.compiled) == (2, 2, 0, 2)
    assert cache.stats()["hits"].sum() == 2
    assert [e.kind for e in cache.timeline()] == ["miss", "miss", "hit", "hit"]
    cache.clear()
    assert cache.totals().resident_bytes == 0
    assert [e.kind for e in cache.timeline()][-2:] == ["clear", "clear"]
    assert not cache.stats()["compiled"].any()


def test_rows_of_keys_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_ENTRIES", 5)
    cache = CompileCache("cpu", 2)
    for key in range(9):
        cache.get_or_compile(key, lambda: mlp(2))
    assert cache.stats()["start"].tolist() == [4, 5, 6, 7, 8]
    assert cache.totals().misses == 9
    assert cache.totals().evictions == 7


@pytest.mark.parametrize("value", ["1", "on"])
def test_no_share_holds_for_buckets_too(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_METAL_NO_SHARE", value)
    cache = BucketedCompileCache("cpu", [(1, 3), (3, 5)])
    _, one = cache.ensure_graph_with_params(1, lambda u: (mlp(u), params()))
    _, two = cache.ensure_graph_with_params(3, lambda u: (mlp(u), params()))
    assert one.executor.weight_buffer is not two.executor.weight_buffer
    assert not cache.try_share_params_from_donor(4)
    assert cache.resident_bytes_of(4) == cache.resident_bytes_of(2) > 0
