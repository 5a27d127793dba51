"""Owns the audit's view of slots: which are alive at a step, which hold a span, who owns or owned a byte."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from runtime.command_list import Operand, SlotLife

__all__ = ["Slots"]


class Slots:
    """The slots of a list. Lives are inclusive at both ends."""

    def __init__(self, slots: tuple[SlotLife, ...]) -> None:
        self._slots = slots
        arena = np.asarray([s.space == "arena" for s in slots], dtype=bool)
        self._in = {"arena": arena, "weights": ~arena}
        self._start, self._end, self._birth, self._death = (np.asarray(column, dtype=np.int64) for column in (
            [s.offset for s in slots], [s.offset + s.size for s in slots], [s.birth for s in slots], [s.death for s in slots]))
        self.dying: dict[int, list[SlotLife]] = defaultdict(list)
        """Slots of the arena by the step they die at."""
        self._of_node: dict[int, list[SlotLife]] = defaultdict(list)
        for s in slots:
            if s.space == "arena":
                self.dying[s.death].append(s)
                self._of_node[s.node].append(s)

    def touched(self, o: Operand, step: int) -> tuple[list[SlotLife], list[SlotLife]]:
        """Slots alive at ``step`` that share a byte with the operand, and those of them that hold it whole."""
        end = o.offset + o.nbytes
        live = self._in[o.space] & (self._birth <= step) & (step <= self._death)
        found = [self._slots[k] for k in np.flatnonzero(live & (self._start < end) & (o.offset < self._end)).tolist()]
        return found, [s for s in found if s.offset <= o.offset and end <= s.offset + s.size]

    def kept(self, slot: SlotLife) -> list[SlotLife]:
        """Parts of a dying slot that a pass reads longer: slots of the same node that live on, by offset."""
        return sorted((s for s in self._of_node[slot.node] if s.birth <= slot.death + 1 <= s.death
                       and s.offset < slot.offset + slot.size and slot.offset < s.offset + s.size),
                      key=lambda s: s.offset)

    def last_owners(self, space: str, at: int, step: int) -> list[SlotLife]:
        """Slots that hold the byte now, else the one that held it last."""
        found = self._covering(space, at)
        return [s for s in found if s.birth <= step <= s.death] or sorted(
            (s for s in found if s.death < step), key=lambda s: -s.death)[:1]

    def owner(self, space: str, at: int, step: int) -> str:
        """Whose the byte is now, for people."""
        names = []
        for s in self._covering(space, at):
            if s.birth <= step <= s.death:
                part = "" if at < s.offset + s.size else "the guard of "
                names.append(f"{part}%{s.node} {s.op} {s.name!r} [{s.offset}, {s.offset + s.size}), "
                             f"alive in steps {s.birth} to {s.death}")
        return " and ".join(names) or "no live slot"

    def _covering(self, space: str, at: int) -> list[SlotLife]:
        return [s for s in self._slots if s.space == space and s.offset <= at < s.offset + s.size + s.guard]
