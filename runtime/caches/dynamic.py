"""Owns ``DynamicDimCompileCache``: a module with symbolic dims, optimised once, specialised for each binding."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterator

from planner_core.errors import UnboundDimError
from planner_core.fusion import Fusion, fuse_graph
from planner_core.ir import DimBinding, Graph, to_text
from planner_core.ir.hir import HirModule
from planner_core.memory import MemoryPlan
from runtime.caches.aot import AotCache, AotEntry, AotKey
from runtime.caches.base import CacheBase
from runtime.caches.stats import EntryStats
from runtime.compile import CompileOptions, compile_template, legalise
from runtime.errors import RunError
from runtime.session import CompiledGraph, Device, frozen_values

__all__ = ["DynamicDimCompileCache"]

Build = Callable[[], HirModule | Graph]


class DynamicDimCompileCache(CacheBase):
    """Specialisations by key, first in, first out at ``capacity``. One template: the module after fusion, symbols open.

    Safe for threads. ``ValueError`` for a capacity below 1.
    """

    def __init__(self, device: Device | str, capacity: int, precision_policy: str | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, wanted 1 or more")
        super().__init__(device, precision_policy)
        self.capacity = capacity
        self._template: Fusion | None = None
        self._template_lock = threading.RLock()
        self._template_hash = ""
        self._bindings: dict[int, DimBinding] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[int]:
        """Keys, oldest first, as they are now."""
        with self._lock:
            return iter(list(self._entries))

    # --- the template -----------------------------------------------------------------------------

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @property
    def template_result(self) -> Fusion | None:
        """The optimised module with its decisions, if there is one."""
        return self._template

    def ensure_template(self, build: Build, options: CompileOptions | None = None) -> Fusion:
        """The template; ``build`` runs only if there is none. The options' fusion rules hold for all that is made of it."""
        with self._template_lock:
            if self._template is None:
                module = build()
                graph = module.lower() if isinstance(module, HirModule) else module
                made = self.session.options_for(options)
                fused = fuse_graph(graph, made.target, made.fusion_used)
                self._template_hash = hashlib.sha256(
                    (to_text(fused.graph) + repr(sorted(fused.frozen))).encode()).hexdigest()
                self._template = fused
            return self._template

    # --- specialisations --------------------------------------------------------------------------

    def get_or_specialize(self, key: int, binding: DimBinding, build: Build,
                          options: CompileOptions | None = None) -> CompiledGraph:
        """The module for one binding. ``options``' precision policy beats the cache's; a binding inside them is ignored.

        ``RunError`` if the key is resident with another binding; ``UnboundDimError`` names a symbol without a value, or
        one that the module doesn't have.
        """
        return self._specialize(key, binding, build, options, None, "")

    def get_or_specialize_aot(self, aot: AotCache, disk_base: str, key: int, binding: DimBinding, build: Build,
                              options: CompileOptions | None = None) -> CompiledGraph:
        """``get_or_specialize`` that looks on disk before it plans, and leaves what it planned there."""
        return self._specialize(key, binding, build, options, aot, disk_base)

    def _specialize(self, key: int, binding: DimBinding, build: Build, options: CompileOptions | None,
                    aot: AotCache | None, base: str) -> CompiledGraph:
        def make() -> CompiledGraph:
            fusion = self.ensure_template(build, options)
            used = dataclasses.replace(self.session.options_for(options), dims=binding)
            _check_binding(fusion.graph, binding)
            return _from_disk(aot, base, self._template_hash, fusion, used, self._disk)

        with self._lock:
            self._same_binding(key, binding)
        made, _ = self._once(key, key, make)
        with self._lock:
            if self._entries.get(key) is made:
                self._same_binding(key, binding)  # another thread may have made it meanwhile
        return made

    def _same_binding(self, key: int, binding: DimBinding) -> None:
        have = self._bindings.get(key)
        if have is not None and have != binding:
            raise RunError(f"cache key {key} is specialised for {have.as_dict()}, asked for {binding.as_dict()}: one key, "
                           "one binding")

    def _disk(self, kind: str) -> None:
        with self._lock:
            self._log.add(kind, 0, 0, self.resident_bytes)

    def _insert(self, slot: int, key: int, made: CompiledGraph) -> None:
        while len(self._entries) >= self.capacity:
            self._drop(next(iter(self._entries)))
        self._stats.setdefault(slot, EntryStats(slot, slot + 1))
        super()._insert(slot, key, made)
        self._bindings[slot] = made.options.dims

    def _drop(self, slot: int, kind: str = "evict") -> None:
        super()._drop(slot, kind)
        self._bindings.pop(slot, None)

    def clear(self) -> None:
        """Drop every specialisation, each after its runs, and the template."""
        self._clear(list(self._entries))
        with self._template_lock:
            self._template, self._template_hash = None, ""


def _check_binding(template: Graph, binding: DimBinding) -> None:
    known, given = set(template.symbols), set(binding.as_dict())
    if given - known:
        raise UnboundDimError(f"no dim named {sorted(given - known)} in {template.name!r}; it has {sorted(known) or 'none'}")
    if known - given:
        raise UnboundDimError(f"dims {sorted(known - given)} of {template.name!r} have no value; bind them, e.g. "
                              f"DimBinding.of({', '.join(f'{s}=1' for s in sorted(known - given))})")


def _from_disk(aot: AotCache | None, base: str, template: str, fusion: Fusion, options: CompileOptions,
               say: Callable[[str], None]) -> CompiledGraph:
    """Loaded if the disk has it, else planned and stored."""
    if aot is None:
        return CompiledGraph.of(compile_template(fusion, options))
    key = AotKey(template, str(options.dims.as_dict()), options.cache_key(fusion.graph))
    found = aot.load(base, key)
    if found is not None:
        say("disk_hit")
        return _loaded(found, fusion, options)
    say("disk_miss")
    made = compile_template(fusion, options)
    aot.store(base, key, made.commands, made.plan)
    return CompiledGraph.of(made)


def _loaded(entry: AotEntry, fusion: Fusion, options: CompileOptions) -> CompiledGraph:
    def stages() -> tuple[Graph, MemoryPlan]:
        return legalise(fusion.graph.bind(options.dims), options), entry.plan()

    return CompiledGraph(entry.commands, fusion.graph.weights, frozen_values(fusion), options, stages)
