"""``caches.md``: "Rolling a resident KV cache to the next bucket"."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.ir import Graph
from runtime.caches import BucketedCompileCache
from runtime.session import CompiledGraph

KV, LAYERS = 3, 2


def step(upper: int) -> Graph:
    g = Graph("step")
    outs = [g.relu(g.input("x", (1, 1, KV)))]
    for i in range(LAYERS):
        for n in "kv":
            outs.append(g.relu(g.reduce(g.input(f"past_{n}_{i}", (1, upper, KV)), kind="sum", axes=(1,))))
    return g.set_outputs(*outs, names=["out", *(f"o{i}" for i in range(2 * LAYERS))])


def handles() -> list[str]:
    return [f"past_{n}_{i}" for i in range(LAYERS) for n in "kv"]


@pytest.fixture
def cache() -> BucketedCompileCache:
    c = BucketedCompileCache("cpu", [(1, 5), (5, 9), (9, 17)])
    for key in (1, 5):
        c.get_or_compile(key, step)
    fill(c.compiled_for_key(1), 100)
    fill(c.compiled_for_key(5), 900)
    return c


def fill(compiled: CompiledGraph, base: int) -> None:
    for i, name in enumerate(handles()):
        view = compiled.handles.view(name)
        view[...] = np.arange(view.size).reshape(view.shape) + base * (i + 1)
        compiled.prepare_resident_gpu_handle(name)


def held(cache: BucketedCompileCache, key: int) -> list[np.ndarray]:
    return [cache.compiled_for_key(key).handles.view(n).copy() for n in handles()]


def test_seed_copies_rows_device_to_device(cache: BucketedCompileCache) -> None:
    """"`seed_resident_kv_prefix_from_keys(src, dst, prefix_tokens, outgoing_upper, kv_dim, n_layers)` copies rows device to
    device"."""
    src, before = held(cache, 1), held(cache, 5)
    assert cache.seed_resident_kv_prefix_from_keys(3, 6, 3, 4, KV, LAYERS)
    for got, a, b in zip(held(cache, 5), src, before, strict=True):
        np.testing.assert_array_equal(got[:3], a[:3])
        np.testing.assert_array_equal(got[3:], b[3:])
    assert cache.compiled_for_key(5).executor.resident == set(handles())


def host(rows: int, base: float) -> list[np.ndarray]:
    return [np.full(rows * KV, base + i, np.float32) for i in range(LAYERS)]


@pytest.mark.parametrize(("rows", "copied"), [(2, 1), (3, 0), (5, 0), (0, 3)])
def test_rebind_uploads_what_the_host_knows_and_copies_the_rest(rows: int, copied: int, cache: BucketedCompileCache) -> None:
    """"uploads the rows the host knows once and copies only the missing ones … host rows = `len(host_k[0]) // max(kv_dim,
    1)`, zero-padded to `upper`, then staged; if host rows < prefix the rest is copied from `src`, else the handles are
    marked resident"."""
    src = held(cache, 1)
    k, v = host(rows, 10), host(rows, 20)
    assert cache.rebind_resident_kv_hybrid_from_keys(4, 5, k, v, 3, 4, 8, KV, LAYERS)
    for i, (got, a) in enumerate(zip(held(cache, 5), src, strict=True)):
        known = (k, v)[i % 2][i // 2][0] if rows else 0
        np.testing.assert_array_equal(got[:rows], np.full((rows, KV), known))
        np.testing.assert_array_equal(got[rows : rows + copied], a[rows : rows + copied])
        assert (got[rows + copied :] == 0).all()
    dst = cache.compiled_for_key(5)
    assert dst.executor.resident == set(handles())
    for array in k:
        array[:] = -1
    dst.stage_bound_gpu_handles_to_arena()
    assert (held(cache, 5)[0][:rows] != -1).all(), "the host's rows go up once"


def test_same_bucket_is_true_and_missing_ones_false(cache: BucketedCompileCache) -> None:
    """"Same bucket → true; a missing or uncompiled bucket → false"."""
    before = held(cache, 1)
    for src, dst, want in ((2, 4, True), (1, 9, False), (9, 1, False), (1, 99, False), (0, 5, False), (0, 99, False),
                           (10, 11, False)):
        assert cache.seed_resident_kv_prefix_from_keys(src, dst, 2, 4, KV, LAYERS) is want, (src, dst)
        assert cache.rebind_resident_kv_hybrid_from_keys(src, dst, host(1, 0), host(1, 0), 2, 4, 8, KV, LAYERS) is want
    for a, b in zip(held(cache, 1), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_row_sum_sees_the_seeded_rows(cache: BucketedCompileCache) -> None:
    """The run of the next bucket reads them where they are."""
    dst = cache.compiled_for_key(5)
    for n in handles():
        dst.handles.view(n)[...] = 0
    cache.seed_resident_kv_prefix_from_keys(1, 5, 2, 4, KV, LAYERS)
    out = dst.run({"x": np.ones((1, 1, KV), np.float32)})
    np.testing.assert_array_equal(out["o0"][0], held(cache, 1)[0][:2].sum(0))


@pytest.mark.parametrize(("args", "text"), [
    ((2, 9, KV), "outgoing_upper is 9, the source key's bucket has 4 rows"),
    ((2, 4, KV + 1), "kv_dim is 4, handle 'past_k_0' has rows of 3"),
    ((7, 4, KV), "rows 0 to 7"),
])
def test_numbers_that_do_not_fit_are_explained(args: tuple[int, int, int], text: str, cache: BucketedCompileCache) -> None:
    prefix, outgoing, kv_dim = args
    with pytest.raises(ValueError, match=text):
        cache.seed_resident_kv_prefix_from_keys(1, 5, prefix, outgoing, kv_dim, LAYERS)


def test_rebind_checks_its_numbers(cache: BucketedCompileCache) -> None:
    with pytest.raises(ValueError, match="upper is 16, the target key's bucket has 8 rows"):
        cache.rebind_resident_kv_hybrid_from_keys(1, 5, host(1, 0), host(1, 0), 1, 4, 16, KV, LAYERS)
    with pytest.raises(ValueError, match="9 rows of 3 don't fit the bucket's 8"):
        cache.rebind_resident_kv_hybrid_from_keys(1, 5, host(9, 0), host(9, 0), 1, 4, 8, KV, LAYERS)
    with pytest.raises(ValueError, match="1 and 2 layers of host rows, wanted 2"):
        cache.rebind_resident_kv_hybrid_from_keys(1, 5, host(1, 0)[:1], host(1, 0), 1, 4, 8, KV, LAYERS)


def feeding(upper: int) -> Graph:
    """One layer; the new rows are ``2 x`` and ``-x``, the output adds up the cached ones."""
    g = Graph("feeding")
    x = g.input("x", (1, 1, KV))
    k, v = (g.input(f"past_{n}_0", (1, upper, KV)) for n in "kv")
    total = g.add(g.reduce(k, kind="sum", axes=(1,)), g.reduce(v, kind="sum", axes=(1,)))
    return g.set_outputs(total, g.mul(x, g.constant(np.float32(2))), g.neg(x), names=["total", "k", "v"])


def test_rebind_feeds_the_rows_that_come_next() -> None:
    """"fed from outputs 1+2i and 2+2i": the new row is appended behind the prefix, and the next run sees it."""
    c = BucketedCompileCache("cpu", [(1, 5), (5, 9)])
    for key in (1, 5):
        c.get_or_compile(key, feeding)
    k, v = ([np.full(2 * KV, n, np.float32)] for n in (10, 20))
    src = c.compiled_for_key(1)
    for n in "kv":
        src.handles.view(f"past_{n}_0")[...] = 1
    assert c.rebind_resident_kv_hybrid_from_keys(4, 5, k, v, 3, 4, 8, KV, 1)
    dst, x = c.compiled_for_key(5), np.full((1, 1, KV), 7, np.float32)
    before = 2 * 10 + 1 + 2 * 20 + 1
    assert dst.run({"x": x})["total"].tolist() == [[before] * KV]
    assert dst.handles.rows("past_k_0") == dst.handles.rows("past_v_0") == 4
    assert dst.run({"x": x})["total"].tolist() == [[before + 14 - 7] * KV]
    np.testing.assert_array_equal(dst.handles.view("past_k_0")[:, 0], [10, 10, 1, 14, 14, 0, 0, 0])


def test_rebind_without_outputs_to_feed_from_is_explained() -> None:
    c = BucketedCompileCache("cpu", [(1, 5), (5, 9)])

    def short(upper: int) -> Graph:
        g = feeding(upper)
        return g.set_outputs(*g.outputs[:2], names=["total", "k"])

    for key in (1, 5):
        c.get_or_compile(key, short)
    with pytest.raises(ValueError, match="has 2 outputs, wanted the result and 2 rows behind it"):
        c.rebind_resident_kv_hybrid_from_keys(4, 5, host(1, 0), host(1, 0), 1, 4, 8, KV, 1)
    assert c.compiled_for_key(5).executor.resident == set(), "nothing was staged"
