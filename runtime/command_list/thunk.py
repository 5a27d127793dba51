"""Owns the thunk declaration: one class gives fields, roles, spans, repr, JSON, trace label and host kernel.

A declaration::

    @thunk(name="Copy", label="copy", partial_extent="scales", where="gpu")
    class Copy(Thunk):
        '''dst = src.'''

        src: In
        dst: Out
        len: int

        def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
            np.copyto(dst, src)

``run`` gets one array per operand field (a tuple for a variadic one, None for an absent optional one).
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, ClassVar, TypeVar, dataclass_transform

from planner_core.ir import DType, Op, QuantScheme
from planner_core.ir.op import decode_op, encode_op
from runtime.command_list.operand import Operand, Role
from runtime.errors import RunError

__all__ = ["OperandField", "Thunk", "registry", "thunk", "thunk_from_json"]

PARTIAL_EXTENTS = ("scales", "full_ok", "no", "conditional")
PLACES = ("gpu", "host", "none")


@dataclasses.dataclass(frozen=True, slots=True)
class OperandField:
    """A field that names bytes: its role, and whether it holds many operands or may be absent."""

    name: str
    role: Role
    many: bool
    optional: bool


class Thunk:
    """Base of all thunks. Subclasses made by ``@thunk`` are frozen values."""

    __slots__ = ()
    name: ClassVar[str]
    label: ClassVar[str]
    partial_extent: ClassVar[str]
    where: ClassVar[str]
    extension: ClassVar[bool]
    pending: ClassVar[bool]
    proven: ClassVar[bool]
    operand_fields: ClassVar[tuple[OperandField, ...]]
    run: ClassVar[Callable[..., None]]

    @property
    def scratch_bytes(self) -> int:
        """Bytes beyond the arena that ``run`` may take."""
        return 0

    @property
    def dt(self) -> str:
        """``f16`` where the data is half, else ``f32``: what a kernel with two forms asks."""
        first = next((o for _, _, o in self.operands()), None)
        return "f16" if first is not None and first.storage is DType.F16 else "f32"

    def operands(self) -> Iterator[tuple[str, Role, Operand]]:
        """Every operand with its field and role, in declaration order."""
        for f in self.operand_fields:
            value = getattr(self, f.name)
            if value is not None:
                for o in value if f.many else (value,):
                    yield f.name, f.role, o

    def reads(self) -> tuple[Operand, ...]:
        """Operands whose bytes the result depends on (in-place ones too)."""
        return tuple(o for _, r, o in self.operands() if r is not Role.OUT)

    def writes(self) -> tuple[Operand, ...]:
        """Operands whose bytes change (in-place ones too)."""
        return tuple(o for _, r, o in self.operands() if r is not Role.IN)

    @property
    def place(self) -> str:
        """Where a GPU executor runs this one: ``where``, unless its kernel covers some cases only (spec, thunks.json)."""
        return self.where

    @property
    def bytes_read(self) -> int:
        """Bytes that one run fetches: all that it may read, or an upper bound where indices choose a part."""
        return sum(o.nbytes for o in self.reads())

    @property
    def bytes_written(self) -> int:
        """Bytes that one run stores."""
        return sum(o.nbytes for o in self.writes())

    @property
    def trace_label(self) -> str:
        """The label a trace shows for this thunk."""
        return self.label

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; ``thunk_from_json`` is the inverse."""
        return {"command": self.name} | {
            f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)  # type: ignore[arg-type]
        }

    def __str__(self) -> str:
        parts = [f"{n}={o}" for n, _, o in self.operands()]
        skip = {f.name for f in self.operand_fields}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            if f.name not in skip:
                parts.append(f"{f.name}={getattr(self, f.name)}")
        return f"{self.label}({', '.join(parts)})"


_REGISTRY: dict[str, type[Thunk]] = {}
_T = TypeVar("_T", bound=type[Thunk])


def registry() -> dict[str, type[Thunk]]:
    """Every declared thunk by name (a copy)."""
    return dict(_REGISTRY)


@dataclass_transform(frozen_default=True)
def thunk(*, name: str, label: str, partial_extent: str, where: str, extension: bool = False,
          pending: bool = False, proven: bool = False) -> Callable[[_T], _T]:
    """Declare a thunk class. Fails at import when a role, ``run``, the label or the safety class is missing.

    ``pending``: declared, planned and shown, without a kernel yet; ``run`` raises ``RunError``. ``proven``: declared
    ``no``, yet safe in a list lowered anew for the active rows, where its op's rule holds: a test proves each
    (``tests/runtime/session/test_active.py``). A kernel that takes the full list's fields may not be.
    """

    def declare(cls: _T) -> _T:
        if not label or partial_extent not in PARTIAL_EXTENTS or where not in PLACES:
            raise TypeError(f"thunk {name}: label {label!r}, partial_extent {partial_extent!r}, where {where!r}; "
                            f"wanted a label, one of {PARTIAL_EXTENTS}, one of {PLACES}")
        if not cls.__doc__:
            raise TypeError(f"thunk {name}: a docstring with the formula is required")
        if name in _REGISTRY or any(t.label == label for t in _REGISTRY.values()):
            raise TypeError(f"thunk {name} ({label!r}) is declared twice")
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
        made.name, made.label, made.partial_extent = name, label, partial_extent
        made.where, made.extension, made.pending, made.proven = where, extension, pending, proven
        made.operand_fields = _operand_fields(made, name)
        if pending:
            made.run = _no_kernel_yet
        else:
            _check_run(made, name)
        _REGISTRY[name] = made
        return typing.cast(_T, made)

    return declare


def _no_kernel_yet(self: Thunk, *operands: Any) -> None:
    raise RunError(f"{self.name}: its kernel isn't part of this version; it comes with the families issue. Until then it "
                   "can be planned and looked at, not run")


def _operand_fields(cls: type[Thunk], name: str) -> tuple[OperandField, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint, many, optional = hints[f.name], False, False
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            rest = [a for a in typing.get_args(hint) if a is not type(None)]
            optional, hint = len(rest) == 1, rest[0] if len(rest) == 1 else hint
        if typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is Ellipsis:
            many, hint = True, typing.get_args(hint)[0]
        if hint is Operand:
            raise TypeError(f"thunk {name}: field {f.name} is an Operand without a role; write In, Out or InOut")
        if typing.get_origin(hint) is typing.Annotated and typing.get_args(hint)[0] is Operand:
            found.append(OperandField(f.name, typing.get_args(hint)[1], many, optional))
        elif typing.get_origin(hint) is not typing.Annotated and many and hint is Operand:
            raise TypeError(f"thunk {name}: field {f.name} has operands without a role")
    return tuple(found)


def _check_run(cls: type[Thunk], name: str) -> None:
    run = cls.__dict__.get("run") or next((b.__dict__["run"] for b in cls.__mro__ if "run" in b.__dict__), None)
    if run is None:
        raise TypeError(f"thunk {name}: a host kernel (run) is required")
    got = list(inspect.signature(run).parameters)
    want = ["self", *(f.name for f in cls.operand_fields), "scratch"]
    if got != want:
        raise TypeError(f"thunk {name}: run takes {got}, wanted {want}")


# --- JSON ---------------------------------------------------------------------------------------------


def _encode(v: Any) -> Any:
    if isinstance(v, Operand):
        return {f.name: _encode(getattr(v, f.name)) for f in dataclasses.fields(v)}
    if isinstance(v, Thunk):
        return v.to_json()
    if isinstance(v, Op):
        return {"op": v.name, **encode_op(v)}
    if isinstance(v, (DType, QuantScheme)):
        return v.text
    if isinstance(v, Enum):
        return v.value
    if isinstance(v, tuple):
        return [_encode(x) for x in v]
    return str(v) if isinstance(v, float) and v - v != 0 else v


def _decode(hint: Any, v: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if v is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _decode(next(a for a in args if a is not type(None)), v)
    if origin is tuple:
        return tuple(_decode(args[0], x) for x in v)
    if hint is Operand:
        return Operand(v["space"], v["offset"], v["nbytes"], DType.parse(v["storage"]), v["bucket_axis"],
                       tuple(v["shape"]))
    if hint is Thunk:
        return thunk_from_json(v)
    if hint is Op:
        return decode_op(v["op"], {k: x for k, x in v.items() if k != "op"})
    if hint is DType:
        return DType.parse(v)
    if hint is QuantScheme:
        return next(q for q in QuantScheme if q.text == v)
    return float(v) if hint is float else v


def thunk_from_json(value: dict[str, Any]) -> Thunk:
    """Inverse of ``Thunk.to_json``; ``ValueError`` names an unknown thunk."""
    cls = _REGISTRY.get(value["command"])
    if cls is None:
        raise ValueError(f"unknown thunk {value['command']!r}; known: {', '.join(sorted(_REGISTRY))}")
    hints = typing.get_type_hints(cls)
    return cls(**{k: _decode(hints[k], v) for k, v in value.items() if k != "command"})
