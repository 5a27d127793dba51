"""Owns reading another tool's offsets from a CSV table or a frame: one row a buffer.

Columns: ``id`` or ``name``, ``offset``, ``size``; live ranges as ``lower`` and ``upper`` (half-open) or ``birth`` and
``death`` (inclusive); ``alignment``, ``guard``, ``space`` (arena, weights, scratch, none) and ``root`` where known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner_core.memory.problem import I64, Problem
from rlx_viz.foreign.plan import Ends, ForeignError, ForeignPlan, Includes, Mask, Region

__all__ = ["read_foreign"]

MOST = 1 << 62
"""Bytes that a sum of two can still hold."""
WANTED = "wanted a CSV with id or name, offset, size[, lower, upper]"


class _Lives(NamedTuple):
    """Live ranges of a table: inclusive, and whether a row has one."""

    birth: I64
    death: I64
    lived: Mask
    ends: Ends


def read_foreign(table: Any) -> ForeignPlan:
    """The plan of a CSV's path, or of a frame with the same columns.

    Rows with an empty ``offset`` are left out, with a note; an empty ``lower`` or ``upper`` is a row without a live
    range; an empty ``guard`` is 0, an empty ``alignment`` 1. Raises ``ForeignError`` that says which column or row for
    a missing column, a table without rows, a number below 0, a live range that ends before it starts.
    """
    where = Path(table).name if isinstance(table, (str, Path)) else "the table"
    whole = _frame(table)
    frame, numbers, notes = _placed(whole, where)
    n = len(frame)
    size, offset = (_column(frame, k, where, numbers) for k in ("size", "offset"))
    lives = _lives(frame, where, numbers)
    extra = {k: _column(frame, k, where, numbers, empty=e) if k in frame.columns else np.full(n, e, dtype=np.int64)
             for k, e in (("guard", 0), ("alignment", 1))}
    odd = np.flatnonzero((extra["alignment"] < 1) | (extra["alignment"] & (extra["alignment"] - 1) != 0))
    if len(odd):
        raise ForeignError(f"{where}: row {numbers[odd[0]]}, column alignment: got {extra['alignment'][odd[0]]}, wanted a power of two")
    region = _regions(frame, where, numbers)
    problem = Problem(lives.birth, lives.death, size, extra["alignment"], extra["guard"], np.full(n, -1, dtype=np.int64))
    includes = Includes(guards="guard" in frame.columns, alignment="alignment" in frame.columns,
                        weights=bool((region == Region.WEIGHTS.value).any()), scratch=bool((region == Region.SCRATCH.value).any()))
    names = tuple(str(v).strip() for v in frame["name" if "name" in frame.columns else "id"])
    return ForeignPlan(problem, offset, names, where, lives.ends, includes, lives.lived, region, _roots(frame),
                       _ids(frame), notes)


_OURS = {"offset_bytes": "offset", "size_bytes": "size", "guard_bytes": "guard", "birth_node": "birth", "death_node": "death"}
"""Columns of our own frames and CSVs -> what they are called here."""


def _frame(table: Any) -> Any:
    """The table with its column names in lower case."""
    import pandas as pd

    frame = table
    if isinstance(table, (str, Path)):
        try:
            frame = pd.read_csv(table, skipinitialspace=True, keep_default_na=False)  # NA is a name like any other
        except FileNotFoundError:
            raise ForeignError(f"{table}: no such file; {WANTED}") from None
        except (ValueError, OSError) as e:
            raise ForeignError(f"{table}: not a CSV table ({e}); {WANTED}") from e
    frame = frame.rename(columns=lambda c: str(c).strip().lower())
    if {"birth_node", "death_node"} <= set(frame.columns):  # our own: steps count commands, the plan counts nodes
        frame = frame.drop(columns=[c for c in ("birth", "death") if c in frame.columns])
    frame = frame.rename(columns=_OURS)
    has = set(frame.columns)
    missing = [k for k in ("offset", "size") if k not in has]
    if not {"id", "name"} & has:
        missing.insert(0, "id (or name)")
    if missing:
        raise ForeignError(f"the table has the columns {', '.join(map(str, frame.columns))}; missing: {', '.join(missing)}")
    for one, other in (("lower", "upper"), ("birth", "death")):
        if len({one, other} & has) == 1:
            raise ForeignError(f"the table has {one if one in has else other} and no {other if one in has else one}; "
                               "wanted both ends of a live range, or neither")
    twice = [str(k) for k in dict.fromkeys(frame.columns) if list(frame.columns).count(k) > 1]
    if twice:
        raise ForeignError(f"the table has the column {', '.join(twice)} twice; wanted each once")
    return frame


def _blank(frame: Any, column: str) -> Mask:
    found: Mask = np.asarray(frame[column].isna() | frame[column].astype(str).str.strip().isin(("", "<NA>")), dtype=bool)
    return found


def _placed(frame: Any, where: str) -> tuple[Any, I64, tuple[str, ...]]:
    """(the rows that have an offset, their numbers in the table from 1, what was left out)."""
    if not len(frame):
        raise ForeignError(f"{where}: a header and no rows, so nothing to compare; wanted one row a buffer")
    blank = _blank(frame, "offset")
    if "space" in frame.columns:
        blank = blank | np.asarray(frame["space"].astype(str).str.strip().str.lower() == "none", dtype=bool)
    if blank.all():
        raise ForeignError(f"{where}: none of {len(frame)} rows has an offset, so nothing to compare; wanted a placed plan")
    gaps = [k for k in ("gap", "gaps") if k in frame.columns and not _blank(frame, k).all()]
    said = (f"The column {gaps[0]} is not read: a buffer lives through its gaps.",) if gaps else ()
    notes = (f"{int(blank.sum())} of {len(frame)} rows have no offset and are left out.",) if blank.any() else ()
    return frame[~blank].reset_index(drop=True), np.flatnonzero(~blank) + 1, (*said, *notes)


def _column(frame: Any, column: str, where: str, numbers: I64, empty: int | None = None) -> I64:
    """Whole numbers of 0 or more; an empty cell is ``empty``, an error without one."""
    import pandas as pd

    cells = frame[column]
    if empty is not None:
        cells = cells.where(~_blank(frame, column), empty)
    values = pd.to_numeric(cells, errors="coerce")
    bad = values.isna() | (values < 0) | (values % 1 != 0)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ForeignError(f"row {numbers[row]}, column {column}: got {str(cells.iloc[row])!r}, wanted a whole number ≥ 0")
    big = values > MOST
    if big.any():
        row = int(np.flatnonzero(big)[0])
        raise ForeignError(f"row {numbers[row]}, column {column}: got {cells.iloc[row]}, wanted at most 2^62: no memory is that large")
    return np.asarray(values, dtype=np.int64)


def _lives(frame: Any, where: str, numbers: I64) -> _Lives:
    n = len(frame)
    for first, last, ends in (("lower", "upper", Ends.EXCLUSIVE), ("birth", "death", Ends.INCLUSIVE)):
        if first not in frame.columns:
            continue
        lived = ~(_blank(frame, first) | _blank(frame, last))
        birth, stop = (_column(frame, k, where, numbers, empty=0) for k in (first, last))
        death = stop - (ends is Ends.EXCLUSIVE)
        backward = np.flatnonzero(lived & (death < birth))
        if len(backward):
            i = int(backward[0])
            order = "<" if ends is Ends.EXCLUSIVE else "≤"
            raise ForeignError(f"row {numbers[i]}: {first} {birth[i]}, {last} {stop[i]}; wanted {first} {order} {last}")
        return _Lives(np.where(lived, birth, 0), np.where(lived, death, 0), lived, ends)
    nothing = np.zeros(n, dtype=np.int64)
    return _Lives(nothing, nothing.copy(), np.zeros(n, dtype=bool), Ends.EXCLUSIVE)


def _regions(frame: Any, where: str, numbers: I64) -> I64:
    if "space" not in frame.columns:
        return np.full(len(frame), Region.UNSAID.value, dtype=np.int64)
    said = {"": Region.UNSAID, "nan": Region.UNSAID, "arena": Region.ARENA, "weights": Region.WEIGHTS, "scratch": Region.SCRATCH}
    words = [str(v).strip().lower() for v in frame["space"]]
    for i, word in enumerate(words):
        if word not in said:
            raise ForeignError(f"row {numbers[i]}, column space: got {word!r}, wanted arena, weights, scratch or none")
    return np.asarray([said[w].value for w in words], dtype=np.int64)


def _ids(frame: Any) -> I64:
    """``id`` of each row where there is a ``name`` beside it, -1 where it is no number."""
    if not {"name", "id"} <= set(frame.columns):
        return np.full(len(frame), -1, dtype=np.int64)
    texts = [str(v).strip() for v in frame["id"]]
    return np.asarray([int(t) if t.isascii() and t.isdigit() and len(t) < 10 else -1 for t in texts], dtype=np.int64)


def _roots(frame: Any) -> I64:
    """Row of each row's root: ``root`` is an ``id`` of the table; a root that is left out, or unknown, is the row itself."""
    own = np.arange(len(frame), dtype=np.int64)
    if not {"root", "id"} <= set(frame.columns):
        return own
    row_of = {str(v).strip(): i for i, v in enumerate(frame["id"])}
    if len(row_of) < len(frame):
        return own
    root = np.asarray([row_of.get(str(v).strip(), i) for i, v in enumerate(frame["root"])], dtype=np.int64)
    return root[root]
