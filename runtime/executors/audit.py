"""Owns the sanitizer: an audited run proves that each thunk touches what it declares, and the plan holds.

Bytes that hold no live value carry ``POISON`` (NaN as f16, f32 or f64; far out of range as an index). A shadow
of both buffers finds any byte that changed without being declared; guards are such bytes.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from planner_core.ir import Array
from runtime.command_list import CommandList, Operand, Role, Scratch, SlotLife
from runtime.errors import SanitizeError

__all__ = ["POISON", "Audit", "poison"]

POISON = 0xFFF5A5A5
_PATTERN = np.frombuffer(POISON.to_bytes(4, "little"), dtype=np.uint8)


def poison(buffer: Array, start: int, end: int) -> None:
    """Fill bytes [start, end) with the pattern, in phase with the buffer's first byte."""
    a, b = -(-start // 4) * 4, end // 4 * 4
    if a > b:
        for i in range(start, end):
            buffer[i] = _PATTERN[i % 4]
        return
    for i in (*range(start, a), *range(b, end)):
        buffer[i] = _PATTERN[i % 4]
    buffer[a:b].view(np.uint32)[...] = POISON


def _first_poison(buffer: Array, start: int, end: int) -> int | None:
    """The first whole poison word in [start, end), as a byte offset."""
    a, b = -(-start // 4) * 4, end // 4 * 4
    if b <= a:
        return None
    hit = buffer[a:b].view(np.uint32) == POISON
    return a + 4 * int(hit.argmax()) if hit.any() else None


class Audit:
    """One audited run of a command list; the executor calls the steps in order."""

    def __init__(self, commands: CommandList, arena: Array, weights: Array, scratch: Scratch) -> None:
        self.commands = commands
        self.buffers = {"arena": arena, "weights": weights}
        self.shadow: dict[str, Array] = {}
        self.scratch = scratch
        slots = [s for s in commands.slots if s.space == "arena"]
        self._slots = slots
        self._start = np.asarray([s.offset for s in slots], dtype=np.int64)
        self._end = np.asarray([s.offset + s.size for s in slots], dtype=np.int64)
        self._birth = np.asarray([s.birth for s in slots], dtype=np.int64)
        self._death = np.asarray([s.death for s in slots], dtype=np.int64)
        self._dying: dict[int, list[SlotLife]] = defaultdict(list)
        self._of_node: dict[int, list[SlotLife]] = defaultdict(list)
        for s in slots:
            self._dying[s.death].append(s)
            self._of_node[s.node].append(s)
        self._step = -1

    # --- the steps of a run -----------------------------------------------------------------------

    def begin(self) -> None:
        """Poison the whole arena but params that the plan put there; constants and inputs are written next."""
        arena = self.buffers["arena"]
        spans = [p.operand.span for p in self.commands.params if p.operand.space == "arena"]
        kept = [arena[a:b].copy() for _, a, b in spans]
        poison(arena, 0, len(arena))
        for (_, a, b), data in zip(spans, kept, strict=True):
            arena[a:b] = data

    def loaded(self) -> None:
        """Remember the bytes before the first thunk."""
        self.shadow = {k: b.copy() for k, b in self.buffers.items()}

    def before(self, i: int) -> None:
        """Retire slots that died, check what thunk i reads and where it writes, poison what it must write."""
        node = self.commands.node_of[i]
        self._retire(node)
        t = self.commands.thunks[i]
        for field, role, o in t.operands():
            if role is not Role.OUT:
                self._check_read(i, field, o)
            if role is not Role.IN:
                self._check_owner(i, field, o)
        reads = [o for o in t.reads() if o.space == "arena"]
        for _, role, o in t.operands():
            if role is Role.OUT and not any(o.overlaps(r) for r in reads):
                self._poison(o.space, o.offset, o.offset + o.nbytes)
        poison(self.scratch.buffer, 0, len(self.scratch.buffer))

    def after(self, i: int) -> None:
        """Find undeclared changes and declared bytes left unwritten (or computed from poison)."""
        t = self.commands.thunks[i]
        writes = t.writes()
        for space, buffer in self.buffers.items():
            spans = sorted((o.offset, o.offset + o.nbytes) for o in writes if o.space == space and o.nbytes)
            self._compare(i, space, spans)
            for a, b in spans:
                self.shadow[space][a:b] = buffer[a:b]
        for field, role, o in t.operands():
            if role is Role.OUT:
                at = _first_poison(self.buffers[o.space], o.offset, o.offset + o.nbytes)
                if at is not None:
                    raise self._error(i, field, at, "left unwritten, or computed from bytes it may not read")

    def finish(self) -> None:
        """Nothing may have died under an output."""
        self._retire(self._last_step())
        for b in self.commands.outputs:
            at = _first_poison(self.buffers[b.operand.space], b.operand.offset,
                               b.operand.offset + b.operand.nbytes)
            if at is not None:
                raise SanitizeError(f"output {b.name!r} holds poison at {b.operand.space} byte {at}: "
                                    "nothing wrote it, or it died before the end of the run")

    # --- checks -----------------------------------------------------------------------------------

    def _last_step(self) -> int:
        return len(self.commands.node_names)

    def _poison(self, space: str, start: int, end: int) -> None:
        for b in (self.buffers[space], self.shadow[space]):
            poison(b, start, end)

    def _retire(self, step: int) -> None:
        for s in range(max(self._step, 0), step):
            for slot in self._dying.get(s, ()):
                at = slot.offset
                for held in self._held(slot):
                    self._poison("arena", at, max(at, held.offset))
                    at = max(at, held.offset + held.size)
                self._poison("arena", at, max(at, slot.offset + slot.size))
        self._step = step

    def _held(self, slot: SlotLife) -> list[SlotLife]:
        """Parts of a dying slot that a pass reads longer: slots of the same node that live on, by offset."""
        return sorted((s for s in self._of_node[slot.node] if s.birth <= slot.death + 1 <= s.death
                       and s.offset < slot.offset + slot.size and slot.offset < s.offset + s.size),
                      key=lambda s: s.offset)

    def _live(self) -> Array:
        return (self._birth <= self._step) & (self._step <= self._death)

    def _check_read(self, i: int, field: str, o: Operand) -> None:
        at = _first_poison(self.buffers[o.space], o.offset, o.offset + o.nbytes)
        if at is not None:
            raise self._error(i, field, at, "read, but no live value is there")

    def _check_owner(self, i: int, field: str, o: Operand) -> None:
        """A write lies in one live slot and touches no other."""
        if o.space == "weights" or not o.nbytes:
            return
        end = o.offset + o.nbytes
        touched = np.flatnonzero(self._live() & (self._start < end) & (o.offset < self._end))
        inside = [k for k in touched.tolist() if self._start[k] <= o.offset and end <= self._end[k]]
        if not inside:
            raise self._error(i, field, o.offset, "written, but its span is not inside one live slot")
        if len(touched) > 1:
            other = next(self._slots[k] for k in touched.tolist() if k != inside[0])
            raise self._error(i, field, max(o.offset, other.offset), "written while another slot lives there")

    def _compare(self, i: int, space: str, spans: list[tuple[int, int]]) -> None:
        buffer, shadow = self.buffers[space], self.shadow[space]
        at = 0
        for a, b in (*spans, (len(buffer), len(buffer))):
            if at < a and not _equal(buffer[at:a], shadow[at:a]):
                bad = at + int(np.flatnonzero(buffer[at:a] != shadow[at:a])[0])
                raise self._error(i, "", bad, f"changed from {shadow[bad]:#04x} to {buffer[bad]:#04x} in {space}, "
                                              "which the thunk does not declare")
            at = max(at, b)

    def _error(self, i: int, field: str, at: int, what: str) -> SanitizeError:
        t = self.commands.thunks[i]
        node = self.commands.node_names[self.commands.node_of[i]]
        owner = self._owner(at)
        named = f"operand {field} = {getattr(t, field, '')}, " if field else ""
        return SanitizeError(f"thunk {i} {t.trace_label} of {node}: {named}byte {at} {what}. That byte belongs to {owner}")

    def _owner(self, at: int) -> str:
        names = []
        for s in self._slots:
            if s.offset <= at < s.offset + s.size + s.guard and s.birth <= self._step <= s.death:
                part = "" if at < s.offset + s.size else "the guard of "
                names.append(f"{part}%{s.node} {s.op} {s.name!r} [{s.offset}, {s.offset + s.size}), "
                             f"alive in steps {s.birth} to {s.death}")
        return " and ".join(names) or "no live slot"


def _equal(a: Array, b: Array) -> bool:
    """Bytes equal, compared eight at a time where both start alike."""
    skip = min(-a.ctypes.data % 8, len(a))
    if (b.ctypes.data + skip) % 8:
        return bool(np.array_equal(a, b))
    whole = skip + (len(a) - skip) // 8 * 8
    return (bool(np.array_equal(a[:skip], b[:skip])) and bool(np.array_equal(a[whole:], b[whole:]))
            and bool(np.array_equal(a[skip:whole].view(np.uint64), b[skip:whole].view(np.uint64))))
