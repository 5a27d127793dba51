"""Owns the second run of a thunk: on buffers that hold poison wherever the thunk does not declare a read.

Results that differ from the first run's depend on bytes the thunk does not declare; elements that still hold what was
there before, in both runs, were never written. The cost of a thunk is its own operands, whatever the arena's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list import Operand, Role, Scratch, Thunk
from runtime.executors.audit_spans import FILL, POISON, equal_bytes, first_element_of, poison, poisoned

__all__ = ["Mirror"]

UNWRITTEN = "left unwritten, or computed from bytes it may not read"
"""NaNs pass through arithmetic as they are."""
FOREIGN = "computed from bytes that the thunk does not declare: it differs when they hold other values"


def _aligned(nbytes: int, phase: int = 0) -> Array:
    raw = np.empty(nbytes + 128, dtype=np.uint8)
    skip = -raw.ctypes.data % 64 + phase
    return raw[skip : skip + nbytes]


class Mirror:
    """Buffers as long as the real ones, all ``POISON`` between thunks."""

    def __init__(self, buffers: Mapping[str, Array]) -> None:
        self.real = buffers
        self.buffers = {space: _aligned(len(b)) for space, b in buffers.items()}
        self._base = {space: b.__array_interface__["data"][0] for space, b in buffers.items()}
        for b in self.buffers.values():
            poison(b, 0, len(b), POISON)

    def load(self, t: Thunk) -> None:
        """Copy what the thunk declares to read, before its first run overwrites any of it."""
        for o in t.reads():
            a, b = o.offset, o.offset + o.nbytes
            self.buffers[o.space][a:b] = self.real[o.space][a:b]

    def forget(self, t: Thunk) -> None:
        """All poison again."""
        for _, _, o in t.operands():
            poison(self.buffers[o.space], o.offset, o.offset + o.nbytes, POISON)

    def run(self, declared: Thunk, t: Thunk, args: Sequence[Any], scratch: Scratch) -> dict[int, Array]:
        """Call ``t`` on the mirror. Operands that ``declared`` only writes, on bytes it reads too, get bytes of their own:
        an in-place kernel must not need what it overwrites. Returns those by the operand's position."""
        apart: dict[int, Array] = {}
        reads, at = declared.reads(), 0
        moved: list[Any] = []
        for f, value in zip(t.operand_fields, args, strict=True):
            if value is None:
                moved.append(None)
                continue
            many = []
            for x in value if f.many else (value,):
                own = None
                if f.role is Role.OUT:
                    space, start = self._place(x)
                    if any(o.space == space and o.offset < start + x.nbytes and start < o.offset + o.nbytes for o in reads):
                        own = apart[at] = _aligned(x.nbytes, start % 64)
                        poison(own, 0, len(own), POISON)
                many.append(self._view(x) if own is None else own.view(x.dtype).reshape(x.shape))
                at += 1
            moved.append(tuple(many) if f.many else many[0])
        poison(scratch.buffer, 0, t.scratch_bytes, POISON)
        scratch.reset(t.scratch_bytes)
        t.run(*moved, scratch)
        return apart

    def _place(self, x: Array) -> tuple[str, int]:
        """Space and offset of a view's first byte."""
        address = x.__array_interface__["data"][0]
        for space, base in self._base.items():
            if base <= address <= base + len(self.real[space]) and (address < base + len(self.real[space]) or not x.nbytes):
                return space, address - base
        return "arena", 0  # no bytes

    def _view(self, x: Array) -> Array:
        space, start = self._place(x)
        if not x.nbytes:
            return x
        found: Array = np.ndarray(x.shape, x.dtype, self.buffers[space].data, start, x.strides)
        found.flags.writeable = x.flags.writeable
        return found

    # --- comparing ----------------------------------------------------------------------------------

    def difference(self, o: Operand, role: Role, own: Array | None) -> tuple[int, str] | None:
        """The first byte of a result that is wrong, and how."""
        a, b = o.offset, o.offset + o.nbytes
        first, second = self.real[o.space][a:b], self.buffers[o.space][a:b] if own is None else own[: o.nbytes]
        if equal_bytes(first, second):
            return None
        kind = o.storage.numpy
        x, y = first.view(kind), second.view(kind)
        left = poisoned(y, a, POISON)
        if own is None:
            left &= poisoned(x, a, FILL)
        k = first_element_of(left) if role is Role.OUT else None
        if k is not None:
            return a + k * kind.itemsize, UNWRITTEN
        k = first_element_of(_apart(x, y))
        return None if k is None else (a + k * kind.itemsize, FOREIGN)

    def may_be_unwritten(self, o: Operand) -> bool:
        """Some element holds what was there before the first run."""
        return bool(poisoned(self.real[o.space][o.offset : o.offset + o.nbytes].view(o.storage.numpy), o.offset, FILL).any())

    def holds_fill(self, o: Operand, reads: Iterable[Operand]) -> int | None:
        """The first element of a result that carries the real arena's poison, which no declared read has: a kernel
        that reaches into the arena by itself met dead bytes in both runs. Floats of four bytes or more, where the poison
        is a NaN of its own: an integer may come to that value honestly."""
        kind = o.storage.numpy
        if kind.itemsize < 4 or kind.kind != "f":
            return None
        k = first_element_of(poisoned(self.real[o.space][o.offset : o.offset + o.nbytes].view(kind), o.offset, FILL))
        if k is None or any(_has_fill(self.buffers[r.space][r.offset : r.offset + r.nbytes], r) for r in reads):
            return None
        return o.offset + k * kind.itemsize


def _has_fill(data: Array, r: Operand) -> bool:
    return bool(poisoned(data.view(r.storage.numpy), r.offset, FILL).any())


def _apart(x: Array, y: Array) -> Any:
    """Elements that differ by more than rounding (threads may sum in another order); NaNs by their bits."""
    kind, size = x.dtype, x.dtype.itemsize
    differ = (x.view(np.uint8).reshape(-1, size) != y.view(np.uint8).reshape(-1, size)).any(axis=1)
    if kind.kind in "fV" and kind.names is None and size > 1:
        with np.errstate(all="ignore"):
            p, q = x[differ].astype(np.float64), y[differ].astype(np.float64)
            near = np.abs(p - q) <= (1e-2 if size == 2 else 1e-5) * np.maximum(np.abs(p), np.abs(q))
        differ[differ] = ~near
    return differ
