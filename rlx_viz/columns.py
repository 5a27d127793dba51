"""Columnar documents: arrays of numbers and one string table, packed for Python, JSON and the browser.

The packed form is a JSON header plus one little-endian buffer in which every column starts on a
multiple of eight bytes, so that JavaScript can lay typed arrays over it without copying.
`static/data.js` is the reader on the other side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

SCHEMA = "rlx-viz-snapshot"
VERSION = 1
ALIGNMENT = 8
SAFE_INTEGER = 2**53 - 1
"""Largest integer that a browser's numbers hold exactly; see `exact_int`."""

DTYPES: dict[str, np.dtype[Any]] = {
    "u1": np.dtype("<u1"),
    "u2": np.dtype("<u2"),
    "u4": np.dtype("<u4"),
    "i4": np.dtype("<i4"),
    "f4": np.dtype("<f4"),
    "f8": np.dtype("<f8"),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}

Column: TypeAlias = NDArray[Any]
Tables: TypeAlias = dict[str, dict[str, Column]]


class ColumnError(ValueError):
    """A document that breaks the format: says what is wrong, where, and what was expected."""


def exact_int(value: int) -> int | str:
    """`value` itself while a browser can hold it exactly, its decimal text beyond 2**53 - 1."""
    return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(value)


@dataclass(slots=True)
class StringTable:
    """Interns texts: equal texts get the same index; index 0 is always the empty text."""

    _index: dict[str, int] = field(default_factory=lambda: {"": 0})

    def intern(self, text: str) -> int:
        """Index of `text`, added at the end when it is new."""
        return self._index.setdefault(text, len(self._index))

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.uint32]:
        """Indices of `texts` as a u4 column."""
        return np.fromiter((self.intern(text) for text in texts), dtype=np.uint32)

    def strings(self) -> tuple[str, ...]:
        """Every text so far, in index order."""
        return tuple(self._index)

    def __len__(self) -> int:
        return len(self._index)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnDocument:
    """A self-describing document: JSON-able `meta`, a string table, and tables of equal-length columns.

    Columns are one-dimensional and of dtype u1, u2, u4, i4, f4 or f8 (finite). Raises `ColumnError`
    when a table is ragged or a column has another dtype. Two documents are equal when meta, strings,
    tables and dtypes are.
    """

    meta: dict[str, Any]
    strings: tuple[str, ...]
    tables: Tables

    def __post_init__(self) -> None:
        if not self.strings or self.strings[0] != "":
            raise ColumnError("string table: index 0 must be the empty text; build it with StringTable")
        for table, columns in self.tables.items():
            rows: int | None = None
            for name, column in columns.items():
                where = f"table {table!r}, column {name!r}"
                if _code(column) is None:
                    raise ColumnError(f"{where}: dtype {column.dtype}, wanted one of {', '.join(DTYPES)}")
                if column.ndim != 1:
                    raise ColumnError(f"{where}: {column.ndim} dimensions, wanted 1")
                if rows is not None and len(column) != rows:
                    raise ColumnError(f"{where}: {len(column)} rows, wanted {rows} like its neighbours")
                if column.dtype.kind == "f" and not bool(np.isfinite(column).all()):
                    raise ColumnError(f"{where}: has a NaN or an infinity, wanted finite numbers")
                rows = len(column)

    __hash__ = None  # type: ignore[assignment]  # mutable columns inside: equality only

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnDocument):
            return NotImplemented
        return (
            self.meta == other.meta
            and self.strings == other.strings
            and _shape_of(self.tables) == _shape_of(other.tables)
            and all(
                np.array_equal(column, other.tables[table][name])
                for table, columns in self.tables.items()
                for name, column in columns.items()
            )
        )

    def rows(self, table: str) -> int:
        """Number of rows of `table`; 0 when the document has no such table."""
        return _rows(self.tables.get(table, {}))

    def pack(self) -> tuple[str, bytes]:
        """Header JSON and the buffer its offsets point into; byte-identical for equal documents."""
        chunks: list[bytes] = []
        position = 0
        tables: dict[str, Any] = {}
        for table in sorted(self.tables):
            columns = self.tables[table]
            placed: dict[str, Any] = {}
            for name in sorted(columns):
                code = _require_code(columns[name])
                data = np.ascontiguousarray(columns[name], dtype=DTYPES[code]).tobytes()
                placed[name] = {"dtype": code, "offset": position}
                padding = -len(data) % ALIGNMENT
                chunks += (data, bytes(padding))
                position += len(data) + padding
            tables[table] = {"rows": _rows(columns), "columns": placed}
        return _dump(self._envelope(tables)), b"".join(chunks)

    @classmethod
    def unpack(cls, header: str, buffer: bytes) -> Self:
        """Inverse of `pack`. Raises `ColumnError` on another schema or version, or a short buffer."""
        envelope = _load(header)
        tables: Tables = {}
        for table, spec in envelope["tables"].items():
            tables[table] = {}
            for name, place in spec["columns"].items():
                where = f"table {table!r}, column {name!r}"
                dtype = _dtype(place["dtype"], where)
                end = place["offset"] + spec["rows"] * dtype.itemsize
                if place["offset"] < 0 or end > len(buffer):
                    raise ColumnError(
                        f"{where}: ends at byte {end} of {len(buffer)}: the buffer is truncated"
                    )
                tables[table][name] = np.frombuffer(buffer, dtype, spec["rows"], place["offset"])
        return cls(envelope["meta"], tuple(envelope["strings"]), tables)

    def to_json(self) -> str:
        """One JSON text with columns as plain lists and sorted keys; same text for equal documents."""
        tables = {
            table: {
                "rows": _rows(columns),
                "columns": {
                    name: {"dtype": _require_code(column), "values": _plain(column)}
                    for name, column in columns.items()
                },
            }
            for table, columns in self.tables.items()
        }
        return _dump(self._envelope(tables))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`. Raises `ColumnError` on another schema, version or dtype."""
        envelope = _load(text)
        tables: Tables = {}
        for table, spec in envelope["tables"].items():
            tables[table] = {}
            for name, column in spec["columns"].items():
                where = f"table {table!r}, column {name!r}"
                if "values" not in column:
                    raise ColumnError(f"{where}: no values; a packed header is read with unpack()")
                tables[table][name] = np.array(column["values"], dtype=_dtype(column["dtype"], where))
        return cls(envelope["meta"], tuple(envelope["strings"]), tables)

    def _envelope(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "meta": self.meta,
            "strings": list(self.strings),
            "tables": tables,
        }


def _code(column: Column) -> str | None:
    # newbyteorder makes a native column and its little-endian twin the same key.
    return _CODES.get(column.dtype.newbyteorder("<"))


def _require_code(column: Column) -> str:
    code = _code(column)
    if code is None:
        raise ColumnError(f"dtype {column.dtype}, wanted one of {', '.join(DTYPES)}")
    return code


def _dtype(code: str, where: str) -> np.dtype[Any]:
    if code not in DTYPES:
        raise ColumnError(f"{where}: dtype {code!r}, wanted one of {', '.join(DTYPES)}")
    return DTYPES[code]


def _rows(columns: Mapping[str, Column]) -> int:
    return next((len(column) for column in columns.values()), 0)


def _shape_of(tables: Tables) -> dict[str, dict[str, tuple[str | None, int]]]:
    return {t: {n: (_code(c), len(c)) for n, c in columns.items()} for t, columns in tables.items()}


def _plain(column: Column) -> list[int | float]:
    if column.dtype.kind != "f":
        return list(column.tolist())
    # Byte counts are whole numbers kept in f8: written without the ".0", for readers and for size.
    return [int(v) if abs(v) <= SAFE_INTEGER and v == math.floor(v) else v for v in column.tolist()]


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _load(text: str) -> dict[str, Any]:
    try:
        envelope = json.loads(text)
    except json.JSONDecodeError as error:
        raise ColumnError(f"header is not JSON: {error}") from error
    if not isinstance(envelope, dict) or envelope.get("schema") != SCHEMA:
        found = envelope.get("schema") if isinstance(envelope, dict) else type(envelope).__name__
        raise ColumnError(f"schema is {found!r}, wanted {SCHEMA!r}")
    if envelope.get("version") != VERSION:
        raise ColumnError(f"version is {envelope.get('version')!r}, this build reads {VERSION}")
    return envelope
