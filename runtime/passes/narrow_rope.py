"""Owns the narrow → RoPE pass: the rotary embedding reads its slice from the wide row."""

from __future__ import annotations

from dataclasses import replace

from runtime.command_list.thunks.attention import Rope
from runtime.command_list.thunks.structure import Narrow
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["NARROW_ROPE"]


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    t = flow.thunks[i]
    if not isinstance(t, Rope) or t.src_row_stride != t.hidden:
        return None
    cut = flow.producer(t.src, i, (Narrow,))
    if cut is None:
        return None
    n = flow.thunks[cut]
    assert isinstance(n, Narrow)  # producer looked
    rows = t.batch * t.seq
    if (n.outer, n.len) != (rows, t.hidden):
        refuse(Refusal.LENGTH_DIFFERS, cut, n.dst, slice=f"{n.outer}x{n.len}", rope=f"{rows}x{t.hidden}")
    if options.host_fallback:
        refuse(Refusal.HOST_FORM_FORCED, cut, option="host_fallback")
    flow.no_opaque((cut, i))
    flow.vanishes(n.dst, cut, {i})
    step = n.src.storage.bits // 8
    count = (rows - 1) * n.src_axis + n.len
    wide = replace(n.src, offset=n.src.offset + n.start * step, nbytes=count * step, shape=(count,), bucket_axis=None)
    flow.may_read_later(wide, cut, i, {cut})
    flow.apart(t.dst, wide)
    return Applied(((i, (replace(t, src=wide, src_row_stride=n.src_axis),)),), (cut,), (("row_stride", n.src_axis),))


NARROW_ROPE = CommandPass(
    "narrow_rope", "A rotary embedding of a slice reads the wide row itself, a parent's width from row to row.",
    ("narrow_rope",), frozenset({Rope.label}),
    frozenset({Refusal.LENGTH_DIFFERS, Refusal.HOST_FORM_FORCED, Refusal.OPAQUE, Refusal.READ_ELSEWHERE,
               Refusal.GRAPH_OUTPUT, Refusal.OPERAND_OVERWRITTEN, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
