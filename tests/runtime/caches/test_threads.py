"""Many threads on each cache: one compile an entry, waited for by the others; failures don't stick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from planner_core.ir import DimBinding
from runtime import RunError
from runtime.caches import BucketedCompileCache, CompileCache, DynamicDimCompileCache
from tests.runtime.caches.graphs import expected, mlp, module, params, weight_free

THREADS = 8


def together(work: Callable[[int], object]) -> list[object]:
    """What ``work(i)`` gave in each of several threads that start at once; errors too."""
    barrier, out = threading.Barrier(THREADS), [None] * THREADS

    def one(i: int) -> None:
        barrier.wait()
        try:
            out[i] = work(i)
        except Exception as e:
            out[i] = e

    threads = [threading.Thread(target=one, args=(i,)) for i in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads), "deadlock"
    return out


class Slow:
    """A builder that takes a while, counts, and fails as often as asked."""

    def __init__(self, make: Callable[..., object], fail: int = 0) -> None:
        self.make, self.fail, self.calls = make, fail, 0

    def __call__(self, *args: object) -> object:
        self.calls += 1
        time.sleep(0.02)
        if self.calls <= self.fail:
            raise ValueError("no luck")
        return self.make(*args)


def test_a_compile_in_flight_is_waited_for() -> None:
    build = Slow(weight_free)
    cache = CompileCache("cpu", 4)
    made = together(lambda i: cache.get_or_compile(1, build))
    assert build.calls == 1
    assert len(set(map(id, made))) == 1
    bucket_build = Slow(mlp)
    buckets = BucketedCompileCache("cpu", [(1, 9)])
    got = together(lambda i: buckets.get_or_compile(1 + i, bucket_build))
    assert bucket_build.calls == 1
    assert len({id(c) for _, c in got}) == 1
    module_build = Slow(module)
    dynamic = DynamicDimCompileCache("cpu", 4)
    together(lambda i: dynamic.get_or_specialize(i % 2, DimBinding.batch_seq(1, 1 + i % 2), module_build))
    assert module_build.calls == 1
    assert dynamic.totals().misses == 2


def test_another_key_is_not_waited_for() -> None:
    cache = CompileCache("cpu", 4)
    cache.get_or_compile(2, weight_free)
    begun, go = threading.Event(), threading.Event()

    def build():
        begun.set()
        go.wait(10)
        return weight_free()

    t = threading.Thread(target=cache.get_or_compile, args=(1, build))
    t.start()
    begun.wait(10)
    assert cache.get_or_compile(2, weight_free) is cache.get(2)
    assert cache.get_or_compile(3, weight_free) is cache.get(3)
    go.set()
    t.join(10)
    assert 1 in cache


def test_a_failed_compile_is_tried_again_by_those_who_waited() -> None:
    build = Slow(weight_free, fail=3)
    cache = CompileCache("cpu", 4)
    made = together(lambda i: cache.get_or_compile(1, build))
    assert build.calls == 4
    assert sum(isinstance(m, ValueError) for m in made) == 3
    assert len({id(m) for m in made if not isinstance(m, Exception)}) == 1


def test_a_build_that_asks_for_itself_is_an_error_not_a_deadlock() -> None:
    cache = CompileCache("cpu", 4)

    def build():
        return cache.get_or_compile(1, build)

    with pytest.raises(RunError, match="entry 1 asks the cache for the same entry"):
        cache.get_or_compile(1, build)

    def nested():
        cache.get_or_compile(3, weight_free)
        return weight_free()

    cache.get_or_compile(2, nested)
    assert list(cache) == [3, 2]


def test_runs_and_evictions_at_once() -> None:
    cache = CompileCache("cpu", 2)
    x = np.ones((2, 4), np.float32)
    want = expected(x, params())

    def work(i: int) -> str:
        for n in range(20):
            made = cache.ensure_with_params((i + n) % 4, mlp(2), params())
            if not np.allclose(made.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5):
                return "wrong"
            if n % 7 == 6:
                cache.clear()
        return "right"

    assert together(work) == ["right"] * THREADS
    assert len(cache) <= 2


def test_ladders_under_a_cap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_KV_CACHE_MAX_RESIDENT", "1")
    cache = BucketedCompileCache.power_of_two_ladder("cpu", 2, 16, large_bytes=1)

    def work(i: int) -> bool:
        right = True
        for n in range(12):
            key = 1 + (5 * i + 3 * n) % 16
            _, compiled = cache.ensure_graph_with_params(key, lambda upper: (mlp(upper), params()))
            upper = cache.bucket_upper_for_key(key)
            y = compiled.run({"x": np.full((upper, 4), i + 1, np.float32)})["y"]
            right &= np.allclose(y, expected(np.full((upper, 4), i + 1, np.float32), params()), rtol=1e-4, atol=1e-4)
            cache.note_resident_bytes(key, 1)
        return right

    assert together(work) == [True] * THREADS


def test_builds_that_ask_for_each_other_are_refused_not_stuck() -> None:
    """Each of two builds, in a thread of its own, asks for the other's entry: one is told, the other gets done."""
    first, second = CompileCache("cpu", 4), CompileCache("cpu", 4)
    begun = threading.Barrier(2)
    patience = [True, True]

    def build(i: int):
        if patience[i]:
            patience[i] = False
            begun.wait(10)
        (second, first)[i].get_or_compile(2 - i, lambda: build(1 - i))
        return weight_free()

    def work(i: int) -> object:
        return (first, second)[i].get_or_compile(1 + i, lambda: build(i)) if i < 2 else None

    got = together(work)[:2]
    told = [e for e in got if isinstance(e, RunError)]
    assert len(told) >= 1
    assert all("wait for each other" in str(e) or "asks the cache for the same entry" in str(e) for e in told), told


def test_two_large_buckets_at_once_keep_to_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find room before either is in; the one that comes in last evicts the other."""
    monkeypatch.setenv("RLX_KV_CACHE_MAX_RESIDENT", "1")
    cache = BucketedCompileCache("cpu", [(1, 2), (2, 3)], large_bytes=1)
    both = threading.Barrier(2)

    def build(upper: int):
        both.wait(10)
        return mlp(upper, hidden=5 + upper), params(hidden=5 + upper)

    together(lambda i: cache.ensure_graph_with_params(1 + i, build) if i < 2 else None)
    assert cache.compiled_count == 1
    assert cache.resident_bytes in (4 * 9 * 6, 4 * 9 * 7)
