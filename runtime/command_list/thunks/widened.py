"""Owns the thunk that runs an op of halves on f32 copies, for kernels that take f32 alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.operand import In, Operand, Out, Role
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import store, to_f32

__all__ = ["SCRATCH", "Widened"]

SCRATCH = "scratch"
"""The space of operands that are f32 copies: offsets count from the front of the thunk's scratch."""
_F32 = np.dtype(np.float32)


@thunk(name="Widened", label="widened", partial_extent="conditional", where="host", extension=True)
class Widened(Thunk):
    """``steps`` on f32 copies in scratch of the ``narrow`` operands (one after another, then dst where it is narrow); what they
    make is rounded once, into dst. Steps read ``others`` and write a wide dst in place."""

    narrow: tuple[In, ...]
    others: tuple[In, ...]
    dst: Out
    steps: tuple[Thunk, ...]

    @property
    def trace_label(self) -> str:
        return f"{self.label}:{'+'.join(t.label for t in self.steps)}"

    @property
    def _copies(self) -> tuple[Operand, ...]:
        return (*self.narrow, self.dst) if _is_narrow(self.dst.storage) else self.narrow

    @property
    def scratch_bytes(self) -> int:
        own = scratch_for(*((o.numel, _F32) for o in self._copies))
        return own + max((t.scratch_bytes for t in self.steps), default=0)

    def run(self, narrow: tuple[Array, ...], others: tuple[Array, ...], dst: Array, scratch: Scratch) -> None:
        wide = [scratch.take(o.shape, _F32) for o in self._copies]
        for x, copy in zip(narrow, wide, strict=False):
            to_f32(x, copy)
        at: dict[tuple[str, int, int], Array] = {}
        offset = 0
        for copy in wide:
            at[SCRATCH, offset, offset + copy.nbytes] = copy
            offset += scratch_for((copy.size, _F32))
        at |= {o.span: x for o, x in zip(self.others, others, strict=True)}
        mark = scratch.mark
        for t in self.steps:
            t.run(*_arguments(t, at, self.dst.span, dst), scratch)
            scratch.release(mark)
        if len(wide) > len(narrow):
            store(dst, wide[-1])


def _is_narrow(storage: DType) -> bool:
    return storage.is_float and storage.bits < 32


def _arguments(t: Thunk, at: dict[tuple[str, int, int], Array], written: tuple[str, int, int], dst: Array) -> list[Any]:
    """The arrays that a step's kernel takes; what it writes of the arena is dst."""

    def array(o: Operand, role: Role) -> Array:
        own = o.span == written and (role is not Role.IN or o.span not in at)
        return (dst if own else at[o.span]).reshape(o.shape)

    out: list[Any] = []
    for f in t.operand_fields:
        value = getattr(t, f.name)
        if value is None:
            out.append(None)
        else:
            out.append(tuple(array(o, f.role) for o in value) if f.many else array(value, f.role))
    return out
