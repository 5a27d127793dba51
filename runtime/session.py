"""Owns ``Session`` and ``CompiledGraph``: a graph compiled for a device, its weights, its resident handles, its runs.

What a compiled graph can share: its weight buffer, with any other of equal layout (``share_params_from``). Its arena is
its own and may hold resident rows, so threads take turns at it; a run that one of its own kernels starts gets a twin.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from planner_core.errors import RlxError
from planner_core.fusion import Fusion
from planner_core.ir import Array, DType, Graph
from planner_core.ir.rebind import bound_symbols
from planner_core.memory import MemoryPlan
from runtime.active import ActiveList, FullExtent, active_commands, padding_refusal
from runtime.command_list import CommandList
from runtime.compile import Compilation, CompileOptions, compile_graph
from runtime.device import Device, DeviceError, resolve_device
from runtime.errors import RunError
from runtime.executors import HostExecutor
from runtime.handles import Handles
from runtime.marking import BucketDim, marked
from runtime.precision import PrecisionPolicy

if TYPE_CHECKING:
    from planner_core.ir.hir import HirModule

__all__ = ["CompiledGraph", "Device", "DeviceError", "PrecisionPolicy", "Session", "frozen_values"]

ACTIVE_LISTS = 8
"""Active command lists that a compiled graph keeps, least recently used out first."""
_PIECE = 1 << 22


def frozen_values(fusion: Fusion) -> dict[str, Array]:
    """The params whose values fusion compiled in, with those values."""
    return {n: fusion.source.weights[n] for n in sorted(fusion.frozen)}


def _equal_bytes(a: Array, b: Array) -> bool:
    """Equal arrays of bytes, a piece at a time: no mask as large as the weights."""
    return all(np.array_equal(a[i : i + _PIECE], b[i : i + _PIECE]) for i in range(0, a.size, _PIECE))


class CompiledGraph:
    """A graph ready to run. ``graph`` (legal), ``plan`` and ``commands`` are what was compiled; ``compilation`` has every
    stage, unless it came from disk."""

    def __init__(self, commands: CommandList, weights: Mapping[str, Array], frozen: Mapping[str, Array], options: CompileOptions,
                 stages: Callable[[], tuple[Graph, MemoryPlan]], compilation: Compilation | None = None,
                 bucket_symbol: str = "") -> None:
        self.commands = commands
        self.options = options
        self.compilation = compilation
        self.bucket_symbol = bucket_symbol
        self.executor = HostExecutor(commands, weights, frozen)
        self._frozen = dict(frozen)
        self.handles = Handles(self.executor)
        self.extent_reason = ""
        """Why the last run that had an active extent was whole; "" if it was active."""
        self._stages = stages
        self._made: tuple[Graph, MemoryPlan] | None = None
        self._extent: tuple[int, int] | None = None
        self._active: OrderedDict[tuple[int, int], ActiveList | str] = OrderedDict()
        self._never: dict[int, str] = {}
        """Full extent -> why no part of it can be active, once known."""
        self._lock = threading.RLock()
        self._own_weights = True
        self._padding: dict[tuple[tuple[str, int], ...], str] = {}
        self._kept: frozenset[str] | None = None
        """Outputs behind whose active rows still lie those of the last whole run; None unless that went through."""
        self._busy = False
        """A run of the thread that holds the lock is under way."""
        self._twins: list[HostExecutor] = []

    @classmethod
    def of(cls, c: Compilation, bucket_symbol: str = "") -> CompiledGraph:
        """The runnable form of a compilation."""
        return cls(c.commands, c.legal.weights, frozen_values(c.fusion), c.options, lambda: (c.legal, c.plan), c, bucket_symbol)

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.commands.name!r}: {self.commands.dispatches} dispatches>"

    @property
    def graph(self) -> Graph:
        """The legal graph."""
        return self._both()[0]

    @property
    def plan(self) -> MemoryPlan:
        return self._both()[1]

    def _both(self) -> tuple[Graph, MemoryPlan]:
        if self._made is None:
            self._made = self._stages()
        return self._made

    # --- weights ----------------------------------------------------------------------------------

    @property
    def weight_bytes(self) -> int:
        """Size of the weight buffer."""
        return self.commands.weights_size

    @property
    def own_weight_bytes(self) -> int:
        """Size of the weight buffer if it is this graph's own, 0 if it was taken over from another."""
        return self.commands.weights_size if self._own_weights else 0

    @property
    def weight_buffer_id(self) -> int:
        """Equal for graphs that stand on one weight buffer, and for no others that are alive."""
        return id(self.executor.weight_buffer)

    @property
    def param_names(self) -> list[str]:
        return [p.name for p in self.commands.params]

    def set_param(self, name: str, data: Array) -> None:
        """Write one weight, of the param's shape and dtype; every sharer sees it. ``RunError`` says what is wrong."""
        with self._lock:
            self.executor.set_param(name, data)

    def set_params(self, params: Mapping[str, Array]) -> None:
        """``set_param`` of each; those whose value was compiled in are let be if they are the same."""
        for name, data in params.items():
            known = self._frozen.get(name)
            if known is None or not np.array_equal(known, np.asarray(data)):
                self.set_param(name, data)

    def set_param_typed(self, name: str, data: bytes | bytearray | memoryview | Array, dtype: DType | str) -> None:
        """Write one weight from raw bytes of ``dtype``, converted to the param's own where they differ."""
        source = DType.parse(dtype) if isinstance(dtype, str) else dtype
        b = next((p for p in self.commands.params if p.name == name), None)
        if b is None:
            raise RunError(f"{self.commands.name!r} has no param {name!r}; it has {', '.join(self.param_names) or 'none'}")
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        if raw.nbytes != source.nbytes(b.operand.numel) or source.bits % 8:
            raise RunError(f"param {name!r}: {raw.nbytes} bytes of {source}, wanted {source.nbytes(b.operand.numel)} for "
                           f"{b.dtype}{list(b.operand.shape)}")
        self.set_param(name, raw.view(source.numpy).astype(b.dtype.numpy).reshape(b.operand.shape))

    def share_params_from(self, other: CompiledGraph) -> bool:
        """Stand on the other graph's weight buffer from now on; this one's own is freed.

        False, with nothing changed, unless names, dtypes, offsets, sizes and the total match byte for byte (and values
        that were compiled in are equal). A graph shares with itself trivially. Compile with ``separate_weights``.
        """
        if other is self or self.executor.stands_with(other.executor):
            return True  # whoever uploaded the buffer keeps it
        if self._frozen.keys() != other._frozen.keys() or any(
                a is not other._frozen[n] and not np.array_equal(a, other._frozen[n]) for n, a in self._frozen.items()):
            return False
        with self._lock:
            if not self.executor.share_weights_from(other.executor):
                return False
            self._own_weights = False
            self._active.clear()
            self._twins.clear()
            return True

    def same_weights(self, other: CompiledGraph) -> bool:
        """Both weight buffers hold the same bytes; that the same params lie there is for ``share_params_from`` to say."""
        mine, its = self.executor.weight_buffer, other.executor.weight_buffer
        return mine is its or (mine.data.size == its.data.size and _equal_bytes(mine.data, its.data))

    def copy_params_from(self, other: CompiledGraph) -> int:
        """Copy every param of the same name, shape and dtype; how many were copied."""
        mine, count = {p.name: p for p in self.commands.params}, 0
        with self._lock:
            for p in other.commands.params:
                b = mine.get(p.name)
                if b is not None and b.operand.shape == p.operand.shape and b.dtype is p.dtype and (
                        p.name not in other.executor.weight_buffer.missing) and p.name not in self.executor.frozen:
                    self.executor.set_param(p.name, other.executor.view(p.operand, False).astype(p.dtype.numpy, copy=False))
                    count += 1
        return count

    def param(self, name: str) -> Array:
        """A copy of one weight; ``RunError`` for an unknown name."""
        b = next((p for p in self.commands.params if p.name == name), None)
        if b is None:
            raise RunError(f"{self.commands.name!r} has no param {name!r}; it has {', '.join(self.param_names) or 'none'}")
        return self.executor.view(b.operand, False).astype(b.dtype.numpy, copy=True)

    # --- running ----------------------------------------------------------------------------------

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """Hint that later runs use ``actual`` of ``full`` rows of the bucket; None: all again.

        A run is active only where every thunk is safe for it (``extent_reason`` says why one wasn't). It is exact: as if the
        graph had ``actual`` rows, attention without a mask included. No thunk writes behind the active rows: ``run``
        returns there what the last whole run left of the output, or zeros where another tensor has come to lie there
        since. ``RunError`` unless 1 ≤ actual ≤ full.
        """
        if extent is not None:
            actual, full = extent
            if not 1 <= actual <= full:
                raise RunError(f"active extent ({actual}, {full}): wanted 1 <= actual <= full")
            extent = (int(actual), int(full))
        with self._lock:
            self._extent = extent

    @property
    def active_extent(self) -> tuple[int, int] | None:
        return self._extent

    def _active_for(self, extent: tuple[int, int]) -> ActiveList | None:
        """The active list of an extent, or None with ``extent_reason`` set."""
        found = self._never.get(extent[1]) or self._active.get(extent)
        if found is None:
            try:
                commands = active_commands(self.graph, self.plan, self._symbol(extent[1]), *extent, self.options.passes_used,
                                           self.options.lower_used)
                found = ActiveList.of(HostExecutor(commands, {}, self.executor.frozen, beside=self.executor), self.commands)
            except FullExtent as e:
                found = str(e)
                if e.always:
                    self._never[extent[1]] = found
            self._active[extent] = found
            while len(self._active) > ACTIVE_LISTS:
                self._active.popitem(last=False)
        if extent in self._active:
            self._active.move_to_end(extent)
        self.extent_reason = found if isinstance(found, str) else ""
        return None if isinstance(found, str) else found

    def padding_reason(self, axes: Mapping[str, int]) -> str:
        """Why zero rows at the end of these inputs (name -> axis of the rows) may change what a whole run gives for the rows
        before them; "" where they can't."""
        key = tuple(sorted(axes.items()))
        found = self._padding.get(key)
        if found is None:
            found = self._padding[key] = self._padding_reason(axes)
        return found

    def _padding_reason(self, axes: Mapping[str, int]) -> str:
        graph = self.graph
        named = {frozenset(graph.find(name).shape.dims[axis].names()) for name, axis in axes.items()}
        symbols = next(iter(named)) if len(named) == 1 else frozenset[str]()
        if len(symbols) == 1:
            return padding_refusal(graph, next(iter(symbols))) or ""
        try:
            return padding_refusal(*marked(graph, axes)) or ""
        except RlxError as e:
            return str(e)

    def _symbol(self, full: int) -> str:
        known = bound_symbols(self.graph)
        if self.bucket_symbol:
            if known.get(self.bucket_symbol) != full:
                raise FullExtent(f"dim {self.bucket_symbol!r} is {known.get(self.bucket_symbol)}, not {full}")
            return self.bucket_symbol
        fits = [s for s, v in known.items() if v == full]
        if len(fits) != 1:
            raise FullExtent(f"no dim has extent {full}" if not fits else f"dims {', '.join(fits)} all have extent {full}; "
                             "name the bucket's with bucket_dim")
        return fits[0]

    def run_active(self, inputs: Mapping[str, Array], extent: tuple[int, int] | None, why_whole: str = "") -> dict[str, Array]:
        """``run`` with an active extent (None: whole, with ``why_whole`` as the ``extent_reason``) for this run only."""
        with self._lock:
            before = self._extent
            try:
                self.set_active_extent(extent)
                if extent is None:
                    self.extent_reason = why_whole
                return self.run(inputs)
            finally:
                self._extent = before

    def run(self, inputs: Mapping[str, Array], *, sanitize: bool = False, timed: bool = False) -> dict[str, Array]:
        """Outputs by name, as copies. With an active extent, inputs may have all rows or the active ones alone; outputs have
        all rows, those behind the active ones from an earlier run or zero.

        Raises ``RunError`` for wrong inputs. A thread waits for the run of another; a run from within a run, by a kernel of
        it, has an arena of its own, and is refused where rows are resident or the extent is cut.
        """
        with self._lock:
            if self._busy:
                return self._run_within(inputs, sanitize, timed)
            self._busy = True
            try:
                return self._run(inputs, sanitize, timed)
            finally:
                self._busy = False

    def _run_within(self, inputs: Mapping[str, Array], sanitize: bool, timed: bool) -> dict[str, Array]:
        """A run while another of this thread is under way, on a twin of the executor."""
        if self.executor.resident or self.handles.feeding or self._extent is not None:
            raise RunError(f"{self.commands.name!r} is run from within its own run: its arena, with the rows that "
                           f"{'are resident' if self._extent is None else 'an active extent cuts'}, is in use; compile another "
                           "one for the kernel, or call it behind the run")
        twin = self._twins.pop() if self._twins else self.executor.twin()
        try:
            return twin.run(inputs, sanitize=sanitize, timed=timed)
        finally:
            self._twins.append(twin)

    def _run(self, inputs: Mapping[str, Array], sanitize: bool, timed: bool) -> dict[str, Array]:
        active: ActiveList | None = None
        if self._extent is not None and sanitize:
            self.extent_reason = "audited runs are whole"
        elif self._extent is not None and self._extent[0] != self._extent[1]:
            active = self._active_for(self._extent)
        running = self.executor if active is None else active.executor
        if self.handles.feeding:
            self.handles.check_feeds(running)
        kept, self._kept = self._kept, None
        if active is None:
            self.executor.execute(inputs, sanitize=sanitize, timed=timed)
            kept = frozenset(b.name for b in self.commands.outputs)
        else:
            running.execute(self._cut(running, inputs), timed=timed)
            kept = kept - active.spoils if kept is not None else kept
        self._kept = kept
        if self.handles.feeding:
            self.handles.fed(running)
        out = self.executor.outputs()
        if active is not None:
            for name, tail in active.tails.items():
                if kept is None or name not in kept:
                    out[name][tail] = 0
        return out

    def _cut(self, active: HostExecutor, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs of full extent cut to the active rows."""
        out = dict(inputs)
        for short, whole in zip(active.commands.inputs, self.commands.inputs, strict=True):
            given = inputs.get(short.name)
            if given is not None and short.operand.shape != whole.operand.shape:
                a = np.asarray(given)
                if a.shape == whole.operand.shape:
                    out[short.name] = a[tuple(slice(0, d) for d in short.operand.shape)]
        return out

    def sync_pending(self) -> None:
        """Return when no run is in flight."""
        with self.standing_still():
            pass

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """No run of another thread is in flight, or starts, within the ``with``."""
        with self._lock:
            yield

    # --- resident handles -------------------------------------------------------------------------

    def bind_gpu_handle(self, name: str, array: Array) -> None:
        """Keep a reference to ``array`` for an input; ``stage_bound_gpu_handles_to_arena`` copies it there."""
        with self._lock:
            self.handles.bind(name, array)

    def stage_bound_gpu_handles_to_arena(self) -> int:
        """Copy bound arrays into their inputs' slots, where they stay from run to run; how many."""
        with self._lock:
            return self.handles.stage()

    def prepare_resident_gpu_handle(self, name: str) -> None:
        """The input's slot holds its data already: runs neither need nor overwrite it."""
        with self._lock:
            self.handles.prepare(name)

    def release_resident_gpu_handle(self, name: str) -> None:
        """An ordinary input again, given with every run."""
        with self._lock:
            self.handles.release(name)

    def register_kv_row_feed(self, handle: str, output: str, row: int = 0) -> None:
        """After each run the rows of ``output`` become rows ``row``, ``row`` + 1, … of the handle."""
        with self._lock:
            self.handles.feed(handle, output, row)

    def copy_resident_kv_rows_from(self, other: CompiledGraph, names: Sequence[str], start: int, stop: int) -> None:
        """Rows ``start`` to ``stop`` of each handle, slot to slot; ``RunError`` where widths or rows don't fit."""
        first, second = (self, other) if id(self) < id(other) else (other, self)
        with first._lock, second._lock:
            self.handles.copy_rows(other.handles, names, start, stop)

    def seed_resident_kv_prefix_from(self, other: CompiledGraph, names: Sequence[str], rows: int) -> None:
        """The first ``rows`` rows of each handle, slot to slot; the handles are resident then."""
        self.copy_resident_kv_rows_from(other, names, 0, rows)
        for name in names:
            self.prepare_resident_gpu_handle(name)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def arena_bytes(self) -> int:
        return self.commands.arena_size


class Session:
    """Compiles for one device. ``Device.AUTO`` picks: ``device`` is what it picked, ``picked_because`` why.

    ``DeviceError`` for a device that can't run here.
    """

    def __init__(self, device: Device | str = Device.AUTO, precision_policy: PrecisionPolicy | str | None = None) -> None:
        self.device, self.picked_because = resolve_device(device)
        self.precision_policy = None if precision_policy is None else PrecisionPolicy(precision_policy)

    def __repr__(self) -> str:
        return f"<Session {self.device.value} ({self.picked_because})>"

    def options_for(self, options: CompileOptions | None) -> CompileOptions:
        """The options given, or the device's; the session's precision policy where they name none."""
        made = options if options is not None else CompileOptions(self.device.target)
        if made.precision is None and self.precision_policy is not None:
            made = dataclasses.replace(made, precision=self.precision_policy)
        return made

    def compile(self, graph: Graph, options: CompileOptions | None = None, bucket_dim: BucketDim | None = None) -> CompiledGraph:
        """Graph to runnable. ``bucket_dim`` says which dim an active extent cuts: a symbol's name, or for graphs of plain
        ints the axis of each input (``{"x": 0}``). Raises as ``compile_graph``."""
        source, symbol = marked(graph, bucket_dim)
        return CompiledGraph.of(compile_graph(source, self.options_for(options)), symbol)

    def compile_hir(self, module: HirModule, options: CompileOptions | None = None) -> CompiledGraph:
        """A module to runnable, its symbols bound by ``options.dims``; ``UnboundDimError`` names one without a value."""
        return self.compile(module.lower(), options)
