"""Owns the op declaration: one class gives attributes, operands, shape rule, cost, builder, text and JSON.

Families of ops live in ``planner_core.ir.ops``; ``graph.py`` turns the registry into builder methods.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.dtype import DType, QuantScheme
from planner_core.ir.shape import Dim, Shape
from planner_core.ir.traits import Trait

if TYPE_CHECKING:
    from planner_core.ir.graph import Graph, Node, NodeId
    from planner_core.ir.rows import Rows

__all__ = ["Array", "Op", "TensorData", "attributes", "decode_op", "encode_op", "op", "registry"]

RowRule = Callable[["Rows", "Node", Any], str | None]
Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TensorData:
    """A read-only array that compares and hashes by content, so that ops stay plain values."""

    array: Array

    def __post_init__(self) -> None:
        a = np.asarray(self.array).view()
        a.flags.writeable = False
        object.__setattr__(self, "array", a)

    @property
    def dtype(self) -> DType:
        return DType.of(self.array.dtype)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorData)
            and self.array.dtype == other.array.dtype
            and self.array.shape == other.array.shape
            and self.array.tobytes() == other.array.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self.array.shape, str(self.array.dtype), self.array.tobytes()))

    def __repr__(self) -> str:
        return f"TensorData(<{self.dtype}{list(self.array.shape)}>)"


class Op:
    """Base of all ops. A subclass declared with ``@op`` is a frozen value of its attributes."""

    name: ClassVar[str]
    family: ClassVar[str]
    operands: ClassVar[tuple[str, ...]]
    """Operand names in order; ``x?`` is optional (only at the end), ``xs*`` takes any number."""
    traits: ClassVar[frozenset[Trait]] = frozenset()

    @classmethod
    def has(cls, trait: Trait) -> bool:
        """Whether the op's declaration names the trait."""
        return trait in cls.traits

    def rows_seen(self, rows: Rows, node: Node) -> str | None:
        """Why a row of the result sees other rows of its operands than its own, or None (``planner_core.ir.rows``)."""
        return "not known to keep rows apart"

    @property
    def by_element(self) -> bool:
        """Every backend computes element k of the output from element k of each operand alone, read before it is written:
        the output may take an operand's bytes."""
        return False

    def infer(self, *args: Any, **kwargs: Any) -> Shape:
        """The output's shape and dtype; raises ``GraphError`` when the operands don't fit."""
        raise NotImplementedError(f"{type(self).__name__} declares no shape rule")  # stopped by @op

    def evaluate(self, *args: Any, **kwargs: Any) -> Array:
        """The output for concrete operands: the plain reference in NumPy. Arithmetic on f16 and bf16 is done in f32 and
        rounded once, to the first float operand's dtype (``@op`` sees to it)."""
        raise GraphError(f"{self.name} has no reference evaluation; it can be planned, not computed here")

    def flops(self, out: Shape, *args: Any, **kwargs: Any) -> int:
        """Floating-point operations (a multiply-add counts two)."""
        return 0

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> tuple[NodeId | None, ...]:
        """Nodes appended to ``g`` that turn ``dy``, the gradient of ``node``, into one gradient an operand; None
        where the derivative is zero or doesn't exist (ints, masks). ``GraphError`` where none is declared."""
        have = sorted(n for n, c in _REGISTRY.items() if c.gradient is not Op.gradient)
        raise GraphError(f"{self.name} {g[node].label} in {g.name!r} has no gradient declared; wanted one of "
                         f"{', '.join(have)}")

    def bodies(self) -> tuple[Any, ...]:
        """Graphs nested in this op (control flow), in a fixed order."""
        return ()

    @property
    def body_names(self) -> tuple[str, ...]:
        """Names of the bodies in paths and pictures."""
        return ("body",) * len(self.bodies())

    @property
    def body_inputs(self) -> int:
        """Number of a body's first inputs that the op makes for each turn; the others are captured."""
        return 0

    @property
    def detail(self) -> str:
        """Short text for pictures: the op's name, with its kind where it has one."""
        kind = getattr(self, "kind", None)
        return f"{self.name}({kind})" if isinstance(kind, str) else self.name


_REGISTRY: dict[str, type[Op]] = {}
_BUILDERS: dict[str, tuple[type[Op], dict[str, Any]]] = {}
_ARITY: dict[type[Op], tuple[int, int]] = {}
_FIELDS: dict[type[Op], tuple[tuple[str, Any], ...]] = {}
_T = TypeVar("_T", bound=type[Op])


def registry() -> dict[str, type[Op]]:
    """Every declared op by name (a copy)."""
    return dict(_REGISTRY)


def named(name: str) -> type[Op]:
    """The op of that name; ``GraphError`` offers near ones."""
    found = _REGISTRY.get(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, _REGISTRY, 3)
        raise GraphError(f"no op is named {name!r}; " + (f"near: {', '.join(near)}" if near else "see planner_core.ir.registry()"))
    return found


def builders() -> dict[str, tuple[type[Op], dict[str, Any]]]:
    """Builder method name -> op class and the attributes that the name fixes (a copy)."""
    return dict(_BUILDERS)


_MOVES = frozenset({"structure", "boundary", "control", "custom", "random"})
"""Families whose ops move elements, keep dtypes of their own, or widen themselves; the others compute."""
_HALF = frozenset({DType.F16.numpy, DType.BF16.numpy})


def computed_wide(fn: Callable[..., Array]) -> Callable[..., Array]:
    """``evaluate`` for halves: operands widened to f32, an f32 result rounded once. Sums kept in half would stall (at
    2048 for ones in f16) or overflow."""

    @functools.wraps(fn)
    def evaluate(self: Op, *operands: Any) -> Array:
        if all(np.asarray(x).dtype not in _HALF for x in operands):
            return fn(self, *operands)
        arrays = [np.asarray(x) for x in operands]
        to = next(a.dtype for a in arrays if a.dtype in _HALF or a.dtype.kind == "f")
        out = np.asarray(fn(self, *(a.astype(np.float32) if a.dtype in _HALF else a for a in arrays)))
        with np.errstate(over="ignore"):
            return out.astype(to) if out.dtype == np.float32 else out

    return evaluate


def _rows_seen(rule: RowRule) -> Callable[[Op, Rows, Node], str | None]:
    return lambda self, rows, node: rule(rows, node, self)


def _snake(name: str) -> str:
    out = "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
    return out.replace("2_d", "2d").replace("3_d", "3d").replace("1_d", "1d")


@dataclass_transform(frozen_default=True)
def op(
    *,
    family: str,
    operands: str = "",
    builders: dict[str, dict[str, Any]] | None = None,
    name: str = "",
    traits: Iterable[Trait] = (),
    rows: RowRule | None = None,
) -> Callable[[_T], _T]:
    """Declare an op class: ``@op(family="matmul", operands="a b", builders={"mm": {}})``.

    ``traits`` are asked with ``op.has``, ``rows`` is the rule of active extents. ``builders`` adds method names beside the snake-case class name, each with attributes it fixes.
    Fails at import when the class has no docstring or shape rule, or when a name is taken.
    """

    def declare(cls: _T) -> _T:
        label = name or cls.__name__
        if not cls.__doc__:
            raise TypeError(f"op {label}: a docstring with the formula is required")
        if cls.infer is Op.infer:
            raise TypeError(f"op {label}: a shape rule (infer) is required")
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
        made.name, made.family, made.operands, made.traits = label, family, tuple(operands.split()), frozenset(traits)
        if rows is not None:
            made.rows_seen = _rows_seen(rows)  # type: ignore[method-assign, assignment]
        if "evaluate" in cls.__dict__ and family not in _MOVES:
            made.evaluate = computed_wide(made.evaluate)  # type: ignore[method-assign]
        if label in _REGISTRY:
            raise TypeError(f"op {label} is declared twice")
        _REGISTRY[label] = made
        methods: dict[str, dict[str, Any]] = {_snake(cls.__name__): {}} | (builders or {})
        for method, fixed in methods.items():
            if method in _BUILDERS:
                raise TypeError(f"op {label}: builder {method} is already {_BUILDERS[method][0].name}'s")
            _BUILDERS[method] = (made, fixed)
        return typing.cast(_T, made)

    return declare


def check_arity(o: Op, count: int) -> None:
    """Raise ``GraphError`` unless ``count`` operands fit the declaration."""
    low, high = arity(type(o))
    if not low <= count <= high:
        want = f"{low}" if low == high else f"{low} to {high}" if high < 1 << 30 else f"at least {low}"
        raise GraphError(f"{o.name} got {count} operands, wanted {want}: {', '.join(o.operands) or 'none'}")


def arity(cls: type[Op]) -> tuple[int, int]:
    """Fewest and most operands."""
    found = _ARITY.get(cls)
    if found is None:
        low = sum(1 for o in cls.operands if o[-1] not in "?*")
        many = any(o.endswith("*") for o in cls.operands)
        found = _ARITY[cls] = (low, 1 << 30 if many else len(cls.operands))
    return found


# --- attributes as JSON -------------------------------------------------------------------------------


def _fields(cls: type[Op]) -> tuple[tuple[str, Any], ...]:
    found = _FIELDS.get(cls)
    if found is not None:
        return found
    from planner_core.ir.graph import Graph  # bodies are graphs; the graph module needs this one first

    hints = typing.get_type_hints(cls, localns={"Graph": Graph})
    made = tuple((f.name, hints[f.name]) for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    _FIELDS[cls] = made
    return made


def attributes(o: Op) -> Iterator[tuple[str, Any]]:
    """Attribute names and values in declaration order."""
    for f, _ in _fields(type(o)):
        yield f, getattr(o, f)


def encode_op(o: Op) -> dict[str, Any]:
    """The attributes as JSON-able values, in declaration order."""
    return {k: _encode(v) for k, v in attributes(o)}


def _encode(v: Any) -> Any:
    if isinstance(v, Dim):
        return str(v) if v.symbol is not None else v.value
    if isinstance(v, Enum):
        return v.text if isinstance(v, (DType, QuantScheme)) else v.value
    if isinstance(v, Shape):
        return str(v)
    if isinstance(v, TensorData):
        return {"dtype": v.dtype.text, "shape": list(v.array.shape),
                "data": base64.b64encode(np.ascontiguousarray(v.array).tobytes()).decode()}
    if isinstance(v, tuple):
        return [_encode(x) for x in v]
    if isinstance(v, float):
        return v if np.isfinite(v) else str(v)
    return v.to_dict() if hasattr(v, "to_dict") else v


def decode_op(name: str, values: dict[str, Any]) -> Op:
    """Inverse of ``encode_op``; ``GraphError`` names an unknown op or attribute."""
    cls = _REGISTRY.get(name)
    if cls is None:
        raise GraphError(f"unknown op {name!r}; is it declared by a package that is not imported?")
    hints = dict(_fields(cls))
    unknown = values.keys() - hints.keys()
    if unknown:
        raise GraphError(f"{name} has no attribute {sorted(unknown)}; wanted {sorted(hints)}")
    return cls(**{k: _decode(hints[k], v) for k, v in values.items()})


def _decode(hint: Any, v: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in args:
        return None if v is None else _decode(next(a for a in args if a is not type(None)), v)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], x) for x in v)
        return tuple(_decode(a, x) for a, x in zip(args, v, strict=True))
    if hint is Dim:
        return Dim.parse(v)
    if hint is Shape:
        return Shape.parse(v)
    if hint is DType:
        return DType.parse(v)
    if hint is QuantScheme:
        scheme = next((q for q in QuantScheme if q.text == v), None)
        if scheme is None:
            raise GraphError(f"unknown quantisation {v!r}; wanted one of {', '.join(map(str, QuantScheme))}")
        return scheme
    if hint is TensorData:
        dtype = DType.parse(v["dtype"])
        raw = np.frombuffer(base64.b64decode(v["data"]), dtype=dtype.numpy)
        return TensorData(raw.reshape(v["shape"]))
    if hint is float:
        return float(v)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(v)
    if isinstance(hint, type) and hasattr(hint, "from_dict"):
        return hint.from_dict(v)
    return v


def attributes_text(o: Op) -> str:
    """``axis=0, start=8`` with each value as JSON."""
    return ", ".join(f"{k}={json.dumps(v, separators=(', ', ': '))}" for k, v in encode_op(o).items())
