"""Owns resident handles: inputs whose bytes stay in their slot from run to run (a KV cache), and rows copied between them.

On the host a "GPU handle" is the input's slot in the arena. It may stay resident only where the plan gives those bytes
to nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner_core.ir import Array
from runtime.errors import RunError
from runtime.executors import HostExecutor

__all__ = ["Handles", "RowFeed"]


@dataclass(slots=True)
class RowFeed:
    """After each run the rows of ``output`` go to ``handle`` from row ``row`` on, which then moves behind them."""

    output: str
    source: Array
    target: Array
    row: int


class Handles:
    """The handles of one executor. Rows are the second axis of ``[1, rows, width]`` or the first of ``[rows, width]``."""

    def __init__(self, executor: HostExecutor) -> None:
        self._executor = executor
        self._name = executor.commands.name
        self._bound: dict[str, Array] = {}
        self._feeds: dict[str, RowFeed] = {}
        self._views: dict[str, Array] = {}

    def view(self, name: str) -> Array:
        """The handle's slot as ``[rows, width]``; ``RunError`` for an unknown name, or one with other axes."""
        found = self._views.get(name)
        if found is None:
            b = next((b for b in self._executor.commands.inputs if b.name == name), None)
            if b is None:
                raise RunError(f"{self._name!r} has no input {name!r}; it has "
                               f"{', '.join(b.name for b in self._executor.commands.inputs) or 'none'}")
            dims = b.operand.shape
            if len(dims) < 2 or any(d != 1 for d in dims[:-2]):
                raise RunError(f"handle {name!r} is {b.dtype}{list(dims)}, wanted [1, rows, width] or [rows, width]")
            found = self._views[name] = self._executor.view(b.operand).reshape(dims[-2:])
        return found

    def bind(self, name: str, array: Array) -> None:
        """Keep a reference to the array that ``stage`` copies; its rows and width are the slot's."""
        slot, a = self.view(name), np.asarray(array)
        if a.size != slot.size or a.dtype != slot.dtype:
            raise RunError(f"handle {name!r} takes {slot.dtype}{list(slot.shape)}, got {a.dtype}{list(a.shape)}")
        self._bound[name] = a

    def stage(self) -> int:
        """Copy every bound array into its slot and mark it resident; how many."""
        for name, array in self._bound.items():
            self.prepare(name)
            self.view(name)[...] = array.reshape(self.view(name).shape)
        return len(self._bound)

    def prepare(self, name: str) -> None:
        """The slot holds the handle's rows from now on. ``RunError`` where the plan gives its bytes to others too."""
        self.view(name)
        if name in self._executor.resident:
            return
        if not self._is_alone(name):
            raise RunError(f"handle {name!r} of {self._name!r} can't stay resident: its bytes hold other tensors "
                           "within a run; compile with arena_no_reuse")
        self._executor.resident.add(name)

    def unbind(self, names: Sequence[str]) -> None:
        """Let the arrays go; what was staged stays."""
        for name in names:
            self._bound.pop(name, None)

    def _is_alone(self, name: str) -> bool:
        """No other buffer of the plan uses any of the bytes, at any step."""
        o = next(b.operand for b in self._executor.commands.inputs if b.name == name)
        over = [s for s in self._executor.commands.slots
                if s.space == o.space and s.offset < o.offset + o.nbytes and o.offset < s.offset + s.size]
        return len(over) == 1

    def release(self, name: str) -> None:
        """An ordinary input again."""
        self._executor.resident.discard(name)
        self._bound.pop(name, None)
        self._feeds.pop(name, None)

    # --- rows -------------------------------------------------------------------------------------

    def feed(self, handle: str, output: str, row: int) -> None:
        """Register a row feed; a second one for the handle replaces the first."""
        target = self.view(handle)
        b = next((b for b in self._executor.commands.outputs if b.name == output), None)
        if b is None:
            raise RunError(f"{self._name!r} has no output {output!r}; it has "
                           f"{', '.join(b.name for b in self._executor.commands.outputs)}")
        width = target.shape[1]
        held = next(i for i in self._executor.commands.inputs if i.name == handle)
        if b.operand.numel % max(width, 1) or b.dtype is not held.dtype:  # either may be stored wider than it is
            raise RunError(f"output {output!r} is {b.dtype}{list(b.operand.shape)}: no rows of {held.dtype}[{width}], "
                           f"which handle {handle!r} holds")
        if not 0 <= row <= len(target):
            raise RunError(f"row {row} is not in handle {handle!r} ({len(target)} rows)")
        self._feeds[handle] = RowFeed(output, self._executor.view(b.operand, False).reshape(-1, width), target, row)

    @staticmethod
    def _fresh(running: HostExecutor, f: RowFeed) -> int:
        """Rows of the fed output that a run on this executor computes: all, or the active ones."""
        o = next(b.operand for b in running.commands.outputs if b.name == f.output)
        width: int = f.source.shape[1]
        return o.numel // max(width, 1)

    def check_feeds(self, running: HostExecutor) -> None:
        """``RunError`` if a feed has no room for the rows of the next run."""
        for name, f in self._feeds.items():
            if f.row + self._fresh(running, f) > len(f.target):
                raise RunError(f"handle {name!r} is full: row {f.row} of {len(f.target)}; roll its rows over to a larger "
                               "bucket first")

    def fed(self, running: HostExecutor) -> None:
        """After a run: move the rows that it computed."""
        for f in self._feeds.values():
            n = self._fresh(running, f)
            f.target[f.row : f.row + n] = f.source[:n]
            f.row += n

    @property
    def feeding(self) -> bool:
        return bool(self._feeds)

    def rows(self, name: str) -> int:
        """Rows fed so far: where the next one goes."""
        return self._feeds[name].row

    def copy_rows(self, other: Handles, names: Sequence[str], start: int, stop: int) -> None:
        """Rows ``start`` … ``stop`` of each handle, from another executor's slot to the same rows of this one's."""
        pairs = [(name, other.view(name), self.view(name)) for name in names]
        for name, source, target in pairs:
            if source.shape[1] != target.shape[1] or source.dtype != target.dtype:
                raise RunError(f"handle {name!r}: {source.dtype}[{source.shape[1]}] there, "
                               f"{target.dtype}[{target.shape[1]}] here")
            if not 0 <= start <= stop <= min(len(source), len(target)):
                raise RunError(f"rows {start} to {stop} of handle {name!r}: {len(source)} rows there, {len(target)} here")
        for _, source, target in pairs:
            target[start:stop] = source[start:stop]
