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
        self._held: list[SlotLife] = []
        self._at: dict[int, list[int]] = {}
        for k, s in enumerate(self._slots):
            if s.space == "arena":
                self._at.setdefault(s.offset, []).append(k)

    def slots(self) -> tuple[SlotLife, ...]:
        """As they are now. A part of a slot that is read longer than the rest follows as a slot of the same node, born
        when the whole died."""
        own = (replace(s, birth=int(b), death=int(d)) if (s.birth, s.death) != (b, d) else s
               for s, b, d, g in zip(self._slots, self._birth, self._death, self._gone, strict=True) if not g)
        return (*own, *self._held)

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
        # asked before any life is stretched, while a span and a step name one slot
        filled = {self._slot(w, node_of[q]) for q, old in before.items() for w in old.writes()}
        used: set[int | None] = set()
        for p in before:  # results that stay, in the slots that their old writers filled
            for o in flow.thunks[p].writes():
                q = max((q for q, old in before.items() if any(w.span == o.span for w in old.writes())), default=p)
                used.add(self._slot(o, node_of[q]))
        for p in before:
            t = flow.thunks[p]
            for o in t.reads():
                at = flow.writer(o, p)
                earliest = min(q for q in before if q <= p)  # a value that no thunk wrote was there before all of them
                used.add(self._stretch(o, node_of[at if at is not None else earliest], node_of[p]))
            for o in t.writes():
                q = max((q for q, old in before.items() if any(w.span == o.span for w in old.writes())), default=p)
                if q > p:
                    self._stretch(o, node_of[q], node_of[p])
        for k in filled - used:
            if k is not None:
                self._drop(flow, node_of, k, before)

    def _stretch(self, o: Operand, at: int, to: int) -> int | None:
        """The slot that holds ``o`` at step ``at`` lives at step ``to`` as well; where ``o`` is a part of it, that part."""
        k = self._slot(o, at)
        if k is None:
            return None
        if o.nbytes < self._slots[k].size and to > self._death[k]:
            self._held.append(replace(self._slots[k], offset=o.offset, size=o.nbytes, guard=0,
                                      birth=int(self._death[k]) + 1, death=to))
        else:
            self._birth[k] = min(self._birth[k], to)
            self._death[k] = max(self._death[k], to)
        return k

    def _drop(self, flow: Flow, node_of: Sequence[int], k: int, before: dict[int, Thunk]) -> None:
        """The slot of a value that vanished goes, unless thunks that were not rewritten touch it during its life, or it
        reaches an output."""
        span = int(self._start[k]), int(self._end[k])
        if self._death[k] >= node_of[-1] and any(o.space == "arena" and o.offset < span[1]
                                                 and span[0] < o.offset + o.nbytes for o in self._outputs):
            return
        first, last = bisect_left(node_of, self._birth[k]), bisect_right(node_of, self._death[k])
        for ask in (flow.next_read, flow.next_write):
            i = ask(span, first - 1)
            while i is not None and i < last:
                if i not in before:
                    return
                i = ask(span, i)
        self._gone[k] = True
