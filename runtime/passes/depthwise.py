"""Owns the depthwise conv pass: channels-last in and out, one decoded step, the transposes gone.

The fused thunk stands at the convolution's place, so its result is written earlier than before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner_core.ir import DType
from runtime.command_list import Operand, Thunk
from runtime.command_list.thunks.conv import Conv2D
from runtime.command_list.thunks.fused import FusedDepthwiseConv1dBsc
from runtime.command_list.thunks.structure import Copy, Transpose
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, Refused, refuse, span_of
from runtime.passes.mlp import activation
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["DEPTHWISE_CONV"]

SILU_WITHIN = 32
"""Thunks after the transpose back among which a SiLU is looked for."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A thunk of the chain that reads one value and writes the next."""

    at: int
    src: Operand
    dst: Operand


def _next(flow: Flow, o: Operand, after: int, kinds: tuple[type[Thunk], ...]) -> _Link | None:
    """The next reader of exactly ``o``, where it is one of ``kinds``."""
    at = flow.next_read(o, after)
    if at is None or not isinstance(flow.thunks[at], kinds) or flow.writer(o, at) != after:
        return None
    t = flow.thunks[at]
    return _Link(at, t.reads()[0], t.writes()[0]) if span_of(t.reads()[0]) == span_of(o) else None


def _swaps(flow: Flow, at: int, batch: int, a: int, b: int) -> bool:
    """The transpose at ``at`` takes [batch, a, b] to [batch, b, a]."""
    t = flow.thunks[at]
    return (isinstance(t, Transpose) and t.out_dims == (batch, b, a) and t.in_strides == (a * b, 1, b))


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    c = flow.thunks[i]
    if not isinstance(c, Conv2D):
        return None
    copy = flow.producer(c.src, i, (Copy,))
    wide = flow.thunks[copy].reads()[0] if copy is not None else c.src
    first = flow.producer(wide, i if copy is None else copy, (Transpose,))
    if first is None:
        return None
    _check_conv(c, i)
    if not _swaps(flow, first, c.n, c.w, c.c_in):
        refuse(Refusal.TRANSPOSE_STRIDES, first, wide)
    before = [first] if copy is None else [first, copy]
    chain = list(_way_back(flow, i, c))
    src = flow.thunks[first].reads()[0]
    own = [*before, *(k.at for k in chain)]
    flow.no_opaque((first, chain[-1].at))
    for at, reader in zip(before, (*before[1:], i), strict=True):
        flow.vanishes(flow.thunks[at].writes()[0], at, {reader})
    written = [_Link(i, c.src, c.dst), *chain]
    for link, reader_ in zip(written, chain, strict=False):
        flow.vanishes(link.dst, link.at, {reader_.at})
    flow.may_read_later(src, first, i, own)
    last = chain[-1]
    silu = _silu(flow, i, last, own, (src, c.weight))
    if silu is not None:
        last = silu
        own.append(silu.at)
    else:
        flow.may_write_earlier(last.dst, last.at, i, own)
        flow.apart(last.dst, src, c.weight)
    fused = FusedDepthwiseConv1dBsc(src.viewed(c.n, c.w, c.c_in), c.weight.viewed(c.c_in, 1, c.kw),
                                    last.dst.viewed(c.n, c.w_out, c.c_in), c.n, c.w, c.w_out, c.c_in, c.kw,
                                    silu is not None)
    return Applied(((i, (fused,)),), tuple(own), (("silu", silu is not None),))


def _check_conv(c: Conv2D, i: int) -> None:
    if not c.groups == c.c_in == c.c_out:
        refuse(Refusal.NOT_DEPTHWISE, i, groups=c.groups, c_in=c.c_in, c_out=c.c_out)
    plain = (c.h, c.h_out, c.kh, c.sh, c.sw, c.dh, c.dw, c.ph, c.pw, c.w_out)
    if plain != (1, 1, 1, 1, 1, 1, 1, 0, 0, 1) or c.w != c.w_out + c.kw - 1:
        refuse(Refusal.CONV_SHAPE, i, width=c.w, out=c.w_out, k=c.kw)
    for o in (c.src, c.weight, c.dst):
        if o.storage is not DType.F32:
            refuse(Refusal.NOT_F32, i, o)


def _way_back(flow: Flow, i: int, c: Conv2D) -> Iterator[_Link]:
    """The thunks from the convolution's result to the channels-last value: (copy), transpose, (copy)."""
    value, at = c.dst, i
    copy = _next(flow, value, at, (Copy,))
    if copy is not None:
        yield copy
        value, at = copy.dst, copy.at
    back = _next(flow, value, at, (Transpose,))
    if back is None:
        refuse(Refusal.NO_TRANSPOSE_BACK, flow.next_read(value, at), value)
    if not _swaps(flow, back.at, c.n, c.c_in, c.w_out):
        refuse(Refusal.TRANSPOSE_STRIDES, back.at, value)
    yield back
    copy = _next(flow, back.dst, back.at, (Copy,))
    if copy is not None and _sole(flow, back, copy):
        yield copy


def _sole(flow: Flow, value: _Link, reader: _Link) -> bool:
    try:
        flow.vanishes(value.dst, value.at, {reader.at})
    except Refused:
        return False
    return True


def _silu(flow: Flow, i: int, last: _Link, own: list[int], read: tuple[Operand, ...]) -> _Link | None:
    """The SiLU behind, where it can be taken along; without it the convolution still fuses."""
    at = flow.next_read(last.dst, last.at)
    found = activation(flow.thunks[at]) if at is not None and at <= last.at + SILU_WITHIN else None
    if at is None or found is None or found[0] != "silu" or span_of(found[1]) != span_of(last.dst):
        return None
    if flow.writer(last.dst, at) != last.at:
        return None  # other bytes by then: the result was read by nothing
    try:
        flow.no_opaque((i, at))
        flow.vanishes(last.dst, last.at, {at})
        flow.may_write_earlier(found[2], at, i, [*own, at])
        flow.apart(found[2], *read)
    except Refused:
        return None
    return _Link(at, found[1], found[2])


DEPTHWISE_CONV = CommandPass(
    "depthwise_conv", "A one-step depthwise convolution between two transposes reads and writes channels last.",
    ("decode", "depthwise_conv"), frozenset({Conv2D.label}),
    frozenset({Refusal.NOT_DEPTHWISE, Refusal.CONV_SHAPE, Refusal.NOT_F32, Refusal.TRANSPOSE_STRIDES,
               Refusal.NO_TRANSPOSE_BACK, Refusal.OPAQUE, Refusal.READ_ELSEWHERE, Refusal.GRAPH_OUTPUT,
               Refusal.OPERAND_OVERWRITTEN, Refusal.DESTINATION_IN_USE, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
