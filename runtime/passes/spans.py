"""Owns ``SpanIndex``: which positions touch some byte of a span, asked in order, in logarithmic time.

Spans that overlap, directly or through others, form an island; buffers that share no byte with others are islands of
one or a few segments, so that most questions are one look-up. Within an island a segment tree stands over the spans'
ends. Each position is kept at the few tree nodes that make up its span (``cover``) and at those and every node above
(``below``); both lists are ascending. What overlaps a query is in ``below`` of the query's own nodes, or in ``cover`` of
a node above one of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

__all__ = ["Span", "SpanIndex"]

Span = tuple[int, int]
"""First byte and one past the last, on one line of addresses for all spaces."""


class SpanIndex:
    """Built from each position's spans; positions can be added, never removed: the ``live`` test, which the caller
    gives with each question, leaves out what no longer holds."""

    def __init__(self, touches: Sequence[Sequence[Span]]) -> None:
        spans = sorted({s for row in touches for s in row if s[0] < s[1]})
        self._ends = sorted({e for s in spans for e in s})
        self._islands = self._make_islands(spans)
        self._cover: dict[int, list[int]] = {}
        self._below: dict[int, list[int]] = {}
        self._nodes: dict[Span, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._strays: list[int] = []
        for i, row in enumerate(touches):
            for span in row:
                own, above = self._split(span)
                for v in own:
                    _append(self._cover, v, i)
                    _append(self._below, v, i)
                for v in above:
                    _append(self._below, v, i)

    def _make_islands(self, spans: Sequence[Span]) -> list[tuple[int, int, int, int]]:
        """Per segment between two ends: its island's first segment, one past its last, number of leaves, first node."""
        out: list[tuple[int, int, int, int]] = []
        at, node = 0, 0
        while at < len(spans):
            end, k = spans[at][1], at + 1
            while k < len(spans) and spans[k][0] < end:
                end = max(end, spans[k][1])
                k += 1
            first, last = bisect_left(self._ends, spans[at][0]), bisect_left(self._ends, end)
            while len(out) < first:  # a gap between islands
                out.append((len(out), len(out) + 1, 1, node))
                node += 2
            leaves = 1 << (last - first - 1).bit_length()
            out += [(first, last, leaves, node)] * (last - first)
            node += 2 * leaves
            at = k
        return out

    def add(self, i: int, span: Span) -> None:
        """A further span of position ``i``."""
        if span[0] < span[1] and not (self._ends and self._ends[0] <= span[0] and span[1] <= self._ends[-1]):
            insort(self._strays, i)  # beyond all that was there: asked each time
        own, above = self._split(span)
        for nodes, lists in ((own, self._cover), (own, self._below), (above, self._below)):
            for v in nodes:
                found = lists.setdefault(v, [])
                at = bisect_left(found, i)
                if at == len(found) or found[at] != i:
                    insort(found, i)

    def _split(self, span: Span) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nodes that make up the span (or a little more, at ends the index does not know), and those above."""
        known = self._nodes.get(span)
        if known is not None:
            return known
        at = max(bisect_right(self._ends, span[0]) - 1, 0)
        end = min(bisect_left(self._ends, span[1]), len(self._islands))
        own: list[int] = []
        above: set[int] = set()
        while at < end:
            first, last, leaves, base = self._islands[at]
            lo, hi = at - first + leaves, min(end, last) - first + leaves
            at = last
            while lo < hi:
                if lo & 1:
                    own.append(base + lo)
                    _climb(base, lo, above)
                    lo += 1
                if hi & 1:
                    hi -= 1
                    own.append(base + hi)
                    _climb(base, hi, above)
                lo >>= 1
                hi >>= 1
        self._nodes[span] = found = tuple(own), tuple(above)
        return found

    def _lists(self, span: Span) -> list[list[int]]:
        own, above = self._split(span)
        found = [self._below[v] for v in own if v in self._below]
        if self._strays:
            found.append(self._strays)
        return found + [self._cover[v] for v in above if v in self._cover]

    def first_after(self, span: Span, i: int, live: Callable[[int], bool]) -> int | None:
        """The lowest live position above ``i`` that touches the span."""
        lists = self._lists(span)
        while True:
            best: int | None = None
            for found in lists:
                at = bisect_right(found, i)
                if at < len(found) and (best is None or found[at] < best):
                    best = found[at]
            if best is None or live(best):
                return best
            i = best

    def last_before(self, span: Span, i: int, live: Callable[[int], bool]) -> int | None:
        """The highest live position below ``i`` that touches the span."""
        lists = self._lists(span)
        while True:
            best: int | None = None
            for found in lists:
                at = bisect_left(found, i)
                if at and (best is None or found[at - 1] > best):
                    best = found[at - 1]
            if best is None or live(best):
                return best
            i = best


def _append(lists: dict[int, list[int]], v: int, i: int) -> None:
    found = lists.get(v)
    if found is None:
        lists[v] = [i]
    elif found[-1] != i:
        found.append(i)


def _climb(base: int, v: int, above: set[int]) -> None:
    v >>= 1
    while v and base + v not in above:
        above.add(base + v)
        v >>= 1
