"""Owns ``Flow``: the questions on data flow that every pass asks, answered on byte spans.

Positions are indices into the list as the pass found it; what passes replace changes in place, so that the answers
are about the list as it now is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NoReturn

from runtime.command_list import CommandList, Operand, Thunk
from runtime.command_list.thunks.elementwise import Nop
from runtime.command_list.thunks.host import CustomOp, Unrunnable
from runtime.passes.reasons import Refusal
from runtime.passes.spans import Span, SpanIndex

__all__ = ["OPAQUE", "Flow", "Refused", "refuse", "span_of"]

OPAQUE = frozenset({CustomOp.name, "CustomGpuOp", Unrunnable.name})
"""Thunks that may touch more than they declare: passes don't look past them."""
_WEIGHTS = 1 << 62


class Refused(Exception):
    """A pass's "no": raised where a condition fails, caught by ``decide``. ``at`` and ``span`` are what caused it."""

    def __init__(self, reason: Refusal, at: int | None = None, span: Operand | None = None, **facts: object) -> None:
        super().__init__(reason.value)
        self.reason, self.at, self.span, self.facts = reason, at, span, facts


def refuse(reason: Refusal, at: int | None = None, span: Operand | None = None, **facts: object) -> NoReturn:
    """Stop here with a reason, the thunk and the bytes that caused it, and the figures behind it."""
    raise Refused(reason, at, span, **facts)


def span_of(o: Operand) -> Span:
    """The operand's bytes on one line of addresses: weights lie far behind the arena."""
    base = _WEIGHTS if o.space == "weights" else 0
    return base + o.offset, base + o.offset + o.nbytes


def _spans(operands: Iterable[Operand]) -> tuple[Span, ...]:
    return tuple(span_of(o) for o in operands if o.nbytes)


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


class Flow:
    """A command list under rewriting."""

    def __init__(self, commands: CommandList) -> None:
        self.thunks: list[Thunk] = list(commands.thunks)
        self._read = [_spans(t.reads()) for t in self.thunks]
        self._written = [_spans(t.writes()) for t in self.thunks]
        self._reads, self._writes = SpanIndex(self._read), SpanIndex(self._written)
        self._opaque = [i for i, t in enumerate(self.thunks) if t.name in OPAQUE]
        self._outputs = [(span_of(b.operand), b.operand, b.name) for b in commands.outputs if b.operand.nbytes]

    def replace(self, i: int, t: Thunk) -> None:
        """Put another thunk at a position."""
        self.thunks[i] = t
        for spans, index, now in ((self._read, self._reads, t.reads()), (self._written, self._writes, t.writes())):
            spans[i] = _spans(now)
            for span in spans[i]:
                index.add(i, span)

    def _reads_at(self, i: int, span: Span) -> bool:
        return any(a < span[1] and span[0] < b for a, b in self._read[i])

    def _writes_at(self, i: int, span: Span) -> bool:
        return any(a < span[1] and span[0] < b for a, b in self._written[i])

    # --- who touches --------------------------------------------------------------------------------

    def writer(self, o: Operand, before: int) -> int | None:
        """The last thunk before ``before`` that writes some byte of ``o``."""
        span = span_of(o)
        return self._writes.last_before(span, before, lambda i: self._writes_at(i, span))

    def next_read(self, o: Operand | Span, after: int) -> int | None:
        """The first thunk after ``after`` that reads some byte of ``o``."""
        span = span_of(o) if isinstance(o, Operand) else o
        return self._reads.first_after(span, after, lambda i: self._reads_at(i, span))

    def next_write(self, o: Operand | Span, after: int) -> int | None:
        """The first thunk after ``after`` that writes some byte of ``o``."""
        span = span_of(o) if isinstance(o, Operand) else o
        return self._writes.first_after(span, after, lambda i: self._writes_at(i, span))

    def reader(self, o: Operand, before: int) -> int | None:
        """The last thunk before ``before`` that reads some byte of ``o``."""
        span = span_of(o)
        return self._reads.last_before(span, before, lambda i: self._reads_at(i, span))

    def producer(self, o: Operand, before: int, kinds: tuple[type[Thunk], ...]) -> int | None:
        """The last writer, where it is one of ``kinds`` and wrote exactly these bytes."""
        i = self.writer(o, before)
        if i is None or not isinstance(self.thunks[i], kinds):
            return None
        return i if span_of(o) in self._written[i] else None

    def live_between(self, a: int, b: int) -> int:
        """Thunks strictly between that do something."""
        return sum(not isinstance(t, Nop) for t in self.thunks[a + 1 : b])

    # --- hazards ------------------------------------------------------------------------------------

    def no_opaque(self, positions: Iterable[int]) -> None:
        """Refuse when an opaque thunk lies within the range of the positions."""
        at = sorted(positions)
        k = bisect_right(self._opaque, at[0])
        if k < len(self._opaque) and self._opaque[k] < at[-1]:
            refuse(Refusal.OPAQUE, self._opaque[k])

    def may_read_later(self, o: Operand, old: int, new: int, gone: Iterable[int]) -> None:
        """A read that moves from ``old`` to ``new``: its bytes are unwritten in between, but by thunks that go."""
        leave, i = set(gone), self.next_write(o, old)
        while i is not None and i < new:
            if i not in leave:
                refuse(Refusal.OPERAND_OVERWRITTEN, i, o)
            i = self.next_write(o, i)

    def may_write_earlier(self, o: Operand, old: int, new: int, gone: Iterable[int]) -> None:
        """A write that moves from ``old`` up to ``new``: its bytes are neither read nor written in between, but by
        thunks that go. (What the thunk at ``new`` itself reads, ``apart`` asks.)"""
        leave = {*gone, old}
        for ask in (self.next_read, self.next_write):
            i = ask(o, new)
            while i is not None and i < old:
                if i not in leave:
                    refuse(Refusal.DESTINATION_IN_USE, i, o)
                i = ask(o, i)

    def apart(self, out: Operand, *others: Operand) -> None:
        """A result that is written while others are still read shares no byte with them."""
        for o in others:
            if out.overlaps(o):
                refuse(Refusal.OUTPUT_OVERLAPS_OPERAND, span=o)

    def vanishes(self, o: Operand, at: int, allowed: Iterable[int],
                 read_elsewhere: Refusal = Refusal.READ_ELSEWHERE) -> None:
        """The value that ``at`` wrote to ``o`` is read by ``allowed`` alone, by each through one operand, until all its
        bytes are overwritten (or to the end of the list), and no byte of it reaches a graph output."""
        left, may = [span_of(o)] if o.nbytes else [], set(allowed)
        i = at
        while left:
            near = [n for span in left for n in (self.next_read(span, i), self.next_write(span, i)) if n is not None]
            k = bisect_right(self._opaque, at)
            opaque = self._opaque[k] if k < len(self._opaque) else None
            i = min(near) if near else len(self.thunks)
            if opaque is not None and opaque <= i:
                refuse(Refusal.OPAQUE, opaque, o)
            if not near:
                break
            reads = sum(any(_overlap(r, span) for span in left) for r in self._read[i])
            if reads > (i in may):  # a second operand of an allowed reader would still want the bytes
                refuse(read_elsewhere, i, o)
            for w in self._written[i]:
                left = [part for span in left for part in _minus(span, w)]
        for span, operand, name in self._outputs:
            if any(_overlap(span, part) for part in left):
                refuse(Refusal.GRAPH_OUTPUT, None, operand, output=name)


def _minus(a: Span, b: Span) -> list[Span]:
    """What of ``a`` lies outside ``b``."""
    parts = ((a[0], min(a[1], b[0])), (max(a[0], b[1]), a[1]))
    return [p for p in parts if p[0] < p[1]] if _overlap(a, b) else [a]
