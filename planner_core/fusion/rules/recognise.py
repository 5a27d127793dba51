"""Owns the rules that see a norm or a softmax in the arithmetic an exporter wrote for it, and what such patterns share.

Each starts at the rarest op of its pattern (a root, a sum), so that looking costs nothing elsewhere. Activations:
``recognise_activations.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.ir import DType, NodeId
from planner_core.ir.ops import (
    Activation,
    Binary,
    Cast,
    Constant,
    LayerNorm,
    LayerNorm2d,
    Reduce,
    Reshape,
    RmsNorm,
    Softmax,
)

MOST_READERS = 8
"""Readers of a value that are looked at for the pattern's next op."""


# --- what patterns are made of ------------------------------------------------------------------------


def near(value: float | None, want: float, dtype: DType) -> bool:
    """``value`` is ``want`` as a constant of that dtype would hold it."""
    return value is not None and math.isclose(value, want, rel_tol=2e-3 if dtype.is_half else 1e-6)


def equal_values(g: Draft, a: NodeId, b: NodeId) -> bool:
    """One node, or the same op of the same operands."""
    return a == b or (bool(g.inputs(a)) and g.inputs(a) == g.inputs(b) and g.op(a) == g.op(b))


def is_max(g: Draft, n: NodeId) -> bool:
    """The larger of two values (a pool's kind may be ``max`` too)."""
    return isinstance(g.op(n), Binary) and g.kind(n) == "max"


def other(g: Draft, n: NodeId, a: NodeId) -> NodeId:
    """The operand of a binary beside ``a``."""
    x, y = g.inputs(n)
    return y if x == a else x


def thin(g: Draft, n: NodeId) -> NodeId:
    """``n`` without the reshapes that only add or drop axes of extent 1."""
    while isinstance(g.op(n), Reshape):
        x = g.inputs(n)[0]
        if [d for d in g.dims(x) if d != 1] != [d for d in g.dims(n) if d != 1]:
            return n
        n = x
    return n


def readers(g: Draft, n: NodeId) -> list[NodeId]:
    """Who reads ``n``, unless there are many."""
    return g.readers(n) if g.fan_out(n) <= MOST_READERS else []


def frozen(g: Draft, r: Rewrite, *constants: NodeId) -> Rewrite:
    """Params among the constants whose values decided are set for good."""
    for c in constants:
        if not isinstance(g.op(c), Constant):
            r.frozen |= g.params_of(c)
    return r


def inside(g: Draft, members: list[NodeId], end: NodeId, *also: NodeId) -> Refused | None:
    """The refusal when something outside (``also`` is inside) reads a value inside the pattern."""
    by = [*members, end, *also]
    for i in members:
        stop = g.shared(i, by)
        if stop is not None:
            return stop
    return None


def scalars(g: Draft, *nodes: NodeId) -> list[NodeId]:
    """The known numbers among the operands of these nodes."""
    return [i for n in nodes for i in g.inputs(n) if g.scalar(i) is not None]


# --- norms --------------------------------------------------------------------------------------------


def squared(g: Draft, n: NodeId) -> NodeId | None:
    """x of ``x · x`` or ``x ** 2``."""
    kind = g.kind(n)
    if kind not in ("mul", "pow"):
        return None
    a, b = g.inputs(n)
    return a if (equal_values(g, a, b) if kind == "mul" else g.scalar(b) == 2) else None


def averaged(g: Draft, n: NodeId) -> tuple[NodeId, tuple[int, ...]] | None:
    """(x, axes) of a mean of x, or of a sum times one over the count."""
    n = thin(g, n)
    op, factor = g.op(n), 1.0
    if isinstance(op, Binary) and g.kind(n) in ("mul", "div"):
        a, b = g.inputs(n)
        value = g.scalar(b)
        if value is None and g.kind(n) == "mul":
            a, value = b, g.scalar(a)
        if not value:
            return None
        n, factor = thin(g, a), (1 / value if g.kind(n) == "div" else value)
        op = g.op(n)
        if not isinstance(op, Reduce) or op.kind != "sum":
            return None
    if not isinstance(op, Reduce) or op.kind not in ("mean", "sum"):
        return None
    x = g.inputs(n)[0]
    rank = g.shape(x).rank
    axes = tuple(sorted(a % rank for a in op.axes))
    if op.kind == "sum":
        count = math.prod(g.dims(x)[a] for a in axes)
        if count < 1 or not near(factor, 1 / count, g.dtype(x)):
            return None
    return x, axes


def _spread(g: Draft, statistic: NodeId, x: NodeId, axes: tuple[int, ...]) -> bool:
    """The statistic broadcasts over the axes that it was taken along."""
    return g.dims(statistic) == tuple(1 if i in axes else d for i, d in enumerate(g.dims(x)))


@dataclass(slots=True)
class _Norm:
    """A norm's arithmetic: up to ``end`` it is ``(x - mean) / root``, gain and shift perhaps within."""

    x: NodeId
    axes: tuple[int, ...]
    centred: bool
    eps: float
    end: NodeId
    gamma: NodeId | None = None
    beta: NodeId | None = None
    members: list[NodeId] = field(default_factory=list)
    constants: list[NodeId] = field(default_factory=list)
    squares: list[NodeId] = field(default_factory=list)


def _root(g: Draft, n: NodeId) -> tuple[bool, NodeId] | None:
    """(inverse, operand) of a square root."""
    kind = g.kind(n)
    if kind in ("sqrt", "rsqrt"):
        return kind == "rsqrt", g.inputs(n)[0]
    if kind != "pow":
        return None
    power = g.scalar(g.inputs(n)[1])
    return (power < 0, g.inputs(n)[0]) if power in (0.5, -0.5) else None


def _variance(g: Draft, v: NodeId) -> tuple[NodeId, tuple[int, ...], NodeId | None] | None:
    """(x, axes, mean) of a mean square, or of a variance written as E[(x - mean)²] or E[x²] - mean²."""
    v = thin(g, v)
    if is_max(g, v) and (low := g.split(v)) and g.scalar(low[1]) == 0:
        v = thin(g, low[0])
    if g.kind(v) == "sub":
        a, b = g.inputs(v)
        first, mean = averaged(g, a), squared(g, thin(g, b))
        second = averaged(g, mean) if mean is not None else None
        if first is None or mean is None or second is None or squared(g, first[0]) != second[0] or first[1] != second[1]:
            return None
        return second[0], second[1], mean
    found = averaged(g, v)
    d = squared(g, found[0]) if found is not None else None
    if found is None or d is None:
        return None
    if g.kind(d) == "sub":
        x, m = g.inputs(d)
        mean_of = averaged(g, m)
        if mean_of == (x, found[1]):
            return x, found[1], m
    return d, found[1], None


def _same_mean(g: Draft, a: NodeId, b: NodeId) -> bool:
    """Two nodes that hold the same mean."""
    return thin(g, a) == thin(g, b) or averaged(g, a) == averaged(g, b) is not None


def _find_norm(g: Draft, n: NodeId) -> _Norm | None:
    """The norm around a square root, from its operand to gain and shift."""
    found = _root(g, n)
    if found is None:
        return None
    inverse, v = found
    eps, constants = 0.0, []
    v = thin(g, v)
    if g.kind(v) == "add":
        plus = g.split(v)
        if plus is None:
            return None
        v, eps = plus[0], g.scalar(plus[1]) or 0.0
        constants.append(plus[1])
    variance = _variance(g, v)
    if variance is None:
        return None
    x, axes, mean = variance
    at = n
    for r in readers(g, n):
        if not inverse and (g.kind(r) == "reciprocal" or (
                g.kind(r) == "div" and g.inputs(r)[1] == n and g.scalar(g.inputs(r)[0]) == 1)):
            at, inverse = r, True
            break
        if isinstance(g.op(r), Reshape) and thin(g, r) == n:
            at = r
            break
    norm = _Norm(x, axes, mean is not None, eps, at, constants=constants)
    for r in readers(g, at):
        if g.kind(r) != ("mul" if inverse else "div"):
            continue
        if not inverse and g.inputs(r)[1] != at:
            continue
        numerator = other(g, r, at)
        if inverse and _is_vector(g, norm, numerator) and not _is_numerator(g, norm, mean, numerator):
            scaled = g.only_reader(r)  # gain times inverse root first, as JAX writes it
            if scaled is None or g.kind(scaled) != "mul" or not _is_numerator(g, norm, mean, other(g, scaled, r)):
                continue
            norm.gamma, norm.members = numerator, [r]
            numerator, r = other(g, scaled, r), scaled
        if _is_numerator(g, norm, mean, numerator) and _spread(g, at, x, axes):
            norm.end = r
            if mean is not None:
                norm.members.append(numerator)
                norm.squares = [i for i in readers(g, numerator) if squared(g, i) == numerator]
            return norm
    return None


def _is_numerator(g: Draft, norm: _Norm, mean: NodeId | None, n: NodeId) -> bool:
    if mean is None:
        return equal_values(g, n, norm.x)
    if g.kind(n) != "sub":
        return False
    a, b = g.inputs(n)
    return a == norm.x and _same_mean(g, b, mean) and _spread(g, b, norm.x, norm.axes)


def _is_vector(g: Draft, norm: _Norm, v: NodeId) -> bool:
    """One value an element of the normalised axes, the same at every other place."""
    x, dims = g.dims(norm.x), g.dims(v)
    if len(dims) > len(x) or not (g.static[v] or len(dims) == len(norm.axes)):
        return False
    padded = (1,) * (len(x) - len(dims)) + dims
    return all(d == (x[i] if i in norm.axes else 1) and d > 0 for i, d in enumerate(padded))


def _take_affine(g: Draft, norm: _Norm, narrow: DType | None) -> bool:
    """Move the end past gain, shift and the cast back to ``narrow``; whether that cast was met."""
    cast = False
    while True:
        r = g.only_reader(norm.end)
        if r is None:
            return cast
        kind = g.kind(r)
        if kind == "Cast" and not cast and g.dtype(r) is narrow:
            cast = True
        elif kind == "mul" and norm.gamma is None and norm.beta is None and g.inputs(r)[0] != g.inputs(r)[1]:
            v = other(g, r, norm.end)
            if not _is_vector(g, norm, v):
                return cast
            norm.gamma = v
        elif kind == "add" and norm.beta is None:
            v = other(g, r, norm.end)
            if v == norm.end or not _is_vector(g, norm, v):
                return cast
            norm.beta = v
        else:
            return cast
        norm.members.append(norm.end)
        norm.end = r


def _recognise_norm(g: Draft, n: NodeId, limits: Limits, centred: bool) -> Outcome:
    norm = _find_norm(g, n)
    if norm is None or norm.centred is not centred:
        return None
    x, axes = norm.x, norm.axes
    wide = g.inputs(x)[0] if isinstance(g.op(x), Cast) and g.dtype(g.inputs(x)[0]).is_float else None
    if _take_affine(g, norm, g.dtype(wide) if wide is not None else None) and wide is not None:
        x = wide
    if stop := inside(g, norm.members, norm.end, *norm.squares):
        return stop
    dims, rank, dtype = g.shape(x).dims, g.shape(x).rank, g.dtype(x)
    if dtype not in limits.profile.dtypes or dtype is not g.dtype(norm.end):
        return Refused(Refusal.DTYPE, x, facts=(("dtype", str(dtype)),))
    if any(v is not None and g.dtype(v) is not dtype for v in (norm.gamma, norm.beta)):
        return Refused(Refusal.MIXED_DTYPES, norm.end)
    sizes = [g.dims(x)[a] for a in axes]
    if min(sizes, default=-1) < 0:
        return Refused(Refusal.UNKNOWN_SHAPE, x, facts=(("x", str(g.shape(x))), ("axes", axes)))
    count = math.prod(sizes)
    r = Rewrite(g, norm.end)
    trailing = axes == tuple(range(rank - len(axes), rank))
    channel = centred and axes == (1,) and all(d > 0 for d in g.dims(x))
    if not trailing and not channel:
        return Refused(Refusal.AXIS, n, facts=(("axes", axes), ("rank", rank)))
    gamma = r.reshape(norm.gamma, (count,)) if norm.gamma is not None else r.constant(np.ones(count), dtype)
    beta = [r.reshape(norm.beta, (count,))] if norm.beta is not None else (
        [r.constant(np.zeros(count), dtype)] if centred else [])
    if trailing:
        op = LayerNorm(norm.eps) if centred else RmsNorm(norm.eps)
        y = r.add(op, r.reshape(x, (*dims[: rank - len(axes)], count)), gamma, *beta)
    else:
        flat = (dims[0], count, math.prod(g.dims(x)[2:]), 1)
        y = r.add(LayerNorm2d(norm.eps), r.reshape(x, dims if rank == 4 else flat), gamma, *beta)
    return frozen(g, r.replace(norm.end, r.reshape(y, dims)), *norm.constants).note(eps=norm.eps, axes=axes)


_NORM_REASONS = (Refusal.DTYPE, Refusal.MIXED_DTYPES, Refusal.AXIS, Refusal.UNKNOWN_SHAPE)
_ROOTS = frozenset({"sqrt", "rsqrt", "pow"})


@rule(anchors=(Activation, Binary), group="recognise", reasons=(*_NORM_REASONS, Refusal.SHARED, Refusal.OUTPUT))
def recognise_layer_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Layer norm written as mean, difference, variance, root and quotient becomes one op.

    The variance may be E[(x - mean)²] or E[x²] - mean², the root a square root, a reciprocal one or a power.
    """
    return _recognise_norm(g, n, limits, True) if g.op(n).kind in _ROOTS else None  # type: ignore[attr-defined]


@rule(anchors=(Activation, Binary), group="recognise", reasons=_NORM_REASONS)
def recognise_rms_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """RMS norm written as mean square, root and quotient becomes one op."""
    return _recognise_norm(g, n, limits, False) if g.op(n).kind in _ROOTS else None  # type: ignore[attr-defined]


# --- softmax ------------------------------------------------------------------------------------------


@rule(anchors=(Reduce,), group="recognise", reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.AXIS))
def recognise_softmax(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``exp(x - max) / sum`` becomes softmax, with the maximum taken off or not."""
    op = g.op(n)
    e = g.inputs(n)[0]
    if not isinstance(op, Reduce) or op.kind != "sum" or g.kind(e) != "exp":
        return None
    at = n
    for r in readers(g, n):
        if isinstance(g.op(r), Reshape) and thin(g, r) == n:
            at = r
    end, members = None, [e]
    for r in readers(g, at):
        if g.kind(r) == "div" and g.inputs(r) == (e, at):
            end = r
        elif g.kind(r) == "reciprocal":
            end = next((m for m in readers(g, r) if g.kind(m) == "mul" and other(g, m, r) == e), None)
    rank = g.shape(e).rank
    axes = tuple(a % rank for a in op.axes)
    if end is not None and 0 in g.dims(e):
        return Refused(Refusal.SHAPE, e, facts=(("values", str(g.shape(e))),))  # the largest of nothing
    if end is None or g.dims(at) != tuple(1 if i in axes else d for i, d in enumerate(g.dims(e))):
        return None
    if len(axes) != 1:
        return Refused(Refusal.AXIS, n, facts=(("axes", axes),))
    for i in members:
        if stop := g.shared(i, (n, end)):
            return stop
    x = g.inputs(e)[0]
    if g.kind(x) == "sub":
        a, m = g.inputs(x)
        top = thin(g, m)
        if is_max(g, top) and (clamped := g.split(top)):
            top = thin(g, clamped[0])
        most = g.op(top)
        if isinstance(most, Reduce) and most.kind == "max" and g.inputs(top) == (a,) and tuple(
                i % rank for i in most.axes) == axes and _spread(g, m, a, axes) and g.only_reader(x) == e:
            x = a
    made = Rewrite(g, end)
    return made.replace(end, made.add(Softmax(axes[0]), x))
