"""Owns problem files: the ``id,lower,upper,size[,offset]`` CSV of public allocators, read and written."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from planner_core.errors import PlanError
from planner_core.memory.problem import LAST_STEP, Offsets, Problem

__all__ = ["read_problem", "write_problem"]

_NEEDED = ("lower", "upper", "size")
_OPTIONAL = {"offset": -1, "alignment": 1, "guard": 0}
_LARGEST = 1 << 56
"""Of bytes: sums over any file stay within 64 bits."""
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
"""Plain decimal: ``int`` would also take 1_000, +1 and the digits of other scripts."""


def _rows(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """``(line, cells)`` of every record, the line being its first. Lines end at a line feed, carriage return or
    both, nowhere else."""
    rows = csv.reader(io.StringIO(text, newline=""))
    line = 1
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as e:
            raise PlanError(f"{name}, line {line}: {e}; wanted cells of a CSV") from e
        yield line, cells
        line = rows.line_num + 1


def _brief(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:39] + "…")


def read_problem(source: str | PathLike[str]) -> tuple[Problem, list[str]]:
    """The problem of a file (or of its text, where ``source`` holds a line break), and the ids as written.

    Lifetimes in the file are half-open: ``upper`` is ``death + 1``. Columns come in any order, unknown ones are
    ignored, an empty ``offset`` is free. Raises ``PlanError`` with the file, the line and what was wanted.
    """
    if isinstance(source, str) and "\n" in source:
        name, text = "problem", source
    else:
        name = os.path.basename(source)
        try:
            text = Path(source).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as e:
            why = e.strerror if isinstance(e, OSError) and e.strerror else "not a text file"
            raise PlanError(f"{name}: {why}; wanted a CSV with the columns id,lower,upper,size") from e
    rows = _rows(name, text)
    header = [h.strip().lower() for h in next(rows, (1, []))[1]]
    missing = [h for h in _NEEDED if h not in header]
    if missing or len(set(header)) != len(header):
        what = f"no column {', '.join(missing)}" if missing else "a column twice"
        raise PlanError(f"{name}, line 1: {what} in {_brief(','.join(header))}; wanted id,lower,upper,size[,offset]")
    at = {h: k for k, h in enumerate(header)}
    wanted = [*_NEEDED, *(h for h in _OPTIONAL if h in at)]
    where = [at[h] for h in wanted]
    columns: list[list[int]] = [[] for _ in wanted]
    ids: list[str] = []
    id_at = at.get("id", -1)
    for line, cells in rows:
        if not cells or not "".join(cells).strip():
            continue
        if len(cells) != len(header):
            raise PlanError(f"{name}, line {line}: {len(cells)} cells, wanted {len(header)} ({','.join(header)})")
        for h, k, column in zip(wanted, where, columns, strict=True):
            cell = cells[k].strip(" \t")
            if not cell and h in _OPTIONAL:
                column.append(_OPTIONAL[h])
                continue
            if not _INTEGER.fullmatch(cell):
                raise PlanError(f"{name}, line {line}: {h} is {_brief(cell)}, wanted an integer (decimal digits)")
            column.append(int(cell) if len(cell) <= 40 else 2 * LAST_STEP)  # beyond it, and int() limits digits itself
        values = {h: c[-1] for h, c in zip(wanted, columns, strict=True)}
        _check(name, line, values)
        ids.append(cells[id_at].strip() if id_at >= 0 else str(len(ids)))
    arrays = {h: np.asarray(c, dtype=np.int64) for h, c in zip(wanted, columns, strict=True)}
    n = len(ids)
    full = {h: arrays.get(h, np.full(n, v, dtype=np.int64)) for h, v in _OPTIONAL.items()}
    return Problem(arrays["lower"], arrays["upper"] - 1, arrays["size"], full["alignment"], full["guard"],
                   full["offset"]), ids


def _check(name: str, line: int, v: dict[str, int]) -> None:
    a = v.get("alignment", 1)
    late = max(abs(v["lower"]), abs(v["upper"])) > LAST_STEP
    if late or max(abs(x) for h, x in v.items() if h not in ("lower", "upper")) > _LARGEST:
        what = f"a time beyond {LAST_STEP}" if late else f"a number beyond {_LARGEST}"
    elif v["upper"] <= v["lower"]:
        what = f"lower {v['lower']}, upper {v['upper']}: wanted lower < upper (lifetimes are half-open)"
    elif v["size"] < 0 or v.get("guard", 0) < 0 or v.get("offset", -1) < -1:
        what = "a size, guard or offset below 0"
    elif a < 1 or a & (a - 1):
        what = f"alignment {a}, wanted a power of two"
    else:
        return
    raise PlanError(f"{name}, line {line}: {what}")


def write_problem(problem: Problem, path: str | PathLike[str] | None = None, offsets: Offsets | None = None,
                  ids: list[str] | None = None) -> str:
    """The file's text, also written to ``path``. ``offset`` appears where ``offsets`` are given or buffers are
    fixed, ``alignment`` and ``guard`` where they say something."""
    place = problem.fixed if offsets is None else np.asarray(offsets, dtype=np.int64)
    columns: dict[str, list[object]] = {
        "id": list(ids) if ids is not None else list(range(len(problem))), "lower": problem.birth.tolist(),
        "upper": [d + 1 for d in problem.death.tolist()], "size": problem.size.tolist()}
    if offsets is not None or bool((place >= 0).any()):
        columns["offset"] = ["" if o < 0 else o for o in place.tolist()]
    if bool((problem.alignment != 1).any()):
        columns["alignment"] = problem.alignment.tolist()
    if bool((problem.guard != 0).any()):
        columns["guard"] = problem.guard.tolist()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")  # quotes an id that needs it
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text = out.getvalue()
    if path is not None:
        from planner_core.ir import write_atomically

        write_atomically(Path(path), text.encode())
    return text
