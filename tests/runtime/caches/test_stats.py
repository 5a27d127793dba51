"""``caches.md``: "report hits, misses, evictions and resident bytes as data (a frame and a picture, not log lines)"."""

from __future__ import annotations

import io

import numpy as np
import pytest

from rlx_viz.figures import cache_figure, cache_text
from runtime.caches import BucketedCompileCache, CompileCache
from runtime.caches.stats import MOST_EVENTS, events_frame
from tests.runtime.caches.graphs import mlp, params, weight_free


@pytest.fixture
def ladder() -> BucketedCompileCache:
    cache = BucketedCompileCache("cpu", [(1, 3), (3, 5), (5, 9)], large_bytes=1, unified_memory=False)
    cache.ensure_graph_with_params(2, lambda u: (mlp(u), params()))
    cache.ensure_graph_with_params(1, lambda u: (mlp(u), params()))
    cache.run_padded(2, 1, mlp, [("x", np.ones((1, 4), np.float32), 4)], {"y": 4})
    cache.ensure_graph_with_params(4, lambda u: (mlp(u, 7), params(0, 7)))
    return cache


def test_frames(ladder: BucketedCompileCache) -> None:
    frame = ladder.stats()
    assert frame[["start", "end"]].to_numpy().tolist() == [[1, 3], [3, 5], [5, 9]]
    assert frame["hits"].tolist() == [2, 0, 0]
    assert frame["misses"].tolist() == [1, 1, 0]
    assert frame["evictions"].tolist() == [1, 0, 0]
    assert frame["resident_bytes"].tolist() == [0, 252, 0]
    assert frame["donor"].tolist() == [False, True, False]
    assert frame["padding_waste"].tolist() == [0.5, 0, 0]
    events = events_frame(ladder.timeline())
    assert events["kind"].tolist() == ["miss", "upload", "hit", "hit", "run", "evict", "miss", "upload"]
    assert events["resident_bytes"].tolist()[-4:] == [216, 0, 252, 252]
    assert events["seconds"].is_monotonic_increasing
    assert (ladder.totals().hits, ladder.totals().misses) == (frame["hits"].sum(), frame["misses"].sum())


def test_the_picture_and_its_text_twin(ladder: BucketedCompileCache) -> None:
    figure = cache_figure(ladder.entry_stats(), ladder.timeline(), "a ladder")
    events, resident, waste = figure.axes
    assert [t.get_text() for t in events.get_yticklabels()] == ["1 … 2", "3 … 4", "5 … 8"]
    legend = [t.get_text() for t in events.get_legend().get_texts()]
    assert legend == ["compiled (2)", "hit (2)", "uploaded weights (2)", "evicted (1)", "padded run (1)"]
    assert resident.lines[0].get_ydata().tolist() == [0, 216, 216, 216, 0, 252, 252]
    assert [p.get_height() for p in waste.patches] == [50]
    figure.savefig(io.BytesIO(), format="svg")
    text = cache_text(ladder.entry_stats(), ladder.timeline())
    assert "1 … 2               2      1         1" in text
    assert "50% padding" in text
    assert "evict 2 -> 0 B resident" in text
    assert text.endswith("2 hits")


def test_pictures_of_plain_and_of_empty_caches() -> None:
    cache = CompileCache("cpu", 2)
    cache_figure(cache.entry_stats(), cache.timeline()).savefig(io.BytesIO())
    for key in (10, 20, 30):
        cache.get_or_compile(key, weight_free)
    figure = cache_figure(cache.entry_stats(), cache.timeline())
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["key 10", "key 20", "key 30"]
    figure.savefig(io.BytesIO())


def test_events_are_bounded_and_counters_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CompileCache("cpu", 2)
    for _ in range(MOST_EVENTS + 10):
        cache.get_or_compile(1, weight_free)
    assert len(cache.timeline()) == MOST_EVENTS
    assert cache.totals().hits == MOST_EVENTS + 9
