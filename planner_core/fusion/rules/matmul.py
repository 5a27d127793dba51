"""Owns matrix products with what surrounds them: quantised weights, bias and activation, transposed operands."""

from __future__ import annotations

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.cleanup import same_shape
from planner_core.fusion.rules.conv import EPILOGUES
from planner_core.ir import DType, NodeId, Op
from planner_core.ir.folds import SMALL_M_GROUPED
from planner_core.ir.ops import (
    Activation,
    Binary,
    Cast,
    Dequantize,
    DequantMatMul,
    DequantMatMulBlocked,
    Expand,
    FusedMatMulBiasAct,
    GroupedMatMul,
    MatMul,
    Param,
    Reshape,
    Transpose,
    TransposedGroupedMatMul,
    TransposedMatMul,
)
from planner_core.ir.shape import dim

_FOLDING = (MatMul, TransposedMatMul)
MOST_READERS = 16
"""Readers of a transpose that are looked at."""


# --- quantised weights --------------------------------------------------------------------------------


@rule(anchors=(MatMul,), group="matmul", reasons=(
    Refusal.QUANTISATION, Refusal.SHARED, Refusal.OUTPUT, Refusal.DTYPE, Refusal.NO_DATA))
def dequant_matmul(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A product with ``(Cast(w) - zero) · scale`` reads the 8-bit weight itself, block by block.

    As ONNX's DequantizeLinear decomposes: one scale a tensor, a column of the product, or a block of its k. Zero points
    are like the weight; u8 is shifted to i8 ahead, so its values must be known. GGUF weights come packed already (``DequantMatMul``).
    """
    x, w = g.inputs(n)
    parts = _dequantised(g, w)
    if parts is None:
        return None
    codes, scale, zero, turned, inside = parts
    if g.dtype(n) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),))
    if g.dtype(codes) not in (DType.I8, DType.U8) or (zero is not None and g.dtype(zero) is not g.dtype(codes)):
        return Refused(Refusal.QUANTISATION, codes, facts=(("weight", str(g.shape(codes))),))
    if (stop := _dense_read(g, w)) is not None:
        return stop
    for i in inside:
        if i != w and (stop := g.shared(i)) is not None:
            return stop
    if g.dtype(codes) is DType.U8:
        unknown = next((p for i in (codes, zero) if i is not None for p in sorted(g.params_of(i)) if p not in g.weights), None)
        if unknown is not None:
            return Refused(Refusal.NO_DATA, codes, facts=(("param", unknown),))
    if g.shape(w).rank != 2 or not g.shape(w).is_static:
        return Refused(Refusal.QUANTISATION, codes, facts=(("weight", str(g.shape(w))),))
    k, cols = g.dims(w)
    r = Rewrite(g, n)
    if g.dtype(codes) is DType.U8:
        zero = r.constant([-128], DType.I8) if zero is None else _signed(r, zero)
        codes = _signed(r, codes)
    made = _blocks(r, codes, (scale, zero), turned, k, cols)
    if made is None:
        return Refused(Refusal.QUANTISATION, scale, facts=(("weight", str(g.shape(codes))), ("scale", str(g.shape(scale)))))
    size, rows, vectors = made
    return r.replace(n, r.add(DequantMatMulBlocked(8, size), x, rows, *vectors)).note(block=size, bits=8)


@rule(anchors=(MatMul, TransposedMatMul), group="matmul", reasons=(
    Refusal.SHARED, Refusal.OUTPUT, Refusal.LAYOUT))
def dequant_gguf_matmul(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A product with a GGUF weight that is written out in full reads the packed rows instead.

    The rows are the product's columns: the weight is read transposed. Refused where it is read as it stands.
    """
    x, w = g.inputs(n)
    op, between = g.op(n), [w]
    turned = isinstance(op, TransposedMatMul) and op.trans_b
    if isinstance(weight := g.op(w), Transpose) and weight.perm == (1, 0):
        turned = not turned
        between.append(w := g.inputs(w)[0])
    packed = g.op(w)
    if not isinstance(packed, Dequantize):
        return None
    if not turned or (isinstance(op, TransposedMatMul) and op.trans_a):
        return Refused(Refusal.LAYOUT, w, facts=(("weight", str(g.shape(w))),))
    for i in between:
        if (stop := g.shared(i)) is not None:
            return stop
    r = Rewrite(g, n)
    return r.replace(n, r.add(DequantMatMul(packed.n, packed.scheme), x, g.inputs(w)[0])).note(scheme=packed.scheme.text)


def _dequantised(g: Draft, w: NodeId) -> tuple[NodeId, NodeId, NodeId | None, bool, list[NodeId]] | None:
    """(codes, scale, zero point or None, transposed, nodes between) of a weight that is dequantised in the graph."""
    if not g.static[w]:
        return None
    inside, turned, at = [], False, w
    op = g.op(at)
    if isinstance(op, Transpose) and op.perm == (1, 0):
        inside.append(at)
        turned, at = True, g.inputs(at)[0]
    if isinstance(g.op(at), Reshape):
        inside.append(at)
        at = g.inputs(at)[0]
    if g.kind(at) != "mul":
        return None
    for codes, scale in (g.inputs(at), g.inputs(at)[::-1]):
        chain = [*inside, at]
        zero: NodeId | None = None
        if g.kind(codes) == "sub":
            chain.append(codes)
            codes, cast = g.inputs(codes)
            if not isinstance(g.op(cast), Cast):
                continue
            zero = g.inputs(cast)[0]
        if isinstance(g.op(codes), Cast) and g.dtype(g.inputs(codes)[0]).is_int:
            return g.inputs(codes)[0], scale, zero, turned, [*chain, codes]
    return None


def _dense_read(g: Draft, w: NodeId) -> Refused | None:
    """Why the dense weight is made all the same: something else than products reads it."""
    if g.is_output(w):
        return Refused(Refusal.OUTPUT, w)
    if g.fan_out(w) > MOST_READERS or any(not isinstance(g.op(r), MatMul) or g.inputs(r)[0] == w for r in g.readers(w)):
        return Refused(Refusal.SHARED, w, facts=(("readers", g.fan_out(w)),))
    return None


def _signed(r: Rewrite, codes: NodeId) -> NodeId:
    """u8 codes less 128 as i8, by static arithmetic."""
    wide = r.add(Binary("sub"), r.add(Cast(DType.I16), codes), r.constant([128], DType.I16))
    return r.reshape(r.add(Cast(DType.I8), wide), r.shape(codes).dims)


def _blocks(r: Rewrite, codes: NodeId, vectors: tuple[NodeId, NodeId | None], turned: bool, k: int,
            cols: int) -> tuple[int, NodeId, list[NodeId]] | None:
    """(block size, codes ``[n, k]``, scale and zero point ``[n, blocks]``); None where the kernel has no such layout."""
    dims = tuple(d.value for d in r.shape(codes).dims)
    size = k
    if turned and len(dims) == 3 and dims[0] == cols and dims[2] is not None:
        size = dims[2]
    elif dims != ((cols, k) if turned else (k, cols)):
        return None
    made = []
    for v in vectors:
        if v is None:
            continue
        shape = tuple(d.value for d in r.shape(v).dims)
        if all(d == 1 for d in shape):
            made.append(r.add(Expand((dim(cols), dim(-(-k // size)))), r.reshape(v, (1, 1))))
        elif shape == ((cols, k // size, 1) if len(dims) == 3 else (cols, 1)) and turned:
            made.append(r.reshape(v, (cols, k // size)))
        elif not turned and shape in ((cols,), (1, cols)):
            made.append(r.reshape(v, (cols, 1)))
        else:
            return None
    rows = r.reshape(codes, (cols, k)) if turned else r.add(Transpose((1, 0)), codes)
    return size, rows, made


# --- bias and activation ------------------------------------------------------------------------------


@rule(anchors=(Binary, Activation), group="matmul",
      reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.EPILOGUE, Refusal.ACTIVATION, Refusal.BROADCAST, Refusal.DTYPE, Refusal.RANK,
               Refusal.LAYOUT))
def matmul_bias_act(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A product, its bias and its activation become one kernel; the bias at its sum, the activation at itself.

    Without a bias the activation brings one of zeros. The weight is a matrix; a residual is another kernel's. A product
    that can read an operand transposed stays plain: writing the transpose would cost more than the sum saves.
    """
    op, ins = g.op(n), g.inputs(n)
    if isinstance(op, Activation):
        return _activated(g, n, ins[0], op, limits)
    assert isinstance(op, Binary)
    if op.kind != "add":
        return None
    stopped: Refused | None = None
    for product, bias in (ins, ins[::-1]):
        if not isinstance(g.op(product), MatMul) or product == bias:
            continue
        found = _biased(g, n, product, bias, limits)
        if isinstance(found, Rewrite):
            return found
        stopped = stopped or found
    return stopped


def _fusable(g: Draft, product: NodeId, limits: Limits) -> Refused | None:
    if g.dtype(product) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, product, facts=(("dtype", str(g.dtype(product))),))
    w = g.shape(g.inputs(product)[1])
    if w.rank != 2:
        return Refused(Refusal.RANK, product, facts=(("weight", str(w)),))
    for i in g.inputs(product)[:2]:
        if isinstance(g.op(product), MatMul) and _swaps(g, i) and _kept(g, i, _FOLDING) is None:
            return Refused(Refusal.LAYOUT, i)  # a plain product need not write the transpose, which costs more
    return g.shared(product)


def _biased(g: Draft, n: NodeId, product: NodeId, bias: NodeId, limits: Limits) -> Outcome:
    out, b = g.shape(product), g.shape(bias)
    if not same_shape(g.shape(n), out):
        return Refused(Refusal.BROADCAST, n, nodes=(bias,), facts=(("operand", str(b)),))
    if same_shape(b, out) and (not g.static[bias] or any(d != 1 for d in g.dims(n)[:-1])):
        return None  # a residual: norms and regions take it
    if (stop := _fusable(g, product, limits)) is not None:
        return stop
    if not b.dims or not b.dims[-1].same(out.dims[-1]) or any(d.value != 1 for d in b.dims[:-1]):
        return Refused(Refusal.BROADCAST, n, nodes=(bias,), facts=(("operand", str(b)),))
    r = Rewrite(g, n)
    return r.replace(n, r.add(FusedMatMulBiasAct(), *g.inputs(product), r.reshape(bias, b.dims[-1:])))


def _activated(g: Draft, n: NodeId, product: NodeId, act: Activation, limits: Limits) -> Outcome:
    op = g.op(product)
    if not isinstance(op, (MatMul, FusedMatMulBiasAct)):
        return None
    if isinstance(op, FusedMatMulBiasAct) and op.activation:
        return Refused(Refusal.EPILOGUE, product, facts=(("activation", op.activation),))
    if act.kind not in EPILOGUES:
        return Refused(Refusal.ACTIVATION, n, facts=(("activation", act.kind),))
    if (stop := _fusable(g, product, limits)) is not None:
        return stop
    cols = g.dims(g.inputs(product)[1])[1]
    if cols < 0:
        return None
    r = Rewrite(g, n)
    a, w, *bias = g.inputs(product)
    vector = bias[0] if bias else r.constant(np.zeros(cols), g.dtype(product))
    return r.replace(n, r.add(FusedMatMulBiasAct(act.kind, act.alpha, act.beta), a, w, vector))


# --- transposed operands ------------------------------------------------------------------------------


@rule(anchors=(MatMul, TransposedMatMul), group="matmul",
      reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.SAVES_NOTHING))
def transpose_into_matmul(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A product reads a transposed operand as it is stored: the transpose is never written.

    The log counts none that the target's memory plan would have dropped (``elide_bank_transposes``): that is no saving.
    """
    op, ins = g.op(n), list(g.inputs(n))
    turns = [op.trans_a, op.trans_b] if isinstance(op, TransposedMatMul) else [False, False]
    stopped, took = None, False
    for side, i in enumerate(ins):
        if not _swaps(g, i) or g.shape(ins[1 - side]).rank < 2:
            continue
        why = _kept(g, i, _FOLDING)
        if why is not None:
            stopped = stopped or why
            continue
        ins[side], turns[side], took = g.inputs(i)[0], not turns[side], True
    if not took:
        return stopped
    r = Rewrite(g, n)
    return r.replace(n, r.add(TransposedMatMul(*turns) if any(turns) else MatMul(), *ins))


@rule(anchors=(GroupedMatMul,), group="matmul", reasons=(
    Refusal.SHARED, Refusal.OUTPUT, Refusal.SAVES_NOTHING, Refusal.ROWS))
def bank_transposes(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A grouped product reads a bank of transposed matrices as it is stored.

    On Metal the memory plan's ``elide_bank_transposes`` owns f32 banks read with at most 4 rows; those stay, and with
    more rows its kernels read no bank transposed.
    """
    x, w, idx = g.inputs(n)
    t = g.op(w)
    if not isinstance(t, Transpose) or t.perm != (0, 2, 1):
        return None
    if (stop := _banks_stop(g, n, w, limits) or _kept(g, w, (GroupedMatMul,))) is not None:
        return stop
    r = Rewrite(g, n)
    return r.replace(n, r.add(TransposedGroupedMatMul(), x, g.inputs(w)[0], idx))


def _swaps(g: Draft, n: NodeId) -> bool:
    """A transpose that exchanges the last two axes."""
    op = g.op(n)
    if not isinstance(op, Transpose) or len(op.perm) < 2:
        return False
    rank = len(op.perm)
    return op.perm == (*range(rank - 2), rank - 1, rank - 2)


def owned_by_plan(g: Draft, t: NodeId, limits: Limits) -> bool:
    """A transposed bank that the target's memory plan drops by itself (Metal's ``elide_bank_transposes``)."""
    folds = limits.profile.folds
    return (folds is not None and folds.small_banks_only and _is_bank(g, t) and 0 < g.fan_out(t) <= MOST_READERS
            and all(isinstance(g.op(r), GroupedMatMul) and g.inputs(r).index(t) == 1 and _few_rows(g, r) for r in g.readers(t)))


def _is_bank(g: Draft, t: NodeId) -> bool:
    op = g.op(t)
    return isinstance(op, Transpose) and op.perm == (0, 2, 1) and g.dtype(t) is DType.F32 and not g.is_output(t)


def _few_rows(g: Draft, product: NodeId) -> bool:
    rows = g.shape(product).dims[0].value
    return rows is not None and rows <= SMALL_M_GROUPED


def _banks_stop(g: Draft, n: NodeId, t: NodeId, limits: Limits) -> Refused | None:
    """Why a bank stays transposed on a target that folds small ones only."""
    if owned_by_plan(g, t, limits):
        return Refused(Refusal.SAVES_NOTHING, t, facts=(("owner", "the memory plan drops it (elide_bank_transposes)"),))
    folds = limits.profile.folds
    if folds is not None and folds.small_banks_only and not _few_rows(g, n):
        return Refused(Refusal.ROWS, n, facts=(("rows", str(g.shape(n).dims[0])), ("most", SMALL_M_GROUPED)))
    return None


def _kept(g: Draft, t: NodeId, products: tuple[type[Op], ...]) -> Refused | None:
    """Why a transpose is computed all the same: others read it, or it can be baked without a second copy."""
    if g.is_output(t):
        return Refused(Refusal.OUTPUT, t)
    if g.fan_out(t) > MOST_READERS or any(not isinstance(g.op(r), products) for r in g.readers(t)):
        return Refused(Refusal.SHARED, t, facts=(("readers", g.fan_out(t)),))
    if g.static[t] and all(p in g.weights for p in g.params_of(t)) and all(
            g.only_reader(i) == t for i in g.inputs(t)) and isinstance(g.op(g.inputs(t)[0]), Param):
        return Refused(Refusal.SAVES_NOTHING, t, facts=(("weight", "known: it is transposed once, before the first run"),))
    return None
