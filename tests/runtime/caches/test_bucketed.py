"""``caches.md``, compiling, sharing and evicting of "BucketedCompileCache"."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.ir import DimBinding
from runtime.caches import BucketedCompileCache
from runtime.caches.bucketed import weight_bytes_of
from runtime.caches.eviction import LARGE_BYTES, max_resident
from runtime.session import Device
from tests.runtime.caches.graphs import Counted, expected, mlp, module, packed_graph, params

BYTES = 4 * (4 * 6 + 6 + 6 * 4)
VARIABLES = ("RLX_KV_CACHE_MAX_RESIDENT", "RLX_KV_CACHE_NO_EVICT", "RLX_KV_CACHE_DBG", "RLX_METAL_NO_SHARE")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for v in VARIABLES:
        monkeypatch.delenv(v, raising=False)


def ladder(large: int = LARGE_BYTES, unified: bool | None = None) -> BucketedCompileCache:
    return BucketedCompileCache("cpu", [(1, 3), (3, 5), (5, 9), (9, 17)], large_bytes=large, unified_memory=unified)


def same(seed: int = 0):
    return lambda upper: (mlp(upper), params(seed))


def unlike(upper: int):
    """Each bucket another layout, so that none shares."""
    return mlp(upper, hidden=upper + 2), params(0, hidden=upper + 2)


# --- ensure -------------------------------------------------------------------------------------------


def test_ensure_shares_a_siblings_weights_and_counts_no_bytes_of_its_own() -> None:
    """"compiles, then shares a sibling's weights or uploads … A bucket that shares counts 0 resident bytes of its own"."""
    cache = ladder()
    _, one = cache.ensure_graph_with_params(1, same(0))
    upper, two = cache.ensure_graph_with_params(4, same(1))
    assert upper == 4
    assert two.executor.weight_buffer is one.executor.weight_buffer
    assert (cache.resident_bytes_of(2), cache.resident_bytes_of(4)) == (BYTES, 0)
    assert cache.resident_bytes == BYTES
    x = np.ones((4, 4), np.float32)
    np.testing.assert_allclose(two.run({"x": x})["y"], expected(x, params(0)), rtol=1e-5, atol=1e-5)


def test_ensure_uploads_where_layouts_differ() -> None:
    cache = ladder()
    cache.ensure_graph_with_params(1, unlike)
    cache.ensure_graph_with_params(4, unlike)
    assert cache.resident_bytes_of(4) == weight_bytes_of(unlike(4)[1])
    assert not cache.try_share_params_from_donor(4)


def test_a_hit_builds_nothing_and_needs_no_params() -> None:
    """"keep weights with an entry (a hit never needs them set again)"."""
    cache = ladder()
    build = Counted(same(0))
    cache.ensure_graph_with_params(1, build)
    _, hit = cache.ensure_graph_with_params(2, build)
    assert build.calls == [(2,)]
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(hit.run({"x": x})["y"], expected(x, params()), rtol=1e-5, atol=1e-5)


def test_packed_weights_are_shared_likewise() -> None:
    """"`ensure_graph_with_packed` also takes packed byte weights (uint8, GGUF blocks) and shares likewise"."""
    cache = ladder()
    build = Counted(packed_graph)
    _, one = cache.ensure_graph_with_packed(1, build)
    _, two = cache.ensure_graph_with_packed(4, build)
    assert two.executor.weight_buffer is one.executor.weight_buffer
    assert cache.resident_bytes_of(2) == 3 * 4 + 3 * 34
    assert cache.resident_bytes_of(4) == 0
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_allclose(two.run({"x": x})["y"][:2], one.run({"x": x[:2]})["y"], rtol=1e-5, atol=1e-5)


def test_bytes_of_weights() -> None:
    """"4 bytes per float param + packed bytes"."""
    floats = {"a": np.zeros(10, np.float32), "h": np.zeros(10, np.float16), "d": np.zeros(10, np.float64)}
    assert weight_bytes_of(floats, {"w": np.zeros(34, np.uint8)}) == 120 + 34
    assert weight_bytes_of({"i": np.zeros(3, np.int64)}) == 24


def test_modules_compile_and_share_only_when_asked() -> None:
    """"`ensure_hir_with_params` compiles, uploads and records bytes, and neither evicts nor shares: its caller tries the
    donor and then calls `note_resident_bytes`, so that the previous rung is still there to donate"."""
    cache = ladder(large=1, unified=False)
    p = {"up.w": np.ones((4, 5), np.float32), "up.b": np.zeros(5, np.float32)}

    def build(upper: int):
        return module().bind(DimBinding.batch_seq(1, upper)), p

    upper, one = cache.ensure_hir_with_params(1, build)
    _, two = cache.ensure_hir_with_params(4, build)
    assert (upper, cache.compiled_count) == (2, 2)
    assert two.executor.weight_buffer is not one.executor.weight_buffer
    assert cache.resident_bytes_of(4) == 100
    assert cache.set_weight_donor(2)
    assert cache.try_share_params_from_donor(4)
    assert two.executor.weight_buffer is one.executor.weight_buffer
    assert cache.resident_bytes_of(4) == 0
    cache.note_resident_bytes(4, 64)
    assert cache.resident_bytes_of(4) == 64
    assert cache.compiled_for_upper(2) is None, "the outgoing large rung leaves only now"
    assert two.run({"x": np.ones((1, 4, 4), np.float32)})["y"].shape == (1, 4, 5)


def test_hir_form_of_get_or_compile() -> None:
    """"`get_or_compile(key, build) -> (upper, compiled)`; HIR form too"."""
    cache = ladder()
    build = Counted(lambda upper: module().bind(DimBinding.batch_seq(1, upper)))
    upper, made = cache.get_or_compile_hir(6, build)
    assert upper == 8
    assert cache.get_or_compile_hir(5, build) == (8, made)
    assert build.calls == [(8,)]
    assert made.graph.find("x").shape.sizes == (1, 8, 4)


# --- eviction -----------------------------------------------------------------------------------------


def uppers(cache: BucketedCompileCache) -> list[int]:
    return [b.upper for b in cache.buckets if cache.compiled_for_upper(b.upper) is not None]


def test_large_is_256_mib() -> None:
    """"Eviction of *large* buckets (≥ 256 MiB of weights of their own"."""
    assert LARGE_BYTES == 256 * 1024 * 1024
    assert BucketedCompileCache("cpu", [(1, 2)]).eviction.large_bytes == LARGE_BYTES


@pytest.mark.parametrize(("device", "unified"), [
    *[(d, False) for d in (Device.GPU, Device.CUDA, Device.VULKAN, Device.ROCM, Device.ONEAPI, Device.DIRECTX, Device.WEBGPU)],
    *[(d, True) for d in (Device.CPU, Device.METAL, Device.MLX, Device.ANE)],
])
def test_devices_with_their_own_memory(device: Device, unified: bool) -> None:
    """"It applies on devices with their own memory (GPU, CUDA, Vulkan, ROCm, oneAPI, DirectX, WebGPU); on unified memory
    (CPU, Metal, MLX, ANE) the whole ladder stays unless the variable is set"."""
    assert device.unified_memory is unified


@pytest.mark.parametrize(("value", "want"), [(None, 1), ("3", 3), ("0", 1), ("-2", 1), ("two", 1), ("", 1), (" 2 ", 2), ("1.5", 1), ("9" * 5000, 1)])
def test_how_many_large_buckets_stay(value: str | None, want: int) -> None:
    """"(default 1; an unreadable or < 1 value means 1)"."""
    assert max_resident({} if value is None else {"RLX_KV_CACHE_MAX_RESIDENT": value}) == want


def test_only_an_incoming_large_bucket_evicts_and_only_large_ones_leave() -> None:
    """"Only an incoming large bucket triggers it; at most `RLX_KV_CACHE_MAX_RESIDENT` large ones stay, the incoming one
    included … small buckets are never evicted"."""
    sizes = {u: weight_bytes_of(unlike(u)[1]) for u in (2, 4, 8, 16)}
    cache = ladder(large=sizes[8], unified=False)
    cache.ensure_graph_with_params(1, unlike)
    cache.ensure_graph_with_params(8, unlike)
    cache.ensure_graph_with_params(4, unlike)
    assert uppers(cache) == [2, 4, 8], "a small one comes in: nothing leaves"
    cache.ensure_graph_with_params(16, unlike)
    assert uppers(cache) == [2, 4, 16]
    assert cache.resident_bytes_of(8) == 0


def test_room_is_made_before_the_incoming_bucket_compiles() -> None:
    """"on a miss evicts for the incoming bytes first, compiles, then shares"."""
    cache = ladder(large=1, unified=False)
    cache.ensure_graph_with_params(1, same())

    def build(upper: int):
        graph, p = mlp(upper), params(3)
        return graph, p

    _, two = cache.ensure_graph_with_params(3, build)
    kinds = [e.kind for e in cache.timeline()]
    assert kinds == ["miss", "upload", "evict", "miss", "upload"], "gone before it could donate"
    np.testing.assert_array_equal(two.param("b"), params(3)["b"])


def test_the_whole_ladder_stays_on_unified_memory_unless_the_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ladder(large=1)
    for key in (1, 3, 5):
        cache.ensure_graph_with_params(key, unlike)
    assert uppers(cache) == [2, 4, 8]
    monkeypatch.setenv("RLX_KV_CACHE_MAX_RESIDENT", "2")
    cache.ensure_graph_with_params(9, unlike)
    assert uppers(cache) == [8, 16]


@pytest.mark.parametrize("use", ["ensure", "get", "note", "ensure_hir", "packed"])
def test_least_recently_used_goes_first(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """"Least recently used goes first ("use" = any `ensure_*`, `get_or_compile*` or `note_resident_bytes`), never the
    incoming one"."""
    monkeypatch.setenv("RLX_KV_CACHE_MAX_RESIDENT", "2")
    cache = ladder(large=1)
    cache.ensure_graph_with_params(1, unlike)
    cache.ensure_graph_with_params(3, unlike)
    {
        "ensure": lambda: cache.ensure_graph_with_params(1, unlike),
        "get": lambda: cache.get_or_compile(1, lambda upper: mlp(upper)),
        "note": lambda: cache.note_resident_bytes(1, 1),
        "ensure_hir": lambda: cache.ensure_hir_with_params(1, unlike),
        "packed": lambda: cache.ensure_graph_with_packed(1, unlike),
    }[use]()
    cache.compiled_for_key(3)  # looking is no use
    cache.ensure_graph_with_params(5, unlike)
    assert uppers(cache) == [2, 8]


@pytest.mark.parametrize("value", ["1", "true"])
def test_no_evict_turns_it_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """"`RLX_KV_CACHE_NO_EVICT` turns it off", a flag like any other."""
    monkeypatch.setenv("RLX_KV_CACHE_NO_EVICT", value)
    cache = ladder(large=1, unified=False)
    for key in (1, 3, 5):
        cache.ensure_graph_with_params(key, unlike)
    assert uppers(cache) == [2, 4, 8]


def test_each_decision_is_logged_on_request(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """"`RLX_KV_CACHE_DBG` logs each decision"."""
    caplog.set_level("INFO", "rlx_viz")
    cache = ladder(large=1, unified=False)
    cache.ensure_graph_with_params(1, unlike)
    cache.ensure_graph_with_params(3, unlike)
    assert caplog.text == ""
    monkeypatch.setenv("RLX_KV_CACHE_DBG", "1")
    cache.ensure_graph_with_params(5, unlike)
    assert "evict bucket 3..5" in caplog.text
    monkeypatch.setenv("RLX_KV_CACHE_NO_EVICT", "1")
    cache.ensure_graph_with_params(9, unlike)
    assert "keep 1 large buckets" in caplog.text


def test_noted_bytes_add_up_and_may_evict_others() -> None:
    """"`note_resident_bytes(key, extra)` adds packed bytes and may evict others"."""
    cache = ladder(large=10_000, unified=False)
    cache.get_or_compile(1, lambda u: mlp(u))
    cache.get_or_compile(3, lambda u: mlp(u))
    cache.note_resident_bytes(1, 6_000)
    cache.note_resident_bytes(1, 6_000)
    assert cache.resident_bytes_of(2) == 12_000
    assert uppers(cache) == [2, 4]
    cache.note_resident_bytes(3, 10_000)
    assert uppers(cache) == [4]


def test_dropping_by_hand() -> None:
    """"`evict_except(keep)`, `evict_one_except(protect) -> index | None` (bucket indices; `None` protects nothing; highest
    compiled index first), `clear_compiled()`"."""
    cache = ladder()
    for key in (1, 3, 9):
        cache.get_or_compile(key, lambda u: mlp(u))
    assert cache.evict_one_except(3) == 1
    assert cache.evict_one_except(None) == 3
    assert cache.evict_one_except(0) is None
    assert uppers(cache) == [2]
    cache.get_or_compile(5, lambda u: mlp(u))
    assert cache.evict_except(2) == 1
    assert uppers(cache) == [8]
    cache.clear_compiled()
    assert cache.compiled_count == 0
    assert cache.evict_one_except(None) is None
    cache.get_or_compile(5, lambda u: mlp(u))
    assert cache.evict_except(None) == 1


@pytest.mark.parametrize("how", ["incoming", "note", "except", "one", "clear"])
def test_every_way_of_dropping_syncs_zeroes_and_clears_the_donor(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """"Every way of dropping a bucket syncs it, zeroes its bytes and clears the donor if it was one"."""
    cache = ladder(large=1, unified=False)
    _, one = cache.ensure_graph_with_params(1, unlike)
    assert cache.weight_donor == 2
    synced: list[int] = []
    monkeypatch.setattr(type(one), "sync_pending", lambda self: synced.append(id(self)))
    if how == "incoming":
        cache.ensure_graph_with_params(3, unlike)
    elif how == "note":
        cache.get_or_compile(3, lambda u: mlp(u))
        cache.note_resident_bytes(3, 5)
    else:
        {"except": lambda: cache.evict_except(None), "one": lambda: cache.evict_one_except(None), "clear": cache.clear_compiled}[how]()
    assert synced == [id(one)]
    assert cache.compiled_for_upper(2) is None
    assert cache.resident_bytes_of(2) == 0
    assert cache.weight_donor in (None, 4)


# --- donor --------------------------------------------------------------------------------------------


def test_the_first_donor_wins() -> None:
    """"`weight_donor`, `set_weight_donor(upper)` (first one wins)"."""
    cache = ladder()
    assert cache.weight_donor is None
    assert not cache.set_weight_donor(2), "not compiled"
    for key in (1, 3):
        cache.get_or_compile(key, lambda u: mlp(u))
    assert cache.set_weight_donor(4)
    assert not cache.set_weight_donor(2)
    assert not cache.set_weight_donor(77)
    assert cache.weight_donor == 4


def test_any_live_bucket_donates_where_the_donor_is_gone_or_differs() -> None:
    """"never with itself; whenever the donor is gone or its layout differs, any other live bucket; false = caller
    uploads"."""
    cache = ladder()
    cache.ensure_graph_with_params(1, unlike)
    assert not cache.try_share_params_from_donor(2), "only itself is there"
    _, two = cache.ensure_graph_with_params(3, same())
    _, three = cache.get_or_compile(5, lambda u: mlp(u))
    assert cache.weight_donor == 2, "its layout differs"
    assert cache.try_share_params_from_donor(8)
    assert three.executor.weight_buffer is two.executor.weight_buffer
    cache.evict_except(2)
    assert cache.weight_donor is None
    _, again = cache.get_or_compile(3, lambda u: mlp(u))
    assert cache.try_share_params_from_donor(4), "the sharer still holds the bytes"
    assert cache.weight_donor == 8, "who gave is the donor where there was none"
    np.testing.assert_array_equal(again.param("v"), params()["v"])
    assert not cache.try_share_params_from_donor(16)


def test_copies_between_buckets() -> None:
    """"`try_copy_params_between_uppers(dst, src)` (copying to itself is true)"."""
    cache = ladder()
    cache.ensure_graph_with_params(1, same())
    _, two = cache.get_or_compile(3, lambda u: mlp(u))
    assert cache.try_copy_params_between_uppers(2, 2)
    assert not cache.try_copy_params_between_uppers(8, 2)
    assert not cache.try_copy_params_between_uppers(2, 8)
    assert cache.try_copy_params_between_uppers(4, 2)
    np.testing.assert_array_equal(two.param("w"), params()["w"])
    two.set_param("b", np.zeros(6, np.float32))
    np.testing.assert_array_equal(cache.compiled_for_upper(2).param("b"), params()["b"])
    cache.ensure_graph_with_params(5, unlike)
    assert not cache.try_copy_params_between_uppers(8, 2), "no param of the same shape"
