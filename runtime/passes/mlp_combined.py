"""Owns the decode MLP pass for gate and up in one packed matmul: 7 dispatches become 2 (5 become 1 before a norm)."""

from __future__ import annotations

from planner_core.ir import DType, QuantScheme
from runtime.command_list import Operand
from runtime.command_list.thunks.decode import SplitLastAxis
from runtime.command_list.thunks.elementwise import BinaryFull
from runtime.command_list.thunks.packed import DequantMatMulGguf
from runtime.command_list.thunks.structure import Narrow
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, Refused, refuse, span_of
from runtime.passes.mlp import (
    DOWN,
    Gate,
    check_weight,
    down_of,
    fused_down,
    fused_gate_up,
    gate_vanishes,
    gates,
    halves,
    residual_of,
)
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["DECODE_MLP_COMBINED"]

_WEIGHTS = frozenset({QuantScheme.Q4_K, QuantScheme.Q5_0})
_SLICES = (Narrow, SplitLastAxis)


def _cut(flow: Flow, at: int, o: Operand) -> tuple[int, int, int, int]:
    """(rows, width of the parent, start, length) of the slice at ``at`` that is ``o``."""
    t = flow.thunks[at]
    if isinstance(t, Narrow):
        return t.outer, t.src_axis, t.start, t.len
    if isinstance(t, SplitLastAxis) and len(t.segments) == 2:
        k = next(k for k, s in enumerate(t.segments) if span_of(s) == span_of(o))
        return t.outer, t.src_axis, t.starts[k], t.segments[k].shape[1]
    return 0, 0, 0, 0


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    for gate in gates(flow, i):
        cut = flow.producer(gate.source, gate.read, _SLICES)
        both = None if cut is None else flow.producer(flow.thunks[cut].reads()[0], cut, (DequantMatMulGguf,))
        if cut is not None and both is not None:
            return _fuse(flow, i, gate, cut, both, options)
    return None


def _fuse(flow: Flow, i: int, gate: Gate, cut: int, both: int, options: PassOptions) -> Applied:
    t = flow.thunks[both]
    assert isinstance(t, DequantMatMulGguf)  # _find looked
    check_weight(t, both, _WEIGHTS)
    product = gate.mul.dst
    for o in (t.x, t.dst, product):
        if o.storage is not DType.F32:
            refuse(Refusal.NOT_F32, both, o)
    if gate.act != "silu" and not options.decode_gelu:
        refuse(Refusal.SWITCHED_OFF, gate.at, option="decode_gelu")
    if options.dequant_gpu_disable:
        refuse(Refusal.HOST_FORM_FORCED, both, option="dequant_gpu_disable")
    if options.host_fallback:
        refuse(Refusal.HOST_FORM_FORCED, cut, option="host_fallback")
    n = t.n // 2
    up_cut = flow.producer(gate.up, i, _SLICES)
    up_both = None if up_cut is None else flow.producer(flow.thunks[up_cut].reads()[0], up_cut, (DequantMatMulGguf,))
    if up_cut is None or up_both != both:
        refuse(Refusal.NOT_SAME_INPUT, flow.writer(gate.up, i), gate.up)
    if (_cut(flow, cut, gate.source), _cut(flow, up_cut, gate.up)) != ((1, t.n, 0, n), (1, t.n, n, n)) or t.n % 2:
        refuse(Refusal.NOT_HALVES, up_cut, t.dst, width=t.n)
    down = down_of(flow, i, product, n, DOWN)
    d = flow.thunks[down]
    assert isinstance(d, DequantMatMulGguf)
    gone = {both, cut, up_cut, *gate.own}
    flow.no_opaque((both, down))
    flow.vanishes(t.dst, both, {cut, up_cut})
    gate_vanishes(flow, i, gate, cut)
    flow.vanishes(gate.up, up_cut, {i})
    if gate.act != "silu":
        flow.vanishes(product, i, {down})
    for o in (t.x, t.w_q):
        flow.may_read_later(o, both, i, gone)
    flow.apart(product, t.x, t.w_q)
    first = fused_gate_up(gate.act, t.x, *halves(t.w_q, n), product, t.k, n, t.scheme)
    facts = (("scheme", t.scheme.text), ("act", gate.act))
    try:
        add, res, dst = residual_of(flow, down)
        if {res.storage, dst.storage, d.x.storage} != {DType.F32}:
            refuse(Refusal.NOT_F32, add, res)
    except Refused as no:
        return Applied(((i, (first,)),), tuple(gone), (*facts, ("residual", no.reason.name.lower())))
    put = ((i, (first,)), (add, (fused_down(d, res, dst),)))
    return Applied(put, tuple(gone | {down}), facts)


DECODE_MLP_COMBINED = CommandPass(
    "decode_mlp_combined", "A one-row MLP with gate and up in one packed matmul becomes one or two fused thunks.",
    ("decode", "decode_mlp_combined"), frozenset({BinaryFull.label}),
    frozenset({Refusal.NOT_ONE_ROW, Refusal.SCHEME, Refusal.NOT_F32, Refusal.SWITCHED_OFF, Refusal.HOST_FORM_FORCED,
               Refusal.NOT_SAME_INPUT, Refusal.NOT_HALVES, Refusal.NO_DOWN, Refusal.OPAQUE, Refusal.READ_ELSEWHERE,
               Refusal.GRAPH_OUTPUT, Refusal.OPERAND_OVERWRITTEN, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
