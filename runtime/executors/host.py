"""Owns ``HostExecutor``: runs a command list with NumPy on one arena, one weight buffer and one scratch buffer.

Several executors may stand on one weight buffer (``share_weights_from``), or on one arena too (``beside``). A ``twin`` has
an arena of its own: it may run at the same time (``pool.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.errors import RlxError
from planner_core.ir import Array
from runtime.command_list import CommandList, Operand, Role, Scratch, Thunk
from runtime.command_list.thunks.host import Unrunnable
from runtime.errors import RunError, SanitizeError
from runtime.trace import current_tracer, thunk_facts, trace_from_environment

if TYPE_CHECKING:
    from runtime.executors.audit import Audit

__all__ = ["HostExecutor", "WeightBuffer", "aligned_buffer", "weight_layout"]

BASE_ALIGNMENT = 64
UFUNC_BUFFER = 512
"""Elements."""


def aligned_buffer(nbytes: int) -> Array:
    """``nbytes`` zero bytes whose first lies at a multiple of 64 (the system gives zero pages as they are touched)."""
    raw = np.zeros(nbytes + BASE_ALIGNMENT, dtype=np.uint8)
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


def weight_layout(commands: CommandList) -> tuple[Any, ...]:
    """What must be equal for two lists to read one weight buffer: its size, every param's name, type, place and dims."""
    return commands.weights_size, tuple((p.name, p.dtype, p.operand.space, p.operand.offset, p.operand.nbytes,
                                         p.operand.storage, p.operand.shape) for p in commands.params)


class WeightBuffer:
    """The bytes of the weights, behind one executor or several. ``version`` grows with every write; ``missing`` names
    params that have no data yet, ``written`` has the spans that got some. Writers hold ``lock``: a version lost would
    leave stale packs."""

    __slots__ = ("data", "lock", "missing", "version", "written")

    def __init__(self, nbytes: int) -> None:
        self.data = aligned_buffer(nbytes)
        self.lock = threading.Lock()
        self.missing: list[str] = []
        self.written: set[tuple[str, int, int]] = set()
        self.version = 0


class _Arena:
    """The bytes of the arena; ``packed_at`` is the version of the weights that its static packs were made from,
    ``params_at`` the one that a twin's params were copied at, and ``resident`` names inputs whose bytes stay from run to run."""

    __slots__ = ("data", "packed_at", "params_at", "resident")

    def __init__(self, nbytes: int) -> None:
        self.data = aligned_buffer(nbytes)
        self.packed_at = self.params_at = -1
        self.resident: set[str] = set()


class HostExecutor:
    """Views into the buffers are made once; a run writes inputs, calls every thunk, copies outputs out.

    ``weights`` gives params by name (their graph dtype); ``frozen`` names those whose values were compiled in.
    ``beside``: stand on the arena and weights of another executor, whose plan this list was lowered with; ``twin_of``: on
    its weights alone.
    One run at a time: it has one arena (``ExecutorPool`` lends several executors).
    """

    def __init__(self, commands: CommandList, weights: Mapping[str, Array], frozen: Collection[str] = (),
                 beside: HostExecutor | None = None, twin_of: HostExecutor | None = None) -> None:
        self.commands = commands
        self._frozen: frozenset[str] = frozenset()
        other = beside or twin_of
        self._arena: _Arena = beside._arena if beside else _Arena(commands.arena_size)
        self._store: WeightBuffer = other._store if other else WeightBuffer(commands.weights_size)
        self._twin_of = twin_of
        self._scratch = Scratch(aligned_buffer(commands.scratch_bytes))
        self.seconds = np.zeros(len(commands.thunks))
        """Time of each thunk in the last run with ``timed=True``."""
        self._unrunnable = next((t for t in commands.thunks if isinstance(t, Unrunnable)), None)
        self._facts: list[dict[str, Any]] | None = None
        self._params = {p.name: p for p in commands.params}
        trace_from_environment()
        if other is None:
            self._store.missing = [p.name for p in commands.params if p.name not in weights]
            for p in commands.params:
                if p.name in weights:
                    self.set_param(p.name, weights[p.name])
        if beside is None:
            for c in commands.constants:
                self.view(c.operand)[...] = c.data.array
        self._frozen = frozenset(frozen)
        once = commands.once
        self._all: Sequence[int] = range(len(commands.thunks))
        self._later: Sequence[int] = [i for i in self._all if i not in once] if once else self._all
        self._bind()

    def _bind(self) -> None:
        """Views of every operand in the buffers as they are now."""
        self._calls = [(t, self._arguments(t), t.scratch_bytes) for t in self.commands.thunks]
        self._inputs = [(b.name, self.view(b.operand), b.operand.shape, b.dtype.numpy) for b in self.commands.inputs]
        self._outputs = [(b.name, self.view(b.operand, False), b.dtype.numpy) for b in self.commands.outputs]

    @property
    def arena(self) -> Array:
        """The arena's bytes."""
        return self._arena.data

    @property
    def weights(self) -> Array:
        """The weight buffer's bytes."""
        return self._store.data

    @property
    def weight_buffer(self) -> WeightBuffer:
        """The weight buffer itself: the same object behind every executor that shares it."""
        return self._store

    @property
    def frozen(self) -> frozenset[str]:
        """Params whose values were compiled in."""
        return self._frozen

    @property
    def resident(self) -> set[str]:
        """Inputs that are in their slots already: a run neither needs nor overwrites them."""
        return self._arena.resident

    def twin(self) -> HostExecutor:
        """An executor of the same list and weights with an arena of its own. Inputs that are resident here aren't there."""
        return HostExecutor(self.commands, {}, self._frozen, twin_of=self._twin_of or self)

    def _follow(self, first: HostExecutor) -> None:
        """Copy params that lie in the arena from the executor that they were set in, if some were since."""
        store = self._store
        if self._arena.params_at != store.version:
            with store.lock:
                for p in self.commands.params:
                    if p.operand.space == "arena":
                        np.copyto(self.view(p.operand), first.view(p.operand, False))
                self._arena.params_at = store.version

    def stands_with(self, other: HostExecutor) -> bool:
        """Both read one weight buffer already."""
        return self._store is other._store

    def share_weights_from(self, other: HostExecutor) -> bool:
        """Read another executor's weight buffer from now on; False, with nothing changed, unless the layouts match
        byte for byte and the same params were compiled in (the caller knows their values)."""
        if self._store is other._store:
            return True
        if not self.commands.weights_size or weight_layout(self.commands) != weight_layout(other.commands):
            return False
        if self._frozen != other._frozen or any(p.operand.space != "weights" for p in self.commands.params):
            return False
        self._store = other._store
        self._arena.packed_at = -1
        self._bind()
        return True

    # --- buffers ----------------------------------------------------------------------------------

    def view(self, o: Operand, writeable: bool = True) -> Array:
        """The operand's bytes as an array."""
        buffer = self._store.data if o.space == "weights" else self._arena.data
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
        p = self._params.get(name)
        if p is None:
            raise RunError(f"{self.commands.name!r} has no param {name!r}; "
                           f"it has {', '.join(p.name for p in self.commands.params) or 'none'}")
        array = np.asarray(data)
        if array.shape != p.operand.shape or array.dtype != p.dtype.numpy:
            raise RunError(f"param {name!r} is {array.dtype}{list(array.shape)}, "
                           f"wanted {p.dtype}{list(p.operand.shape)}")
        store = self._store
        with store.lock, np.errstate(all="ignore"):
            np.copyto(self.view(p.operand), array, casting="unsafe")
            store.written.add(p.operand.span)
            store.version += 1  # what is computed from weights alone is computed again, by every sharer
            if name in store.missing:
                store.missing.remove(name)

    # --- running ----------------------------------------------------------------------------------

    def _refuse_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Raise ``RunError`` with all that is wrong."""
        known = {b.name: b for b in self.commands.inputs}
        resident = self._arena.resident
        wrong = [f"missing input {n!r}" for n in known if n not in inputs and n not in resident]
        wrong += [f"unknown input {n!r}" for n in inputs if n not in known]
        wrong += [f"input {n!r} is resident: its rows are in its slot already, and the ones given would be ignored; "
                  "release_resident_gpu_handle() it first" for n in inputs if n in resident]
        for n, b in known.items():
            if n in inputs:
                a = np.asarray(inputs[n])
                if a.shape != b.operand.shape or a.dtype != b.dtype.numpy:
                    wrong.append(f"input {n!r} is {a.dtype}{list(a.shape)}, wanted {b.dtype}{list(b.operand.shape)}")
        wanted = "\n".join(f"  {b.name}: {b.dtype}{list(b.operand.shape)}" for b in known.values())
        raise RunError(f"{self.commands.name!r}: {'; '.join(sorted(wrong))}. Its inputs are:\n{wanted}")

    def _check(self, inputs: Mapping[str, Array]) -> list[tuple[Array, Array]]:
        """(slot, data) of each input that is given."""
        if self._unrunnable is not None:
            raise RunError(self._unrunnable.message)
        out = []
        for name, view, shape, dtype in self._inputs:
            given = inputs.get(name)
            if given is None:
                continue
            a = given if type(given) is np.ndarray else np.asarray(given)
            if a.shape != shape or a.dtype != dtype:
                self._refuse_inputs(inputs)
            out.append((view, a))
        resident = self._arena.resident
        if len(out) != len(inputs) or len(out) + len(resident) != len(self._inputs) or (
                resident and not resident.isdisjoint(inputs)):
            self._refuse_inputs(inputs)
        missing = self._store.missing
        if missing:
            raise RunError(f"{self.commands.name!r} has no data for params {', '.join(missing[:8])}"
                           f"{' …' if len(missing) > 8 else ''}; give it in graph.weights or by set_param")
        return out

    def run(self, inputs: Mapping[str, Array], *, sanitize: bool = False, timed: bool = False) -> dict[str, Array]:
        """Outputs by name, as copies in the graph's dtypes.

        ``sanitize`` audits the run (``audit.py``) and raises ``SanitizeError``; ``timed`` fills ``seconds``.
        """
        self.execute(inputs, sanitize=sanitize, timed=timed)
        return self.outputs()

    def outputs(self) -> dict[str, Array]:
        """What the output slots hold now, as copies; a value that its dtype can't hold becomes inf, without a warning."""
        with np.errstate(all="ignore"):
            return {name: view.astype(dtype, copy=True) for name, view, dtype in self._outputs}

    def execute(self, inputs: Mapping[str, Array], *, sanitize: bool = False, timed: bool = False) -> None:
        """``run`` without copying outputs out."""
        feed = self._check(inputs)
        if self._twin_of is not None:
            self._follow(self._twin_of)
        audit: Audit | None = None
        if sanitize:
            from runtime.executors.audit import Audit

            feed += [(view, view.copy()) for name, view, _, _ in self._inputs if name in self._arena.resident]
            audit = Audit(self.commands, self._arena.data, self._store.data, self._scratch, self._store.written)
            audit.begin()
            for c in self.commands.constants:
                self.view(c.operand)[...] = c.data.array
        with np.errstate(all="ignore"):  # a slot may be narrower than its input
            for view, a in feed:
                np.copyto(view, a, casting="unsafe")
        if audit is not None:
            audit.loaded()
        arena, version = self._arena, self._store.version
        order = self._later if arena.packed_at == version and audit is None else self._all
        arena.packed_at = -1
        with _quick_ufuncs():
            if timed or audit is not None or current_tracer() is not None:
                self._watched(order, timed, audit)
            else:
                calls, scratch = self._calls, self._scratch
                for i in order:
                    t, args, limit = calls[i]
                    scratch.reset(limit)
                    try:
                        t.run(*args, scratch)
                    except Exception as e:
                        raise self._located(i, e) from e
        if audit is not None:
            audit.finish()
        arena.packed_at = version

    def _watched(self, order: Sequence[int], timed: bool, audit: Audit | None) -> None:
        """Every thunk in order, timed, audited or traced."""
        tracer = current_tracer()
        if tracer is not None and self._facts is None:
            c = self.commands
            self._facts = [{"index": i, "node": c.node_names[c.node_of[i]], **thunk_facts(t)} for i, t in enumerate(c.thunks)]
        seconds = np.zeros(len(self._calls))
        for i in order:
            t, args, limit = self._calls[i]
            self._scratch.reset(limit)
            if audit is not None:
                audit.before(i)
            start = time.perf_counter()
            try:
                t.run(*args, self._scratch)
            except Exception as e:
                raise self._located(i, e, audited=audit is not None) from e
            took = time.perf_counter() - start
            if audit is not None:
                audit.after(i, t, args)
            seconds[i] = took
            if tracer is not None and self._facts is not None and t.where != "none":
                tracer.command(t.trace_label, start, took, self._facts[i])
        if timed:
            self.seconds = seconds

    def _located(self, i: int, e: Exception, audited: bool = False) -> RlxError:
        """The error of thunk i with its place: its own kind if it is ours, a ``RunError`` otherwise; of a kernel that writes
        what it only reads, a ``SanitizeError`` in an audited run."""
        from runtime.executors.blame import blame_of_thunk

        c, label = self.commands, self.commands.thunks[i].trace_label
        node = c.node_names[c.node_of[i]]
        where = f"thunk {i} {label} ({node})"
        if isinstance(e, RlxError):
            return type(e)(f"{where}: {e}")
        if not isinstance(e, ValueError) or "read-only" not in str(e):
            operands = ", ".join(f"{f} {o.storage}{list(o.shape)}" for f, _, o in c.thunks[i].operands())
            return RunError(f"{where}: its kernel raised {type(e).__name__}: {e}. Its operands: {operands or 'none'}. The kernel "
                            "doesn't take these; look at the values that reach it, or at its declaration")
        field, tensor = self._written_read(i)
        blame = blame_of_thunk(c, i)
        text = (f"{where} writes its operand {field} ({tensor}), which it declares as read: {e}; write to a declared output, or "
                f"declare the operand InOut. To blame: {blame}")
        if not audited:
            return RunError(text)
        return SanitizeError(text, thunk=i, label=label, node=node, field=field, blame=blame)

    def _written_read(self, i: int) -> tuple[str, str]:
        """(field, tensor) of the read that thunk i writes: the one that stops the complaint once it is a copy of its own;
        all its reads where that doesn't tell."""
        t, args, limit = self._calls[i]
        reads = [(k, f.name) for k, f in enumerate(t.operand_fields) if f.role is Role.IN and args[k] is not None]
        operands = {f: o for f, r, o in t.operands() if r is Role.IN}
        for k, name in reads if len(reads) > 1 else ():
            own = tuple(x.copy() for x in args[k]) if isinstance(args[k], tuple) else args[k].copy()
            self._scratch.reset(limit)
            try:
                t.run(*args[:k], own, *args[k + 1 :], self._scratch)
            except Exception:
                continue
            return name, self._tensor(i, operands[name])
        return (" or ".join(name for _, name in reads), " or ".join(self._tensor(i, operands[name]) for _, name in reads))

    def _tensor(self, i: int, o: Operand) -> str:
        """Whose value thunk i finds in an operand."""
        c = self.commands
        for j in range(i - 1, -1, -1):
            if any(w.overlaps(o) for w in c.thunks[j].writes()):
                return c.node_names[c.node_of[j]]
        named = (b.name for b in (*c.params, *c.inputs) if b.operand.overlaps(o))
        return next((repr(n) for n in named), f"{o.space} bytes [{o.offset}, {o.offset + o.nbytes})")
