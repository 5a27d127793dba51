"""Owns the decode MLP pass for gate and up in one packed matmul: 7 dispatches become 2 (5 become 1 before a norm), or 4 where
one thunk was activation and product already."""

from __future__ import annotations

from dataclasses import dataclass

from planner_core.ir import DType, QuantScheme
from runtime.command_list import Operand
from runtime.command_list.thunks.decode import SplitLastAxis
from runtime.command_list.thunks.packed import DequantMatMulGguf
from runtime.command_list.thunks.structure import Narrow
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, Refused, refuse, span_of
from runtime.passes.mlp import (
    ANCHORS,
    DOWN,
    Gate,
    check_weight,
    down_of,
    fused_down,
    fused_gate_up,
    gate_vanishes,
    gates,
    halves,
    packed_gate,
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
    packed = packed_gate(flow.thunks[i])
    if packed is not None:
        act, row, dst, gate_first = packed
        both = flow.producer(row, i, (DequantMatMulGguf,))
        if both is not None:
            return _fuse(flow, i, _Whole(act, i, dst, gate_first), both, options)
    for gate in gates(flow, i):
        cut = flow.producer(gate.source, gate.read, _SLICES)
        both = None if cut is None else flow.producer(flow.thunks[cut].reads()[0], cut, (DequantMatMulGguf,))
        if cut is not None and both is not None:
            return _fuse(flow, i, _Cut(gate.act, gate.at, gate.dst, gate, cut), both, options)
    return None


@dataclass(frozen=True, slots=True)
class _Whole:
    """One thunk reads the product's row and is activation and product."""

    act: str
    at: int
    dst: Operand
    gate_first: bool

    def parts(self, flow: Flow, i: int, both: int, width: int) -> set[int]:
        """Nothing stands between."""
        return set()

    def vanish(self, flow: Flow, i: int, both: int, row: Operand) -> None:
        flow.vanishes(row, both, {i})


@dataclass(frozen=True, slots=True)
class _Cut:
    """Two slices of the row, of which one is activated and multiplied with the other."""

    act: str
    at: int
    dst: Operand
    gate: Gate
    cut: int
    gate_first = True

    def _up_cut(self, flow: Flow) -> int | None:
        return flow.producer(self.gate.up, self.gate.up_read, _SLICES)

    def parts(self, flow: Flow, i: int, both: int, width: int) -> set[int]:
        """The slices and what activates one, which must be the row's halves."""
        gate, up_cut, n = self.gate, self._up_cut(flow), width // 2
        up_both = None if up_cut is None else flow.producer(flow.thunks[up_cut].reads()[0], up_cut, (DequantMatMulGguf,))
        if up_cut is None or up_both != both:
            refuse(Refusal.NOT_SAME_INPUT, flow.writer(gate.up, gate.up_read), gate.up)
        if (_cut(flow, self.cut, gate.source), _cut(flow, up_cut, gate.up)) != ((1, width, 0, n), (1, width, n, n)) or width % 2:
            refuse(Refusal.NOT_HALVES, up_cut, flow.thunks[both].writes()[0], width=width)
        return {self.cut, up_cut, *gate.own}

    def vanish(self, flow: Flow, i: int, both: int, row: Operand) -> None:
        up_cut = self._up_cut(flow)
        assert up_cut is not None  # parts() looked
        flow.vanishes(row, both, {self.cut, up_cut})
        gate_vanishes(flow, i, self.gate, self.cut)
        flow.vanishes(self.gate.up, up_cut, {self.gate.up_read})


def _fuse(flow: Flow, i: int, form: _Whole | _Cut, both: int, options: PassOptions) -> Applied:
    t = flow.thunks[both]
    assert isinstance(t, DequantMatMulGguf)  # _find looked
    check_weight(t, both, _WEIGHTS)
    product = form.dst
    for o in (t.x, t.dst, product):
        if o.storage is not DType.F32:
            refuse(Refusal.NOT_F32, both, o)
    if form.act != "silu" and not options.decode_gelu:
        refuse(Refusal.SWITCHED_OFF, form.at, option="decode_gelu")
    if options.dequant_gpu_disable:
        refuse(Refusal.HOST_FORM_FORCED, both, option="dequant_gpu_disable")
    if options.host_fallback and isinstance(form, _Cut):
        refuse(Refusal.HOST_FORM_FORCED, form.cut, option="host_fallback")
    n = t.n // 2
    parts = form.parts(flow, i, both, t.n)
    down = down_of(flow, i, product, n, DOWN)
    d = flow.thunks[down]
    assert isinstance(d, DequantMatMulGguf)
    gone = {both, *parts}
    flow.no_opaque((both, down))
    form.vanish(flow, i, both, t.dst)
    if form.act != "silu":
        flow.vanishes(product, i, {down})
    for o in (t.x, t.w_q):
        flow.may_read_later(o, both, i, gone)
    flow.apart(product, t.x, t.w_q)
    gate_w, up_w = halves(t.w_q, n) if form.gate_first else halves(t.w_q, n)[::-1]
    first = fused_gate_up(form.act, t.x, gate_w, up_w, product, t.k, n, t.scheme)
    facts = (("scheme", t.scheme.text), ("act", form.act))
    try:
        add, res, dst = residual_of(flow, down)
        if {res.storage, dst.storage, d.x.storage, d.dst.storage} != {DType.F32}:
            refuse(Refusal.NOT_F32, add, res)
    except Refused as no:
        return Applied(((i, (first,)),), tuple(gone), (*facts, ("residual", no.reason.name.lower())))
    put = ((i, (first,)), (add, (fused_down(d, res, dst),)))
    return Applied(put, tuple(gone | {down}), facts)


DECODE_MLP_COMBINED = CommandPass(
    "decode_mlp_combined", "A one-row MLP with gate and up in one packed matmul becomes one or two fused thunks.",
    ("decode", "decode_mlp_combined"), ANCHORS,
    frozenset({Refusal.NOT_ONE_ROW, Refusal.SCHEME, Refusal.NOT_F32, Refusal.SWITCHED_OFF, Refusal.HOST_FORM_FORCED,
               Refusal.NOT_SAME_INPUT, Refusal.NOT_HALVES, Refusal.NO_DOWN, Refusal.OPAQUE, Refusal.READ_ELSEWHERE,
               Refusal.GRAPH_OUTPUT, Refusal.OPERAND_OVERWRITTEN, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
