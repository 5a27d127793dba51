"""Owns the tables that a cache is drawn from: ``cache_entries`` and ``cache_events``, with its totals in ``meta["cache"]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx_viz.columns import ColumnDocument, Tables, exact_int
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.caches import EntryStats
from runtime.caches.base import CacheBase
from runtime.caches.stats import EVENT_KINDS

__all__ = ["MOST_EVENTS", "STATES", "with_cache"]

MOST_EVENTS = 5_000
"""Events that a document takes, the latest; its totals count all."""
STATES = ("not compiled", "compiled", "shares", "donor")


def _state(s: EntryStats) -> int:
    return 0 if not s.compiled else 3 if s.donor else 2 if s.shares else 1


def with_cache(doc: ColumnDocument, cache: CacheBase) -> ColumnDocument:
    """The document with what the cache did so far. An event of no entry (a look on disk) points at ``NONE``."""
    entries, events, totals = cache.entry_stats(), cache.timeline(), cache.totals()
    ranges = any(s.end - s.start > 1 for s in entries)
    row = {s.start: i for i, s in enumerate(entries)}
    kinds = list(EVENT_KINDS)
    shown = events[-MOST_EVENTS:]
    of = [i if ranges and i < len(entries) else row.get(i, NONE) for i in (e.entry for e in shown)]
    of = [NONE if e.kind.startswith("disk") else i for e, i in zip(shown, of, strict=True)]
    f8, u4 = np.float64, np.uint32
    meta: dict[str, Any] = {
        "name": type(cache).__name__, "ranges": ranges, "hits": totals.hits, "misses": totals.misses,
        "evictions": totals.evictions, "compiled": totals.compiled, "resident": exact_int(totals.resident_bytes),
        "padding": totals.padding_waste, "earlier": len(events) - len(shown),
        "kinds": [{"name": kind, "doc": text} for kind, text in EVENT_KINDS.items()],
        "states": list(STATES),
    }
    tables: Tables = {
        "cache_entries": {
            "start": np.asarray([s.start for s in entries], f8), "end": np.asarray([s.end for s in entries], f8),
            "hits": np.asarray([s.hits for s in entries], u4), "misses": np.asarray([s.misses for s in entries], u4),
            "evictions": np.asarray([s.evictions for s in entries], u4),
            "resident": np.asarray([s.resident_bytes for s in entries], f8),
            "arena": np.asarray([s.arena_bytes for s in entries], f8),
            "state": np.asarray([_state(s) for s in entries], np.uint8),
            "rows": np.asarray([s.rows for s in entries], f8), "padding": np.asarray([s.padding_rows for s in entries], f8),
        },
        "cache_events": {
            "seconds": np.asarray([e.seconds for e in shown], f8),
            "kind": np.asarray([kinds.index(e.kind) for e in shown], np.uint8),
            "entry": np.asarray(of, np.int64).astype(u4), "key": np.asarray([e.key for e in shown], f8),
            "resident": _held([e.resident_bytes for e in shown], [e.kind for e in shown]),
            "rows": np.asarray([e.rows for e in shown], f8), "padding": np.asarray([e.padding_rows for e in shown], f8),
        },
    }
    return ColumnDocument({**doc.meta, "cache": meta}, doc.strings, {**doc.tables, **tables})


def _held(resident: list[int], kinds: list[str]) -> np.ndarray[Any, Any]:
    """Resident bytes after each event; hits don't say, and change nothing."""
    out, now = [], 0
    for bytes_, kind in zip(resident, kinds, strict=True):
        now = now if kind in ("hit", "disk_hit", "disk_miss") else bytes_
        out.append(now)
    return np.asarray(out, np.float64)
