"""Owns products that share an operand: their weights side by side make one product, where what reads it takes it packed.

A slice along the last axis is a copy, so one wide product and a slice for each reader would save nothing; the packed
forms are the gated halves (``SwiGLU``, ``GeGLU``) and ``FusedAttentionBlock``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.cleanup import same_shape
from planner_core.fusion.rules.rope import shared_tables
from planner_core.ir import Array, DType, NodeId
from planner_core.ir.ops import (
    Activation,
    Attention,
    Binary,
    Constant,
    DequantMatMul,
    FusedAttentionBlock,
    FusedMatMulBiasAct,
    GeGLU,
    MatMul,
    Param,
    Reshape,
    Rope,
    SwiGLU,
    TransposedMatMul,
)

_PRODUCTS = (MatMul, FusedMatMulBiasAct, DequantMatMul, TransposedMatMul)


@dataclass(frozen=True, slots=True)
class _Product:
    """``x @ w (+ bias)`` with a weight of its own; ``rows``: the weight is stored [n, k]."""

    node: NodeId
    x: NodeId
    w: NodeId
    bias: NodeId | None
    rows: bool


def _product(g: Draft, n: NodeId) -> _Product | None:
    """The node as a product by a matrix, without an activation."""
    op, ins = g.op(n), g.inputs(n)
    if not isinstance(op, _PRODUCTS) or (g.shape(ins[1]).rank != 2 and not isinstance(op, DequantMatMul)):
        return None
    if isinstance(op, FusedMatMulBiasAct):
        return None if op.activation else _Product(n, ins[0], ins[1], ins[2], False)
    if isinstance(op, TransposedMatMul):
        return None if op.trans_a else _Product(n, ins[0], ins[1], None, op.trans_b)
    return _Product(n, ins[0], ins[1], None, isinstance(op, DequantMatMul))


def _alike(g: Draft, ps: list[_Product]) -> Refused | None:
    """Why their weights can't stand side by side: stored differently, not known, or read elsewhere too."""
    first = ps[0]
    schemes = [getattr(g.op(p.node), "scheme", None) for p in ps]
    for p, scheme in zip(ps, schemes, strict=True):
        if scheme is not schemes[0]:
            return Refused(Refusal.QUANTISATION, p.w, facts=(("schemes", ", ".join(str(s or "dense") for s in schemes)),))
        if p.x != first.x or p.rows != first.rows:
            return Refused(Refusal.LAYOUT, p.node)
    for p in ps:
        for leaf in (p.w, *(() if p.bias is None else (p.bias,))):
            if not isinstance(g.op(leaf), Param):
                return Refused(Refusal.NOT_CONSTANT, leaf)
            if g.name(leaf) not in g.weights:
                return Refused(Refusal.NO_DATA, leaf, facts=(("param", g.name(leaf)),))
            if g.only_reader(leaf) is None:
                return Refused(Refusal.SHARED, leaf, facts=(("readers", g.fan_out(leaf)),))
    return None


def _joined(r: Rewrite, g: Draft, ps: list[_Product]) -> NodeId:
    """One product with all the weights; their params go, and a missing bias is one of zeros."""
    first = ps[0]
    r.frees_params = True

    def side_by_side(leaves: list[NodeId], parts: list[Array], axis: int) -> NodeId:
        names = [g.name(i) for i in leaves]
        r.frozen.update(n for n in names if n in g.source.weights)
        return r.param("+".join(names), np.concatenate(parts, axis=axis), g.dtype(leaves[0]))

    op = g.op(first.node)
    ws = [p.w for p in ps]
    w = side_by_side(ws, [g.weights[g.name(i)] for i in ws], 0 if first.rows else 1)
    if isinstance(op, DequantMatMul):
        return r.add(DequantMatMul(sum(g.op(p.node).n for p in ps), op.scheme), first.x, w)  # type: ignore[attr-defined]
    if first.rows:
        return r.add(TransposedMatMul(trans_b=True), first.x, w)
    biases = [p.bias for p in ps if p.bias is not None]
    if not biases:
        return r.add(MatMul(), first.x, w)
    parts = [np.zeros(g.dims(p.w)[1], g.dtype(p.w).numpy) if p.bias is None else g.weights[g.name(p.bias)] for p in ps]
    return r.add(FusedMatMulBiasAct(), first.x, w, side_by_side(biases, parts, 0))


# --- gate and up --------------------------------------------------------------------------------------

_GATES = {"silu": SwiGLU(), "gelu": GeGLU(), "gelu_approx": GeGLU(approximate=True)}


@rule(anchors=(Binary,), group="weights",
      reasons=(Refusal.NO_DATA, Refusal.SHARED, Refusal.OUTPUT, Refusal.NOT_CONSTANT, Refusal.LAYOUT, Refusal.QUANTISATION,
               Refusal.DTYPE, Refusal.COMMAND_PASS))
def concat_gate_up(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Gate and up projections of one value become one product, and ``act(gate) · up`` one kernel that reads it packed.

    Their weights are put side by side now, so their values must be known and nothing else may read them.
    """
    if g.kind(n) != "mul":
        return None
    for act, up in (g.inputs(n), g.inputs(n)[::-1]):
        gate, kind = _gate(g, act)
        if gate is None or (pu := _product(g, up)) is None:
            continue
        pg = _product(g, gate) or _ungated(g, gate)
        if pg is None or not same_shape(g.shape(gate), g.shape(up)) or pg.node == pu.node:
            continue
        if g.dtype(n) not in limits.profile.dtypes:
            return Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),))
        if not limits.decode_forms and isinstance(g.op(up), DequantMatMul) and all(d == 1 for d in g.dims(n)[:-1]):
            return Refused(Refusal.COMMAND_PASS, n)
        for i in dict.fromkeys((act, gate, up)):
            if (stop := g.shared(i)) is not None:
                return stop
        if (stop := _alike(g, [pg, pu])) is not None:
            return stop
        r = Rewrite(g, n)
        return r.replace(n, r.add(_GATES[kind], _joined(r, g, [pg, pu])))
    return None


def _gate(g: Draft, act: NodeId) -> tuple[NodeId | None, str]:
    """(what the activation reads, its kind); a product that applies it itself is its own gate."""
    op = g.op(act)
    if isinstance(op, Activation) and g.kind(act) in _GATES:
        return g.inputs(act)[0], g.kind(act)
    if isinstance(op, FusedMatMulBiasAct) and op.activation in _GATES:
        return act, op.activation
    return None, ""


def _ungated(g: Draft, n: NodeId) -> _Product | None:
    """A product with an activation, as if it had none; a bias of zeros that fusion gave it counts as none."""
    op = g.op(n)
    if not isinstance(op, FusedMatMulBiasAct) or g.shape(g.inputs(n)[1]).rank != 2:
        return None
    x, w, bias = g.inputs(n)
    zero = isinstance(g.op(bias), Constant) and g.scalar(bias) == 0
    return _Product(n, x, w, None if zero else bias, False)


# --- query, key, value --------------------------------------------------------------------------------


@rule(anchors=(Attention,), group="weights",
      reasons=(Refusal.NO_DATA, Refusal.SHARED, Refusal.OUTPUT, Refusal.NOT_CONSTANT, Refusal.LAYOUT, Refusal.QUANTISATION,
               Refusal.HEADS, Refusal.MASK, Refusal.ROTATION, Refusal.SAVES_NOTHING, Refusal.DTYPE))
def concat_qkv(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Query, key and value projections of one value become one product, and attention reads its packed rows.

    Only in the form that the packed kernel takes: as many key heads as query heads, rotated both by the same tables or
    not at all. Elsewhere three slices would be copied, which saves nothing.
    """
    op = g.op(n)
    assert isinstance(op, Attention)
    traced = [_traced(g, i) for i in g.inputs(n)[:3]]
    products = [_product(g, t[0]) for t in traced]
    if any(p is None for p in products) or op.layout != "bshd":
        return None
    ps = [p for p in products if p is not None]
    if len({p.x for p in ps}) != 1 or len({p.node for p in ps}) != 3:
        return None
    if g.dtype(n) is not DType.F32:
        return Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),))
    if op.kv_heads not in (0, op.num_heads):
        return Refused(Refusal.HEADS, n, facts=(("heads", op.num_heads), ("kv_heads", op.kv_heads)))
    if op.mask_kind == "sliding_window":
        return Refused(Refusal.MASK, n, facts=(("mask", op.mask_kind),))
    if op.softcap or any(g.shape(p.node).rank != 3 for p in ps):
        return Refused(Refusal.SAVES_NOTHING, n, facts=(("softcap", op.softcap), ("rows", str(g.shape(ps[0].node)))))
    for i, p, t in zip(g.inputs(n), ps, traced, strict=False):
        if g.dims(i)[:2] != g.dims(p.node)[:2] or -1 in g.dims(p.node) or (t[1] is not None and g.dims(t[1]) != g.dims(p.node)):
            return Refused(Refusal.LAYOUT, i, facts=(("operand", str(g.shape(i))), ("projection", str(g.shape(p.node)))))
    tables = shared_tables(g, [t[1] for t in traced], op.head_dim)
    if isinstance(tables, Refused):
        return tables
    for nodes in [t[2] for t in traced]:
        for i in nodes:
            if (stop := g.shared(i)) is not None:
                return stop
    if (stop := _alike(g, ps)) is not None:
        return stop
    r = Rewrite(g, n)
    block = FusedAttentionBlock(op.num_heads, op.head_dim, bool(tables), op.mask_kind, op.score_scale)
    out = r.add(block, _joined(r, g, ps), *tables, *g.inputs(n)[3:])
    return r.replace(n, r.reshape(out, g.shape(n).dims))


def _traced(g: Draft, n: NodeId) -> tuple[NodeId, NodeId | None, list[NodeId]]:
    """(projection, rotation or None, nodes up to the projection, itself included) behind an operand of attention."""
    between: list[NodeId] = []
    rope: NodeId | None = None
    while len(between) < 4:
        between.append(n)
        op = g.op(n)
        if isinstance(op, Reshape) or (isinstance(op, Rope) and rope is None):
            rope = n if isinstance(op, Rope) else rope
            n = g.inputs(n)[0]
        else:
            break
    return n, rope, between
