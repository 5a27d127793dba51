"""Owns what norms take with them: the residual sum before, a gate or a modulation after."""

from __future__ import annotations

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.cleanup import same_shape
from planner_core.fusion.rules.recognise import frozen, other, thin
from planner_core.ir import DType, NodeId
from planner_core.ir.ops import (
    AdaLayerNorm,
    Binary,
    DequantMatMul,
    GatedResidual,
    LayerNorm,
    MatMul,
    Reshape,
    ResidualLayerNorm,
    ResidualRmsNorm,
    RmsNorm,
    RmsNormMulSilu,
)

LEAST_ROW = 1024
"""Extent from which Metal's command pass takes a one-row residual norm."""


# --- the sum before -----------------------------------------------------------------------------------


def _is_bias(g: Draft, v: NodeId, x: NodeId) -> bool:
    """One value a column of x."""
    return g.shape(v).rank == 1 and g.shape(v).dims[0].same(g.shape(x).dims[-1]) and g.dims(v)[0] > 1


def _summands(g: Draft, s: NodeId) -> tuple[NodeId, NodeId, NodeId | None, list[NodeId]] | Refused | None:
    """(x, residual, bias, sums inside) of a sum; a bias that a product can take stays with the product."""
    if g.kind(s) != "add":
        return None
    a, b = g.inputs(s)
    bias, sums = None, []
    for v, full in ((a, b), (b, a)):
        if _is_bias(g, v, s):
            if g.kind(full) != "add" or g.shared(full) is not None:
                return None
            bias, sums = v, [full]
            a, b = g.inputs(full)
            if _is_bias(g, a, s) or _is_bias(g, b, s):
                return None
            break
    for v in (a, b):
        if not same_shape(g.shape(v), g.shape(s)):
            return Refused(Refusal.BROADCAST, v, facts=(("operand", str(g.shape(v))), ("sum", str(g.shape(s)))))
    if bias is None:
        for v, residual in ((a, b), (b, a)):
            if g.kind(v) != "add" or g.shared(v) is not None:
                continue
            p, q = g.inputs(v)
            p, q = (q, p) if _is_bias(g, p, s) else (p, q)
            if _is_bias(g, q, s) and same_shape(g.shape(p), g.shape(s)) and not isinstance(g.op(p), MatMul):
                return p, residual, q, [v]
    return a, b, bias, sums


def _residual(g: Draft, n: NodeId, limits: Limits) -> tuple[NodeId, NodeId, NodeId | None] | Refused | None:
    """The summands of a norm's operand when nothing else reads the sum."""
    s = g.inputs(n)[0]
    found = _summands(g, s)
    if found is None or isinstance(found, Refused):
        return found
    x, residual, bias, _ = found
    if g.dtype(x) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, x, facts=(("dtype", str(g.dtype(x))),))
    if g.is_output(s):
        return Refused(Refusal.OUTPUT, s)
    if g.fan_out(s) > 1:
        return Refused(Refusal.READ_LATER, s, facts=(("readers", g.fan_out(s)),))
    if not limits.decode_forms and _one_row(g, n) and any(isinstance(g.op(i), DequantMatMul) for i in (x, residual)):
        return Refused(Refusal.COMMAND_PASS, s, nodes=(x, residual))  # the one-row MLP adds its residual itself
    return x, residual, bias


def _one_row(g: Draft, n: NodeId) -> bool:
    return g.dtype(n) is DType.F32 and all(d == 1 for d in g.dims(n)[:-1])


@rule(anchors=(LayerNorm,), group="norm",
      reasons=(Refusal.READ_LATER, Refusal.OUTPUT, Refusal.BROADCAST, Refusal.DTYPE, Refusal.COMMAND_PASS))
def residual_into_layer_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A sum that is read only to be layer-normed, with its bias if it has one, is never written."""
    op = g.op(n)
    assert isinstance(op, LayerNorm)
    found = _residual(g, n, limits)
    if found is None or isinstance(found, Refused):
        return found
    x, residual, bias = found
    r = Rewrite(g, n)
    made = r.add(ResidualLayerNorm(op.eps), x, residual, *g.inputs(n)[1:], *(() if bias is None else (bias,)))
    return r.replace(n, made).note(bias=bias is not None)


@rule(anchors=(RmsNorm,), group="norm",
      reasons=(Refusal.READ_LATER, Refusal.OUTPUT, Refusal.BROADCAST, Refusal.DTYPE, Refusal.COMMAND_PASS))
def residual_into_rms_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A sum that is read only to be RMS-normed, with its bias if it has one, is never written."""
    op = g.op(n)
    assert isinstance(op, RmsNorm)
    found = _residual(g, n, limits)
    if found is None or isinstance(found, Refused):
        return found
    x, residual, bias = found
    h = g.dims(n)[-1]
    if not limits.decode_forms and _one_row(g, n) and h >= LEAST_ROW:
        return Refused(Refusal.COMMAND_PASS, n, facts=(("rows", 1), ("h", h)))
    gamma, *beta = g.inputs(n)[1:]
    r = Rewrite(g, n)
    made = r.add(ResidualRmsNorm(op.eps, bias is not None, bool(beta)), x, residual, gamma,
                 *(() if bias is None else (bias,)), *beta)
    return r.replace(n, made).note(bias=bias is not None)


# --- modulation ---------------------------------------------------------------------------------------


def _modulation(g: Draft, m: NodeId, x: NodeId) -> bool:
    """``[B, 1, H]`` beside x ``[B, S, H]``."""
    a, b = g.shape(m).dims, g.shape(x).dims
    return len(a) == 3 and len(b) == 3 and a[0].same(b[0]) and a[1].value == 1 and a[2].same(b[2])


def _flat(r: Rewrite, m: NodeId) -> NodeId:
    """A modulation as the op takes it: ``[B, H]``."""
    b, _, h = r.shape(m).dims
    inner = r.draft.inputs(m)[0] if isinstance(r.draft.op(m), Reshape) else m
    return inner if r.shape(inner).dims == (b, h) else r.reshape(m, (b, h))


@rule(anchors=(Binary,), group="norm", reasons=(
    Refusal.SHARED, Refusal.OUTPUT, Refusal.RANK, Refusal.BROADCAST, Refusal.CONSTANT, Refusal.DTYPE))
def ada_layer_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A plain norm times ``1 + scale``, plus a shift, one of each a sequence, becomes one kernel (adaLN)."""
    if g.op(n).kind != "add":  # type: ignore[attr-defined]
        return None
    for scaled, shift in (g.inputs(n), g.inputs(n)[::-1]):
        if g.kind(scaled) != "mul":
            continue
        for norm, factor in (g.inputs(scaled), g.inputs(scaled)[::-1]):
            if isinstance(g.op(norm), (LayerNorm, RmsNorm)):
                inner = thin(g, factor)
                part = g.split(inner) if g.kind(inner) == "add" else None
                if part is not None and g.scalar(part[1]) == 1 and g.scalar(part[0]) is None:
                    return _modulated(g, n, limits, scaled, shift, norm, factor, part)
    return None


def _modulated(g: Draft, n: NodeId, limits: Limits, scaled: NodeId, shift: NodeId, norm: NodeId, factor: NodeId,
               part: tuple[NodeId, NodeId]) -> Outcome:
    x, gamma, *beta = g.inputs(norm)
    if g.dtype(x) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, x, facts=(("dtype", str(g.dtype(x))),))
    if g.shape(x).rank != 3:
        return Refused(Refusal.RANK, x, facts=(("shape", str(g.shape(x))),))
    for m in (factor, shift):
        if not _modulation(g, m, x):
            return Refused(Refusal.BROADCAST, m, facts=(("modulation", str(g.shape(m))), ("x", str(g.shape(x)))))
    plain = g.scalar(gamma) == 1 and all(g.scalar(b) == 0 for b in beta)
    if not plain:
        return Refused(Refusal.CONSTANT, norm, nodes=(gamma, *beta))
    for i in (scaled, norm):
        if stop := g.shared(i):
            return stop
    op = g.op(norm)
    r = Rewrite(g, n)
    scale = part[0]
    b, _, h = g.shape(factor).dims
    scale = _flat(r, scale) if g.shape(scale).rank == 3 else r.reshape(scale, (b, h))
    made = r.add(AdaLayerNorm(op.eps, isinstance(op, LayerNorm)), x, scale, _flat(r, shift))  # type: ignore[attr-defined]
    return frozen(g, r.replace(n, made), part[1], gamma, *beta)


@rule(anchors=(Binary,), group="norm", reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.BROADCAST, Refusal.DTYPE))
def gated_residual(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``x + gate · y`` with one gate vector a sequence becomes one kernel (adaLN-Zero)."""
    if g.op(n).kind != "add" or g.shape(n).rank != 3 or g.dims(n)[1] == 1:  # type: ignore[attr-defined]
        return None
    wrong = None
    for product, x in (g.inputs(n)[::-1], g.inputs(n)):
        if g.kind(product) != "mul" or not same_shape(g.shape(product), g.shape(n)):
            continue
        for gate, y in (g.inputs(product), g.inputs(product)[::-1]):
            if g.shape(gate).rank != 3 or g.dims(gate)[1] != 1 or not same_shape(g.shape(y), g.shape(n)):
                continue
            if not _modulation(g, gate, y) or not same_shape(g.shape(x), g.shape(n)):
                wrong = Refused(Refusal.BROADCAST, gate, nodes=(x,), facts=(("gate", str(g.shape(gate))),))
                continue
            if g.dtype(n) not in limits.profile.dtypes:
                return Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),))
            if stop := g.shared(product):
                return stop
            r = Rewrite(g, n)
            return r.replace(n, r.add(GatedResidual(), x, y, _flat(r, gate)))
    return wrong


@rule(anchors=(Binary,), group="norm", reasons=(
    Refusal.SHARED, Refusal.OUTPUT, Refusal.BROADCAST, Refusal.DTYPE, Refusal.COMMAND_PASS))
def gated_rms_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """An RMS norm times ``silu(z)`` becomes one kernel (Mamba 2's gated norm)."""
    if g.op(n).kind != "mul":  # type: ignore[attr-defined]
        return None
    a, b = g.inputs(n)
    norm = a if isinstance(g.op(a), RmsNorm) else b
    gate = other(g, n, norm)
    if not isinstance(g.op(norm), RmsNorm) or g.kind(gate) != "silu":
        return None
    z, dtype = g.inputs(gate)[0], g.dtype(n)
    if dtype not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, n, facts=(("dtype", str(dtype)),))
    if not same_shape(g.shape(z), g.shape(n)) or not same_shape(g.shape(norm), g.shape(n)):
        return Refused(Refusal.BROADCAST, gate, facts=(("gate", str(g.shape(z))), ("norm", str(g.shape(norm)))))
    for i in (norm, gate):
        if stop := g.shared(i):
            return stop
    if not limits.decode_forms and dtype is DType.F32:
        return Refused(Refusal.COMMAND_PASS, n)
    x, gamma, *beta = g.inputs(norm)
    r = Rewrite(g, n)
    return r.replace(n, r.add(RmsNormMulSilu(g.op(norm).eps), x, gamma, z, *beta))  # type: ignore[attr-defined]
