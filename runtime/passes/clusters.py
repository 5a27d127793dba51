"""Owns the narrow cluster pass: all slices of one row are cut in one dispatch."""

from __future__ import annotations

from itertools import pairwise

from planner_core.ir import DType
from runtime.command_list.thunks.decode import SplitLastAxis
from runtime.command_list.thunks.structure import Narrow
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse, span_of
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["NARROW_CLUSTERS"]


def _is_first(flow: Flow, i: int, t: Narrow) -> bool:
    """No earlier slice of the same value."""
    written = flow.writer(t.src, i)
    at = flow.reader(t.src, i)
    while at is not None and (written is None or at > written):
        other = flow.thunks[at]
        if isinstance(other, Narrow) and span_of(other.src) == span_of(t.src):
            return False
        at = flow.reader(t.src, at)
    return True


def _cluster(flow: Flow, i: int, t: Narrow) -> list[tuple[int, Narrow]]:
    """Every slice of the value, in list order."""
    end = flow.next_write(t.src, i - 1)
    found, at = [(i, t)], flow.next_read(t.src, i)
    while at is not None and (end is None or at <= end):
        other = flow.thunks[at]
        if isinstance(other, Narrow) and span_of(other.src) == span_of(t.src):
            found.append((at, other))
        at = flow.next_read(t.src, at)
    return found


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    t = flow.thunks[i]
    if not isinstance(t, Narrow) or not _is_first(flow, i, t):
        return None
    cluster = _cluster(flow, i, t)
    if len(cluster) < 2:
        return None
    last = cluster[-1][0]
    if t.src.storage is not DType.F32 or any(n.dst.storage is not DType.F32 for _, n in cluster):
        refuse(Refusal.NOT_F32, i, t.src)
    at = 0
    for k, n in sorted(cluster, key=lambda c: c[1].start):
        if n.start != at or (n.outer, n.src_axis) != (t.outer, t.src_axis):
            refuse(Refusal.NOT_A_PARTITION, k, t.src, start=n.start, wanted=at)
        at += n.len
    if at != t.src_axis:
        refuse(Refusal.NOT_A_PARTITION, last, t.src, covered=at, width=t.src_axis)
    if options.host_fallback:
        refuse(Refusal.HOST_FORM_FORCED, i, option="host_fallback")
    flow.no_opaque((i, last))
    gone = tuple(k for k, _ in cluster[1:])
    for k, n in cluster[1:]:
        flow.may_write_earlier(n.dst, k, i, gone)
    for _, n in cluster:
        flow.apart(n.dst, t.src)
    placed = sorted((n.dst for _, n in cluster), key=span_of)
    for a, b in pairwise(placed):
        flow.apart(a, b)
    split = SplitLastAxis(t.src, t.outer, t.src_axis, tuple(n.dst for _, n in cluster), tuple(n.start for _, n in cluster))
    return Applied(((i, (split,)),), gone, (("slices", len(cluster)),))


NARROW_CLUSTERS = CommandPass(
    "narrow_clusters", "Slices of one value that partition its last axis become one thunk at the first one's place.",
    ("narrow_clusters",), frozenset({Narrow.label}),
    frozenset({Refusal.NOT_F32, Refusal.NOT_A_PARTITION, Refusal.HOST_FORM_FORCED, Refusal.OPAQUE,
               Refusal.DESTINATION_IN_USE, Refusal.OUTPUT_OVERLAPS_OPERAND}), _find)
