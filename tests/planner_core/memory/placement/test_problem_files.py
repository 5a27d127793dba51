"""Problem files: round trips, and errors that name the line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from planner_core.errors import PlanError
from planner_core.memory.placement import Problem, available, complaints, solve
from planner_core.memory.placement.problem_csv import read_problem, write_problem
from tests.planner_core.memory.placement.problems import problems

COLUMNS = ("birth", "death", "size", "alignment", "guard", "fixed")


@settings(max_examples=100, deadline=None)
@given(problems() | problems(fixed=True))
def test_round_trip(p: Problem) -> None:
    again = Problem.from_csv(p.to_csv())
    assert all(np.array_equal(getattr(again, c), getattr(p, c)) for c in COLUMNS)


def test_a_file(tmp_path: Path) -> None:
    """Half-open lifetimes, any column order, ids kept, blank lines and unknown columns passed over."""
    path = tmp_path / "p.csv"
    path.write_text("size, id,lower,upper,offset,note\n64,b7,0,2,,x\n\n32,b9,2,3,128,y\n", encoding="utf-8")
    p, ids = read_problem(path)
    assert ids == ["b7", "b9"]
    assert (p.birth.tolist(), p.death.tolist(), p.size.tolist(), p.fixed.tolist()) == ([0, 2], [1, 2], [64, 32], [-1, 128])
    assert p.alignment.tolist() == [1, 1]
    out = tmp_path / "q.csv"
    assert p.to_csv(out, offsets=np.asarray([0, 128])) == out.read_text() == "id,lower,upper,size,offset\n0,0,2,64,0\n1,2,3,32,128\n"


@pytest.mark.parametrize(("text", "message"), [
    ("id,lower,size\n0,0,4\n", "problem, line 1: no column upper"),
    ("id,lower,upper,size,size\n", "line 1: a column twice"),
    ("id,lower,upper,size\n0,0,1,4\n1,0,4\n", "line 3: 3 cells, wanted 4"),
    ("id,lower,upper,size\n0,0,1,4\n\n1,0,x,4\n", "line 4: upper is 'x', wanted an integer"),
    ("id,lower,upper,size\n0,1,1,4\n", "line 2: lower 1, upper 1: wanted lower < upper"),
    ("id,lower,upper,size\n0,0,1,-4\n", "line 2: a size, guard or offset below 0"),
    ("id,lower,upper,size,alignment\n0,0,1,4,3\n", "line 2: alignment 3, wanted a power of two"),
    ("id,lower,upper,size\n0,0,1,99999999999999999999\n", "line 2: a number beyond"),
    ("id,lower,upper,size\n0,0,1,4.5\n", "line 2: size is '4.5'"),
    ("id,lower,upper,size\n0,0,1,1_000\n", "line 2: size is '1_000', wanted an integer"),
    ("id,lower,upper,size\n0,0,1,4\n1,0,1,٣\n", "line 3: size is '٣', wanted an integer"),
    ("id,lower,upper,size\n0,0,1,+4\n", r"line 2: size is '\+4', wanted an integer"),
    ("id,lower,upper,size\n0,0,1,4\f1,0,1,4\n", "line 2: 7 cells, wanted 4"),
    ("id,lower,upper,size\n0,0,1,4\u2028\n1,0,2,4\n", r"line 2: size is '4\\u2028', wanted an integer"),
    ("id,lower,upper,size\n0,0,1," + "9" * 5000 + "\n", "line 2: a number beyond"),
    ("id,lower,upper,size\n0,0,1,4\n" + "x" * 200_000 + ",0,1,4\n", "line 3: field larger than field limit"),
    ("x" * 200_000 + ",lower\n", "line 1: field larger than field limit"),
    ('id,lower,upper,size\n"a\nb",0,1,4\n"c\nd",0,1,x\n', "line 4: size is 'x', wanted an integer"),
    ("id,lower,upper,size\r\n0,0,1,4\r\n1,0,1,z\r\n", "line 3: size is 'z', wanted an integer"),
    ("\n", "line 1: no column lower, upper, size"),
])
def test_malformed_lines_are_named(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Problem.from_csv(text)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.csv: No such file"):
        Problem.from_csv(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"b\.csv: not a text file"):
        Problem.from_csv(tmp_path / "b.csv")


def test_an_id_with_any_sign_comes_back() -> None:
    """Commas, quotes, line and form feeds in ids are the writer's to quote."""
    ids = ["a,b", 'say "x"', "two\nlines", "page\fbreak", "line\u2028separator"]
    p = Problem.of([0] * 5, [1] * 5, [4] * 5)
    assert read_problem(write_problem(p, ids=ids))[1] == ids


STAMPS = (1 << 63) - 2
"""The last step that has one after it in 64 bits; nanosecond stamps lie below."""


@pytest.mark.parametrize("name", available())
@settings(max_examples=15, deadline=None)
@given(p=problems(fixed=True))
def test_lifetimes_end_at_the_last_step_of_64_bits(name: str, p: Problem) -> None:
    """Times only order the buffers: shifted to the end of int64, through a file, the plan is as valid and as large."""
    later = STAMPS - p.death.max(initial=0)
    late = dataclasses.replace(p, birth=p.birth + later, death=p.death + later)
    again = Problem.from_csv(late.to_csv())
    assert all(np.array_equal(getattr(again, c), getattr(late, c)) for c in COLUMNS)
    found, want = (solve(q, name, work=20_000) for q in (again, p))
    assert not complaints(again, found.offsets)
    assert (found.arena_size, found.lower_bound) == (want.arena_size, want.lower_bound)


def test_a_whole_age_is_one_span() -> None:
    p = Problem.from_csv(f"id,lower,upper,size\na,0,{(1 << 63) - 1},8\nb,0,1,16\nc,{(1 << 63) - 2},{(1 << 63) - 1},24\n")
    short = Problem.of([0, 0, 2], [2, 0, 2], [8, 16, 24])  # in the same order
    for name in available():
        assert solve(p, name, work=20_000).arena_size == solve(short, name, work=20_000).arena_size, name
    with pytest.raises(PlanError, match="line 2: a time beyond 9223372036854775807"):
        Problem.from_csv(f"id,lower,upper,size\na,0,{1 << 63},8\n")
    with pytest.raises(PlanError, match="wanted a last step below 9223372036854775807, and as short a span"):
        Problem.of([-5], [(1 << 63) - 5], [8])
