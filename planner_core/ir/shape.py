"""Owns shapes: dims that are ints or symbols, their arithmetic, and the binding of symbols to ints.

A symbol may be an expression over names (``"past+1"``, ``"B*S"``); binding evaluates it and keeps the
text, so a bound graph still says which axis varies. ``"?"`` is an extent nobody knows before the run.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from planner_core.errors import GraphError, UnboundDimError
from planner_core.ir.dtype import DType

__all__ = ["UNKNOWN", "Dim", "DimBinding", "DimLike", "Shape", "broadcast_dims", "dim"]

_OPS: dict[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
}


QUOTED = r'"(?:[^"\\]|\\.)*"'
"""A JSON string, as a pattern."""
_PLAIN = re.compile(r'[^\s,\[\]="]+(?: [^\s,\[\]="]+)*')
"""Symbols that a shape's text shows bare; exporters put anything into dim names, so others are quoted."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One extent: a value, a symbol, or both (a bound symbol). ``UNKNOWN`` has the symbol ``"?"``."""

    value: int | None
    symbol: str | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.symbol:
            raise GraphError("a dim needs a value or a symbol; for an unknowable extent use UNKNOWN")
        if self.value is not None and self.value < 0:
            raise GraphError(f"a dim can't be negative: got {self.value}")

    @property
    def is_unknown(self) -> bool:
        """No value, and no symbol that a binding could give one."""
        return self.value is None and self.symbol is not None and "?" in self.symbol

    def same(self, other: Dim) -> bool:
        """Known to be the same extent (equal values, or the same symbol when both are unbound)."""
        if self.value is not None and other.value is not None:
            return self.value == other.value
        return self.symbol == other.symbol and not self.is_unknown

    def clashes(self, other: Dim) -> bool:
        """Known to be another extent."""
        return self.value is not None and other.value is not None and self.value != other.value

    def _combine(self, other: DimLike, kind: type[ast.operator], swap: bool = False) -> Dim:
        text, fn = _OPS[kind]
        a, b = (dim(other), self) if swap else (self, dim(other))
        value = fn(a.value, b.value) if a.value is not None and b.value is not None else None
        if a.symbol is None and b.symbol is None:
            return Dim(value)
        if kind is ast.Mult and (a == Dim(1) or b == Dim(1)):
            return b if a == Dim(1) else a
        if kind in (ast.Add, ast.Sub) and b == Dim(0):
            return a
        if kind is ast.FloorDiv and b == Dim(1):
            return a
        if a.is_unknown or b.is_unknown:
            return UNKNOWN
        return Dim(value, f"{_wrap(a)}{text}{_wrap(b)}")

    def __add__(self, other: DimLike) -> Dim:
        return self._combine(other, ast.Add)

    def __sub__(self, other: DimLike) -> Dim:
        return self._combine(other, ast.Sub)

    def __mul__(self, other: DimLike) -> Dim:
        return self._combine(other, ast.Mult)

    def __floordiv__(self, other: DimLike) -> Dim:
        return self._combine(other, ast.FloorDiv)

    def names(self) -> frozenset[str]:
        """The symbol names this extent is made of."""
        return frozenset() if self.symbol is None else _names(self.symbol)

    def bind(self, values: Mapping[str, int]) -> Dim:
        """This dim with its symbol evaluated where every name in it has a value."""
        if self.symbol is None or self.is_unknown or not self.names() <= values.keys():
            return self
        return Dim(_evaluate(self.symbol, values), self.symbol)

    def __str__(self) -> str:
        if self.symbol is None:
            return str(self.value)
        plain = _PLAIN.fullmatch(self.symbol) and not self.symbol.isdecimal()
        symbol = self.symbol if plain else json.dumps(self.symbol)
        return symbol if self.value is None else f"{symbol}={self.value}"

    @classmethod
    def parse(cls, text: str | int) -> Dim:
        """Inverse of ``str``: ``7``, ``"B"``, ``"past+1=129"``, ``"?"``; odd symbols are in JSON quotes."""
        if isinstance(text, int):
            return dim(text)
        quoted = re.fullmatch(rf"({QUOTED})(?:=(\d+))?", text)
        if quoted is not None:
            return cls(None if quoted.group(2) is None else int(quoted.group(2)), json.loads(quoted.group(1)))
        if re.fullmatch(r"\d+", text):
            return dim(int(text))
        symbol, eq, value = text.rpartition("=")
        return cls(int(value), symbol) if eq else cls(None, text)


UNKNOWN = Dim(None, "?")
DimLike = Dim | int | str


def _wrap(d: Dim) -> str:
    if d.symbol is None:
        return str(d.value)
    return d.symbol if re.fullmatch(r"[\w.]+", d.symbol) else f"({d.symbol})"


@lru_cache(maxsize=4096)
def _static(value: int) -> Dim:
    return Dim(value)


def dim(value: DimLike) -> Dim:
    """A ``Dim`` of an int, a symbol text or a ``Dim``."""
    if isinstance(value, Dim):
        return value
    return Dim.parse(value) if isinstance(value, str) else _static(int(value))


@lru_cache(maxsize=4096)
def _tree(symbol: str) -> ast.expr | None:
    try:
        return ast.parse(symbol, mode="eval").body
    except SyntaxError:
        return None  # exporters put anything into dim names ("p2o.DynamicDimension.0" is fine, "a b" isn't)


def _is_arithmetic(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPS and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, ast.Name) or _dotted(node) is not None or (
        isinstance(node, ast.Constant) and type(node.value) is int
    )


def _dotted(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value)
        return None if left is None else f"{left}.{node.attr}"
    return None


@lru_cache(maxsize=4096)
def _names(symbol: str) -> frozenset[str]:
    tree = _tree(symbol)
    if not _is_arithmetic(tree):
        return frozenset([symbol])
    found: set[str] = set()

    def walk(node: ast.expr) -> None:
        name = _dotted(node)
        if name is not None:
            found.add(name)
        elif isinstance(node, ast.BinOp):
            walk(node.left)
            walk(node.right)

    if tree is not None:
        walk(tree)
    return frozenset(found)


def _evaluate(symbol: str, values: Mapping[str, int]) -> int:
    tree = _tree(symbol)
    if tree is None or not _is_arithmetic(tree):
        return values[symbol]

    def walk(node: ast.expr) -> int:
        name = _dotted(node)
        if name is not None:
            return values[name]
        if isinstance(node, ast.BinOp):
            return _OPS[type(node.op)][1](walk(node.left), walk(node.right))
        assert isinstance(node, ast.Constant) and isinstance(node.value, int)
        return node.value

    return walk(tree)


@dataclass(frozen=True, slots=True)
class DimBinding:
    """Values for symbols, hashable: ``DimBinding.of(B=1, S=128)`` or ``DimBinding.batch_seq(1, 128)``."""

    values: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.values:
            given: object = value
            if isinstance(given, bool) or not isinstance(given, Integral) or int(given) < 0:
                raise GraphError(f"dim {name!r} bound to {value!r}; wanted an int of 0 or more")

    @classmethod
    def of(cls, mapping: Mapping[str, int] | None = None, /, **names: int) -> DimBinding:
        return cls(tuple(sorted({**(mapping or {}), **names}.items())))

    @classmethod
    def batch_seq(cls, batch: int, seq: int) -> DimBinding:
        """The usual pair of a language model's module: symbols ``batch`` and ``seq``."""
        return cls.of(batch=batch, seq=seq)

    def as_dict(self) -> dict[str, int]:
        return dict(self.values)


@dataclass(frozen=True, slots=True)
class Shape:
    """Dims and element type of one tensor; prints as ``f32[1, B, 8]``."""

    dims: tuple[Dim, ...]
    dtype: DType = DType.F32

    @classmethod
    def of(cls, dims: Iterable[DimLike], dtype: DType = DType.F32) -> Shape:
        return cls(tuple([dim(d) for d in dims]), dtype)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Every dim has a value."""
        return all(d.value is not None for d in self.dims)

    @property
    def is_unknown(self) -> bool:
        """Some extent is unknowable before the run."""
        return any(d.is_unknown for d in self.dims)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dims as ints; ``UnboundDimError`` names the first that has no value."""
        out = []
        for d in self.dims:
            if d.value is None:
                raise UnboundDimError(
                    f"dim {d} of {self} has no value; bind its symbol, e.g. graph.bind({{{d.symbol!r}: 1}})"
                )
            out.append(d.value)
        return tuple(out)

    @property
    def numel(self) -> int:
        """Number of elements; raises like ``sizes``."""
        n = 1
        for d in self.dims:
            if d.value is None:
                return math.prod(self.sizes)
            n *= d.value
        return n

    @property
    def nbytes(self) -> int:
        """Bytes at native width, sub-byte types rounded up per tensor."""
        return self.dtype.nbytes(self.numel)

    def with_dtype(self, dtype: DType) -> Shape:
        return Shape(self.dims, dtype)

    def with_dims(self, dims: Iterable[DimLike]) -> Shape:
        return Shape.of(dims, self.dtype)

    def axis(self, axis: int) -> int:
        """A non-negative axis; ``GraphError`` when it is out of range."""
        if not -self.rank <= axis < max(self.rank, 1):
            raise GraphError(f"axis {axis} is out of range for {self}")
        return axis % self.rank if self.rank else 0

    def bind(self, values: Mapping[str, int]) -> Shape:
        return Shape(tuple(d.bind(values) for d in self.dims), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Inverse of ``str``."""
        m = re.fullmatch(r"(\w+)\[(.*)\]", text.strip(), re.DOTALL)
        if m is None:
            raise GraphError(f"can't read shape {text!r}; wanted something like f32[1, B, 8]")
        inner = m.group(2).strip()
        parts = re.findall(rf'(?:{QUOTED}|[^,"])+', inner)
        return cls.of([part.strip() for part in parts], DType.parse(m.group(1)))


def broadcast_dims(*shapes: Shape) -> tuple[Dim, ...]:
    """NumPy broadcasting of the dims; ``GraphError`` names the shapes that don't fit."""
    rank = max((s.rank for s in shapes), default=0)
    out: list[Dim] = []
    for i in range(rank):
        chosen = dim(1)
        for s in shapes:
            k = i - (rank - s.rank)
            if k < 0:
                continue
            d = s.dims[k]
            if d.value == 1 or d == chosen:
                continue
            if chosen.value == 1:
                chosen = d
            elif not chosen.same(d):
                if chosen.is_unknown or d.is_unknown:
                    chosen = d if chosen.is_unknown else chosen
                    continue
                raise GraphError(f"shapes {', '.join(map(str, shapes))} don't broadcast: {chosen} against {d}")
        out.append(chosen)
    return tuple(out)
