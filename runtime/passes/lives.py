"""Owns the slots' lives under passes: a read that moves later keeps its slot alive until then, a write that moves
earlier opens its slot there, and a slot whose value vanished is gone. Audits and pictures read them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runtime.command_list import CommandList, Operand, SlotLife, Thunk
from runtime.passes.flow import Flow

__all__ = ["Lives"]


class Lives:
    """The slots of one list while passes run over it."""

    def __init__(self, commands: CommandList) -> None:
        self._slots = commands.slots
        self._outputs = [b.operand for b in commands.outputs]
        arena = [s.space == "arena" for s in self._slots]
        self._arena = np.asarray(arena, dtype=bool)
        self._start = np.asarray([s.offset for s in self._slots], dtype=np.int64)
        self._end = np.asarray([s.offset + s.size for s in self._slots], dtype=np.int64)
        self._birth = np.asarray([s.birth for s in self._slots], dtype=np.int64)
        self._death = np.asarray([s.death for s in self._slots], dtype=np.int64)
        self._gone = np.zeros(len(self._slots), dtype=bool)
        self._at: dict[int, list[int]] = {}
        for k, s in enumerate(self._slots):
            if s.space == "arena":
                self._at.setdefault(s.offset, []).append(k)

    def slots(self) -> tuple[SlotLife, ...]:
        """As they are now."""
        return tuple(replace(s, birth=int(b), death=int(d)) if (s.birth, s.death) != (b, d) else s
                     for s, b, d, g in zip(self._slots, self._birth, self._death, self._gone, strict=True) if not g)

    def _slot(self, o: Operand, step: int) -> int | None:
        if o.space != "arena" or not o.nbytes:
            return None
        for k in self._at.get(o.offset, ()) if len(self._at.get(o.offset, ())) < 32 else ():
            if (not self._gone[k] and o.offset + o.nbytes <= self._end[k] and self._birth[k] <= step <= self._death[k]):
                return k
        found = np.flatnonzero(self._arena & ~self._gone & (self._start <= o.offset) & (o.offset + o.nbytes <= self._end)
                               & (self._birth <= step) & (step <= self._death))
        return int(found[0]) if len(found) else None

    def follow(self, flow: Flow, node_of: Sequence[int], before: dict[int, Thunk]) -> None:
        """Positions ``before`` (with what stood there) were rewritten in ``flow``; ``node_of``: position -> step."""
        for p in before:
            for new in flow.thunks[p].reads():
                for q, old in before.items():
                    if q < p and any(r.overlaps(new) for r in old.reads()):
                        self._move(old.reads(), new, node_of[q], node_of[p])
            for new in flow.thunks[p].writes():
                for q, old in before.items():
                    if q > p and any(w.overlaps(new) for w in old.writes()):
                        self._move(old.writes(), new, node_of[q], node_of[p])
        for q, old in before.items():
            for w in old.writes():
                self._drop(flow, node_of, w, node_of[q])

    def _move(self, olds: Sequence[Operand], new: Operand, at: int, to: int) -> None:
        for o in olds:
            k = self._slot(o, at) if o.overlaps(new) else None
            if k is not None:
                self._birth[k] = min(self._birth[k], to)
                self._death[k] = max(self._death[k], to)

    def _drop(self, flow: Flow, node_of: Sequence[int], o: Operand, step: int) -> None:
        """The slot goes when no thunk touches it during its life any more."""
        k = self._slot(o, step)
        if k is None or any(o.space == b.space and b.offset < self._end[k] and self._start[k] < b.offset + b.nbytes
                            and self._death[k] >= node_of[-1] for b in self._outputs):
            return
        span = int(self._start[k]), int(self._end[k])
        first, last = bisect_left(node_of, self._birth[k]), bisect_right(node_of, self._death[k])
        touched = [i for i in (flow.next_read(span, first - 1), flow.next_write(span, first - 1)) if i is not None]
        self._gone[k] = not touched or min(touched) >= last
