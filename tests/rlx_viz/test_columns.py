"""The columnar document: round trips, determinism, and a typed error for each way to break it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx_viz.columns import ALIGNMENT, DTYPES, ColumnDocument, ColumnError, StringTable, exact_int

RANGES = {"u1": (0, 255), "u2": (0, 65_535), "u4": (0, 2**32 - 1), "i4": (-(2**31), 2**31 - 1)}


def column(code: str, rows: int) -> st.SearchStrategy[Any]:
    if code in ("f4", "f8"):
        values: st.SearchStrategy[Any] = st.floats(allow_nan=False, allow_infinity=False, width=32 if code == "f4" else 64)
    else:
        values = st.integers(*RANGES[code])
    return st.lists(values, min_size=rows, max_size=rows).map(lambda v: np.array(v, dtype=DTYPES[code]))


@st.composite
def documents(draw: st.DrawFn) -> ColumnDocument:
    tables: dict[str, dict[str, Any]] = {}
    for table in draw(st.lists(st.text(min_size=1, max_size=8), max_size=3, unique=True)):
        rows = draw(st.integers(0, 9))
        codes = draw(
            st.dictionaries(st.text(max_size=8), st.sampled_from(sorted(DTYPES)), min_size=1, max_size=4)
        )
        tables[table] = {name: draw(column(code, rows)) for name, code in codes.items()}
    leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
    meta = draw(st.dictionaries(st.text(max_size=8), leaf | st.lists(leaf, max_size=3), max_size=4))
    strings = StringTable()
    strings.intern_all(draw(st.lists(st.text(), max_size=8)))
    return ColumnDocument(meta, strings.strings(), tables)


@given(documents())
def test_packed_and_json_forms_give_an_equal_document(doc: ColumnDocument) -> None:
    assert ColumnDocument.unpack(*doc.pack()) == doc
    assert ColumnDocument.from_json(doc.to_json()) == doc


@given(documents())
def test_every_column_starts_aligned_and_columns_do_not_overlap(doc: ColumnDocument) -> None:
    header, buffer = doc.pack()
    spans = [
        (place["offset"], place["offset"] + spec["rows"] * DTYPES[place["dtype"]].itemsize)
        for spec in json.loads(header)["tables"].values()
        for place in spec["columns"].values()
    ]
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    spans.sort()
    assert all(end <= after for (_, end), (after, _) in itertools.pairwise(spans))
    assert len(buffer) % ALIGNMENT == 0


def two_columns(reverse: bool = False) -> ColumnDocument:
    columns = {"a": np.arange(3, dtype=np.uint8), "b": np.array([0.5, 1024, 2.0**60])}
    meta = {"x": 1, "y": [2]}
    if reverse:
        columns, meta = dict(reversed(columns.items())), dict(reversed(meta.items()))
    return ColumnDocument(meta, ("", "n"), {"t": columns})


def test_output_does_not_depend_on_insertion_order() -> None:
    assert two_columns().pack() == two_columns(reverse=True).pack()
    assert two_columns().to_json() == two_columns(reverse=True).to_json()


def test_layout_is_the_documented_one() -> None:
    header, buffer = two_columns().pack()
    assert json.loads(header) == {
        "schema": "rlx-viz-snapshot",
        "version": 1,
        "meta": {"x": 1, "y": [2]},
        "strings": ["", "n"],
        "tables": {
            "t": {
                "rows": 3,
                "columns": {"a": {"dtype": "u1", "offset": 0}, "b": {"dtype": "f8", "offset": 8}},
            }
        },
    }
    assert buffer[:8] == bytes([0, 1, 2, 0, 0, 0, 0, 0])
    assert np.frombuffer(buffer[8:], "<f8").tolist() == [0.5, 1024, 2.0**60]


def test_json_writes_whole_byte_counts_without_a_fraction() -> None:
    assert '"values":[0.5,1024,1.152921504606847e+18]' in two_columns().to_json()


def test_big_endian_columns_are_stored_little_endian() -> None:
    doc = ColumnDocument({}, ("",), {"t": {"a": np.array([1, 2], dtype=">u4")}})
    assert doc.pack()[1] == b"\x01\0\0\0\x02\0\0\0"


def test_documents_differ_by_dtype_and_by_value() -> None:
    def one(values: list[int], dtype: str) -> ColumnDocument:
        return ColumnDocument({}, ("",), {"t": {"a": np.array(values, dtype=dtype)}})

    assert one([1], "u4") == one([1], "u4")
    assert one([1], "u4") != one([2], "u4")
    assert one([1], "u4") != one([1], "u2")


@pytest.mark.parametrize(
    ("strings", "columns", "message"),
    [
        pytest.param(("x",), {}, "index 0 must be the empty text", id="string table"),
        pytest.param(("",), {"a": np.zeros(2), "b": np.zeros(3)}, "'b': 3 rows, wanted 2", id="ragged"),
        pytest.param(("",), {"a": np.zeros(2, np.int64)}, "dtype int64, wanted one of u1", id="dtype"),
        pytest.param(("",), {"a": np.zeros((2, 2))}, "2 dimensions, wanted 1", id="matrix"),
        pytest.param(("",), {"a": np.array([np.nan])}, "NaN or an infinity", id="nan"),
    ],
)
def test_a_broken_document_is_refused(
    strings: tuple[str, ...], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ColumnError, match=message):
        ColumnDocument({}, strings, {"t": columns})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param('"rlx-viz-snapshot"', '"other"', "schema is 'other'", id="schema"),
        pytest.param('"version":1', '"version":9', "version is 9, this build reads 1", id="version"),
        pytest.param('"f8"', '"f2"', "dtype 'f2'", id="dtype"),
        pytest.param("{", "", "not JSON", id="not json"),
    ],
)
def test_a_foreign_header_is_refused(old: str, new: str, message: str) -> None:
    header, buffer = two_columns().pack()
    with pytest.raises(ColumnError, match=message):
        ColumnDocument.unpack(header.replace(old, new), buffer)


def test_a_truncated_buffer_is_refused_with_the_column_that_does_not_fit() -> None:
    header, buffer = two_columns().pack()
    with pytest.raises(ColumnError, match="column 'b': ends at byte 32 of 31"):
        ColumnDocument.unpack(header, buffer[:-1])


def test_a_packed_header_is_not_json_data() -> None:
    with pytest.raises(ColumnError, match=r"read with unpack\(\)"):
        ColumnDocument.from_json(two_columns().pack()[0])


def test_string_table_interns_once_and_keeps_order() -> None:
    table = StringTable()
    assert table.intern_all(["b", "", "a", "b"]).tolist() == [1, 0, 2, 1]
    assert table.strings() == ("", "b", "a")
    assert len(table) == 3


@pytest.mark.parametrize(
    ("value", "shown"), [(2**53 - 1, 2**53 - 1), (2**53, str(2**53)), (-(2**60), str(-(2**60)))]
)
def test_integers_a_browser_cannot_hold_become_text(value: int, shown: int | str) -> None:
    assert exact_int(value) == shown
