"""``caches.md``, ranges and the ladder of "BucketedCompileCache"."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.caches import Bucket, BucketedCompileCache
from runtime.caches.buckets import check_buckets, ladder
from tests.runtime.caches.graphs import Counted, mlp


@pytest.mark.parametrize(("ranges", "named"), [
    ([(1, 5), (5, 5)], ["5..5", "1..5"]),
    ([(3, 2), (5, 6)], ["3..2", "5..6"]),
    ([(1, 5), (4, 9)], ["1..5", "4..9", "overlap"]),
    ([(5, 9), (1, 5)], ["5..9", "1..5", "order"]),
    ([(1, 5), (1, 5)], ["1..5", "overlap"]),
    ([], ["no buckets"]),
    ([(1.5, 2.9)], ["(1.5, 2.9)", "whole numbers"]),
    ([(1, 2, 3)], ["(1, 2, 3)", "pair"]),
])
def test_wrong_ranges_are_value_errors_that_name_both(ranges: list[tuple[int, int]], named: list[str]) -> None:
    """"Ranges are half-open, non-empty, ascending, not overlapping; anything else is a `ValueError` that names the two
    ranges. An empty list too"."""
    with pytest.raises(ValueError) as e:  # noqa: PT011  (the ranges are checked below)
        BucketedCompileCache("cpu", ranges)
    for n in named:
        assert n in str(e.value)


@pytest.mark.parametrize(("pair", "want"), [
    ((8, 64), "1..9 9..17 17..33 33..65"),
    ((10, 64), "1..17 17..33 33..65"),
    ((8, 20), "1..9 9..17 17..33"),
    ((16, 16), "1..17"),
    ((1, 1), "1..2"),
    ((1, 4), "1..2 2..3 3..5"),
])
def test_ladders_of_the_spec(pair: tuple[int, int], want: str) -> None:
    """"So (8, 64) → 1..9, 9..17, 17..33, 33..65; (10, 64) → …; (8, 20) → …; (16, 16) → 1..17"."""
    assert " ".join(map(str, BucketedCompileCache.power_of_two_ladder("cpu", *pair).buckets)) == want


@given(st.integers(1, 3000), st.integers(0, 5000))
def test_ladders_cover_and_waste_at_most_half(least: int, more: int) -> None:
    """"the first bucket starts at 1 … then doubling until the extent covers `max`"; "Padding waste at most 2×, except in
    the first bucket"."""
    made = ladder(least, least + more)
    assert made == check_buckets(made)
    assert made[0].start == 1
    assert least <= made[0].upper < 2 * least
    assert made[-1].upper >= least + more
    assert len(made) == 1 or made[-2].upper < least + more
    for a, b in itertools.pairwise(made):
        assert a.end == b.start
        assert all(b.upper <= 2 * key for key in (b.start, b.upper))


@pytest.mark.parametrize(("pair", "numbers"), [((0, 5), ["0", "5"]), ((-2, 5), ["-2", "5"]), ((9, 8), ["9", "8"])])
def test_ladder_errors_name_both_numbers(pair: tuple[int, int], numbers: list[str]) -> None:
    """"`min < 1` and `max < min` are errors that name both numbers"."""
    with pytest.raises(ValueError) as e:  # noqa: PT011  (the numbers are checked below)
        BucketedCompileCache.power_of_two_ladder("cpu", *pair)
    for n in numbers:
        assert n in str(e.value)


def test_lookups() -> None:
    """"`bucket_for(key)`, `bucket_upper_for_key(key)`, `buckets`, `total_buckets`, `compiled_count`,
    `compiled_for_key(key)`, `compiled_for_upper(upper)`"; "compiled lazily at the range's upper bound (`end - 1`)"."""
    cache = BucketedCompileCache("cpu", [(2, 5), range(7, 10)])
    assert cache.buckets == (Bucket(2, 5), Bucket(7, 10))
    assert cache.total_buckets == 2
    assert cache.compiled_count == 0
    assert [cache.bucket_for(k) for k in range(1, 11)] == [None, 0, 0, 0, None, None, 1, 1, 1, None]
    assert [cache.bucket_upper_for_key(k) for k in (1, 2, 4, 5, 9, 10)] == [None, 4, 4, None, 9, None]
    build = Counted(mlp)
    assert cache.compiled_for_key(3) is None
    upper, made = cache.get_or_compile(3, build)
    assert upper == 4
    assert build.calls == [(4,)]
    assert cache.get_or_compile(2, build) == (4, made)
    assert cache.compiled_for_key(4) is made
    assert cache.compiled_for_upper(4) is made
    assert cache.compiled_for_upper(3) is None
    assert cache.compiled_for_upper(9) is None
    assert cache.compiled_count == 1


def test_a_key_outside_every_bucket_builds_nothing() -> None:
    """"A key outside every bucket gives `None` and never calls `build`"."""
    cache = BucketedCompileCache("cpu", [(2, 5)])
    build = Counted(mlp)
    calls = [
        cache.get_or_compile(1, build), cache.get_or_compile_hir(5, build), cache.ensure_graph_with_params(9, build),
        cache.ensure_graph_with_packed(-1, build), cache.ensure_hir_with_params(0, build),
        cache.run_padded(6, 1, build, [], {}), cache.bucket_for(5), cache.compiled_for_key(5),
    ]
    assert calls == [None] * len(calls)
    cache.note_resident_bytes(9, 100)
    assert build.calls == []
    assert cache.totals().misses == 0
