"""Owns the gated norm pass: RMSNorm times SiLU in one thunk at the product's place."""

from __future__ import annotations

from planner_core.ir import DType
from runtime.command_list import Operand
from runtime.command_list.thunks.elementwise import BinaryFull
from runtime.command_list.thunks.fused import FusedRmsNormMulSilu
from runtime.command_list.thunks.reduce import RmsNorm
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse
from runtime.passes.mlp import Gate, gates
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["GATED_NORM"]


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    for gate in gates(flow, i):
        at = flow.producer(gate.up, i, (RmsNorm,))
        if at is not None and gate.act == "silu":
            return _fuse(flow, i, gate, at)
    return None


def _fuse(flow: Flow, i: int, gate: Gate, at: int) -> Applied:
    norm = flow.thunks[at]
    assert isinstance(norm, RmsNorm)  # _find looked
    z, out = gate.source, gate.dst  # equal spans, so rows · h is the length
    vectors: list[Operand] = [o for o in (norm.g, norm.b) if o is not None]
    for o in (norm.src, norm.dst, z, gate.result, out):
        if o.storage is not DType.F32:
            refuse(Refusal.NOT_F32, at, o)
    gone = {at, *gate.own}
    first = min(at, gate.read)
    flow.no_opaque((first, i))
    flow.vanishes(norm.dst, at, {i})
    if gate.copy is not None:
        flow.vanishes(flow.thunks[gate.copy].writes()[0], gate.copy, {gate.at})
    flow.vanishes(gate.result, gate.at, {i})
    for o in (norm.src, *vectors):
        flow.may_read_later(o, at, i, gone)
    flow.may_read_later(z, gate.read, i, gone)
    flow.apart(out, norm.src, z, *vectors)
    shape = (norm.rows, norm.h)
    fused = FusedRmsNormMulSilu(norm.src, norm.g, norm.b, z.viewed(*shape), out.viewed(*shape), norm.rows, norm.h,
                                norm.eps)
    return Applied(((i, (fused,)),), tuple(gone))


GATED_NORM = CommandPass(
    "gated_norm", "RMSNorm(x) times SiLU(z), in either order, becomes one thunk.",
    ("decode", "gated_norm"), frozenset({BinaryFull.label}),
    frozenset({Refusal.NOT_F32, Refusal.OPAQUE, Refusal.READ_ELSEWHERE, Refusal.GRAPH_OUTPUT,
               Refusal.OPERAND_OVERWRITTEN, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
