"""Owns what the two decode MLP passes share: the gate's activation, the down projection, the residual add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner_core.ir import DType, QuantScheme
from runtime.command_list import Operand, Thunk
from runtime.command_list.thunks.attention import FusedSwiGLU
from runtime.command_list.thunks.decode import FusedMlpDownResidual, FusedMlpGateUpGelu, FusedMlpGateUpSwiGLU
from runtime.command_list.thunks.elementwise import ActivationInPlace, ActivationOut, BinaryFull
from runtime.command_list.thunks.fused import FusedGeGLU, GeluApproxHost, GeluApproxOut
from runtime.command_list.thunks.packed import DequantMatMulGguf
from runtime.command_list.thunks.structure import Concat, Copy
from runtime.passes.flow import Flow, refuse, span_of
from runtime.passes.reasons import Refusal

__all__ = ["ANCHORS", "DOWN", "Gate", "GateUp", "activation", "check_weight", "down_of", "fused_down", "fused_gate_up", "gates",
           "packed_gate", "residual_of"]

DOWN = frozenset({QuantScheme.Q4_K, QuantScheme.Q5_0, QuantScheme.Q6_K})
OURS = frozenset({QuantScheme.Q1_0, QuantScheme.Q2_0})
GATES = ("silu", "gelu_approx")
ANCHORS = frozenset({BinaryFull.label, FusedSwiGLU.label, FusedGeGLU.label})
"""Where an MLP's product stands: as a product, or within a thunk that took the gate's activation in."""
GateUp = FusedMlpGateUpSwiGLU | FusedMlpGateUpGelu


def activation(t: Thunk) -> tuple[str, Operand, Operand] | None:
    """(kind, operand, result) of a lone activation."""
    if isinstance(t, ActivationOut):
        return t.act, t.src, t.dst
    if isinstance(t, ActivationInPlace):
        return t.act, t.data, t.data
    if isinstance(t, (GeluApproxOut, GeluApproxHost)):
        return "gelu_approx", t.src, t.dst
    return None


@dataclass(frozen=True, slots=True)
class Gate:
    """``dst = act(source) * up``: where the parts stand. ``at`` is the activation (or the concatenation that a thunk with
    the activation in it reads), ``read`` the thunk that reads ``source`` (a copy, or ``at`` itself), ``up_read`` the one
    that reads ``up``."""

    dst: Operand
    act: str
    at: int
    copy: int | None
    source: Operand
    result: Operand
    up: Operand
    up_read: int

    @property
    def read(self) -> int:
        return self.at if self.copy is None else self.copy

    @property
    def own(self) -> set[int]:
        """The activation and the copy before it."""
        return {self.at} if self.copy is None else {self.at, self.copy}


def gates(flow: Flow, i: int) -> Iterator[Gate]:
    """Every way to read the product at ``i`` as a gated one."""
    t = flow.thunks[i]
    if not isinstance(t, BinaryFull):
        yield from _joined_gate(flow, i, t)
        return
    if t.op != "mul":
        return
    for side, up in ((t.lhs, t.rhs), (t.rhs, t.lhs)):
        at = flow.producer(side, i, (Thunk,))
        found = None if at is None else activation(flow.thunks[at])
        if at is None or found is None or found[0] not in GATES:
            continue
        copy = flow.producer(found[1], at, (Copy,))
        source = flow.thunks[copy].reads()[0] if copy is not None else found[1]
        yield Gate(t.dst, found[0], at, copy, source, side, up, i)


def packed_gate(t: Thunk) -> tuple[str, Operand, Operand, bool] | None:
    """(kind, row with gate and up, result, gate first) of a thunk that is activation and product in one."""
    if isinstance(t, FusedSwiGLU):
        return "silu", t.src, t.dst, t.gate_first
    if isinstance(t, FusedGeGLU) and t.act in GATES:
        return t.act, t.src, t.dst, t.gate_first
    return None


def _joined_gate(flow: Flow, i: int, t: Thunk) -> Iterator[Gate]:
    """Gate and up by themselves, put side by side for a thunk that is activation and product in one."""
    packed = packed_gate(t)
    at = None if packed is None else flow.producer(packed[1], i, (Concat,))
    if packed is None or at is None:
        return
    act, row, dst, gate_first = packed
    parts = flow.thunks[at].reads()
    if len(parts) == 2 and parts[0].numel == parts[1].numel:
        gate, up = parts if gate_first else parts[::-1]
        yield Gate(dst, act, at, None, gate, row, up, at)


def check_weight(t: DequantMatMulGguf, i: int, schemes: frozenset[QuantScheme]) -> None:
    """One row, and a packed format that the fused thunk reads."""
    if t.m != 1:
        refuse(Refusal.NOT_ONE_ROW, i, t.x, rows=t.m)
    if t.scheme not in schemes:
        refuse(Refusal.SCHEME, i, t.w_q, scheme=t.scheme.text)
    if t.scheme in OURS and t.k % 128:
        refuse(Refusal.K_NOT_BLOCKS, i, t.w_q, k=t.k)


def gate_vanishes(flow: Flow, i: int, gate: Gate, source_at: int) -> None:
    """Of the gate's values (its source, the copy, the activation) nothing else reads a byte."""
    flow.vanishes(gate.source, source_at, {gate.read})
    if gate.copy is not None:
        flow.vanishes(flow.thunks[gate.copy].writes()[0], gate.copy, {gate.at})
    flow.vanishes(gate.result, gate.at, {i})


def down_of(flow: Flow, i: int, product: Operand, k: int, schemes: frozenset[QuantScheme]) -> int:
    """The one-row packed matmul that reads the product."""
    end = flow.next_write(product, i)
    at = first = flow.next_read(product, i)
    while True:
        if at is None or (end is not None and at > end):
            refuse(Refusal.NO_DOWN, first, product)
        t = flow.thunks[at]
        if (isinstance(t, DequantMatMulGguf) and span_of(t.x) == span_of(product) and t.m == 1 and t.k == k
                and t.scheme in schemes):
            if t.scheme in OURS and t.k % 128:
                refuse(Refusal.K_NOT_BLOCKS, at, t.w_q, k=t.k)
            return at
        at = flow.next_read(product, at)


def residual_of(flow: Flow, down: int) -> tuple[int, Operand, Operand]:
    """The add that reads the down result, its other side, and where it goes; hazards of moving the matmul there."""
    d = flow.thunks[down]
    if not isinstance(d, DequantMatMulGguf):
        refuse(Refusal.NO_DOWN, down)
    at = flow.next_read(d.dst, down)
    t = flow.thunks[at] if at is not None else None
    if (at is None or not isinstance(t, BinaryFull) or t.op != "add" or t.len != d.n
            or flow.producer(d.dst, at, (DequantMatMulGguf,)) != down):
        refuse(Refusal.NO_RESIDUAL, at, d.dst)
    sides = [b for a, b in ((t.lhs, t.rhs), (t.rhs, t.lhs)) if span_of(a) == span_of(d.dst)]
    if not sides or sides[0].overlaps(d.dst):
        refuse(Refusal.NO_RESIDUAL, at, d.dst)
    if {sides[0].storage, t.dst.storage} - {DType.F32, DType.F16}:
        refuse(Refusal.NOT_F32, at, t.dst)
    flow.no_opaque((down, at))
    flow.vanishes(d.dst, down, {at})
    for o in (d.x, d.w_q):
        flow.may_read_later(o, down, at, {down})
    flow.apart(t.dst, d.x, d.w_q)
    if span_of(sides[0]) != span_of(t.dst):
        flow.apart(t.dst, sides[0])
    return at, sides[0], t.dst


def fused_gate_up(act: str, x: Operand, gate_w: Operand, up_w: Operand, dst: Operand, k: int, n: int,
                  scheme: QuantScheme) -> GateUp:
    """The fused thunk at the product's place."""
    row, out = x.viewed(1, k), dst.viewed(1, n)
    if act == "silu":
        return FusedMlpGateUpSwiGLU(row, gate_w, up_w, out, k, n, scheme, x.storage is DType.F16,
                                    dst.storage is DType.F16)
    return FusedMlpGateUpGelu(row, gate_w, up_w, out, k, n, scheme)


def fused_down(d: DequantMatMulGguf, res: Operand, dst: Operand) -> FusedMlpDownResidual:
    """The fused thunk at the residual add's place."""
    return FusedMlpDownResidual(d.x, d.w_q, res.viewed(1, d.n), dst.viewed(1, d.n), d.k, d.n, d.scheme,
                                d.x.storage is DType.F16, dst.storage is DType.F16, res.storage is DType.F16)


def halves(w: Operand, n: int) -> tuple[Operand, Operand]:
    """The first and the last n packed rows."""
    nbytes = w.nbytes // 2
    first = replace(w, nbytes=nbytes, shape=(n, nbytes // n))
    return first, replace(first, offset=w.offset + nbytes)
