"""``caches.md``: "`pad_rows(data, inner, upper)`, `pad_rows_into(out, data, inner)`, `slice_rows(data, inner, actual)`"."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.caches import pad_rows, pad_rows_into, slice_rows

DTYPES = [np.float32, np.float16, np.int8, np.uint8, np.int64, np.bool_, ml_dtypes.bfloat16]


@given(rows=st.integers(0, 6), inner=st.integers(1, 5), more=st.integers(0, 4), dtype=st.sampled_from(DTYPES))
def test_pad_and_slice_are_inverse_for_any_dtype(rows: int, inner: int, more: int, dtype: type) -> None:
    """"row-major `[rows, inner]` … They accept arrays of any dtype"."""
    data = (np.arange(rows * inner) % 2 + 1).astype(dtype).reshape(rows, inner)
    padded = pad_rows(data, inner, rows + more)
    assert padded.dtype == dtype
    assert padded.shape == ((rows + more) * inner,)
    assert not padded[rows * inner :].astype(bool).any()
    np.testing.assert_array_equal(slice_rows(padded, inner, rows), data.reshape(-1))
    out = np.full((rows + more, inner), 1).astype(dtype)
    assert pad_rows_into(out, data, inner) == rows
    np.testing.assert_array_equal(out.reshape(-1), padded)


def test_copies_are_avoided_where_they_can_be() -> None:
    """"avoid copies where they can"."""
    data = np.arange(12.0).reshape(3, 4)
    assert np.shares_memory(pad_rows(data, 4, 3), data)
    assert np.shares_memory(slice_rows(data, 4, 2), data)
    assert not np.shares_memory(pad_rows(data, 4, 4), data)


@pytest.mark.parametrize(("call", "numbers"), [
    (lambda: pad_rows(np.zeros(6), 0, 3), ["inner is 0"]),
    (lambda: slice_rows(np.zeros(6), 0, 3), ["inner is 0"]),
    (lambda: pad_rows_into(np.zeros(6), np.zeros(6), 0), ["inner is 0"]),
    (lambda: pad_rows(np.zeros(7), 3, 9), ["7 elements", "inner 3"]),
    (lambda: slice_rows(np.zeros(7), 3, 1), ["7 elements", "inner 3"]),
    (lambda: pad_rows_into(np.zeros(9), np.zeros(7), 3), ["7 elements", "inner 3"]),
    (lambda: pad_rows(np.zeros(12), 3, 3), ["4 rows of 3", "3"]),
    (lambda: pad_rows_into(np.zeros(9), np.zeros(12), 3), ["4 rows of 3", "3"]),
    (lambda: slice_rows(np.zeros(12), 3, 5), ["5 rows of 3", "4"]),
    (lambda: slice_rows(np.zeros(12), 3, -1), ["-1 rows"]),
    (lambda: pad_rows_into(np.zeros(6, np.float32), np.zeros(3), 3), ["float64", "float32"]),
    (lambda: pad_rows_into(np.zeros((3, 4)).T, np.zeros(3), 3), ["not contiguous"]),
])
def test_wrong_rows_are_value_errors_with_their_numbers(call, numbers: list[str]) -> None:
    """"`inner` = 0, a length that is no multiple of `inner`, or too many rows is a `ValueError` with the numbers in it"."""
    with pytest.raises(ValueError) as e:  # noqa: PT011  (the numbers are checked below)
        call()
    for n in numbers:
        assert n in str(e.value)
