"""Threads on one cache: a thousand runs over each, and what one thread's drop, insert or run may not do to another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from planner_core.ir import DimBinding, Graph
from runtime import register_kernel
from runtime.caches import BucketedCompileCache, CompileCache, DynamicDimCompileCache
from tests.runtime.caches.graphs import expected, mlp, module, params, weight_free

RUNS, THREADS, PATIENCE = 1000, 8, 20


@pytest.fixture(autouse=True)
def _eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def runs_of_a_compile_cache() -> Callable[[int], bool]:
    cache, p = CompileCache("cpu", 3), params()

    def run(i: int) -> bool:
        if i % 100 == 99:
            cache.clear()
        rows = 1 + i % 4
        x = np.random.default_rng(i).standard_normal((rows, 4)).astype(np.float32)
        got = cache.ensure_with_params(rows, mlp(rows), p).run({"x": x})["y"]
        return np.allclose(got, expected(x, p), rtol=1e-4, atol=1e-5) and cache.resident_bytes >= 0 and cache.totals().compiled <= 4

    return run


def runs_of_a_bucketed_cache() -> Callable[[int], bool]:
    cache, p = BucketedCompileCache.power_of_two_ladder("cpu", 2, 16, bucket_dim={"x": 0}), params()

    def run(i: int) -> bool:
        if i % 100 == 99:
            cache.evict_one_except(i % 3) if i % 200 == 199 else cache.clear()
        rows = 1 + i % 16
        x = np.random.default_rng(i).standard_normal((rows, 4)).astype(np.float32)

        def build(upper: int) -> Graph:
            g = mlp(upper)
            g.weights.update(p)
            return g

        _, out = cache.run_padded(rows, rows, build, [("x", x, 4)], {"y": 4})
        return np.allclose(out["y"], expected(x, p), rtol=1e-4, atol=1e-5) and cache.resident_bytes >= 0

    return run


def runs_of_a_dynamic_cache() -> Callable[[int], bool]:
    cache = DynamicDimCompileCache("cpu", 3)
    up = (np.random.default_rng(0).standard_normal((4, 5)) / 2).astype(np.float32)

    def run(i: int) -> bool:
        if i % 100 == 99:
            cache.clear()
        rows = 1 + i % 4
        made = cache.get_or_specialize(rows, DimBinding.batch_seq(1, rows), module)
        made.set_params({p.name: up if p.operand.shape == up.shape else np.zeros(5, np.float32) for p in made.commands.params})
        x = np.random.default_rng(i).standard_normal((1, rows, 4)).astype(np.float32)
        z = x @ up
        return np.allclose(made.run({"x": x})["y"], z / (1 + np.exp(-z)), rtol=1e-4, atol=1e-5)

    return run


@pytest.mark.parametrize("runs", [runs_of_a_compile_cache, runs_of_a_bucketed_cache, runs_of_a_dynamic_cache])
def test_a_thousand_runs_over_one_cache(runs: Callable[[], Callable[[int], bool]]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(runs(), range(RUNS))).count(False) == 0


def test_clear_beside_an_eviction() -> None:
    """What another thread drops while ``clear`` waits for its turn is gone, not missed."""
    cache = CompileCache("cpu", 1)
    cache.get_or_compile(1, weight_free)
    with ThreadPoolExecutor(1) as threads:
        with cache._lock:
            clearing = threads.submit(cache.clear)
            while not clearing.running():
                pass
            threading.Event().wait(0.05)  # it is at the lock now
            cache.get_or_compile(2, weight_free)  # evicts 1
        clearing.result(PATIENCE)
    assert len(cache) == 0


def test_resident_bytes_beside_an_insert() -> None:
    """The sum is over the rows of one moment: an insert that comes in between waits."""
    cache = CompileCache("cpu", 4)
    cache.get_or_compile(1, weight_free)

    class Row:
        """A row that is being read for a while."""

        @property
        def resident_bytes(self) -> int:
            reading.set()
            inserted.wait(0.2)
            return 0

    reading, inserted = threading.Event(), threading.Event()
    cache._stats = {-1: Row(), **cache._stats}  # type: ignore[dict-item]
    with ThreadPoolExecutor(1) as threads:
        size = threads.submit(lambda: cache.resident_bytes)
        assert reading.wait(PATIENCE)
        cache.get_or_compile(2, weight_free)
        inserted.set()
        assert size.result(PATIENCE) == 0


class Held:
    """A graph with a kernel that waits until it is let go."""

    def __init__(self, name: str) -> None:
        self.begun, self.go, self.name = threading.Event(), threading.Event(), name

        def kernel(inputs: object, outputs: object, attrs: object) -> None:
            self.begun.set()
            assert self.go.wait(PATIENCE)
            outputs[0][...] = inputs[0]  # type: ignore[index]

        register_kernel(name, kernel)

    def build(self, *_: int) -> Graph:
        g = Graph(self.name)
        x = g.input("x", (3,))
        return g.set_outputs(g.custom(g.relu(x), op_name=self.name, shape=g[x].shape), names=["y"])


@pytest.mark.parametrize("drop", ["evict", "clear"])
def test_dropping_a_running_entry_holds_no_reader(drop: str) -> None:
    """"wait for work in flight before an entry is dropped": whoever drops waits for the run; others get theirs at once."""
    held, cache = Held(f"test.held.{drop}"), CompileCache("cpu", 2)
    victim = cache.get_or_compile(1, held.build)
    cache.get_or_compile(2, weight_free)
    x = np.ones(3, np.float32)
    with ThreadPoolExecutor(4) as threads:
        try:
            running = threads.submit(victim.run, {"x": x})
            assert held.begun.wait(PATIENCE)
            dropping = threads.submit(cache.get_or_compile, 3, weight_free) if drop == "evict" else threads.submit(cache.clear)
            while 1 in cache:
                pass
            assert threads.submit(cache.get_or_compile, 2, weight_free).result(PATIENCE / 4).run({"x": x})["y"].tolist() == [1] * 3
            assert threads.submit(cache.get_or_compile, 3, weight_free).result(PATIENCE / 4) is cache.get(3)
            assert threads.submit(cache.totals).result(PATIENCE / 4).compiled == 2
            assert not dropping.done(), "it waits for the run"
        finally:
            held.go.set()
        np.testing.assert_array_equal(running.result(PATIENCE)["y"], x)
        dropping.result(PATIENCE)


@pytest.mark.parametrize("kind", ["compile", "bucketed"])
def test_sharing_weights_with_a_running_entry_holds_no_reader(kind: str) -> None:
    held = Held(f"test.held.share.{kind}")
    cache = CompileCache("cpu", 4) if kind == "compile" else BucketedCompileCache("cpu", [(1, 2), (2, 3)])
    target = cache.get_or_compile(1, held.build)
    target = target if kind == "compile" else target[1]
    with ThreadPoolExecutor(3) as threads:
        try:
            running = threads.submit(target.run, {"x": np.ones(3, np.float32)})
            assert held.begun.wait(PATIENCE)
            sharing = threads.submit(cache.try_share_params_from_donor, 1)
            threading.Event().wait(0.05)
            assert threads.submit(cache.totals).result(PATIENCE / 4).compiled == 1
            assert not sharing.done()
        finally:
            held.go.set()
        assert sharing.result(PATIENCE) is False, "there is nobody to share with"
        running.result(PATIENCE)
