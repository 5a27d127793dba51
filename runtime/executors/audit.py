"""Owns the sanitizer: an audited run proves that each thunk touches what it declares, and that the plan holds.

- A byte is defined once a thunk that declares it ``Out`` ran, and until its slot dies; reading any other is an error.
- A read lies in one live slot, and the bytes were last written by a node that the graph says it reads (``audit_values.py``).
- Each thunk runs twice, the second time with poison in all that it does not declare (``audit_mirror.py``).
- A shadow of both buffers finds any byte that changed without being declared; guards and weights are such bytes.

``blame.py`` names the rule or pass behind a breach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from planner_core.ir import Array
from planner_core.ir.ops import Constant
from planner_core.memory import NO_SLOT
from runtime.command_list import CommandList, Operand, Role, Scratch, Thunk
from runtime.command_list.provenance import Provenance
from runtime.command_list.thunks.host import CustomOp
from runtime.errors import SanitizeError
from runtime.executors.audit_boundary import check_appends, check_boundary, check_slots
from runtime.executors.audit_mirror import Mirror
from runtime.executors.audit_slots import Slots
from runtime.executors.audit_spans import SpanMap, equal_bytes, poison
from runtime.executors.audit_values import Values
from runtime.executors.blame import blame_of_slot, blame_of_thunk, blame_of_value

__all__ = ["Audit"]

FROM_OUTSIDE = frozenset((-1,))
"""Stands for the writers of boundary bytes where the list carries no graph."""


class Audit:
    """One audited run of a command list; the executor calls the steps in order. ``written``: the
    spans that params were written to."""

    def __init__(self, commands: CommandList, arena: Array, weights: Array, scratch: Scratch,
                 written: Iterable[tuple[str, int, int]]) -> None:
        self.commands = commands
        self.buffers = {"arena": arena, "weights": weights}
        self.shadow: dict[str, Array] = {}
        self.scratch = scratch
        self.mirror = Mirror(self.buffers)
        self.held = {space: SpanMap() for space in self.buffers}
        """What is defined: the nodes that may have written it."""
        self._written = tuple(written)
        known: Provenance | None = commands.provenance
        self._values = None if known is None else Values(commands, known)
        self._slots = Slots(commands.slots)
        self._step = -1

    # --- the steps of a run -----------------------------------------------------------------------

    def begin(self) -> None:
        """Check slots, boundary and appends; poison the whole arena but params there; constants and inputs come next."""
        check_slots(self.commands)
        check_boundary(self.commands)
        check_appends(self.commands)
        arena = self.buffers["arena"]
        spans = [p.operand.span for p in self.commands.params if p.operand.space == "arena"]
        kept = [arena[a:b].copy() for _, a, b in spans]
        poison(arena, 0, len(arena))
        for (_, a, b), data in zip(spans, kept, strict=True):
            arena[a:b] = data

    def loaded(self) -> None:
        """Remember the bytes before the first thunk, and whose they are."""
        self.shadow = {k: b.copy() for k, b in self.buffers.items()}
        c = self.commands
        known: Provenance | None = c.provenance
        sides: list[tuple[Sequence[Operand], Sequence[int]]] = [
            ([b.operand for b in c.inputs], known.graph.inputs if known else ()),
            ([b.operand for b in c.params], known.graph.params if known else ()),
            ([k.operand for k in c.constants], [n for n in known.graph.of(Constant) if known.plan.space[n] != NO_SLOT] if known else ())]
        for operands, nodes in sides:
            for k, o in enumerate(operands):
                self.held[o.space].put(o.offset, o.offset + o.nbytes, frozenset((nodes[k],)) if k < len(nodes) else FROM_OUTSIDE)
        there = {space: SpanMap() for space in self.buffers}
        for space, a, b in self._written:
            there[space].put(a, b, True)
        for p in c.params:
            space, start, end = p.operand.span
            for a, b, found in [*there[space].pieces(start, end)]:
                if found is None:
                    self.held[space].clear(a, b)

    def before(self, i: int) -> None:
        """Retire slots that died, check what thunk i reads and where it writes, poison what it must write."""
        self._retire(self.commands.node_of[i])
        t = self.commands.thunks[i]
        for field, role, o in t.operands():
            if not o.nbytes:
                continue
            if role is not Role.OUT:
                self._check_read(i, field, o)
            if role is not Role.IN:
                self._check_owner(i, field, o)
        for n, (space, start, _) in self._values.unread(i) if self._values is not None else ():
            raise self._error(i, "", space, start, f"is where its input {self.commands.node_names[n]} lies, and it never reads that")
        self.mirror.load(t)
        reads = t.reads()
        for _, role, o in t.operands():
            if role is Role.OUT and not any(o.overlaps(r) for r in reads):
                self._poison(o.space, o.offset, o.offset + o.nbytes)
        poison(self.scratch.buffer, 0, min(t.scratch_bytes, len(self.scratch.buffer)))

    def after(self, i: int, ran: Thunk, args: Sequence[Any]) -> None:
        """Find undeclared changes, bytes left unwritten, and results that depend on undeclared bytes; ``ran`` was called
        with ``args`` for the thunk i that the list declares."""
        t = self.commands.thunks[i]
        writes = [o for o in t.writes() if o.nbytes]
        for space, buffer in self.buffers.items():
            spans = sorted((o.offset, o.offset + o.nbytes) for o in writes if o.space == space)
            self._compare(i, space, spans)
            for a, b in spans:
                self.shadow[space][a:b] = buffer[a:b]
        for o in writes:
            of = FROM_OUTSIDE if self._values is None else self._values.writers(i, o)
            self.held[o.space].put(o.offset, o.offset + o.nbytes, of)
        if any(t.operands()):
            self._again(i, t, ran, args)

    def finish(self) -> None:
        """Nothing may have died under an output, or been written over it; and the list is the one that was lowered."""
        self._retire(len(self.commands.node_names))
        self._check_outputs()
        found = None if self._values is None or self.commands.provenance is None else self._values.strangers()
        if found is not None:
            raise self._error(found[0], "", "arena", None, found[1])

    def _check_outputs(self) -> None:
        names = self.commands.node_names
        for k, b in enumerate(self.commands.outputs):
            o = b.operand
            if self._values is not None and self.commands.provenance is not None:
                makers = self._values.makers(self.commands.provenance.graph.outputs[k])
                for a, _, writers in self.held[o.space].pieces(o.offset, o.offset + o.nbytes):
                    if writers is not None and not writers & makers:
                        blame = "; ".join(blame_of_slot(self.commands, s) for s in self._slots.last_owners(o.space, a, self._step)[:2])
                        raise SanitizeError(
                            f"output {b.name!r} is the value of {' or '.join(names[n] for n in sorted(makers))}, but "
                            f"{' or '.join(names[n] for n in sorted(writers))} wrote {o.space} byte {a} last. To blame: {blame}",
                            field=b.name, space=o.space, offset=a, owner=self._slots.owner(o.space, a, self._step), blame=blame)
            at = self.held[o.space].undefined(o.offset, o.offset + o.nbytes)
            if at is not None:
                blame = "; ".join(blame_of_slot(self.commands, s) for s in self._slots.last_owners(o.space, at, self._step)[:1])
                raise SanitizeError(
                    f"output {b.name!r} holds poison at {o.space} byte {at}: nothing wrote it, or it died before the end of "
                    f"the run. To blame: {blame or 'the plan: no slot ever held that byte'}", field=b.name, space=o.space, offset=at,
                    owner=self._slots.owner(o.space, at, self._step), blame=blame)

    # --- the second run -----------------------------------------------------------------------------

    def _again(self, i: int, t: Thunk, ran: Thunk, args: Sequence[Any]) -> None:
        """The user's own kernels may keep state: they run again only where a result looks unwritten."""
        try:
            if isinstance(ran, CustomOp) and not self._looks_unwritten(t):
                return
            try:
                own = self.mirror.run(t, ran, args, self.scratch)
            except Exception as e:  # whatever a kernel does on poison
                raise self._error(i, "", "arena", None, f"fails with {type(e).__name__} ({e}) when bytes that it does not "
                                                        "declare hold other values") from e
            for at, (field, role, o) in enumerate(t.operands()):
                if role is Role.IN or not o.nbytes:
                    continue
                bad = self.mirror.difference(o, role, own.get(at))
                if bad is not None:
                    raise self._error(i, field, o, *bad)
                found = self.mirror.holds_fill(o, t.reads()) if role is Role.OUT else None
                if found is not None:
                    raise self._error(i, field, o, found, "computed from dead bytes, which it may not read")
        finally:
            self.mirror.forget(t)

    def _looks_unwritten(self, t: Thunk) -> bool:
        return any(self.mirror.may_be_unwritten(o) for _, role, o in t.operands() if role is Role.OUT and o.nbytes)

    # --- checks -----------------------------------------------------------------------------------

    def _poison(self, space: str, start: int, end: int) -> None:
        for b in (self.buffers[space], self.shadow[space]):
            poison(b, start, end)
        self.held[space].clear(start, end)

    def _retire(self, step: int) -> None:
        for s in range(max(self._step, 0), step):
            for slot in self._slots.dying.get(s, ()):
                at = slot.offset
                for held in self._slots.kept(slot):
                    self._poison("arena", at, max(at, held.offset))
                    at = max(at, held.offset + held.size)
                self._poison("arena", at, max(at, slot.offset + slot.size))
        self._step = step

    def _check_read(self, i: int, field: str, o: Operand) -> None:
        """A read lies in one live slot, is defined, and is a value that the graph gives to the thunk."""
        end = o.offset + o.nbytes
        expected = frozenset(() if self._values is None else self._values.expected(i, o))
        at = self.held[o.space].undefined(o.offset, end)
        if at is not None:
            raise self._error(i, field, o, at, "read, but no live value is there", of_slot=True, made_by=expected)
        if not self._slots.touched(o, self._step)[1]:
            raise self._error(i, field, o, o.offset, "read, but no live value is there: its span is not inside one live slot",
                              of_slot=True)
        if self._values is None:
            return
        names = self.commands.node_names
        if not expected:
            wanted = ", ".join(sorted({f"{names[n]} at {a}..{b}" for chain in self._values.reads(i) for (_, a, b), n in chain[:1]}))
            raise self._error(i, field, o, o.offset, f"read, but its span is none of the values that the graph gives it ({wanted})")
        for a, _, writers in self.held[o.space].pieces(o.offset, end):
            if not writers & expected:
                raise self._error(i, field, o, a, f"read as the value of {' or '.join(names[n] for n in sorted(expected))}, but "
                                  f"{' or '.join(names[n] for n in sorted(writers))} wrote it last", of_slot=True, made_by=expected)

    def _check_owner(self, i: int, field: str, o: Operand) -> None:
        """A write lies in one live slot, touches no other, and is a whole result of the thunk's node."""
        touched, inside = self._slots.touched(o, self._step)
        if not inside:
            raise self._error(i, field, o, o.offset, "written, but its span is not inside one live slot", of_slot=True)
        if len(touched) > 1:
            other = next(s for s in touched if s is not inside[0])
            raise self._error(i, field, o, max(o.offset, other.offset), "written while another slot lives there", of_slot=True)
        if self._values is not None and o.span not in (spans := self._values.results(i)):
            wanted = ", ".join(f"{a}..{b}" for _, a, b in sorted(spans))
            raise self._error(i, field, o, o.offset, f"written, but its span is none of the results that the graph gives it ({wanted})")

    def _compare(self, i: int, space: str, spans: list[tuple[int, int]]) -> None:
        buffer, shadow = self.buffers[space], self.shadow[space]
        at = 0
        for a, b in (*spans, (len(buffer), len(buffer))):
            if at < a and not equal_bytes(buffer[at:a], shadow[at:a]):
                bad = at + int(np.flatnonzero(buffer[at:a] != shadow[at:a])[0])
                raise self._error(i, "", space, bad, f"changed from {shadow[bad]:#04x} to {buffer[bad]:#04x} in {space}, "
                                                     "which the thunk does not declare")
            at = max(at, b)

    # --- reports ----------------------------------------------------------------------------------

    def _error(self, i: int, field: str, where: Operand | str, at: int | None, what: str, *, of_slot: bool = False,
               made_by: Iterable[int] = ()) -> SanitizeError:
        """``where``: the operand, or the space; ``of_slot``: the plan may be wrong as well as the thunk; so may passes that
        changed how the values of the nodes ``made_by`` are made."""
        t, c = self.commands.thunks[i], self.commands
        space = where if isinstance(where, str) else where.space
        node, owner, blame = c.node_names[c.node_of[i]], "", blame_of_thunk(c, i)
        text = f"thunk {i} {t.trace_label} of {node}: "
        if field:
            text += f"operand {field} = {where}, "
        if c.provenance is not None:
            found = dict.fromkeys(blame_of_value(c, n) for n in made_by if n != c.node_of[i])
            blame += "".join(f"; or {b}" for b in found if b and b not in blame)
        if at is not None:
            owner = self._slots.owner(space, at, self._step)
            if of_slot:
                blame += "".join(f"; or the slot of %{s.node} {s.name!r}: {blame_of_slot(c, s)}" for s in self._slots.last_owners(space, at, self._step)[:2])
            text += f"byte {at} {what}. That byte belongs to {owner}"
        else:
            text += what
        return SanitizeError(f"{text}. To blame: {blame}", thunk=i, label=t.trace_label, node=node, field=field, space=space,
                             offset=at, owner=owner, blame=blame)
