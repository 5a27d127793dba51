"""Owns the rules that see an activation in the arithmetic an exporter wrote for it: GELU, SiLU, hard-swish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.recognise import frozen, inside, is_max, near, other, readers, scalars
from planner_core.ir import NodeId
from planner_core.ir.ops import Activation, Binary

MOST_TERMS = 10
"""Ops of a polynomial that are looked through."""


def polynomial(g: Draft, n: NodeId, x: NodeId, depth: int = MOST_TERMS) -> dict[int, float] | None:
    """Degree -> coefficient of ``n`` as a polynomial of ``x`` up to degree 3; None if it is none."""
    if n == x:
        return {1: 1.0}
    value = g.scalar(n)
    if value is not None:
        return {0: value}
    kind = g.kind(n)
    if depth == 0 or kind not in ("add", "sub", "mul", "div", "pow", "neg"):
        return None
    parts = [polynomial(g, i, x, depth - 1) for i in g.inputs(n)]
    a, b = parts[0], parts[-1]
    if a is None or b is None:
        return None
    if kind == "neg":
        return {k: -v for k, v in a.items()}
    if kind in ("add", "sub"):
        sign = 1 if kind == "add" else -1
        return {k: a.get(k, 0.0) + sign * b.get(k, 0.0) for k in {*a, *b}}
    if kind == "mul":
        return _times(a, b)
    if set(b) != {0}:
        return None
    if kind == "div":
        return {k: v / b[0] for k, v in a.items()} if b[0] else None
    if b[0] not in (2, 3):
        return None
    square = _times(a, a)
    return square if b[0] == 2 or square is None else _times(square, a)


def _times(a: dict[int, float], b: dict[int, float]) -> dict[int, float] | None:
    out: dict[int, float] = {}
    for i, u in a.items():
        for j, v in b.items():
            out[i + j] = out.get(i + j, 0.0) + u * v
    return out if max(out) <= 3 else None


@dataclass(slots=True)
class _Product:
    """``coefficient · x · (the value it started at)``, which ``end`` holds."""

    x: NodeId
    coefficient: float
    end: NodeId
    members: list[NodeId]
    constants: list[NodeId]


def _products(g: Draft, start: NodeId, coefficient: float, members: list[NodeId],
              constants: list[NodeId]) -> Iterator[_Product]:
    """Products of a value with one other and with numbers, in any order, as they grow."""
    at, factor = start, coefficient
    xs: list[tuple[NodeId, float, list[NodeId], list[NodeId]]] = []
    members, constants = list(members), list(constants)
    for _ in range(3):
        step = next((r for r in readers(g, at) if g.kind(r) in ("mul", "div")
                     and g.inputs(r)[0] != g.inputs(r)[1] and (g.kind(r) == "mul" or g.inputs(r)[0] == at)
                     and (not xs or g.scalar(other(g, r, at)) is not None)), None)
        if step is None:
            return
        by = other(g, step, at)
        value = g.scalar(by)
        members.append(at)
        if value is not None:
            factor = factor * value if g.kind(step) == "mul" else factor / value if value else math.nan
            constants.append(by)
        elif g.kind(step) == "div":
            return
        else:
            xs = [(by, 1.0, [], [])]
            if g.kind(by) in ("mul", "div") and (part := g.split(by)) and (g.kind(by) == "mul" or part[1] == g.inputs(by)[1]):
                c = g.scalar(part[1]) or math.nan
                xs.append((part[0], c if g.kind(by) == "mul" else 1 / c, [by], [part[1]]))
        at = step
        for x, c, more, known in xs:
            yield _Product(x, factor * c, at, members + more, constants + known)


def _activated(g: Draft, p: _Product, kind: str) -> Outcome:
    """The product becomes the activation of its x."""
    if stop := inside(g, p.members, p.end):
        return stop
    if g.dims(p.x) != g.dims(p.end):
        return None
    r = Rewrite(g, p.end)
    return frozen(g, r.replace(p.end, r.add(Activation(kind), p.x)), *p.constants)


_ROOT_HALF = math.sqrt(0.5)
_GELU_LINE = math.sqrt(2 / math.pi)


@rule(anchors=(Activation,), group="recognise", reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.CONSTANT))
def recognise_gelu(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """GELU written out, with erf or with tanh of a cubic, in any order of its factors, becomes one op."""
    kind = g.op(n).kind  # type: ignore[attr-defined]
    if kind not in ("erf", "tanh"):
        return None
    start = _plus_same(g, n)
    if start is None:
        return None
    one, coefficient, members, constants = start
    arg, dtype = g.inputs(n)[0], g.dtype(n)
    wrong = None
    for p in _products(g, one, coefficient, members, constants):
        line = polynomial(g, arg, p.x)
        if line is None or not line.get(1):
            continue
        want = {1: _ROOT_HALF} if kind == "erf" else {1: _GELU_LINE, 3: _GELU_LINE * 0.044715}
        have = {k: v for k, v in line.items() if v}
        if set(have) == set(want) and all(near(have[k], want[k], dtype) for k in want) and near(p.coefficient, 0.5, dtype):
            p.members += _between(g, arg, p.x)
            p.constants += scalars(g, *_between(g, arg, p.x))
            return _activated(g, p, "gelu" if kind == "erf" else "gelu_approx")
        wrong = Refused(Refusal.CONSTANT, n, facts=(("factor", p.coefficient), ("argument", tuple(sorted(have.items())))))
    return wrong


def _plus_same(g: Draft, n: NodeId) -> tuple[NodeId, float, list[NodeId], list[NodeId]] | None:
    """(node, c, members, constants) of ``c · (1 + n)``, also written ``c · n + c``."""
    for r in readers(g, n):
        kind = g.kind(r)
        if kind == "add" and g.scalar(other(g, r, n)) == 1:
            return r, 1.0, [n], [other(g, r, n)]
        if kind in ("mul", "div") and (part := g.split(r)) and part[0] == n and g.inputs(r)[0] != part[1]:
            c = g.scalar(part[1]) or math.nan
            c = c if kind == "mul" else 1 / c
            s = g.only_reader(r)
            if s is not None and g.kind(s) == "add" and g.scalar(other(g, s, r)) == c:
                return s, c, [n, r], [part[1], other(g, s, r)]
    return None


def _between(g: Draft, n: NodeId, x: NodeId) -> list[NodeId]:
    """The ops of a polynomial of x."""
    out: dict[NodeId, None] = {}
    stack = [n]
    while stack:
        i = stack.pop()
        if i == x or i in out or g.scalar(i) is not None:
            continue
        out[i] = None
        stack += g.inputs(i)
    return list(out)


@rule(anchors=(Activation,), group="recognise", reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.CONSTANT))
def recognise_silu(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``x · sigmoid(x)``, also written ``x / (1 + exp(-x))``, becomes SiLU."""
    kind = g.op(n).kind  # type: ignore[attr-defined]
    if kind == "exp":
        return _silu_of_exp(g, n)
    if kind != "sigmoid":
        return None
    arg = g.inputs(n)[0]
    wrong = None
    for p in _products(g, n, 1.0, [], []):
        line = polynomial(g, arg, p.x, 2)
        if line is None or set(line) != {1}:
            continue
        if line[1] == 1 and p.coefficient == 1:
            p.members += _between(g, arg, p.x)
            p.constants += scalars(g, *_between(g, arg, p.x))
            return _activated(g, p, "silu")
        wrong = wrong or Refused(Refusal.CONSTANT, n, facts=(("slope", line[1]), ("factor", p.coefficient)))
    return wrong


def _silu_of_exp(g: Draft, n: NodeId) -> Outcome:
    """x / (1 + exp(-x)), or x times the reciprocal."""
    arg = g.inputs(n)[0]
    if g.kind(arg) not in ("neg", "mul"):
        return None
    one = next((r for r in readers(g, n) if g.kind(r) == "add" and g.scalar(other(g, r, n)) == 1), None)
    if one is None:
        return None
    for r in readers(g, one):
        members, end, x = [n, one], r, None
        if g.kind(r) == "div" and g.inputs(r)[1] == one:
            x = g.inputs(r)[0]
            if g.scalar(x) == 1:
                members, x = [*members, r], None
        elif g.kind(r) == "reciprocal":
            members.append(r)
        else:
            continue
        if x is None:
            p = next((p for p in _products(g, r, 1.0, members[:-1], []) if polynomial(g, arg, p.x, 2)), None)
            if p is None:
                continue
            x, end, members = p.x, p.end, p.members
        line = polynomial(g, arg, x, 2)
        if line is None or set(line) != {1}:
            continue
        if line[1] != -1:
            return Refused(Refusal.CONSTANT, arg, facts=(("slope", -line[1]),))
        return _activated(g, _Product(x, 1.0, end, [*members, *_between(g, arg, x)], scalars(g, one, arg)), "silu")
    return None


@rule(anchors=(Activation, Binary), group="recognise", reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.CONSTANT))
def recognise_hardswish(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``x · clip(x + 3, 0, 6) / 6`` in any order, also over hard-sigmoid or min and max, becomes hard-swish."""
    op = g.op(n)
    kind = op.kind  # type: ignore[attr-defined]
    slope, members, constants = 1.0, [], []
    if kind == "hardsigmoid":
        arg, slope, shift, top = g.inputs(n)[0], op.alpha, op.beta, 1.0  # type: ignore[attr-defined]
    elif kind == "clip" and op.alpha == 0:  # type: ignore[attr-defined]
        arg, shift, top = g.inputs(n)[0], 0.0, op.beta  # type: ignore[attr-defined]
    elif kind == "min":
        upper = g.split(n)
        lower = g.split(upper[0]) if upper and is_max(g, upper[0]) else None
        if upper is None or lower is None or g.scalar(lower[1]) != 0:
            return None
        arg, shift, top = lower[0], 0.0, g.scalar(upper[1]) or 0.0
        members, constants = [upper[0]], [upper[1], lower[1]]
    else:
        return None
    dtype, wrong = g.dtype(n), None
    for p in _products(g, n, 1.0, members, constants):
        line = polynomial(g, arg, p.x, 3)
        if line is None or not line.get(1) or set(line) - {0, 1}:
            continue
        a, b, c = slope * line[1], shift + slope * line.get(0, 0.0), p.coefficient
        if near(a * c, 1 / 6, dtype) and near(b * c, 0.5, dtype) and near(top * c, 1.0, dtype):
            p.members += _between(g, arg, p.x)
            p.constants += scalars(g, *_between(g, arg, p.x))
            return _activated(g, p, "hardswish")
        wrong = Refused(Refusal.CONSTANT, n, facts=(("slope", a * c), ("shift", b * c), ("top", top * c)))
    return wrong
