"""Owns attention over the thirds of one packed projection."""

from __future__ import annotations

from dataclasses import dataclass

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.attention import turned_back
from planner_core.fusion.rules.recognise import inside
from planner_core.fusion.rules.rope import shared_tables
from planner_core.ir import NodeId
from planner_core.ir.ops import Attention, FusedAttentionBlock, Narrow, Reshape, Rope, Transpose


@dataclass(frozen=True, slots=True)
class _Third:
    """A third of a packed row."""

    packed: NodeId
    index: int
    turn: NodeId | None
    """The transpose of ``[B, S, 3, H, D]`` that brings the thirds to the front, if one does."""
    members: tuple[NodeId, ...]
    rope: NodeId | None = None


@rule(anchors=(Attention,), group="attention", reasons=(
    Refusal.SHARED, Refusal.OUTPUT, Refusal.MASK, Refusal.LAYOUT, Refusal.DTYPE, Refusal.KIND, Refusal.ROTATION))
def packed_qkv(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Attention over thirds of one projection reads the packed row; the slices and transposes between them go.

    Queries and keys may both be rotated, by the same tables over whole heads, in halves.
    """
    op = g.op(n)
    assert isinstance(op, Attention)
    if op.kv_heads not in (0, op.num_heads):
        return None
    thirds = [_third(g, i, op) for i in g.inputs(n)[:3]]
    if any(t is None for t in thirds):
        return None
    q, k, v = (t for t in thirds if t is not None)
    if not q.packed == k.packed == v.packed:
        return None
    if (q.index, k.index, v.index) != (0, 1, 2):
        return Refused(Refusal.LAYOUT, n, facts=(("thirds", (q.index, k.index, v.index)),))
    if op.mask_kind == "sliding_window":
        return Refused(Refusal.MASK, n, facts=(("mask", op.mask_kind),))
    if op.softcap:
        return Refused(Refusal.KIND, n, facts=(("softcap", op.softcap),))
    for i, t in zip(g.inputs(n), (q, k, v), strict=False):
        if not _keeps_rows(g, i, t, op):
            return Refused(Refusal.LAYOUT, i, facts=(("operand", str(g.shape(i))), ("packed", str(g.shape(t.packed)))))
    tables = shared_tables(g, [q.rope, k.rope, v.rope], op.head_dim)
    if isinstance(tables, Refused):
        return tables
    if g.dtype(n) not in limits.profile.region_dtypes:
        return Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),))
    end, members = n, [i for t in (q, k, v) for i in t.members]
    if op.layout == "bhsd":
        turned = turned_back(g, n, (g.dims(n)[0], g.dims(n)[1]))
        if turned is None:
            return Refused(Refusal.LAYOUT, n, facts=(("result", str(g.shape(n))),))
        end, members = turned[-1], [n, *turned[:-1], *members]
    if stop := inside(g, members, end if end != n else n):
        return stop
    r = Rewrite(g, end)
    block = FusedAttentionBlock(op.num_heads, op.head_dim, bool(tables), op.mask_kind, op.score_scale)
    y = r.add(block, q.packed, *tables, *g.inputs(n)[3:])
    return r.replace(end, r.reshape(y, g.shape(end).dims))


def _third(g: Draft, n: NodeId, op: Attention) -> _Third | None:
    """Which third of which packed row an operand of attention is."""
    members: list[NodeId] = []
    rope: NodeId | None = None
    width = op.num_heads * op.head_dim
    for _ in range(5):
        cut = g.op(n)
        members.append(n)
        x = g.inputs(n)[0] if g.inputs(n) else n
        if isinstance(cut, Narrow):
            dims = g.dims(x)
            if op.layout == "bshd" and cut.axis % len(dims) == 2 and len(dims) == 3 and cut.len == width and dims[2] == 3 * width:
                return _Third(x, cut.start // width, None, tuple(members), rope) if cut.start % width == 0 else None
            turn = g.op(x)
            if cut.axis == 0 and cut.len == 1 and dims[0] == 3 and isinstance(turn, Transpose):
                packed = g.inputs(x)[0]
                want = (2, 0, 3, 1, 4) if op.layout == "bhsd" else (2, 0, 1, 3, 4)
                fits = turn.perm == want and g.dims(packed)[2:] == (3, op.num_heads, op.head_dim)
                return _Third(packed, cut.start, x, (*members, x), rope) if fits else None
            if cut.axis % len(dims) == 2 and len(dims) == 5 and dims[2:] == (3, op.num_heads, op.head_dim) and cut.len == 1 \
                    and op.layout == "bshd":
                return _Third(x, cut.start, None, tuple(members), rope)
            return None
        if isinstance(cut, Rope) and rope is None:
            rope = n
        elif not isinstance(cut, Reshape):
            return None
        n = x
    return None


def _keeps_rows(g: Draft, n: NodeId, t: _Third, op: Attention) -> bool:
    """No reshape between the packed rows and the operand moves values to other sequences, rows or heads."""
    batch, rows = g.shape(t.packed).dims[:2]
    at = (0, 2) if op.layout == "bhsd" else (0, 1)
    for i in (n, *(() if t.rope is None else (t.rope,))):
        dims = g.shape(i).dims
        if (op.layout == "bhsd" or i == t.rope) and len(dims) != (4 if op.layout == "bhsd" else 3):
            return False
        if not dims[at[0]].same(batch) or not dims[at[1]].same(rows):
            return False
    return op.layout == "bshd" or all(
        g.dims(i)[1] == op.num_heads for i in (n, *(() if t.rope is None else (t.rope,))))
