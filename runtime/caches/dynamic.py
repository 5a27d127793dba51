"""Owns ``DynamicDimCompileCache``: a module with symbolic dims, optimised once, specialised for each binding."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterator

from planner_core.errors import UnboundDimError
from planner_core.fusion import Fusion, FusionOptions, fuse_graph
from planner_core.ir import Array, DimBinding, Graph
from planner_core.ir.hir import HirModule
from planner_core.memory import MemoryPlan
from planner_core.options import options_of
from runtime.caches.aot import AotCache, AotKey
from runtime.caches.base import CacheBase
from runtime.compile import CompileOptions, compile_template, legalise
from runtime.errors import RunError
from runtime.session import CompiledGraph, Device, frozen_values

__all__ = ["DynamicDimCompileCache"]

Build = Callable[[], HirModule | Graph]


class DynamicDimCompileCache(CacheBase):
    """Specialisations by key, first in, first out at ``capacity``. One template: the module after fusion, symbols open;
    one copy of the weights that it brings.

    Safe for threads. ``ValueError`` for a capacity below 1.
    """

    def __init__(self, device: Device | str, capacity: int, precision_policy: str | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, wanted 1 or more")
        super().__init__(device, precision_policy)
        self.capacity = capacity
        self._template: Fusion | None = None
        self._template_lock = threading.RLock()
        self._module: tuple[Graph, CompileOptions, str] | None = None
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
            graph, made, _ = self._ensure_module(build, options)
            if self._template is None:
                self._template = fuse_graph(graph, made.target, made.fusion_used)
            return self._template

    def _ensure_module(self, build: Build, options: CompileOptions | None) -> tuple[Graph, CompileOptions, str]:
        """(the module's graph, the options of the template, a hash of all that the template depends on), built once."""
        with self._template_lock:
            if self._module is None:
                module = build()
                graph = module.lower() if isinstance(module, HirModule) else module
                made = self.session.options_for(options)
                rules = sorted(n.name for n in options_of(FusionOptions) if getattr(made.fusion_used, n.name))
                text = f"{graph.content_hash}\n{made.target.value}\n{rules}"
                self._module = graph, made, hashlib.sha256(text.encode()).hexdigest()
            return self._module

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
            used = dataclasses.replace(self.session.options_for(options), dims=binding)
            graph, _, template = self._ensure_module(build, options)
            _check_binding(graph, binding)
            if aot is None:
                return CompiledGraph.of(compile_template(self.ensure_template(build, options), used))
            key = AotKey(template, str(binding.as_dict()), used.cache_key(graph))
            return self._on_disk(aot, base, key, graph, lambda: self.ensure_template(build, options), used)

        with self._lock:
            self._same_binding(key, binding)
        made, there = self._once(key, key, lambda: self._one_copy(key, make()))
        if not there:
            self._log_share(key, key, made)
        with self._lock:
            if self._entries.get(key) is made:
                self._same_binding(key, binding)  # another thread may have made it meanwhile
        return made

    def _same_binding(self, key: int, binding: DimBinding) -> None:
        have = self._bindings.get(key)
        if have is not None and have != binding:
            raise RunError(f"cache key {key} is specialised for {have.as_dict()}, asked for {binding.as_dict()}: one key, "
                           "one binding")

    def _on_disk(self, aot: AotCache, base: str, key: AotKey, graph: Graph, template: Callable[[], Fusion],
                 options: CompileOptions) -> CompiledGraph:
        """Loaded if the disk has it (the module is then not even fused, unless its weights were folded in), else compiled
        and stored."""
        found = aot.load(base, key)
        with self._lock:
            self._log.add("disk_miss" if found is None else "disk_hit", 0, 0, self.resident_bytes)
        if found is None:
            fusion = template()
            made = compile_template(fusion, options)
            folded = bool(fusion.frozen) or fusion.graph.weights.keys() != graph.weights.keys()
            aot.store(base, key, made.commands, made.plan, folded)
            return CompiledGraph.of(made)
        entry, weights, frozen = found, graph.weights, dict[str, Array]()
        if found.folded:
            fusion = template()
            weights, frozen = fusion.graph.weights, frozen_values(fusion)

        def stages() -> tuple[Graph, MemoryPlan]:
            return legalise(template().graph.bind(options.dims), options), entry.plan()

        return CompiledGraph(entry.commands, weights, frozen, options, stages)

    def _insert(self, slot: int, key: int, made: CompiledGraph) -> None:
        while len(self._entries) >= self.capacity:
            self._drop(next(iter(self._entries)))
        super()._insert(slot, key, made)
        self._bindings[slot] = made.options.dims

    def _drop(self, slot: int, kind: str = "evict") -> None:
        super()._drop(slot, kind)
        self._bindings.pop(slot, None)

    def clear(self) -> None:
        """Drop every specialisation, each after its runs, and the template."""
        self._clear()
        with self._template_lock:
            self._template = self._module = None


def _check_binding(template: Graph, binding: DimBinding) -> None:
    known, given = set(template.symbols), set(binding.as_dict())
    if given - known:
        raise UnboundDimError(f"no dim named {sorted(given - known)} in {template.name!r}; it has {sorted(known) or 'none'}")
    if known - given:
        raise UnboundDimError(f"dims {sorted(known - given)} of {template.name!r} have no value; bind them, e.g. "
                              f"DimBinding.of({', '.join(f'{s}=1' for s in sorted(known - given))})")
