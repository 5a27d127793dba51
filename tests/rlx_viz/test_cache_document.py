"""A compile cache as a document: its tables repeat its own reports, and its entry's plan stands beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx_viz
from planner_core.ir import DimBinding
from rlx_viz.columns import ColumnDocument
from rlx_viz.snapshot_tables import caches
from rlx_viz.snapshot_tables.caches import STATES, with_cache
from rlx_viz.snapshot_tables.tensors import NONE
from runtime import RunError
from runtime.caches import AotCache, BucketedCompileCache, CompileCache, DynamicDimCompileCache
from runtime.caches.stats import EVENT_KINDS
from tests.runtime.caches.graphs import mlp, module, params


def ladder() -> BucketedCompileCache:
    cache = BucketedCompileCache("cpu", [(1, 3), (3, 5), (5, 9)], bucket_dim={"x": 0})
    for key in (1, 4, 2, 4):
        cache.ensure_graph_with_params(key, lambda upper: (mlp(upper), params()))
    cache.run_padded(3, 3, mlp, [("x", np.ones((3, 4), np.float32), 4)], {"y": 4})
    cache.evict_one_except(0)
    return cache


def test_tables_repeat_the_reports() -> None:
    cache = ladder()
    doc = with_cache(rlx_viz.snapshot(cache.largest()), cache)
    t, entries, events = doc.tables["cache_entries"], cache.entry_stats(), cache.timeline()
    for column, attribute in (("start", "start"), ("end", "end"), ("hits", "hits"), ("misses", "misses"), ("evictions", "evictions"),
                              ("resident", "resident_bytes"), ("arena", "arena_bytes"), ("rows", "rows"), ("padding", "padding_rows")):
        assert t[column].tolist() == [getattr(s, attribute) for s in entries], column
    assert [STATES[s] for s in t["state"]] == ["donor", "not compiled", "not compiled"]
    e = doc.tables["cache_events"]
    assert [list(EVENT_KINDS)[k] for k in e["kind"]] == [x.kind for x in events]
    assert e["entry"].tolist() == [x.entry for x in events]
    assert e["key"].tolist() == [x.key for x in events]
    assert (np.diff(e["seconds"]) >= 0).all()
    assert e["resident"][-1] == cache.resident_bytes == doc.meta["cache"]["resident"]
    assert {"hits": 3, "misses": 2, "evictions": 1, "compiled": 1}.items() <= doc.meta["cache"].items()
    assert doc.meta["cache"]["padding"] == pytest.approx(1 / 4)
    assert ColumnDocument.unpack(*doc.pack()) == doc


def test_every_kind_of_event_has_a_mark(tmp_path: Path) -> None:
    """What any cache logs has a name and a sentence here."""
    glyphs = (Path(rlx_viz.__file__).parent / "static" / "caches.js").read_text().split("CACHE_GLYPHS = {")[1].split("}")[0]
    for kind, text in EVENT_KINDS.items():
        assert text.endswith(".")
        assert f"{kind}:" in glyphs


def test_keys_and_looks_on_disk(tmp_path: Path) -> None:
    keyed = CompileCache("cpu", 1)
    for key in (7 << 32, 3):
        keyed.ensure_with_params(key, mlp(2), params())
    doc = with_cache(rlx_viz.snapshot(keyed.largest()), keyed)
    assert doc.tables["cache_entries"]["start"].tolist() == [3, 7 << 32]
    assert set(doc.tables["cache_events"]["entry"].tolist()) == {0, 1}
    assert not doc.meta["cache"]["ranges"]
    dynamic = DynamicDimCompileCache("cpu", 2)
    dynamic.get_or_specialize_aot(AotCache(tmp_path), "m", 1, DimBinding.batch_seq(1, 2), module)
    doc = with_cache(rlx_viz.snapshot(dynamic.largest()), dynamic)
    kinds = [list(EVENT_KINDS)[k] for k in doc.tables["cache_events"]["kind"]]
    assert doc.tables["cache_events"]["entry"].tolist() == [NONE if k == "disk_miss" else 0 for k in kinds]
    again = DynamicDimCompileCache("cpu", 2)
    again.get_or_specialize_aot(AotCache(tmp_path), "m", 1, DimBinding.batch_seq(1, 2), module)
    with pytest.raises(RunError, match="only entries from disk"):
        again.largest()


def test_the_latest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ladder()
    monkeypatch.setattr(caches, "MOST_EVENTS", 3)
    doc = with_cache(rlx_viz.snapshot(cache.largest()), cache)
    assert doc.rows("cache_events") == 3
    assert doc.meta["cache"]["earlier"] == len(cache.timeline()) - 3
    assert list(EVENT_KINDS)[doc.tables["cache_events"]["kind"][-1]] == "evict"


def test_a_cache_is_explored_and_reported(tmp_path: Path) -> None:
    cache = ladder()
    e = rlx_viz.explore(cache, whatif=False)
    assert e.document.tables["cache_events"]["kind"].size == len(cache.timeline())
    cache.ensure_graph_with_params(8, lambda upper: (mlp(upper), params()))
    e.set_option("alignment", 128)
    e.refresh()
    assert e.document.tables["cache_events"]["kind"].size == len(cache.timeline())
    assert (e.options, e.history) == ({"alignment": 128}, {"undo": 1, "redo": 0})
    page = rlx_viz.report(cache, tmp_path / "cache.html").read_text()
    assert "cache_entries" in page
    with pytest.raises(RunError, match="nothing compiled is resident"):
        rlx_viz.explore(CompileCache("cpu", 2))


def test_a_refresh_shows_the_largest_entry_of_now() -> None:
    cache = ladder()
    e = rlx_viz.explore(cache, whatif=False)
    cache.ensure_graph_with_params(8, lambda upper: (mlp(upper), params()))
    assert e.compilation is not cache.largest()
    e.refresh()
    assert e.compilation.allocate_bytes == cache.largest().allocate_bytes
    assert e.options == {}
