"""Owns ``HostExecutor``: runs a command list with NumPy on one arena, one weight buffer and one scratch buffer."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.errors import RlxError
from planner_core.ir import Array
from runtime.command_list import CommandList, Operand, Role, Scratch, Thunk
from runtime.command_list.thunks.host import Unrunnable
from runtime.errors import RunError

if TYPE_CHECKING:
    from runtime.executors.audit import Audit

__all__ = ["HostExecutor", "aligned_buffer"]

BASE_ALIGNMENT = 64
UFUNC_BUFFER = 512
"""Elements."""


def aligned_buffer(nbytes: int) -> Array:
    """``nbytes`` bytes whose first lies at a multiple of 64."""
    raw = np.empty(nbytes + BASE_ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % BASE_ALIGNMENT
    return raw[skip : skip + nbytes]


@contextmanager
def _quick_ufuncs() -> Iterator[None]:
    """No warnings, and a small ufunc buffer: with the default one NumPy copies short rows together first,
    which halves the speed of broadcasts and strided views."""
    before = np.setbufsize(UFUNC_BUFFER)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        np.setbufsize(before)


class HostExecutor:
    """Views into the buffers are made once; a run writes inputs, calls every thunk, copies outputs out.

    ``weights`` gives params by name (their graph dtype); ``frozen`` names those whose values were compiled in.
    One run at a time: the arena is shared.
    """

    def __init__(self, commands: CommandList, weights: Mapping[str, Array], frozen: Collection[str] = ()) -> None:
        self.commands = commands
        self._frozen: frozenset[str] = frozenset()
        self.arena = aligned_buffer(commands.arena_size)
        self.weights = aligned_buffer(commands.weights_size)
        self._scratch = Scratch(aligned_buffer(commands.scratch_bytes))
        self.seconds = np.zeros(len(commands.thunks))
        """Time of each thunk in the last run with ``timed=True``."""
        for p in commands.params:
            if p.name in weights:
                self.set_param(p.name, weights[p.name])
        self._frozen = frozenset(frozen)
        self._missing = [p.name for p in commands.params if p.name not in weights]
        for c in commands.constants:
            self.view(c.operand)[...] = c.data.array
        self._calls = [(t, self._arguments(t), t.scratch_bytes) for t in commands.thunks]
        self._all: Sequence[int] = range(len(self._calls))
        once = commands.once
        self._later: Sequence[int] = [i for i in self._all if i not in once] if once else self._all
        self._packed = False

    # --- buffers ----------------------------------------------------------------------------------

    def view(self, o: Operand, writeable: bool = True) -> Array:
        """The operand's bytes as an array."""
        buffer = self.weights if o.space == "weights" else self.arena
        found = buffer[o.offset : o.offset + o.nbytes].view(o.storage.numpy).reshape(o.shape)
        found.flags.writeable = writeable
        return found

    def _arguments(self, t: Thunk) -> list[Any]:
        out: list[Any] = []
        for f in t.operand_fields:
            value, writeable = getattr(t, f.name), f.role is not Role.IN
            if value is None:
                out.append(None)
            elif f.many:
                out.append(tuple(self.view(o, writeable) for o in value))
            else:
                out.append(self.view(value, writeable))
        return out

    def set_param(self, name: str, data: Array) -> None:
        """Write one weight; ``RunError`` on a wrong name, shape or dtype, or for one whose value was compiled in."""
        if name in self._frozen:
            raise RunError(f"param {name!r} of {self.commands.name!r} was read when the graph was fused (a rule took its "
                           "value as a constant, or computed with it ahead): put the new value into graph.weights and "
                           "compile again, or compile with fusion=False to set it at any time")
        p = next((p for p in self.commands.params if p.name == name), None)
        if p is None:
            raise RunError(f"{self.commands.name!r} has no param {name!r}; "
                           f"it has {', '.join(p.name for p in self.commands.params) or 'none'}")
        array = np.asarray(data)
        if array.shape != p.operand.shape or array.dtype != p.dtype.numpy:
            raise RunError(f"param {name!r} is {array.dtype}{list(array.shape)}, "
                           f"wanted {p.dtype}{list(p.operand.shape)}")
        np.copyto(self.view(p.operand), array, casting="unsafe")
        self._packed = False  # what is computed from weights alone is computed again
        if name in getattr(self, "_missing", ()):
            self._missing.remove(name)

    # --- running ----------------------------------------------------------------------------------

    def _check_inputs(self, inputs: Mapping[str, Array]) -> list[Array]:
        wanted = "\n".join(f"  {b.name}: {b.dtype}{list(b.operand.shape)}" for b in self.commands.inputs)
        known = {b.name for b in self.commands.inputs}
        wrong = [f"missing input {n!r}" for n in known if n not in inputs]
        wrong += [f"unknown input {n!r}" for n in inputs if n not in known]
        out = []
        for b in self.commands.inputs:
            if b.name in inputs:
                a = np.asarray(inputs[b.name])
                if a.shape != b.operand.shape or a.dtype != b.dtype.numpy:
                    wrong.append(f"input {b.name!r} is {a.dtype}{list(a.shape)}, "
                                 f"wanted {b.dtype}{list(b.operand.shape)}")
                out.append(a)
        if wrong:
            raise RunError(f"{self.commands.name!r}: {'; '.join(sorted(wrong))}. Its inputs are:\n{wanted}")
        if self._missing:
            raise RunError(f"{self.commands.name!r} has no data for params {', '.join(self._missing[:8])}"
                           f"{' …' if len(self._missing) > 8 else ''}; give it in graph.weights or by set_param")
        return out

    def run(self, inputs: Mapping[str, Array], *, sanitize: bool = False, timed: bool = False) -> dict[str, Array]:
        """Outputs by name, as copies in the graph's dtypes.

        ``sanitize`` audits the run (``audit.py``) and raises ``SanitizeError``; ``timed`` fills ``seconds``.
        """
        for t in self.commands.thunks:
            if isinstance(t, Unrunnable):
                raise RunError(t.message)
        arrays = self._check_inputs(inputs)
        audit: Audit | None = None
        if sanitize:
            from runtime.executors.audit import Audit

            audit = Audit(self.commands, self.arena, self.weights, self._scratch)
            audit.begin()
        for c in self.commands.constants if sanitize else ():
            self.view(c.operand)[...] = c.data.array
        for b, a in zip(self.commands.inputs, arrays, strict=True):
            np.copyto(self.view(b.operand), a, casting="unsafe")
        if audit is not None:
            audit.loaded()
        with _quick_ufuncs():
            order = self._later if self._packed and audit is None else self._all
            self._packed = False
            if timed:
                self.seconds[:] = 0
            for i in order:
                t, args, limit = self._calls[i]
                self._scratch.reset(limit)
                start = time.perf_counter() if timed else 0.0
                if audit is not None:
                    audit.before(i)
                try:
                    t.run(*args, self._scratch)
                except RlxError as e:
                    where = self.commands.node_names[self.commands.node_of[i]]
                    raise type(e)(f"thunk {i} {t.trace_label} ({where}): {e}") from e
                if audit is not None:
                    audit.after(i)
                if timed:
                    self.seconds[i] = time.perf_counter() - start
        if audit is not None:
            audit.finish()
        self._packed = True
        return {b.name: self.view(b.operand).astype(b.dtype.numpy, copy=True).reshape(b.operand.shape)
                for b in self.commands.outputs}
