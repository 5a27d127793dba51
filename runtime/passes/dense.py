"""Owns the dense broadcast pass: a broadcast that broadcasts nothing is a plain binary."""

from __future__ import annotations

import math

from runtime.command_list.thunks.elementwise import BinaryBroadcast, BinaryFull
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["DENSE_BROADCAST"]


def _dense(dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Row-major; the stride of an axis of size 1 does not matter."""
    return all(d == 1 or s == math.prod(dims[k + 1 :]) for k, (d, s) in enumerate(zip(dims, strides, strict=True)))


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    t = flow.thunks[i]
    if not isinstance(t, BinaryBroadcast):
        return None
    if t.rank < 1:
        refuse(Refusal.RANK_ZERO, i)
    for side, strides in ((t.lhs, t.lhs_strides), (t.rhs, t.rhs_strides)):
        if not _dense(t.out_dims, strides) or side.numel != t.len:
            refuse(Refusal.NOT_DENSE, i, side, strides=strides, dims=t.out_dims)
    a, b, dst = (o.viewed(t.len) for o in (t.lhs, t.rhs, t.dst))
    return Applied(((i, (BinaryFull(a, b, dst, t.len, t.op),)),))


DENSE_BROADCAST = CommandPass(
    "dense_broadcast", "A broadcast whose operands are both dense rows of equal length is a plain binary.",
    ("dense_broadcast",), frozenset({BinaryBroadcast.label}), frozenset({Refusal.RANK_ZERO, Refusal.NOT_DENSE}), _find)
