"""Owns convolutions with what follows them: batch norm, bias, residual, activation; the short convolution's transposes."""

from __future__ import annotations

import numpy as np

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.cleanup import same_shape
from planner_core.ir import NodeId, Op
from planner_core.ir.ops import (
    Activation,
    BatchNorm,
    Binary,
    Conv,
    Conv3d,
    DepthwiseConv1dBsc,
    FusedConvBiasAct,
    Pad,
    Transpose,
)

_CONVS = (Conv, Conv3d, FusedConvBiasAct)
EPILOGUES = frozenset({"gelu", "gelu_approx", "silu", "relu", "sigmoid", "tanh", "leaky_relu", "elu", "softplus", "hardsigmoid",
                       "hardswish", "clip", "exp", "neg", "abs"})
"""Activations that a product's or a convolution's kernel applies before it writes."""


def _bare(g: Draft, n: NodeId) -> bool:
    """A convolution whose epilogue still takes a scale or a bias."""
    op = g.op(n)
    if isinstance(op, FusedConvBiasAct):
        return not op.activation and len(g.inputs(n)) == 3
    return isinstance(op, (Conv, Conv3d))


def _is_conv(g: Draft, n: NodeId) -> bool:
    return isinstance(g.op(n), _CONVS)


def _fused(op: Op, activation: str = "", alpha: float = 0.0, beta: float = 0.0) -> FusedConvBiasAct:
    assert isinstance(op, (Conv, Conv3d, FusedConvBiasAct))
    return FusedConvBiasAct(op.strides, op.pads, op.dilations, op.groups, activation, alpha, beta)


def per_channel(g: Draft, node: NodeId, conv: NodeId) -> bool:
    """``node`` broadcasts over ``conv``'s result one value a channel, or one value for all."""
    out, dims = g.shape(conv), g.shape(node).dims
    if len(dims) > out.rank or g.dtype(node) is not g.dtype(conv):
        return False
    padded = (1,) * (out.rank - len(dims)) + tuple(-1 if d.value is None else d.value for d in dims)
    return all(d == 1 for i, d in enumerate(padded) if i != 1) and padded[1] in (1, out.dims[1].value) and (
        out.dims[1].value is not None)


def _vector(r: Rewrite, g: Draft, node: NodeId, channels: int) -> NodeId:
    """``[channels]`` of a per-channel operand."""
    flat = r.reshape(node, (r.shape(node).numel,))
    if r.shape(flat).numel == channels:
        return flat
    return r.add(Binary("add"), flat, r.constant(np.zeros(channels), g.dtype(node)))


def _zeros(r: Rewrite, g: Draft, conv: NodeId) -> NodeId:
    return r.constant(np.zeros(g.dims(conv)[1]), g.dtype(conv))


def _parts(r: Rewrite, g: Draft, conv: NodeId) -> tuple[NodeId, NodeId, NodeId | None]:
    """(x, w, bias or None) of a convolution."""
    x, w, *bias = g.inputs(conv)
    return x, w, bias[0] if bias else None


# --- batch norm ---------------------------------------------------------------------------------------


@rule(anchors=(BatchNorm, Binary), group="conv",
      reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.NOT_CONSTANT, Refusal.NO_DATA, Refusal.EPILOGUE, Refusal.DTYPE))
def conv_batch_norm(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """Batch norm, or a factor a channel, goes into the convolution's weight and bias.

    The new weight and bias are static arithmetic on the params, which ``bake_static`` computes ahead. Refused while the
    params' data is unknown: the arena would hold a second copy of every weight.
    """
    op = g.op(n)
    if isinstance(op, Binary):
        return _scaled(g, n, op, limits)
    assert isinstance(op, BatchNorm)
    conv, *vectors = g.inputs(n)
    stop = _scalable(g, conv, vectors, limits)
    if stop is not None or not _is_conv(g, conv):
        return stop
    gamma, beta, mean, var = vectors
    r = Rewrite(g, n)
    eps = r.constant(np.asarray([op.eps]), g.dtype(var))
    scale = r.add(Binary("mul"), gamma, r.add(Activation("rsqrt"), r.add(Binary("add"), var, eps)))
    shift = r.add(Binary("sub"), beta, r.add(Binary("mul"), mean, scale))
    return _scale_conv(r, g, n, conv, scale, shift)


def _scaled(g: Draft, n: NodeId, op: Binary, limits: Limits) -> Outcome:
    """A static factor (or divisor) a channel behind a convolution."""
    if op.kind not in ("mul", "div"):
        return None
    a, b = g.inputs(n)
    conv, factor = (b, a) if op.kind == "mul" and not _is_conv(g, a) else (a, b)
    if not _is_conv(g, conv) or not g.static[factor] or not per_channel(g, factor, conv):
        return None
    reader = g.only_reader(n)
    if reader is not None and g.kind(reader) == "max" and conv in g.inputs(reader):
        return None  # a leaky ReLU, which conv_bias_act takes whole
    if (stop := _scalable(g, conv, [factor], limits)) is not None:
        return stop
    r = Rewrite(g, n)
    scale = _vector(r, g, factor, g.dims(conv)[1])
    if op.kind == "div":
        one = r.constant(np.ones(1), g.dtype(factor))
        scale = r.add(Binary("div"), one, scale)
    return _scale_conv(r, g, n, conv, scale, None)


def _scalable(g: Draft, conv: NodeId, vectors: list[NodeId], limits: Limits) -> Refused | None:
    if not _is_conv(g, conv):
        return None
    if g.dtype(conv) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, conv, facts=(("dtype", str(g.dtype(conv))),))
    if not _bare(g, conv):
        return Refused(Refusal.EPILOGUE, conv)
    if g.dims(conv)[1] < 0:
        return Refused(Refusal.SHAPE, conv)
    if (stop := g.shared(conv)) is not None:
        return stop
    weights = (*g.inputs(conv)[1:], *vectors)
    live = next((v for v in weights if not g.static[v]), None)
    if live is not None:
        return Refused(Refusal.NOT_CONSTANT, live)
    for v in weights:
        blank = min((p for p in g.params_of(v) if p not in g.weights), default=None)
        if blank is not None:
            return Refused(Refusal.NO_DATA, v, facts=(("param", blank),))
    return None


def _scale_conv(r: Rewrite, g: Draft, n: NodeId, conv: NodeId, scale: NodeId, shift: NodeId | None) -> Rewrite:
    x, w, bias = _parts(r, g, conv)
    rank = g.shape(w).rank
    wide = r.reshape(scale, (g.dims(w)[0],) + (1,) * (rank - 1))
    weight = r.add(Binary("mul"), w, wide)
    if bias is not None:
        bias = r.add(Binary("mul"), bias, scale)
    if shift is not None:
        bias = shift if bias is None else r.add(Binary("add"), bias, shift)
    if bias is None:
        return r.replace(n, r.add(g.op(conv), x, weight))
    return r.replace(n, r.add(_fused(g.op(conv)), x, weight, bias))


# --- bias, residual, activation -----------------------------------------------------------------------


@rule(anchors=(Binary, Activation), group="conv",
      reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.EPILOGUE, Refusal.ACTIVATION, Refusal.BROADCAST, Refusal.DTYPE,
               Refusal.NOT_CONSTANT))
def conv_bias_act(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A convolution, its bias, a residual and the activation after them become one kernel (1-D, 2-D, 3-D).

    One of them a step: bias or residual at its sum, the activation at itself; ``max(x, x · slope)`` counts as one.
    """
    op, ins = g.op(n), g.inputs(n)
    if isinstance(op, Activation):
        return _activated(g, n, ins[0], op.kind, op.alpha, op.beta, (n,), limits) if _is_conv(g, ins[0]) else None
    assert isinstance(op, Binary)
    if op.kind == "max":
        return _leaky(g, n, limits)
    if op.kind not in ("add", "sub") or not any(_is_conv(g, i) for i in ins):
        return None
    return _summed(g, n, op.kind, limits)


def _activated(g: Draft, n: NodeId, conv: NodeId, kind: str, alpha: float, beta: float, readers: tuple[NodeId, ...],
               limits: Limits) -> Outcome:
    op = g.op(conv)
    if isinstance(op, FusedConvBiasAct) and op.activation:
        return Refused(Refusal.EPILOGUE, conv, facts=(("activation", op.activation),))
    if kind not in EPILOGUES:
        return Refused(Refusal.ACTIVATION, n, facts=(("activation", kind),))
    if (stop := _fusable(g, conv, readers, limits)) is not None:
        return stop
    r = Rewrite(g, n)
    x, w, *more = g.inputs(conv)
    return r.replace(n, r.add(_fused(op, kind, alpha, beta), x, w, *(more or [_zeros(r, g, conv)])))


def _fusable(g: Draft, conv: NodeId, readers: tuple[NodeId, ...], limits: Limits) -> Refused | None:
    if g.dtype(conv) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, conv, facts=(("dtype", str(g.dtype(conv))),))
    if g.dims(conv)[1] < 0:
        return Refused(Refusal.SHAPE, conv)
    return g.shared(conv, readers)


def _leaky(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``max(x, x · slope)`` with slope in [0, 1] is leaky ReLU."""
    a, b = g.inputs(n)
    for x, scaled in ((a, b), (b, a)):
        if not _is_conv(g, x) or g.kind(scaled) != "mul" or x not in g.inputs(scaled):
            continue
        split = g.split(scaled)
        if split is None or split[0] != x:
            continue
        slope = g.scalar(split[1])
        if slope is None or not 0 <= slope <= 1 or not same_shape(g.shape(x), g.shape(scaled)):
            continue
        if (stop := g.shared(scaled)) is not None:
            return stop
        found = _activated(g, n, x, "leaky_relu", slope, 0.0, (n, scaled), limits)
        if isinstance(found, Rewrite):
            found.frozen |= g.params_of(split[1])
        return found
    return None


def _summed(g: Draft, n: NodeId, kind: str, limits: Limits) -> Outcome:
    """Bias (one value a channel) or residual (the result's own shape) at a sum."""
    a, b = g.inputs(n)
    stopped: Refused | None = None
    for conv, other in sorted(((a, b), (b, a)), key=lambda p: -g.level[p[0]]):  # the later one is the kernel
        if not _is_conv(g, conv) or (kind == "sub" and conv != a):
            continue
        found = _sum_into(g, n, kind, conv, other, limits)
        if isinstance(found, Rewrite):
            return found
        stopped = stopped or found
    return stopped


def _sum_into(g: Draft, n: NodeId, kind: str, conv: NodeId, other: NodeId, limits: Limits) -> Refused | Rewrite | None:
    if conv == other or not same_shape(g.shape(n), g.shape(conv)):
        return None
    if not _bare(g, conv):
        return Refused(Refusal.EPILOGUE, conv)
    if (stop := _fusable(g, conv, (n,), limits)) is not None:
        return stop
    r = Rewrite(g, n)
    x, w, bias = _parts(r, g, conv)
    if per_channel(g, other, conv):
        if bias is not None and not (g.static[bias] and g.static[other]):
            return Refused(Refusal.NOT_CONSTANT, other if g.static[bias] else bias)
        vector = _vector(r, g, other, g.dims(conv)[1])
        if kind == "sub":
            vector = r.add(Activation("neg"), vector)
        bias = vector if bias is None else r.add(Binary("add"), bias, vector)
        return r.replace(n, r.add(_fused(g.op(conv)), x, w, bias))
    if kind == "sub" or not same_shape(g.shape(other), g.shape(n)):
        return Refused(Refusal.BROADCAST, n, nodes=(other,), facts=(("operand", str(g.shape(other))),))
    return r.replace(n, r.add(_fused(g.op(conv)), x, w, _zeros(r, g, conv) if bias is None else bias, other))


# --- short convolution --------------------------------------------------------------------------------

_SWAP = (0, 2, 1)


@rule(anchors=(Transpose,), group="conv",
      reasons=(Refusal.SHARED, Refusal.OUTPUT, Refusal.COMMAND_PASS, Refusal.EPILOGUE, Refusal.DTYPE, Refusal.LAYOUT))
def depthwise_conv1d(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """A depthwise 1-D convolution between two transposes reads and writes rows as they are, SiLU included.

    Its padding becomes a pad of rows before, its bias a sum after. One step of a decoder (one output row) is a command
    pass's on Metal.
    """
    op = g.op(n)
    assert isinstance(op, Transpose)
    conv = g.inputs(n)[0]
    how = g.op(conv)
    if op.perm != _SWAP or not isinstance(how, (Conv, FusedConvBiasAct)):
        return None
    x, w, *bias = g.inputs(conv)
    channels = g.dims(w)[0]
    if not (how.groups == channels == g.dims(conv)[1] > 1 and g.dims(w)[1] == 1 and how.strides == (1,) and how.dilations == (1,)):
        return None
    first = g.op(x)
    if not isinstance(first, Transpose) or first.perm != _SWAP:
        return Refused(Refusal.LAYOUT, x)
    if g.dtype(n) not in limits.profile.dtypes:
        return Refused(Refusal.DTYPE, conv, facts=(("dtype", str(g.dtype(n))),))
    if len(bias) > 1 or (isinstance(how, FusedConvBiasAct) and how.activation not in ("", "silu")):
        return Refused(Refusal.EPILOGUE, conv)
    if g.dims(conv)[2] == 1 and not limits.decode_forms:
        return Refused(Refusal.COMMAND_PASS, conv)
    inside = isinstance(how, FusedConvBiasAct) and how.activation == "silu"
    silu = None if inside else g.only_reader(n)
    taken = silu is not None and g.kind(silu) == "silu"
    for value in (x, conv):
        if (stop := g.shared(value)) is not None:
            return stop
    last = silu if taken and silu is not None else n
    r = Rewrite(g, last)
    rows = g.inputs(x)[0]
    before, after = how.pads
    if before or after:
        rows = r.add(Pad((0, before, 0), (0, after, 0)), rows)
    zero = not bias or g.scalar(bias[0]) == 0
    act = taken or inside
    y = r.add(DepthwiseConv1dBsc(silu=act and zero), rows, w)
    if not zero:
        y = r.add(Binary("add"), y, bias[0])
        if act:
            y = r.add(Activation("silu"), y)
    elif bias:
        r.frozen |= g.params_of(bias[0])
    return r.replace(last, y)
