"""Owns shape data that is known in part: integers, extents that stay symbols, extents that nobody knows.

An array of ints, ``Dim``s without a value (``seq``, ``past+seq``) and ``UNKNOWN``. ``partial`` carries one through an op;
``canonical`` writes an extent one way, so that ``seq+past`` and ``past+seq`` are the same; ``quotient`` divides products.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import UNKNOWN, Array, Dim, Op, Shape, dim, ops

if TYPE_CHECKING:
    from planner_core.importers.onnx_value import Value

__all__ = ["ELEMENTS", "canonical", "difference", "dims_of", "extent", "is_known", "is_open", "partial", "quotient"]

ELEMENTS = 64
"""Entries up to which data is taken for shape data."""
_Poly = Mapping[tuple[str, ...], int]
"""Product of names (sorted) -> coefficient."""


# --- one way to write an extent ----------------------------------------------------------------------------


def canonical(d: Dim) -> Dim:
    """The extent with its sums and products in order; what isn't a polynomial of names stays as it is."""
    if d.value is not None or d.is_unknown or d.symbol is None:
        return d
    poly = _poly(d.symbol)
    return d if poly is None else _written(poly)


@lru_cache(maxsize=4096)
def _poly(symbol: str) -> _Poly | None:
    try:
        return _walk(ast.parse(symbol, mode="eval").body)
    except SyntaxError:
        return None


def _walk(node: ast.expr) -> _Poly | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return {(): node.value} if node.value else {}
    if isinstance(node, ast.BinOp):
        a, b = _walk(node.left), _walk(node.right)
        if a is None or b is None:
            return None
        if isinstance(node.op, ast.Mult):
            return _sum((tuple(sorted(x + y)), i * j) for x, i in a.items() for y, j in b.items())
        if isinstance(node.op, (ast.Add, ast.Sub)):
            sign = 1 if isinstance(node.op, ast.Add) else -1
            return _sum([*a.items(), *((k, sign * v) for k, v in b.items())])
        if isinstance(node.op, ast.FloorDiv):
            divided = _divided(a, b)
            return {(ast.unparse(node).replace(" ", ""),): 1} if divided is None else divided
        return None
    if isinstance(node, (ast.Name, ast.Attribute)):
        return {(ast.unparse(node),): 1}
    return None


def _sum(terms: Iterable[tuple[tuple[str, ...], int]]) -> _Poly:
    out: dict[tuple[str, ...], int] = {}
    for k, v in terms:
        out[k] = out.get(k, 0) + v
    return {k: v for k, v in out.items() if v}


def _divided(a: _Poly, b: _Poly) -> _Poly | None:
    """``a / b`` where it comes out even for any values and ``b`` is one term; else None."""
    if len(b) != 1:
        return {(): 1} if a and a == b else None
    (names, factor), = b.items()
    out = {}
    for k, v in a.items():
        rest = list(k)
        for n in names:
            if n not in rest:
                return None
            rest.remove(n)
        if v % factor:
            return None
        out[tuple(rest)] = v // factor
    return out


def _written(poly: _Poly) -> Dim:
    """Names before numbers, positive terms first: ``past+seq``, ``12*seq``, ``seq-1``."""
    if not poly or list(poly) == [()]:
        value = sum(poly.values())
        return dim(value) if value >= 0 else UNKNOWN
    terms = sorted(poly.items(), key=lambda kv: (kv[1] < 0, -len(kv[0]), kv[0]))
    text = ""
    for names, factor in terms:
        words = [*([str(abs(factor))] if abs(factor) != 1 or not names else []), *names]
        one = "*".join(f"({w})" if "//" in w and len(words) > 1 else w for w in words)
        text += ("-" if factor < 0 else "+" if text else "") + one
    return Dim(None, f"0{text}" if text.startswith("-") else text)


def quotient(whole: Sequence[Dim], parts: Sequence[Dim]) -> Dim:
    """The product of ``whole`` over that of ``parts``; ``UNKNOWN`` where that is no extent for every value."""
    left, right = list(whole), []
    for d in parts:
        if d.value is None and not d.is_unknown and d in left:
            left.remove(d)
        else:
            right.append(d)
    a, b = (_product(v) for v in (left, right))
    divided = None if a is None or not b else _divided(a, b)
    return UNKNOWN if divided is None else _written(divided)


def _product(dims: Sequence[Dim]) -> _Poly | None:
    out: _Poly = {(): 1}
    for d in dims:
        one = {(): d.value} if d.value is not None else None if d.is_unknown else _poly(d.symbol or "")
        if one is None:
            return None
        out = _sum((tuple(sorted(x + y)), i * j) for x, i in out.items() for y, j in one.items())
    return out


# --- data ---------------------------------------------------------------------------------------------------


def dims_of(dims: Sequence[Dim]) -> Array:
    """Extents as data: ints where they have a value."""
    out = np.empty(len(dims), dtype=object)
    out[:] = [canonical(d) if d.value is None else d.value for d in dims]
    return out


def extent(x: Any) -> Dim | int:
    """An entry of shape data as a dim or an int (negative ones are the reader's affair)."""
    return x if isinstance(x, Dim) else int(x)


def is_open(v: Value) -> bool:
    """An extent of the value, or of the shape that it holds, is a symbol without a value."""
    held = [] if v.partial is None else [x for x in v.partial.reshape(-1) if isinstance(x, Dim)]
    return any(d.value is None and not d.is_unknown for d in (*v.shape.dims, *held))


def is_known(data: Array) -> bool:
    """Every entry is a number or a symbol."""
    return all(not isinstance(x, Dim) or not x.is_unknown for x in data.reshape(-1))


def _arithmetic(kind: str, a: Dim | int, b: Dim | int) -> Dim | int:
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        if kind == "div":
            return int(a / b) if b else UNKNOWN
        return {"add": a + b, "sub": a - b, "mul": a * b}[kind]
    if kind == "add" and not isinstance(b, Dim) and b < 0:
        kind, b = "sub", -b
    if kind == "add" and not isinstance(a, Dim) and a < 0:
        return _arithmetic("sub", b, -a)
    if kind == "mul" and (a == 0 or b == 0):
        return 0
    if any(not isinstance(v, Dim) and v < 0 for v in (a, b)):
        return UNKNOWN
    x, y = dim(a), dim(b)
    made = canonical({"add": x.__add__, "sub": x.__sub__, "mul": x.__mul__, "div": x.__floordiv__}[kind](y))
    return made if made.value is None else made.value


def difference(a: Dim | int, b: Dim | int) -> Dim | int:
    """``a - b``."""
    return _arithmetic("sub", a, b)


def _equal(a: Any, b: Any) -> bool | None:
    """Whether two entries are equal for every value of the symbols (extents are 0 or more); None: it depends."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return bool(a == b)
    if isinstance(a, Dim) and isinstance(b, Dim):
        return True if a == b and not a.is_unknown else None
    number, symbol = (b, a) if isinstance(a, Dim) else (a, b)
    return False if number < 0 and "-" not in (symbol.symbol or "") else None


def _elementwise(fn: Callable[..., Any], *arrays: Array) -> Array:
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    out = np.empty(shape, dtype=object)
    wide = [np.broadcast_to(a, shape) for a in arrays]
    for i in np.ndindex(shape):
        out[i] = fn(*(w[i] for w in wide))
    return out


def _objects(a: Array) -> Array:
    out = np.empty(a.shape, dtype=object)
    for i in np.ndindex(a.shape):
        out[i] = a[i].item()
    return out


_MOVES = (ops.Gather, ops.Concat, ops.Reshape, ops.Slice, ops.Narrow, ops.Expand)


def partial(op: Op, shape: Shape, ins: tuple[Value, ...]) -> Array | None:
    """Shape data through an op that moves, adds, compares or picks integers; None where it isn't followed."""
    if not shape.is_static or shape.numel > ELEMENTS or shape.dtype.is_float or all(v.partial is None for v in ins):
        return None
    if isinstance(op, ops.Gather) and ins[1].array is None:
        return None
    got: list[Array] = []
    for i, v in enumerate(ins):
        if v.partial is None and (v.array is None or v.array.size > ELEMENTS):
            return None
        index = i == 1 and isinstance(op, ops.Gather)
        got.append(v.partial if v.partial is not None else v.array if index else _objects(v.array))  # type: ignore[arg-type]
    if isinstance(op, ops.Cast):
        return got[0]
    try:
        if isinstance(op, ops.Binary) and op.kind in ("add", "sub", "mul", "div"):
            return _elementwise(lambda a, b: _arithmetic(op.kind, a, b), *got)
        if isinstance(op, ops.Compare) and op.kind == "eq":
            same = _elementwise(_equal, *got)
            return None if any(x is None for x in same.reshape(-1)) else same
        if isinstance(op, ops.Where):
            return _elementwise(lambda c, a, b: a if c else b, *got)
        if isinstance(op, ops.Reduce) and op.kind == "prod":
            return _reduced(op, got[0], shape)
        return np.asarray(op.evaluate(*got)) if isinstance(op, _MOVES) else None
    except (GraphError, ValueError, IndexError, TypeError, ArithmeticError):
        return None


def _reduced(op: ops.Reduce, x: Array, shape: Shape) -> Array | None:
    if len(op.axes) != x.ndim:
        return None
    total: Dim | int = math.prod(v for v in x.reshape(-1) if not isinstance(v, Dim))
    for v in x.reshape(-1):
        if isinstance(v, Dim):
            total = _arithmetic("mul", total, v)
    out = np.empty(shape.sizes, dtype=object)
    out[...] = total
    return out
