"""Owns rotary embedding, written as slices and rotations, and rows appended to a cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.recognise import equal_values, frozen, inside, other, thin
from planner_core.ir import NodeId
from planner_core.ir.ops import (
    Activation,
    Binary,
    Cast,
    Concat,
    Expand,
    Gather,
    Input,
    KvAppend,
    Narrow,
    Reshape,
    Rope,
    Slice,
    Transpose,
)

HEADS_AND_ROWS = (0, 2, 1, 3)
"""The transpose between ``[B, S, H, D]`` and ``[B, H, S, D]``."""
MOST_TABLE_STEPS = 8
"""Ops between a table and the concat that doubled it."""


def last_axis(g: Draft, n: NodeId, axis: int) -> bool:
    return axis % g.shape(n).rank == g.shape(n).rank - 1


# --- halves and pairs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Half:
    """Elements of ``x``'s last axis: a half of the first ``2 · size``, or every other one."""

    x: NodeId
    second: bool
    size: int
    interleaved: bool


def _half(g: Draft, n: NodeId, members: list[NodeId]) -> _Half | None:
    """What a slice along the last axis takes; the ops that do it join ``members``."""
    op = g.op(n)
    if isinstance(op, Narrow) and last_axis(g, n, op.axis) and op.start in (0, op.len) and op.len > 0:
        members.append(n)
        return _Half(g.inputs(n)[0], op.start > 0, op.len, False)
    if isinstance(op, Slice) and len(op.axes) == 1 and last_axis(g, n, op.axes[0]):
        start, step, x = op.starts[0], op.steps[0], g.inputs(n)[0]
        size = g.dims(n)[-1]
        if step == 2 and start in (0, 1) and g.dims(x)[-1] == 2 * size:
            members.append(n)
            return _Half(x, start == 1, size, True)
        if step == 1 and start in (0, size) and size > 0:
            members.append(n)
            return _Half(x, start > 0, size, False)
        return None
    return _of_pair(g, n, members)


def _of_pair(g: Draft, n: NodeId, members: list[NodeId]) -> _Half | None:
    """One of each pair of ``x`` seen as ``[.., d / 2, 2]``."""
    cut = thin(g, n)
    op = g.op(cut)
    if isinstance(op, Narrow) and last_axis(g, cut, op.axis) and op.len == 1 and op.start in (0, 1):
        which = op.start
    elif isinstance(op, Gather) and last_axis(g, g.inputs(cut)[0], op.axis):
        index = g.scalar(g.inputs(cut)[1])
        if index not in (0, 1, -1, -2) or len(g.dims(g.inputs(cut)[1])) > 1:
            return None
        which = int(index) % 2
    else:
        return None
    pairs = g.inputs(cut)[0]
    if not isinstance(g.op(pairs), Reshape) or g.dims(pairs)[-1] != 2:
        return None
    x = g.inputs(pairs)[0]
    size = g.dims(pairs)[-2]
    if g.dims(x) != (*g.dims(pairs)[:-2], 2 * size) or size < 1:
        return None
    at = n
    while at != cut:
        members.append(at)
        at = g.inputs(at)[0]
    members += [cut, pairs]
    return _Half(x, which == 1, size, True)


def _joined(g: Draft, n: NodeId, members: list[NodeId]) -> tuple[NodeId, NodeId, bool] | None:
    """(first, second, interleaved) of two halves put side by side, or of pairs put together and flattened."""
    op = g.op(n)
    if isinstance(op, Concat) and last_axis(g, n, op.axis) and len(g.inputs(n)) == 2:
        members.append(n)
        a, b = g.inputs(n)
        return a, b, False
    if not isinstance(op, Reshape):
        return None
    c = g.inputs(n)[0]
    stack = g.op(c)
    if not isinstance(stack, Concat) or len(g.inputs(c)) != 2 or not last_axis(g, c, stack.axis) or g.dims(c)[-1] != 2:
        return None
    if len(g.dims(c)) < 2 or g.dims(n) != (*g.dims(c)[:-2], 2 * g.dims(c)[-2]):
        return None
    members += [n, c]
    parts = []
    for i in g.inputs(c):
        inner = i
        if isinstance(g.op(i), Reshape) and g.dims(i) == (*g.dims(g.inputs(i)[0]), 1):
            members.append(i)
            inner = g.inputs(i)[0]
        parts.append(inner)
    return parts[0], parts[1], True


@dataclass(slots=True)
class _Rotation:
    """``x`` rotated by tables up to ``end``; ``doubled``: the tables are as wide as what they rotate."""

    x: NodeId
    cos: NodeId
    sin: NodeId
    n_rot: int
    interleaved: bool
    doubled: bool
    end: NodeId
    members: list[NodeId] = field(default_factory=list)


def _rotated(g: Draft, n: NodeId, members: list[NodeId]) -> _Half | None:
    """x of ``concat(-x₂, x₁)``, or of the same in pairs."""
    found = _joined(g, n, members)
    if found is None:
        return None
    minus, plus, interleaved = found
    if isinstance(g.op(minus), Reshape):  # the unsqueeze before the sign
        return None
    if g.kind(minus) != "neg":
        return None
    members.append(minus)
    second, first = _half(g, g.inputs(minus)[0], members), _half(g, plus, members)
    if first is None or second is None or first.x != second.x or first.second or not second.second:
        return None
    if first.interleaved is not interleaved or second.interleaved is not interleaved or first.size != second.size:
        return None
    return first if g.dims(first.x)[-1] == 2 * first.size else None


def _by_sum(g: Draft, n: NodeId) -> _Rotation | None:
    """``x · cos + rotate(x) · sin``."""
    a, b = g.inputs(n)
    if g.kind(a) != "mul" or g.kind(b) != "mul":
        return None
    for plain, turned in ((a, b), (b, a)):
        for r in g.inputs(turned):
            if not isinstance(g.op(r), (Concat, Reshape)):
                continue
            members = [plain, turned]
            half = _rotated(g, r, members)
            if half is None or half.x not in g.inputs(plain):
                continue
            return _Rotation(half.x, other(g, plain, half.x), other(g, turned, r), 2 * half.size, half.interleaved, True,
                             n, members)
    return None


def _product_of(g: Draft, n: NodeId, members: list[NodeId]) -> list[tuple[NodeId, _Half]] | None:
    """(table, half) of ``half · table``, both ways round where either operand could be the half."""
    if g.kind(n) != "mul":
        return None
    out = []
    for i in g.inputs(n):
        more: list[NodeId] = []
        half = _half(g, i, more)
        if half is not None:
            members += more
            out.append((other(g, n, i), half))
    members.append(n)
    return out


def _by_halves(g: Draft, n: NodeId) -> _Rotation | None:
    """``concat(x₁ · cos - x₂ · sin, x₂ · cos + x₁ · sin)``, or the same in pairs."""
    members: list[NodeId] = []
    found = _joined(g, n, members)
    if found is None:
        return None
    low, high, interleaved = found
    if g.kind(low) != "sub" or g.kind(high) != "add":
        return None
    parts = [_product_of(g, i, members) for i in (*g.inputs(low), *g.inputs(high))]
    if any(p is None for p in parts):
        return None
    members += [low, high]
    a, b, c, d = (p or [] for p in parts)
    for cos, x1 in a:
        for sin, x2 in b:
            if x1.second or not x2.second or x1.x != x2.x or x1.size != x2.size:
                continue
            crossed = ((cos, x2), (sin, x1))
            if not ((crossed[0] in c and crossed[1] in d) or (crossed[1] in c and crossed[0] in d)):
                continue
            if x1.interleaved is not interleaved or x2.interleaved is not interleaved or g.dims(x1.x)[-1] != 2 * x1.size:
                continue
            return _Rotation(x1.x, cos, sin, 2 * x1.size, interleaved, False, n, members)
    return None


# --- tables -------------------------------------------------------------------------------------------


def _positions(g: Draft, table: NodeId, x: NodeId, width: int) -> tuple[int, bool] | None:
    """(positions, heads come before them) of a table ``[S, width]`` as it broadcasts over x; None if it is no such."""
    dims, full = g.dims(table), g.dims(x)
    if len(dims) > len(full) or len(full) < 2 or not dims or dims[-1] != width:
        return None
    padded = (1,) * (len(full) - len(dims)) + dims
    rows = [i for i, d in enumerate(padded[:-1]) if d != 1]
    if not rows:  # one position
        return (1, full[-2] == 1) if 1 in full[-3:-1] else None
    if rows == [len(full) - 2]:
        return padded[-2], True
    if rows == [len(full) - 3]:
        return padded[-3], False
    return None


def _is_doubled(g: Draft, n: NodeId, interleaved: bool, steps: int = MOST_TABLE_STEPS) -> bool:
    """The two halves (or the two of each pair) of a table are equal, by its values or by how it was made."""
    known = g.array(n)
    if known is not None:
        a, b = (known[..., ::2], known[..., 1::2]) if interleaved else np.split(known, 2, axis=-1)
        return bool(np.array_equal(a, b))
    op, ins = g.op(n), g.inputs(n)
    if steps == 0 or not ins:
        return False
    if isinstance(op, Concat) and len(ins) == 2 and last_axis(g, n, op.axis) and not interleaved:
        return equal_values(g, *ins)
    if isinstance(op, (Activation, Cast)):
        return _is_doubled(g, ins[0], interleaved, steps - 1)
    if isinstance(op, Reshape):
        x = ins[0]
        pair = g.op(x)
        if interleaved and g.dims(x)[-1] == 2 and ((isinstance(pair, Expand) and g.dims(g.inputs(x)[0])[-1:] == (1,)) or (
                isinstance(pair, Concat) and len(g.inputs(x)) == 2 and equal_values(g, *g.inputs(x)))):
            return True
        return g.dims(x)[-1:] == g.dims(n)[-1:] and _is_doubled(g, x, interleaved, steps - 1)
    if isinstance(op, Expand) and g.dims(ins[0])[-1:] == g.dims(n)[-1:]:
        return _is_doubled(g, ins[0], interleaved, steps - 1)
    part = g.split(n) if isinstance(op, Binary) else None
    return part is not None and _is_doubled(g, part[0], interleaved, steps - 1)


def _table(g: Draft, r: Rewrite, table: NodeId, rows: int, rot: _Rotation) -> NodeId:
    """The table as the op takes it: ``[S, n_rot / 2]``."""
    width, half = g.dims(table)[-1], rot.n_rot // 2
    flat = r.reshape(table, (rows, width))
    if not rot.doubled:
        return flat
    if rot.interleaved:
        return r.add(Slice((1,), (0,), (width,), (2,)), flat)
    return r.add(Narrow(1, 0, half), flat)


def shared_tables(g: Draft, ropes: list[NodeId | None], head_dim: int) -> tuple[NodeId, ...] | Refused:
    """cos and sin that q and k share, or nothing; v is never rotated."""
    q, k, v = ropes
    if q is None and k is None and v is None:
        return ()
    if q is None or k is None or v is not None:
        return Refused(Refusal.ROTATION, next(i for i in ropes if i is not None))
    for i in (q, k):
        op = g.op(i)
        assert isinstance(op, Rope)
        if (op.interleaved or op.n_rot != head_dim or op.head_dim != head_dim or g.inputs(i)[1:] != g.inputs(q)[1:]):
            return Refused(Refusal.ROTATION, i, facts=(("interleaved", op.interleaved), ("n_rot", op.n_rot)))
    return g.inputs(q)[1:]


# --- rules --------------------------------------------------------------------------------------------


@rule(anchors=(Binary, Concat, Reshape), group="rope", reasons=(
    Refusal.ROTATION, Refusal.LAYOUT, Refusal.SHARED, Refusal.OUTPUT, Refusal.DTYPE, Refusal.UNKNOWN_SHAPE))
def rope(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Rotary embedding from slices, signs and tables becomes one op, pairs in halves or interleaved, in part or whole.

    Tables written twice side by side are halved; heads may stand before or after the positions.
    """
    op = g.op(n)
    if isinstance(op, Binary):
        found = _by_sum(g, n) if op.kind == "add" else None
    elif isinstance(op, Concat) and last_axis(g, n, op.axis):
        part = _rest_kept(g, n)
        if part is not None:
            return part
        found = _by_halves(g, n)
    elif isinstance(op, Reshape) and isinstance(g.op(g.inputs(n)[0]), Concat):
        found = _by_halves(g, n)
    else:
        return None
    if found is None:
        return None
    if any(d < 0 for d in g.dims(found.x)):
        return Refused(Refusal.UNKNOWN_SHAPE, found.x, facts=(("x", str(g.shape(found.x))),))
    return _rewritten(g, found, limits)


def _rewritten(g: Draft, rot: _Rotation, limits: Limits) -> Outcome:
    x, dtype = rot.x, g.dtype(rot.x)
    if dtype not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, x, facts=(("dtype", str(dtype)),))
    width = rot.n_rot if rot.doubled else rot.n_rot // 2
    places = [_positions(g, t, x, width) for t in (rot.cos, rot.sin)]
    if None in places or places[0] != places[1] or g.dims(rot.end) != g.dims(x):
        return Refused(Refusal.LAYOUT, rot.cos, nodes=(rot.sin,), facts=(
            ("tables", f"{g.shape(rot.cos)}, {g.shape(rot.sin)}"), ("x", str(g.shape(x)))))
    if rot.doubled:
        for t in (rot.cos, rot.sin):
            if not _is_doubled(g, t, rot.interleaved):
                return Refused(Refusal.ROTATION, t, facts=(("interleaved", rot.interleaved),))
    if stop := inside(g, [i for i in rot.members if i != rot.end], rot.end):
        return stop
    assert places[0] is not None
    rows, heads_first = places[0]
    r = Rewrite(g, rot.end)
    cos, sin = (_table(g, r, t, rows, rot) for t in (rot.cos, rot.sin))
    dims, head = g.shape(x).dims, g.dims(x)[-1]
    made = Rope(head, rot.n_rot, rot.interleaved)
    if not heads_first:
        flat = (*dims[:-2], g.dims(x)[-2] * head)
        y = r.reshape(r.add(made, r.reshape(x, flat), cos, sin), dims)
    else:
        y = _turned(r, made, x, cos, sin, rot.members)
    r.replace(rot.end, y).note(n_rot=rot.n_rot, interleaved=rot.interleaved)
    return frozen(g, r, *(t for t in (rot.cos, rot.sin) if rot.doubled and g.array(t) is not None))


def _turned(r: Rewrite, made: Rope, x: NodeId, cos: NodeId, sin: NodeId, members: list[NodeId]) -> NodeId:
    """x rotated; rows whose heads a transpose brought before are rotated as they come and transposed after, so that
    attention can do without the transpose."""
    g = r.draft
    if not _is_turned(g, x) or not all(i in members for i in g.readers(x)):
        return r.add(made, x, cos, sin)
    rows_first = g.inputs(x)[0]
    b, s, h, d = g.dims(rows_first)
    turned = r.add(made, r.reshape(rows_first, (b, s, h * d)), cos, sin)
    return r.add(Transpose(HEADS_AND_ROWS), r.reshape(turned, (b, s, h, d)))


def _is_turned(g: Draft, x: NodeId) -> bool:
    op = g.op(x)
    return isinstance(op, Transpose) and op.perm == HEADS_AND_ROWS


def _rest_kept(g: Draft, n: NodeId) -> Outcome:
    """``concat(rope(x[.., :n]), x[.., n:])`` rotates x in part."""
    ins = g.inputs(n)
    if len(ins) != 2:
        return None
    turned, members = ins[0], [ins[0]]
    if isinstance(g.op(turned), Reshape):
        turned = g.inputs(turned)[0]
        members.append(turned)
    op, rest = g.op(turned), g.op(ins[1])
    if not isinstance(op, Rope) or not isinstance(rest, Narrow) or op.head_dim != g.dims(ins[0])[-1]:
        return None
    cut, x = g.inputs(turned)[0], g.inputs(ins[1])[0]
    if isinstance(g.op(cut), Reshape):
        members.append(cut)
        cut = g.inputs(cut)[0]
    first = g.op(cut)
    if not isinstance(first, Narrow) or not last_axis(g, cut, first.axis) or first.start != 0:
        return None
    if g.inputs(cut)[0] != x or not last_axis(g, n, rest.axis) or g.dims(n) != g.dims(x):
        return None
    if (first.len, rest.start) != (op.head_dim, op.head_dim):
        return None
    if stop := inside(g, [*members, cut, ins[1]], n):
        return stop
    _, cos, sin = g.inputs(turned)
    made = Rope(g.dims(x)[-1], op.n_rot, op.interleaved)
    r = Rewrite(g, n)
    if g.dims(turned)[-1] == op.head_dim:
        y = _turned(r, made, x, cos, sin, [cut, ins[1]])
    else:
        y = r.add(made, r.reshape(x, (*g.shape(x).dims[:-2], g.dims(x)[-2] * g.dims(x)[-1])), cos, sin)
    return r.replace(n, r.reshape(y, g.shape(x).dims)).note(n_rot=op.n_rot)


@rule(anchors=(Concat,), group="rope", reasons=(Refusal.SHARED, Refusal.OUTPUT))
def kv_append(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A cache's first rows with new ones behind them, as long as the cache, become new rows written into the cache.

    The cache must be an input that nothing else reads: it is written in place. A cache without room for the new rows
    is refused (``SHAPE``).
    """
    op = g.op(n)
    assert isinstance(op, Concat)
    ins = g.inputs(n)
    if len(ins) != 2 or g.shape(n).rank < 3 or last_axis(g, n, op.axis) or g.static[ins[1]]:
        return None
    axis, past = op.axis % g.shape(n).rank, ins[0]
    cut = g.op(past)
    cache = g.inputs(past)[0] if isinstance(cut, Narrow) else past
    if not isinstance(g.op(cache), Input) or isinstance(g.op(ins[1]), Input):
        return None
    if not isinstance(cut, Narrow) or cut.axis % g.shape(n).rank != axis or cut.start != 0 or g.dims(cache) != g.dims(n):
        return Refused(Refusal.SHAPE, cache, facts=(("cache", str(g.shape(cache))), ("result", str(g.shape(n)))))
    for i in (past, cache):
        if stop := g.shared(i):
            return stop
    r = Rewrite(g, n)
    return r.replace(n, r.add(KvAppend(axis, cut.len), cache, ins[1])).note(start=cut.len)
