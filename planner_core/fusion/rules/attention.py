"""Owns attention written out: products, scale, mask and softmax become one kernel, its heads where they already are.

It starts at the softmax: down to the product of queries and keys, through scale, soft cap and mask in any order that
means the same, then up to the product with the values, then along each operand to where its heads are split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.recognise import frozen, inside, other, readers
from planner_core.ir import Array, DType, NodeId
from planner_core.ir.ops import (
    Activation,
    Attention,
    Binary,
    Cast,
    Concat,
    Expand,
    MatMul,
    Reshape,
    Softmax,
    Transpose,
    TransposedMatMul,
    Where,
)

HEADS_AND_ROWS = (0, 2, 1, 3)
HIDDEN = -1e4
"""A score this low, or lower, means that the key is not seen."""
ABSORBS = -1e30
"""A fill this low swallows any score added to it: in f32 and bf16 half a step there is more than 3e22, so that the sum
is the fill itself and a row that sees no key stays even over all of them. -1e9 swallows scores below 32 only, and f16
has no such value."""
MOST_STEPS = 12
_PRODUCTS = (MatMul, TransposedMatMul)


# --- scores -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Scores:
    """From the softmax's operand down to a product: ``softcap(product · scale) + mask``."""

    product: NodeId = -1
    scale: float = 1.0
    softcap: float = 0.0
    mask: NodeId | None = None
    fill: float | None = None
    """With a condition as mask: what hidden scores are set to."""
    keep: bool = True
    """With a condition as mask: it is true where keys are seen."""
    heads: tuple[int, int] | None = None
    masked_rank: int = 0
    members: list[NodeId] = field(default_factory=list)
    constants: list[NodeId] = field(default_factory=list)


def _leads(g: Draft, n: NodeId, steps: int = MOST_STEPS) -> bool:
    """A product is reached through what may stand between it and the softmax."""
    while steps:
        op = g.op(n)
        if isinstance(op, _PRODUCTS):
            return True
        ins = g.inputs(n)
        if isinstance(op, (Reshape, Cast)) or (isinstance(op, Activation) and g.kind(n) == "tanh"):
            n = ins[0]
        elif isinstance(op, Where):
            n = ins[2] if g.scalar(ins[1]) is not None else ins[1]
        elif isinstance(op, Binary) and g.kind(n) in ("mul", "div", "add", "sub"):
            part = g.split(n)
            if part is None:
                return any(_leads(g, i, min(steps - 1, 4)) for i in ins if not g.static[i])
            n = part[0]
        else:
            return False
        steps -= 1
    return False


def _down(g: Draft, top: NodeId) -> _Scores | Refused | None:
    """The scores behind a softmax's operand."""
    s, n = _Scores(), top
    for _ in range(MOST_STEPS):
        op, ins = g.op(n), g.inputs(n)
        if isinstance(op, _PRODUCTS):
            s.product = n
            return s
        s.members.append(n)
        if g.shape(n).rank == 4:
            s.heads = (g.dims(n)[0], g.dims(n)[1])
        if (isinstance(op, Cast) and g.dtype(ins[0]).is_float) or (
                isinstance(op, Reshape) and g.dims(n)[-2:] == g.dims(ins[0])[-2:]):
            n = ins[0]
        elif isinstance(op, Activation) and g.kind(n) == "tanh":
            if s.softcap or s.scale <= 0:
                return None
            s.softcap, s.scale, n = s.scale, 1.0, ins[0]
        elif isinstance(op, Where):
            which = 1 if g.scalar(ins[1]) is not None else 2
            fill = g.scalar(ins[which])
            if fill is None or not _leads(g, ins[3 - which]):
                return None
            if s.mask is not None or s.softcap or s.scale != 1 or fill > HIDDEN:
                return Refused(Refusal.MASK, n, facts=(("fill", fill),))
            s.mask, s.fill, s.keep, n = ins[0], fill, which == 2, ins[3 - which]
            s.constants.append(ins[which])
            s.masked_rank = g.shape(s.members[-1]).rank
        elif isinstance(op, Binary) and g.kind(n) in ("mul", "div", "add"):
            found = _through_binary(g, s, n)
            if not isinstance(found, int):
                return found
            n = found
        else:
            return None
    return None


def _through_binary(g: Draft, s: _Scores, n: NodeId) -> NodeId | Refused | None:
    """The operand on the way to the product; the other is the scale or the mask."""
    a, b = g.inputs(n)
    kind = g.kind(n)
    part = g.split(n)
    if kind != "add" and part is not None and (kind == "mul" or part[1] == b):
        value = g.scalar(part[1]) or math.nan
        s.scale = s.scale * value if kind == "mul" else s.scale / value
        s.constants.append(part[1])
        return part[0]
    towards = [i for i in (a, b) if _leads(g, i)]
    if len(towards) == 2:
        towards = [i for i in towards if g.dims(i) == g.dims(n) and g.dims(other(g, n, i)) != g.dims(n)]
    if len(towards) != 1:
        return None
    beside = other(g, n, towards[0])
    if kind != "add":
        return Refused(Refusal.SCALE, beside, facts=(("scale", str(g.shape(beside))),))
    if s.mask is not None or s.softcap or s.scale != 1:
        return Refused(Refusal.MASK, n, nodes=(beside,), facts=(("scaled", s.scale), ("masks", 2 if s.mask is not None else 1)))
    s.mask, s.masked_rank = beside, g.shape(n).rank
    return towards[0]


# --- operands -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Operand:
    """Queries, keys or values: ``node`` ``[B, H, S, D]`` or ``[N, S, D]``, and ``rows`` ``[B, S, H, D]`` behind it.

    -1 where no node holds them so: then there are ``rows``, or ``first`` ``[S, N, D]``.
    """

    node: NodeId
    groups: int = 1
    rows: NodeId | None = None
    first: NodeId | None = None
    heads: tuple[int, int] | None = None
    scale: float = 1.0
    turned: bool = False
    """Keys: the last two axes are still exchanged."""
    constants: list[NodeId] = field(default_factory=list)


def _operand(g: Draft, n: NodeId, keys: bool, scaled: bool) -> _Operand | None:
    """Look through scale, casts, merged heads, the keys' exchange of axes, and copies of shared heads."""
    o = _Operand(n, turned=keys)
    for _ in range(MOST_STEPS):
        op, ins = g.op(o.node), g.inputs(o.node)
        n = o.node
        rank = g.shape(n).rank
        if rank == 4 and o.heads is None:
            o.heads = (g.dims(n)[0], g.dims(n)[1] * o.groups)
        x = ins[0] if ins else n
        if scaled and isinstance(op, Binary) and g.kind(n) in ("mul", "div"):
            part = g.split(n)
            if part is None or (g.kind(n) == "div" and part[1] != ins[1]) or g.dims(part[0]) != g.dims(n):
                break
            value = g.scalar(part[1]) or math.nan
            o.scale = o.scale * value if g.kind(n) == "mul" else o.scale / value
            o.constants.append(part[1])
            x = part[0]
        elif isinstance(op, Cast) and g.dtype(x).is_float and g.dtype(x).bits < g.dtype(n).bits:
            pass
        elif o.turned and isinstance(op, Transpose):
            if op.perm == (0, 2, 3, 1) and rank == 4:  # heads and rows at once
                o.turned, o.rows, o.node = False, x, -1
                return _shared_rows(g, o)
            if op.perm == (1, 2, 0):
                o.turned, o.first, o.node = False, x, -1
                return o
            if op.perm != (*range(rank - 2), rank - 1, rank - 2):
                break
            o.turned = False
        elif not o.turned and (shared := _shared(g, n, o)) is not None:
            x, groups = shared
            o.groups *= groups
            o.heads = o.heads if o.heads is not None else (g.dims(x)[0], g.dims(x)[1] * o.groups)
        elif isinstance(op, Reshape) and _merges(g, x, n):
            pass
        else:
            break
        o.node = x
    if o.turned:
        return None
    op = g.op(o.node)
    if isinstance(op, Transpose) and op.perm == HEADS_AND_ROWS:
        o.rows = g.inputs(o.node)[0]
        return _shared_rows(g, o)
    return o


def _merges(g: Draft, x: NodeId, n: NodeId) -> bool:
    """A reshape between ``[B, H, ., .]`` and ``[B · H, ., .]``."""
    a, b = g.dims(x), g.dims(n)
    return a[-2:] == b[-2:] and {len(a), len(b)} <= {3, 4} and min((*a, *b)) > 0


def _copies(g: Draft, n: NodeId, axis: int) -> tuple[NodeId, int] | None:
    """(x, G) of x, whose ``axis`` has extent 1, repeated G times along it by an expand or a concat."""
    op, ins = g.op(n), g.inputs(n)
    if isinstance(op, Expand) or (isinstance(op, Concat) and len(set(ins)) == 1 and op.axis % g.shape(n).rank == axis):
        a, b = g.dims(ins[0]), g.dims(n)
        if len(a) == len(b) and a[axis] == 1 and a[:axis] + a[axis + 1:] == b[:axis] + b[axis + 1:] and b[axis] > 0:
            return ins[0], b[axis]
    return None


def _shared(g: Draft, n: NodeId, o: _Operand) -> tuple[NodeId, int] | None:
    """(``[B, KV, S, D]``, G) of heads that were copied G times each."""
    if isinstance(g.op(n), Reshape):
        wide = g.inputs(n)[0]
        if g.shape(wide).rank != 5 or g.dims(wide)[3:] != g.dims(n)[-2:]:
            return None
        found = _copies(g, wide, 2)
        if found is None:
            return None
        narrow, groups = found
        b, kv, _, s, d = g.dims(narrow)
        inner = g.inputs(narrow)[0] if isinstance(g.op(narrow), Reshape) else None
        return (inner, groups) if inner is not None and g.dims(inner) == (b, kv, s, d) else None
    return _copies(g, n, 1) if g.shape(n).rank == 4 else None


def _shared_rows(g: Draft, o: _Operand) -> _Operand:
    """Heads copied in ``[B, S, KV, G, D]``, before the transpose."""
    assert o.rows is not None
    if o.groups > 1 or not isinstance(g.op(o.rows), Reshape):
        return o
    wide = g.inputs(o.rows)[0]
    if g.shape(wide).rank != 5 or g.shape(o.rows).rank != 4:
        return o
    found = _copies(g, wide, 3)
    if found is None:
        return o
    narrow, groups = found
    b, s, kv, _, d = g.dims(narrow)
    inner = g.inputs(narrow)[0]
    if not isinstance(g.op(narrow), Reshape) or g.dims(inner) != (b, s, kv, d):
        return o
    o.heads = o.heads or (b, kv * groups)
    o.node, o.rows, o.groups = -1, inner, groups  # no node holds them heads first any more
    return o


# --- masks --------------------------------------------------------------------------------------------


def _kind_of(known: Array, rows: int, keys: int) -> tuple[str, int] | None:
    """(kind, window) of the keys that each row sees, ``[.., rows, keys]``, the same for every head."""
    if any(d != 1 for d in known.shape[:-2]) or known.shape[-2:] != (rows, keys):
        return None
    seen = known.reshape(rows, keys)
    if seen.all():
        return "none", 0
    pos, key = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None]
    if rows > keys:
        return None
    if np.array_equal(seen, key <= pos):
        return "causal", 0
    window = int(seen[-1].sum()) - 1
    if window >= 0 and np.array_equal(seen, (key <= pos) & (key >= pos - window)):
        return "sliding_window", window
    return None


def _mask(g: Draft, r: Rewrite, s: _Scores, heads: tuple[int, int], rows: int, keys: int
          ) -> tuple[str, int, tuple[NodeId, ...]] | Refused:
    """(kind, window, operands) of the mask."""
    if s.mask is None:
        return "none", 0, ()
    m = s.mask
    dims = g.dims(m)
    full = (*heads, rows, keys)
    known = g.array(m)
    seen_somewhere = False
    if known is not None and s.fill is not None:
        seen_somewhere = known.ndim > 0 and bool((known.astype(bool) == s.keep).any(-1).all())
    if known is not None and known.ndim >= 2:
        seen = known.astype(bool) if s.fill is not None else np.asarray(known > HIDDEN)
        hides = s.fill is not None or bool((np.asarray(known)[seen] == 0).all())
        kind = _kind_of(seen == s.keep if s.fill is not None else seen, rows, keys) if hides else None
        if kind is not None:
            frozen(g, r, m)
            return *kind, ()
    at = m
    if len(dims) == s.masked_rank == 3:  # over batch · heads, or batch alone where heads are one
        if dims[0] in (1, heads[0] * heads[1]):
            at = r.reshape(m, (*heads, *dims[1:]) if dims[0] != 1 else (1, *dims))
        else:
            return Refused(Refusal.MASK, m, facts=(("mask", str(g.shape(m))), ("scores", full)))
    shape = tuple(d.value for d in r.shape(at).dims)
    padded = (1,) * (4 - len(shape)) + shape
    if len(padded) > 4 or any(a not in (1, b) for a, b in zip(padded, full, strict=True)):
        return Refused(Refusal.MASK, m, facts=(("mask", str(g.shape(m))), ("scores", full)))
    if s.fill is None:
        return "bias", 0, (at,)
    if s.fill == -math.inf:
        return "custom", 0, (at if s.keep else r.add(Activation("not"), at),)
    dtype = g.dtype(s.product)
    if seen_somewhere:
        frozen(g, r, m)
    elif s.fill > ABSORBS or dtype not in (DType.F32, DType.BF16):  # the fill is added, where it stood for the score
        return Refused(Refusal.MASK, m, facts=(("fill", s.fill), ("rows without keys", "may be")))
    zero, low = r.constant(0, dtype), r.constant(s.fill, dtype)
    return "bias", 0, (r.add(Where(), at, zero, low) if s.keep else r.add(Where(), at, low, zero),)


# --- the rule -----------------------------------------------------------------------------------------


@rule(anchors=(Softmax,), group="attention", reasons=(
    Refusal.SHARED, Refusal.OUTPUT, Refusal.DTYPE, Refusal.MIXED_DTYPES, Refusal.MASK, Refusal.SCALE, Refusal.HEADS,
    Refusal.LAYOUT, Refusal.UNKNOWN_SHAPE))
def attention(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Softmax between two products becomes attention: scale, soft cap, mask and shared heads are seen.

    Masks: added, or a condition; causal and sliding windows are told by their constant. Heads stand before or after the
    rows; transposes between the two are left out where all of them agree.
    """
    op = g.op(n)
    assert isinstance(op, Softmax)
    rank = g.shape(n).rank
    if rank not in (3, 4) or op.axis % rank != rank - 1 or g.fan_out(n) > 4:
        return None
    last = _values(g, n)
    if last is None:
        return None
    product, after, guarded = last
    s = _down(g, g.inputs(n)[0])
    if s is None or isinstance(s, Refused):
        return s
    qk = g.op(s.product)
    if isinstance(qk, TransposedMatMul) and qk.trans_a:
        return None
    q_in, k_in = g.inputs(s.product)
    if any(g.shape(i).rank != g.shape(j).rank for i, j in (
            (q_in, s.product), (k_in, s.product), (g.inputs(product)[1], product))):
        return None
    q = _operand(g, q_in, False, True)
    k = _operand(g, k_in, not isinstance(qk, TransposedMatMul), True)
    v = _operand(g, g.inputs(product)[1], False, False)
    if q is None or v is None:
        return None
    if k is None:
        return Refused(Refusal.LAYOUT, k_in, facts=(("keys", str(g.shape(k_in))),))
    if guarded and not _some_seen(g, s):
        return Refused(Refusal.MASK, n, facts=(("rows without keys", "set to 0"),))
    for i in (n, s.product, product, *(_source(o) for o in (q, k, v))):
        if 0 in g.dims(i):
            return Refused(Refusal.SHAPE, i, facts=(("shape", str(g.shape(i))),))
        if min(g.dims(i)) < 0:
            return Refused(Refusal.UNKNOWN_SHAPE, i, facts=(("shape", str(g.shape(i))),))
    return _fused(g, n, limits, s, q, k, v, product, after)


def _some_seen(g: Draft, s: _Scores) -> bool:
    """No row's scores are all -inf, so no probability is NaN (a finite fill leaves a row even; ``_mask`` keeps it so)."""
    if s.mask is None or (s.fill is not None and s.fill > -math.inf):
        return True
    known = g.array(s.mask)
    if known is not None:
        low = known.astype(bool) != s.keep if s.fill is not None else np.isneginf(known)
        return known.ndim > 0 and not bool(low.all(-1).any())
    chosen = [g.scalar(i) for i in g.inputs(s.mask)[1:]] if isinstance(g.op(s.mask), Where) else [None]
    return all(c is not None and c > -math.inf for c in chosen)


def _values(g: Draft, n: NodeId) -> tuple[NodeId, list[NodeId], bool] | None:
    """(product of the probabilities with the values, nodes in between, whether NaN is replaced by 0 there)."""
    at, between, guarded = n, [n], False
    for _ in range(3):
        found = None
        for r in readers(g, at):
            if isinstance(g.op(r), MatMul) and g.inputs(r)[0] == at and g.inputs(r)[1] != at:
                return r, between, guarded
            if isinstance(g.op(r), Where) and g.inputs(r)[2] == at and g.scalar(g.inputs(r)[1]) == 0:
                cond = g.inputs(r)[0]
                if g.kind(cond) == "ne" and g.inputs(cond) == (at, at):
                    between.append(cond)
                    found, guarded = r, True
            if isinstance(g.op(r), (Cast, Reshape)) and g.dims(r)[-2:] == g.dims(at)[-2:]:
                found = r
        if found is None:
            return None
        at = found
        between.append(at)
    return None


def _source(o: _Operand) -> NodeId:
    """The node whose dtype and last extent are the operand's."""
    return o.rows if o.rows is not None else o.first if o.first is not None else o.node


def _fused(g: Draft, n: NodeId, limits: Limits, s: _Scores, q: _Operand, k: _Operand, v: _Operand, product: NodeId,
           after: list[NodeId]) -> Outcome:
    scores = g.dims(s.product)
    heads = (scores[0], scores[1]) if len(scores) == 4 else s.heads or q.heads or k.heads or v.heads
    if heads is None:
        heads = (scores[0], 1)
    batch, count = heads
    if batch * count != math.prod(scores[:-2]):
        return Refused(Refusal.HEADS, s.product, facts=(("heads", count), ("scores", str(g.shape(s.product)))))
    rows, keys, d = scores[-2], scores[-1], g.dims(_source(q))[-1]
    dtype = g.dtype(_source(q))
    if any(g.dtype(_source(o)) is not dtype for o in (k, v)) or g.dtype(product) is not dtype:
        return Refused(Refusal.MIXED_DTYPES, product, facts=tuple(
            (name, str(g.dtype(_source(o)))) for name, o in (("q", q), ("k", k), ("v", v))))
    if dtype not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, product, facts=(("dtype", str(dtype)),))
    if any(g.dims(_source(o))[-1] != d for o in (k, v)):
        return Refused(Refusal.HEADS, product, facts=tuple(
            (name, g.dims(_source(o))[-1]) for name, o in (("q", q), ("k", k), ("v", v))))
    shared = _kv_heads(g, k, v, count)
    if q.groups != 1 or shared is None:
        return Refused(Refusal.HEADS, s.product, facts=(("heads", count), ("k", k.groups), ("v", v.groups)))
    for o, h, length in ((q, count, rows), (k, shared, keys), (v, shared, keys)):
        if math.prod(g.dims(_source(o))) != batch * h * length * d:
            return Refused(Refusal.LAYOUT, _source(o), facts=(("operand", str(g.shape(_source(o)))), ("heads", h)))
    rest: list[NodeId] = []
    end = product
    turned = turned_back(g, product, heads)
    for o, h, length in ((q, count, rows), (k, shared, keys), (v, shared, keys)):
        if o.rows is not None and g.dims(o.rows) != (batch, length, h, d):  # heads that were split in another way
            if o.node < 0:
                return Refused(Refusal.LAYOUT, o.rows, facts=(("operand", str(g.shape(o.rows))), ("heads", h)))
            o.rows = None
    by_rows = turned is not None and all(o.rows is not None for o in (q, k, v))
    if by_rows:
        assert turned is not None
        end, rest = turned[-1], [product, *turned[:-1]]
    members = [s.product, *s.members, *after, *rest]
    if stop := inside(g, members, end):
        return stop
    r = Rewrite(g, end)
    made = _mask(g, r, s, heads, rows, keys)
    if isinstance(made, Refused):
        return made
    kind, window, mask = made
    if kind == "bias" and r.shape(mask[0]).dtype is not dtype:
        return Refused(Refusal.MIXED_DTYPES, s.mask or n, facts=(("mask", str(r.shape(mask[0]).dtype)), ("q", str(dtype))))
    scale = s.scale * q.scale * k.scale * (s.softcap or 1.0)
    if not scale > 0:
        return Refused(Refusal.SCALE, s.product, facts=(("scale", scale),))
    layout = "bshd" if by_rows else "bhsd"
    made_op = Attention(count, d, shared if shared != count else 0, kind, window,
                        0.0 if math.isclose(scale, d**-0.5, rel_tol=1e-12) else scale, s.softcap, layout)
    ins = [_placed(r, o, h, batch, length, by_rows) for o, h, length in ((q, count, rows), (k, shared, keys), (v, shared, keys))]
    y = r.add(made_op, *ins, *mask)
    frozen(g, r, *s.constants, *q.constants, *k.constants)
    return r.replace(end, r.reshape(y, g.shape(end).dims)).note(
        heads=count, kv_heads=shared, mask=kind, layout=layout, scale=round(scale, 6))


def _kv_heads(g: Draft, k: _Operand, v: _Operand, count: int) -> int | None:
    """How many key heads there are, if keys and values agree and share evenly."""
    found = set()
    for o in (k, v):
        axis = g.dims(o.rows)[2] if o.rows is not None and g.shape(o.rows).rank == 4 else (
            g.dims(o.node)[1] if o.first is None and g.shape(o.node).rank == 4 else count // o.groups)
        found.add(axis)
    if len(found) != 1:
        return None
    kv = found.pop()
    grouped = k.groups == v.groups == count // kv if kv and count % kv == 0 else False
    return kv if grouped or kv == 1 else None


def turned_back(g: Draft, product: NodeId, heads: tuple[int, int]) -> list[NodeId] | None:
    """The nodes that bring the heads back behind the rows; ``heads``: (batch, heads), as the product has them."""
    at, out = product, []
    for _ in range(2):
        nxt = g.only_reader(at)
        if nxt is None:
            return None
        op = g.op(nxt)
        out.append(nxt)
        if isinstance(op, Transpose):
            return out if op.perm == HEADS_AND_ROWS and g.dims(at)[:2] == heads else None
        if not isinstance(op, Reshape) or not _merges(g, at, nxt):
            return None
        at = nxt
    return None


def _placed(r: Rewrite, o: _Operand, heads: int, batch: int, length: int, by_rows: bool) -> NodeId:
    """The operand in the layout of the kernel; views where it is so already."""
    if by_rows:
        assert o.rows is not None
        return o.rows
    if o.first is not None:
        n, d = r.draft.dims(o.first)[1:]
        return r.reshape(r.add(Transpose((1, 0, 2)), o.first), (batch, n // batch, length, d))
    if o.node < 0:
        assert o.rows is not None
        return r.add(Transpose(HEADS_AND_ROWS), o.rows)
    return r.reshape(o.node, (batch, heads, length, r.draft.dims(o.node)[-1]))
