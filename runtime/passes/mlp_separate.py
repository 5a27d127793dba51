"""Owns the decode MLP pass for gate and up in a packed matmul each: 6 dispatches become 2."""

from __future__ import annotations

from planner_core.ir import DType, QuantScheme
from runtime.command_list.thunks.packed import DequantMatMulGguf
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse, span_of
from runtime.passes.mlp import (
    ANCHORS,
    DOWN,
    OURS,
    Gate,
    check_weight,
    down_of,
    fused_down,
    fused_gate_up,
    gate_vanishes,
    gates,
    residual_of,
)
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["DECODE_MLP_SEPARATE"]

_WEIGHTS = OURS | {QuantScheme.Q4_K, QuantScheme.Q5_0}


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    for gate in gates(flow, i):
        at = flow.producer(gate.source, gate.read, (DequantMatMulGguf,))
        if at is not None:
            return _fuse(flow, i, gate, at, options)
    return None


def _fuse(flow: Flow, i: int, gate: Gate, gate_at: int, options: PassOptions) -> Applied:
    g = flow.thunks[gate_at]
    up_at = flow.producer(gate.up, gate.up_read, (DequantMatMulGguf,))
    if up_at is None:
        refuse(Refusal.NOT_SAME_INPUT, flow.writer(gate.up, gate.up_read), gate.up)
    u = flow.thunks[up_at]
    assert isinstance(g, DequantMatMulGguf) and isinstance(u, DequantMatMulGguf)
    check_weight(g, gate_at, _WEIGHTS)
    if (span_of(g.x), g.m, g.k, g.n, g.scheme) != (span_of(u.x), u.m, u.k, u.n, u.scheme):
        refuse(Refusal.NOT_SAME_INPUT, up_at, u.x, gate=f"{g.k}x{g.n} {g.scheme}", up=f"{u.k}x{u.n} {u.scheme}")
    if gate.act != "silu" and not options.decode_gelu:
        refuse(Refusal.SWITCHED_OFF, gate.at, option="decode_gelu")
    if options.dequant_gpu_disable:
        refuse(Refusal.HOST_FORM_FORCED, gate_at, option="dequant_gpu_disable")
    product = gate.dst
    down = down_of(flow, i, product, g.n, DOWN | OURS)
    d = flow.thunks[down]
    assert isinstance(d, DequantMatMulGguf)
    if options.q2_0_fused_disable and QuantScheme.Q2_0 in (g.scheme, d.scheme):
        refuse(Refusal.SWITCHED_OFF, gate_at, option="q2_0_fused_disable")
    gone = {gate_at, up_at, down, *gate.own}
    first_at = min(gate_at, up_at)
    flow.no_opaque((first_at, down))
    add, res, dst = residual_of(flow, down)
    values = (g.x, g.dst, u.dst, gate.result, product, d.dst, res, dst)
    half = next((o for o in values if o.storage is not DType.F32), None)
    wrong = next((at for at, t in ((gate_at, g), (down, d)) if t.scheme not in OURS), gate_at if gate.act != "silu" else None)
    if half is not None and wrong is not None:
        refuse(Refusal.HALF_FORM, wrong, half, scheme=g.scheme.text, down=d.scheme.text, act=gate.act)
    gate_vanishes(flow, i, gate, gate_at)
    flow.vanishes(gate.up, up_at, {gate.up_read})
    if gate.act != "silu":
        flow.vanishes(product, i, {down})
    for o in (g.x, g.w_q, u.w_q):
        flow.may_read_later(o, first_at, i, gone)
    flow.apart(product, g.x, g.w_q, u.w_q)
    first = fused_gate_up(gate.act, g.x, g.w_q, u.w_q, product, g.k, g.n, g.scheme)
    return Applied(((i, (first,)), (add, (fused_down(d, res, dst),))), tuple(gone),
                   (("scheme", g.scheme.text), ("act", gate.act)))


DECODE_MLP_SEPARATE = CommandPass(
    "decode_mlp_separate", "A one-row MLP with a packed matmul each for gate and up becomes two fused thunks.",
    ("decode", "decode_mlp_separate"), ANCHORS,
    frozenset({Refusal.NOT_ONE_ROW, Refusal.SCHEME, Refusal.NOT_F32, Refusal.K_NOT_BLOCKS, Refusal.HALF_FORM, Refusal.SWITCHED_OFF,
               Refusal.HOST_FORM_FORCED, Refusal.NOT_SAME_INPUT, Refusal.NO_DOWN, Refusal.NO_RESIDUAL, Refusal.OPAQUE,
               Refusal.READ_ELSEWHERE, Refusal.GRAPH_OUTPUT, Refusal.OPERAND_OVERWRITTEN,
               Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
