"""Owns what the caches share: one lock, compiles in flight that are waited for, weight sharing, reports.

The lock is held for bookkeeping alone: runs are waited for before it is taken or after it was let go, so that a reader
never waits for somebody's run. Order where both are held: an entry's own lock, then the cache's.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from planner_core.environment import flag, variable
from planner_core.ir import Array
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text
from runtime.caches.stats import CacheEvent, CacheLog, EntryStats, Totals, entries_frame
from runtime.compile import Compilation
from runtime.errors import RunError
from runtime.session import CompiledGraph, Device, PrecisionPolicy, Session

__all__ = ["NO_SHARE_VARIABLE", "CacheBase", "InFlight", "sharing_enabled", "upload"]

NO_SHARE_VARIABLE = variable("RLX_METAL_NO_SHARE", "flag", "Caches keep every bucket's weights apart.")
MOST_ENTRIES = 1 << 12
"""Keys that a cache keeps a row of, besides resident ones; its totals count all."""


def sharing_enabled() -> bool:
    """Unless ``RLX_METAL_NO_SHARE`` is on."""
    return not flag(NO_SHARE_VARIABLE)


def upload(compiled: CompiledGraph, params: Mapping[str, Array]) -> None:
    """Write params; ``RunError`` if some then still have no data."""
    compiled.set_params(params)
    missing = compiled.executor.weight_buffer.missing
    if missing:
        raise RunError(f"{compiled.commands.name!r}: no data for params {', '.join(missing[:8])}"
                       f"{' …' if len(missing) > 8 else ''}; give them among the params or in graph.weights")


class InFlight:
    """A compile that one thread does and others wait for."""

    __slots__ = ("done", "key", "owner")

    def __init__(self, key: int) -> None:
        self.done = threading.Event()
        self.key = key
        self.owner = threading.get_ident()

    def wait(self, key: int) -> None:
        """Return when it is done. ``RunError`` if its builder waits, through whatever others, for this very thread:
        builds that ask a cache (any cache) for an entry of each other would never end."""
        me = threading.get_ident()
        with _WAITING_LOCK:
            seen, flight = [key], self
            while True:
                seen.append(flight.key)
                if flight.owner == me:
                    raise RunError(f"the build of cache entry {flight.key} asks the cache for the same entry" if flight is self
                                   else f"the builds of cache entries {', '.join(map(str, seen))} wait for each other: "
                                        "a build may ask for another entry, but not in a ring")
                further = _WAITING.get(flight.owner)
                if further is None:
                    break
                flight = further
            _WAITING[me] = self
        try:
            self.done.wait()
        finally:
            with _WAITING_LOCK:
                del _WAITING[me]


_WAITING: dict[int, InFlight] = {}
"""Thread -> the compile that it waits for, over all caches."""
_WAITING_LOCK = threading.Lock()


class CacheBase(Shown):
    """Entries by an int slot (a key, or a bucket's index). Subclasses say how an entry is dropped."""

    def _facts(self) -> Facts:
        return (type(self).__name__, (("entries", len(self._entries)), ("resident", bytes_text(self.resident_bytes)),
                                      ("device", self.session.device.value)), "cache.to_frame() lists the entries")

    def __init__(self, device: Device | str, precision_policy: PrecisionPolicy | str | None) -> None:
        self.session = Session(device, precision_policy)
        self._lock = threading.RLock()
        self._entries: dict[int, CompiledGraph] = {}
        self._stats: dict[int, EntryStats] = {}
        self._inflight: dict[int, InFlight] = {}
        self._log = CacheLog()
        self._donor: int | None = None
        self._left: dict[int, int] = {}
        """Weight buffer -> bytes counted for its owner, which was dropped while others stood on it."""
        self._leaving: list[CompiledGraph] = []
        """Entries dropped under the lock whose runs are yet to be waited for."""
        self._hits = self._misses = self._evictions = 0

    @property
    def device(self) -> Device:
        return self.session.device

    @property
    def precision_policy(self) -> PrecisionPolicy | None:
        return self.session.precision_policy

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """The lock, for changes that may drop entries; their runs are waited for once it is let go. Not within itself."""
        gone: list[CompiledGraph] = []
        try:
            with self._lock:
                try:
                    yield
                finally:
                    gone, self._leaving = self._leaving, gone
        finally:
            for entry in gone:
                entry.sync_pending()

    # --- one compile a slot -----------------------------------------------------------------------

    def _once(self, slot: int, key: int, make: Callable[[], CompiledGraph]) -> tuple[CompiledGraph, bool]:
        """(the slot's entry, whether it was there). Exactly one caller makes it; others wait, and try themselves if that
        one failed."""
        while True:
            with self._lock:
                found = self._entries.get(slot)
                if found is not None:
                    self._hit(slot, key)
                    return found, True
                flight = self._inflight.get(slot)
                if flight is None:
                    flight = self._inflight[slot] = InFlight(key)
                    break
            flight.wait(key)
        try:
            made = make()
        except BaseException:
            with self._lock:
                self._landed(slot, flight)
            raise
        with self._dropping():
            try:
                self._insert(slot, key, made)
            finally:
                self._landed(slot, flight)  # before the runs of what left are waited for
        return made, False

    def _landed(self, slot: int, flight: InFlight) -> None:
        """Those who wait for a compile go on (under the lock)."""
        self._inflight.pop(slot, None)
        flight.done.set()

    def _hit(self, slot: int, key: int) -> None:
        self._hits += 1
        self._stats[slot].hits += 1
        self._log.add("hit", key, slot)

    def _insert(self, slot: int, key: int, made: CompiledGraph) -> None:
        """Put a new entry in (under the lock)."""
        self._entries[slot] = made
        s = self._stats_of(slot)
        s.compiled, s.arena_bytes, s.shares = True, made.arena_bytes, made.own_weight_bytes == 0 < made.weight_bytes
        s.resident_bytes = self._own_bytes(slot, made)
        self._misses += 1
        s.misses += 1
        self._log.add("miss", key, slot, self.resident_bytes)

    def _stats_of(self, slot: int) -> EntryStats:
        """The row of a key; beyond ``MOST_ENTRIES`` keys the oldest that isn't resident is forgotten (under the lock)."""
        found = self._stats.get(slot)
        if found is None:
            if len(self._stats) >= MOST_ENTRIES:
                oldest = next((s for s in self._stats if s not in self._entries), None)
                if oldest is not None:
                    del self._stats[oldest]
            found = self._stats[slot] = EntryStats(slot, slot + 1)
        return found

    def _shared(self, slot: int, key: int, made: CompiledGraph) -> None:
        """Write down that an entry stands on the weights that it was given (under the lock)."""
        if not made.own_weight_bytes:  # else it owns the buffer that the other stands on
            s = self._stats[slot]
            s.shares, s.resident_bytes = True, 0
        self._log.add("share", key, slot, self.resident_bytes)

    def _own_bytes(self, slot: int, made: CompiledGraph) -> int:
        """Weights that a new entry holds as its own."""
        return made.own_weight_bytes

    def _drop(self, slot: int, kind: str = "evict") -> None:
        """Let an entry go (within ``_dropping``, which then waits for its runs). Bytes that a sharer holds stay alive."""
        gone = self._entries.pop(slot)
        self._leaving.append(gone)
        s = self._stats[slot]
        if s.resident_bytes and gone.own_weight_bytes:
            self._left[gone.weight_buffer_id] = s.resident_bytes
        s.compiled, s.resident_bytes, s.arena_bytes, s.shares = False, 0, 0, False
        if self._donor == slot:
            self._donor = None
        if kind == "evict":
            self._evictions += 1
            s.evictions += 1
        self._log.add(kind, s.end - 1, slot, self.resident_bytes)

    # --- weights ----------------------------------------------------------------------------------

    def _share_into(self, slot: int, target: CompiledGraph, equal: bool = False) -> int | None:
        """Let ``target`` stand on the donor's weights, or any other entry's: whose, or None (under the lock).

        A source whose own params still miss data gives nothing. ``equal``: the target has its data already, and a source
        must hold the same bytes.
        """
        if not sharing_enabled() or (equal and target.executor.weight_buffer.missing):
            return None
        donor = [] if self._donor is None else [self._donor]
        for source in dict.fromkeys([*donor, *self._entries]):
            other = self._entries.get(source)
            if source == slot or other is None or other is target or other.executor.weight_buffer.missing:
                continue
            if equal and not target.same_weights(other):
                continue
            before, owned = target.weight_buffer_id, target.own_weight_bytes
            if target.share_params_from(other):
                if owned and target.weight_buffer_id != before and self._entries.get(slot) is target:
                    self._left[before] = self._stats[slot].resident_bytes  # those that stand on it keep it alive
                return source
        return None

    def _one_copy(self, slot: int, made: CompiledGraph) -> CompiledGraph:
        """An entry in the making whose graph brought its weights stands on an equal copy, if another entry has one."""
        with self._lock:
            self._share_into(slot, made, equal=True)
        return made

    def _log_share(self, slot: int, key: int, made: CompiledGraph) -> None:
        """Write down that a new entry came in on another's weights, if it did."""
        with self._lock:
            if self._entries.get(slot) is made and self._stats[slot].shares:
                self._log.add("share", key, slot, self.resident_bytes)

    def largest(self) -> Compilation:
        """The resident entry with the largest arena, with every stage. ``RunError`` if none has them: nothing is
        compiled, or all came from disk."""
        with self._lock:
            found = [e for e in self._entries.values() if e.compilation is not None]
        if not found:
            raise RunError(f"{type(self).__name__}: nothing compiled is resident"
                           + (", only entries from disk, which have no stages to show" if self._entries else ""))
        made = max(found, key=lambda e: e.arena_bytes).compilation
        assert made is not None
        return made

    # --- all of it --------------------------------------------------------------------------------

    def sync_all(self) -> None:
        """Return when no entry has a run in flight."""
        with self._lock:
            entries = list(self._entries.values())
        for e in entries:
            e.sync_pending()

    @property
    def resident_bytes(self) -> int:
        """Weights that entries hold as their own, and those of a dropped entry that others still stand on."""
        with self._lock:
            own = sum([s.resident_bytes for s in self._stats.values()])
            if self._left:
                alive = {e.weight_buffer_id for e in self._entries.values()}
                self._left = {k: v for k, v in self._left.items() if k in alive}
            return own + sum(self._left.values())

    def totals(self) -> Totals:
        """The cache's counters now."""
        with self._lock:
            stats = list(self._stats.values())
            rows, padding = sum(s.rows for s in stats), sum(s.padding_rows for s in stats)
            return Totals(self._hits, self._misses, self._evictions, self.resident_bytes, len(self._entries),
                          padding / rows if rows else 0.0)

    def entry_stats(self) -> list[EntryStats]:
        """One row an entry ever seen (a bucket: always), by its start."""
        with self._lock:
            return sorted((dataclasses.replace(s, donor=self._donor == slot) for slot, s in self._stats.items()),
                          key=lambda s: s.start)

    def stats(self) -> Any:
        """``entry_stats`` as a pandas frame."""
        return entries_frame(self.entry_stats())

    def timeline(self) -> list[CacheEvent]:
        """What happened, oldest first."""
        with self._lock:
            return self._log.events()

    def _clear(self) -> None:
        """Drop every entry that is there now."""
        with self._dropping():
            for slot in list(self._entries):
                self._drop(slot, "clear")
