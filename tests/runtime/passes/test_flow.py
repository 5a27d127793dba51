"""The data-flow questions against answers found byte by byte."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.ir import DType
from runtime.command_list import Operand
from runtime.command_list.thunks.structure import Copy
from runtime.passes import Flow, Refusal
from runtime.passes.flow import Refused
from runtime.passes.spans import SpanIndex
from tests.runtime.passes.lab import Lab

SPAN = st.tuples(st.integers(0, 24), st.integers(0, 9)).map(lambda s: (s[0], s[0] + s[1]))


def meets(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return bool(set(range(*a)) & set(range(*b)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(SPAN, max_size=3), max_size=12), st.lists(st.tuples(st.integers(0, 11), SPAN), max_size=3),
       SPAN, st.integers(-1, 12))
def test_index_equals_a_scan(rows: list[list[tuple[int, int]]], added: list[tuple[int, tuple[int, int]]],
                             span: tuple[int, int], i: int) -> None:
    index = SpanIndex(rows)
    for k, s in added:
        if k < len(rows):
            index.add(k, s)
            rows[k].append(s)
    hits = [k for k, row in enumerate(rows) if any(meets(s, span) for s in row)]

    def live(k: int) -> bool:
        return k in hits

    assert index.first_after(span, i, live) == min((k for k in hits if k > i), default=None)
    assert index.last_before(span, i, live) == max((k for k in hits if k < i), default=None)


def byte(at: int, n: int) -> Operand:
    return Operand("arena", at, n, DType.U8, None, (n,))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(SPAN, SPAN), min_size=1, max_size=10), st.data())
def test_vanishes_equals_following_each_byte(copies: list[tuple[tuple[int, int], tuple[int, int]]], data: st.DataObject) -> None:
    lab = Lab()
    for k, (src, dst) in enumerate(copies):
        a, b = (byte(s[0], s[1] - s[0]) for s in (src, dst))
        lab.op(f"c{k}", Copy(a, b, a.nbytes))
    out = data.draw(st.none() | SPAN)
    if out is not None and out[0] < out[1]:
        lab.end(byte(out[0], out[1] - out[0]))
    at = data.draw(st.integers(0, len(copies) - 1))
    allowed = data.draw(st.sets(st.integers(0, len(copies) - 1)))
    left = set(range(*copies[at][1]))
    want: Refusal | None = None
    for k in range(at + 1, len(copies)):
        if left & set(range(*copies[k][0])) and k not in allowed:
            want = Refusal.READ_ELSEWHERE
            break
        left -= set(range(*copies[k][1]))
    if want is None and out is not None and left & set(range(*out)):
        want = Refusal.GRAPH_OUTPUT
    flow = Flow(lab.commands())
    try:
        flow.vanishes(lab.thunks[at].writes()[0], at, allowed)
        got = None
    except Refused as no:
        got = no.reason
    assert got is want


def test_replaced_thunks_are_seen_at_once() -> None:
    lab = Lab()
    a, b, c = (lab.value(4) for _ in range(3))
    for name, src, dst in (("x", a, b), ("y", b, c), ("z", b, a)):
        lab.op(name, Copy(src, dst, 4))
    flow = Flow(lab.commands())
    assert (flow.next_read(b, 0), flow.writer(b, 2), flow.reader(b, 3)) == (1, 0, 2)
    flow.replace(1, Copy(a, b, 4))
    assert (flow.next_read(b, 0), flow.writer(b, 2), flow.next_write(b, 0)) == (2, 1, 1)
    assert flow.producer(b, 2, (Copy,)) == 1


def test_weights_and_arena_never_overlap() -> None:
    lab = Lab()
    a = lab.value(4)
    w = Operand("weights", a.offset, a.nbytes, a.storage, None, a.shape)
    lab.op("x", Copy(w, a, 4))
    assert Flow(lab.commands()).next_read(a, -1) is None


@pytest.mark.bench
def test_a_long_list_is_indexed_in_near_linear_time() -> None:
    rows = [[(k % 97 * 64, k % 97 * 64 + 64 * (k % 5 + 1))] for k in range(60_000)]
    start = time.perf_counter()
    SpanIndex(rows)
    assert time.perf_counter() - start < 5
