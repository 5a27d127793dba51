"""Owns the residual + RMSNorm pass: one decoded row whose sum lives only to be normed."""

from __future__ import annotations

from planner_core.ir import DType
from runtime.command_list import Operand
from runtime.command_list.thunks.decode import FusedMlpDownResidual
from runtime.command_list.thunks.elementwise import BiasAdd, BinaryFull
from runtime.command_list.thunks.fused import FusedResidualRmsNorm
from runtime.command_list.thunks.matmul import BatchedSgemm, FusedMmBiasAct, Sgemm
from runtime.command_list.thunks.packed import DequantMatMulGguf
from runtime.command_list.thunks.reduce import RmsNorm
from runtime.command_list.thunks.structure import Copy
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse, span_of
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["RESIDUAL_RMS_NORM"]

LEAST_ROW = 1024
_PROJECTIONS = (DequantMatMulGguf, Sgemm, BatchedSgemm, FusedMmBiasAct, FusedMlpDownResidual)
_HOPS = 3


def _from_projection(flow: Flow, o: Operand, before: int) -> bool:
    """The operand comes from a projection through at most three copies and bias adds."""
    for _ in range(_HOPS + 1):
        at = flow.writer(o, before)
        if at is None:
            return False
        t = flow.thunks[at]
        if isinstance(t, _PROJECTIONS):
            return True
        if not isinstance(t, (Copy, BiasAdd)) or span_of(t.dst) != span_of(o):
            return False
        o, before = t.src, at
    return False


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    t = flow.thunks[i]
    if not isinstance(t, RmsNorm):
        return None
    copy = flow.producer(t.src, i, (Copy,))
    sum_ = flow.thunks[copy].reads()[0] if copy is not None else t.src
    end = i if copy is None else copy
    at = flow.producer(sum_, end, (BinaryFull,))
    add = flow.thunks[at] if at is not None else None
    if at is None or not isinstance(add, BinaryFull) or add.op != "add":
        return None
    if t.rows != 1:
        refuse(Refusal.NOT_ONE_ROW, i, t.src, rows=t.rows)
    if t.h < LEAST_ROW:
        refuse(Refusal.ROW_TOO_SHORT, i, t.src, h=t.h)
    for o in (add.lhs, add.rhs, sum_, t.src, t.dst):
        if o.storage is not DType.F32:
            refuse(Refusal.NOT_F32, at, o)
    if flow.live_between(at, end) > 2:
        refuse(Refusal.TOO_FAR, at, sum_, between=flow.live_between(at, end))
    x, res = add.lhs, add.rhs
    if not _from_projection(flow, x, at):
        x, res = res, x
    if not _from_projection(flow, x, at):
        refuse(Refusal.NOT_A_PROJECTION, at, x)
    gone = (at,) if copy is None else (at, copy)
    flow.no_opaque((at, i))
    flow.vanishes(sum_, at, {end}, Refusal.SUM_READ_LATER)
    if copy is not None:
        flow.vanishes(t.src, copy, {i})
    for o in (x, res):
        flow.may_read_later(o, at, i, gone)
    flow.apart(t.dst, x, res)
    row = (1, t.h)
    fused = FusedResidualRmsNorm(x.viewed(*row), res.viewed(*row), None, t.g, t.b, t.dst, 1, t.h, t.eps)
    return Applied(((i, (fused,)),), gone)


RESIDUAL_RMS_NORM = CommandPass(
    "residual_rms_norm", "The sum of a projection and a residual that only an RMSNorm reads vanishes into the norm.",
    ("decode", "residual_rms_norm"), frozenset({RmsNorm.label}),
    frozenset({Refusal.NOT_ONE_ROW, Refusal.ROW_TOO_SHORT, Refusal.NOT_F32, Refusal.TOO_FAR, Refusal.NOT_A_PROJECTION,
               Refusal.OPAQUE, Refusal.SUM_READ_LATER, Refusal.READ_ELSEWHERE, Refusal.GRAPH_OUTPUT,
               Refusal.OPERAND_OVERWRITTEN, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
