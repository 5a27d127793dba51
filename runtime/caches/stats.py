"""Owns what a cache reports: counters, one row an entry, and events in order, all as data."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["EVENT_KINDS", "CacheEvent", "CacheLog", "EntryStats", "Totals", "entries_frame", "events_frame"]

MOST_EVENTS = 1 << 16
"""Events that a cache keeps; the oldest go first (counters still count them)."""
EVENT_KINDS = {
    "miss": "Compiled: nothing was resident for the key.",
    "hit": "Found compiled.",
    "share": "Stands on another entry's weights.",
    "upload": "Got a copy of the weights.",
    "note": "More bytes were counted for it.",
    "run": "A padded run.",
    "evict": "Dropped to make room.",
    "clear": "Dropped by hand.",
    "disk_hit": "Loaded from disk instead of planned.",
    "disk_miss": "Not on disk: planned, and kept there.",
}
"""Kind of event -> what it means. A cache logs no other."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """Something that happened to a cache. ``kind``: one of ``EVENT_KINDS``.

    ``seconds`` since the cache was made; ``entry`` the key, or a bucket's upper bound; ``resident_bytes`` of the whole
    cache afterwards; ``rows`` of the bucket in a padded run, and ``padding_rows`` of them that were padding (an active run
    skips those, a whole one computes them for nothing).
    """

    seconds: float
    kind: str
    key: int
    entry: int
    resident_bytes: int = 0
    rows: int = 0
    padding_rows: int = 0


@dataclass(slots=True)
class EntryStats:
    """One key or bucket over the cache's life. A bucket is ``[start, end)``; a key is ``[key, key + 1)``."""

    start: int
    end: int
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    resident_bytes: int = 0
    """Weights of its own; 0 where it shares or is not compiled."""
    arena_bytes: int = 0
    compiled: bool = False
    shares: bool = False
    donor: bool = False
    rows: int = 0
    padding_rows: int = 0

    @property
    def padding_waste(self) -> float:
        """Share of the bucket's rows that were padding, over all padded runs."""
        return self.padding_rows / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """A cache as numbers."""

    hits: int
    misses: int
    evictions: int
    resident_bytes: int
    compiled: int
    padding_waste: float


@dataclass(slots=True)
class CacheLog:
    """Events as they happen; hits are kept as plain tuples, since a hit must cost next to nothing."""

    began: float = field(default_factory=time.perf_counter)
    _events: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))

    def add(self, kind: str, key: int, entry: int, resident: int = 0, rows: int = 0, padding: int = 0) -> None:
        self._events.append((time.perf_counter(), kind, key, entry, resident, rows, padding))

    def events(self) -> list[CacheEvent]:
        """In order, oldest first."""
        return [CacheEvent(t - self.began, *rest) for t, *rest in list(self._events)]


def entries_frame(entries: list[EntryStats]) -> Any:
    """One row an entry, with ``padding_waste``."""
    import pandas as pd

    names = [f.name for f in fields(EntryStats)]
    return pd.DataFrame([[getattr(e, n) for n in names] + [e.padding_waste] for e in entries],
                        columns=[*names, "padding_waste"])


def events_frame(events: list[CacheEvent]) -> Any:
    """One row an event."""
    import pandas as pd

    names = [f.name for f in fields(CacheEvent)]
    return pd.DataFrame([[getattr(e, n) for n in names] for e in events], columns=names)
