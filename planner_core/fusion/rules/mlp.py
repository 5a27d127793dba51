"""Owns gated halves: an activation of one half of a packed row times the other half."""

from __future__ import annotations

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import Limits, Outcome, rule
from planner_core.fusion.rules.recognise import inside
from planner_core.ir import NodeId, Op
from planner_core.ir.ops import (
    Activation,
    Binary,
    DequantMatMul,
    DequantMatMulBlocked,
    GeGLU,
    Narrow,
    Reshape,
    Slice,
    SwiGLU,
)

_PACKED = (DequantMatMul, DequantMatMulBlocked)


def _half(g: Draft, n: NodeId) -> tuple[NodeId, bool, list[NodeId]] | None:
    """(packed row, whether it is the second half, nodes in between)."""
    op, between = g.op(n), [n]
    if isinstance(op, Reshape):  # x.reshape(.., 2, n)[.., i, :]
        n = g.inputs(n)[0]
        op = g.op(n)
        between.append(n)
        if not isinstance(op, Narrow) or op.len != 1 or op.axis % g.shape(n).rank != g.shape(n).rank - 2:
            return None
        wide = g.inputs(n)[0]
        if not isinstance(g.op(wide), Reshape) or g.dims(wide)[-2] != 2:
            return None
        x, width = g.inputs(wide)[0], g.dims(wide)[-1]
        if g.dims(x) != (*g.dims(wide)[:-2], 2 * width) or g.dims(between[0]) != (*g.dims(wide)[:-2], width):
            return None
        return x, op.start == 1, [*between, wide]
    x = g.inputs(n)[0] if g.inputs(n) else n
    width = g.dims(n)[-1] if g.shape(n).rank else -1
    if isinstance(op, Narrow) and op.axis % g.shape(n).rank == g.shape(n).rank - 1:
        start = op.start
    elif isinstance(op, Slice) and len(op.axes) == 1 and op.axes[0] % g.shape(n).rank == g.shape(n).rank - 1 and op.steps == (1,):
        start = op.starts[0]
    else:
        return None
    if width < 1 or g.dims(x)[-1] != 2 * width or start not in (0, width):
        return None
    return x, start > 0, between


def _gated(g: Draft, n: NodeId, limits: Limits, made: dict[str, tuple[Op, Op]]) -> Outcome:
    """``act(half) · other half``; ``made``: kind of activation -> the op with the gate first, second."""
    for act, up in (g.inputs(n), g.inputs(n)[::-1]):
        if not isinstance(g.op(act), Activation) or g.kind(act) not in made:
            continue
        gate = g.inputs(act)[0]
        a, b = _half(g, gate), _half(g, up)
        if a is None or b is None or a[0] != b[0]:
            wrong = _turned_half(g, gate, up)
            if wrong is not None:
                return wrong
            continue
        if a[1] is b[1]:
            continue
        x = a[0]
        if g.dtype(n) not in limits.profile.dtypes:
            return Refused(Refusal.DTYPE, n, facts=(("dtype", str(g.dtype(n))),))
        if not limits.decode_forms and isinstance(g.op(x), _PACKED) and all(d == 1 for d in g.dims(n)[:-1]):
            return Refused(Refusal.COMMAND_PASS, n)
        if stop := inside(g, [act, *a[2], *b[2]], n):
            return stop
        r = Rewrite(g, n)
        return r.replace(n, r.add(made[g.kind(act)][a[1]], x)).note(gate_first=not a[1])
    return None


def _turned_half(g: Draft, gate: NodeId, up: NodeId) -> Refused | None:
    """The refusal when both are halves of one value along another axis than the last."""
    a, b = g.op(gate), g.op(up)
    if not isinstance(a, Narrow) or not isinstance(b, Narrow) or g.inputs(gate) != g.inputs(up) or a.axis != b.axis:
        return None
    if a.len != b.len or {a.start, b.start} != {0, a.len} or a.axis % g.shape(gate).rank == g.shape(gate).rank - 1:
        return None
    return Refused(Refusal.AXIS, gate, nodes=(up,), facts=(("axis", a.axis), ("rank", g.shape(gate).rank)))


_REASONS = (Refusal.SHARED, Refusal.OUTPUT, Refusal.DTYPE, Refusal.AXIS, Refusal.COMMAND_PASS)
_SWIGLU: dict[str, tuple[Op, Op]] = {"silu": (SwiGLU(True), SwiGLU(False))}
_GEGLU: dict[str, tuple[Op, Op]] = {
    "gelu": (GeGLU(True), GeGLU(False)), "gelu_approx": (GeGLU(True, True), GeGLU(False, True))}


@rule(anchors=(Binary,), group="mlp", reasons=_REASONS)
def swiglu(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``silu(gate) · up`` of the two halves of one row becomes one kernel, gate first or second.

    Halves that are products of their own become one row first (``concat_gate_up``).
    """
    return _gated(g, n, limits, _SWIGLU) if g.op(n).kind == "mul" else None  # type: ignore[attr-defined]


@rule(anchors=(Binary,), group="mlp", reasons=_REASONS)
def geglu(g: Draft, n: NodeId, limits: Limits) -> Outcome:
    """``gelu(gate) · up`` of the two halves of one row becomes one kernel, exact or tanh, gate first or second."""
    return _gated(g, n, limits, _GEGLU) if g.op(n).kind == "mul" else None  # type: ignore[attr-defined]
