"""Owns ``CompileCache``: compiled graphs by any int key, first in, first out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from planner_core.ir import Array, Graph
from planner_core.ir.hir import HirModule
from runtime.caches.base import CacheBase, upload
from runtime.compile import CompileOptions
from runtime.session import CompiledGraph, Device, PrecisionPolicy

__all__ = ["CompileCache"]


class CompileCache(CacheBase):
    """At most ``capacity`` compiled graphs by key (any int; ``batch << 32 | seq``, say). Safe for threads.

    ``precision_policy`` holds where a call's options name none. ``ValueError`` for a capacity below 1.
    """

    def __init__(self, device: Device | str, capacity: int, precision_policy: PrecisionPolicy | str | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, wanted 1 or more")
        super().__init__(device, precision_policy)
        self.capacity = capacity

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[int]:
        """Keys, oldest first, as they are now."""
        with self._lock:
            return iter(list(self._entries))

    def get(self, key: int) -> CompiledGraph | None:
        """The resident entry, without counting a hit."""
        return self._entries.get(key)

    # --- compiling --------------------------------------------------------------------------------

    def get_or_compile(self, key: int, build: Callable[[], Graph], options: CompileOptions | None = None) -> CompiledGraph:
        """The entry of ``key``; ``build`` runs only if there is none, and at most once a resident key. Weights that the
        graph brings along are another entry's where that one holds the same bytes."""
        found = self._entries.get(key)
        if found is not None:
            with self._lock:
                if self._entries.get(key) is found:
                    self._hit(key, key)
                    return found
        return self._one(key, lambda: self.session.compile(build(), options))

    def get_or_compile_hir(self, key: int, build: Callable[[], HirModule], options: CompileOptions | None = None) -> CompiledGraph:
        """``get_or_compile`` of a high-level module, bound by itself or by ``options.dims``."""
        return self._one(key, lambda: self.session.compile_hir(build(), options))

    def _one(self, key: int, make: Callable[[], CompiledGraph]) -> CompiledGraph:
        made, there = self._once(key, key, lambda: self._one_copy(key, make()))
        if not there:
            self._log_share(key, key, made)
        return made

    def ensure_with_params(self, key: int, graph: Graph, params: Mapping[str, Array],
                           options: CompileOptions | None = None) -> CompiledGraph:
        """Compile ``graph`` if ``key`` is absent, then stand on another entry's weights where the layouts match byte for
        byte; else upload ``params``. A hit ignores ``graph`` and ``params``."""
        def make() -> CompiledGraph:
            made = self.session.compile(graph, options)
            with self._lock:
                source = self._share_into(key, made)
                if source is not None:
                    self._donor = source
            if source is None:
                upload(made, params)
            return made

        made, there = self._once(key, key, make)
        if not there:
            with self._lock:
                s = self._stats.get(key)
                if s is not None and self._entries.get(key) is made:
                    self._log.add("share" if s.shares else "upload", key, key, self.resident_bytes)
                    if not s.shares and self._donor is None:
                        self._donor = key
        return made

    def try_share_params_from_donor(self, key: int) -> bool:
        """Let the entry stand on the donor's weights, or any other entry's; that one is the donor then. False: none fits
        (or ``RLX_METAL_NO_SHARE`` is set), and the caller uploads."""
        target = self._entries.get(key)
        if target is None:
            return False
        with target.standing_still(), self._lock:
            source = self._share_into(key, target) if self._entries.get(key) is target else None
            if source is None:
                return False
            self._donor = source
            self._shared(key, key, target)
            return True

    @property
    def weight_donor(self) -> int | None:
        """Key of the entry that others are first offered the weights of."""
        return self._donor

    # --- dropping ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop every entry, each after its runs."""
        self._clear()

    def _insert(self, slot: int, key: int, made: CompiledGraph) -> None:
        while len(self._entries) >= self.capacity:
            self._drop(next(iter(self._entries)))
        super()._insert(slot, key, made)
