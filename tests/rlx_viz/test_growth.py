"""Two plans before and after, for CI: ``growth`` and ``rlx-viz diff``."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import onnx
import pytest

import rlx_viz
from planner_core.errors import RlxError
from planner_core.ir import Graph, save_graph
from rlx_viz.growth import NUMBERS, Change, growth, limit_of, read_summary
from tests.symbolic_models import transformer

DIMS = {"batch": 1, "seq": 16}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, width in (("a", 32), ("b", 48)):
        onnx.save(transformer(width=width), tmp_path / f"{name}.onnx")
    return tmp_path / "a.onnx", tmp_path / "b.onnx"


@pytest.mark.parametrize(("text", "before", "after", "allowed"), [
    ("5%", 100, 105, True), ("5%", 100, 106, False), ("0%", 7, 7, True), ("0", 7, 8, False), ("1KiB", 1, 1025, True),
    ("1KiB", 1, 1026, False), ("12.5%", 8, 9, True), ("5%", 0, 1, False), ("5%", 100, 3, True), ("64", 100, 164, True),
])
def test_limits(text: str, before: int, after: int, allowed: bool) -> None:
    assert limit_of(text).allows(Change("allocate", before, after)) is allowed


def test_limits_are_exact() -> None:
    """No float between: 5% of 2**60 + 20."""
    before = 2**60 + 20
    assert limit_of("5%").percent == Fraction(5)
    assert limit_of("5%").allows(Change("arena", before, before + before // 20))
    assert not limit_of("5%").allows(Change("arena", before, before + before // 20 + 1))


@pytest.mark.parametrize("text", ["five", "-5%", "5 %%", "", "1e3"])
def test_no_limit(text: str) -> None:
    with pytest.raises(RlxError, match="wanted a share such as 5%, or bytes such as 0, 65536 or 64KiB"):
        limit_of(text)


def test_two_compilations(files: tuple[Path, Path]) -> None:
    a, b = (rlx_viz.compile(f, dims=DIMS) for f in files)
    got = growth(a, b, names=("a", "b"), limit=limit_of("5%"))
    assert [c.number for c in got.changes] == list(NUMBERS)
    assert (got.measured.before, got.measured.after) == (a.allocate_bytes, b.allocate_bytes)
    assert got.fails and got.verdict.startswith("b: to allocate grew by ") and got.verdict.endswith("allowed 5%: too much")
    sizes = {n.name: n.shape.nbytes for n in b.legal.nodes if n.op.name == "Param"}
    down = next(g for g in got.grown if g.name == "down0")
    assert (down.before, down.after, down.cause) == (128 * 32 * 4, sizes["down0"], "shape f32[128, 32] -> f32[192, 48]")
    assert [g.after - g.before for g in got.grown] == sorted((g.after - g.before for g in got.grown), reverse=True)
    back = growth(b, a, names=("b", "a"), number="arena", limit=limit_of("0"))
    assert not back.fails and {g.cause for g in back.grown} <= {"no match"} and "arena shrank by" in back.verdict
    same = growth(a, a, names=("a", "a"), limit=limit_of("0"))
    assert "is unchanged" in same.verdict and not same.fails
    with pytest.raises(RlxError, match="no number 'heap'; wanted one of allocate, weights"):
        growth(a, b, number="heap")


def test_diff(rlx: Any, files: tuple[Path, Path]) -> None:
    dims = ("--dim", "seq=16")
    code, out, err = rlx("diff", *files, *dims)
    assert (code, err) == (0, "") and out.splitlines()[0].startswith("b.onnx: to allocate grew by ")
    assert "tensors that grew:" in out and "down0: 16.0 KiB -> 36.0 KiB" in out
    assert rlx("diff", *files, *dims, "--fail-if-grows", "5%")[0] == 3
    assert rlx("diff", *files, *dims, "--fail-if-grows", "1GiB")[0] == 0
    assert rlx("diff", *files[::-1], *dims, "--fail-if-grows", "0")[0] == 0
    assert rlx("diff", *files, *dims, "--fail-if-grows", "0", "--of", "scratch")[0] == 0


def test_saved_summaries(rlx: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    """What CI keeps of the last build, against this one."""
    saved = [tmp_path / "old.json", tmp_path / "new.json"]
    for model, path in zip(files, saved, strict=True):
        assert rlx("plan", model, "--dim", "seq=16", "--json", path)[0] == 0
    numbers = [json.loads(rlx("diff", *pair, "--dim", "seq=16", "--json", "-")[1])["changes"]
               for pair in (files, saved, (saved[0], files[1]))]
    assert numbers[0] == numbers[1] == numbers[2]
    code, out, _ = rlx("diff", *saved, "--fail-if-grows", "5%")
    assert code == 3 and out.startswith("new.json: to allocate grew by")
    found = json.loads(rlx("diff", *saved, "--json", "-", "--fail-if-grows", "5%")[1])
    assert (found["fails"], found["limit"], found["number"]) == (True, "5%", "allocate")
    assert {g["name"] for g in found["grown"]} >= {"down0", "up0"}
    assert found["changes"]["allocate"]["delta_bytes"] > 0


def test_markdown(rlx: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "summary.md"
    code, out, _ = rlx("diff", *files, "--dim", "seq=16", "--fail-if-grows", "5%", "--markdown", target)
    assert code == 3 and out
    lines = target.read_text().splitlines()
    assert lines[0].startswith("**❌ b.onnx: to allocate grew by ") and lines[2] == "| | a.onnx | b.onnx | change |"
    rows = [line for line in lines if line.startswith("| ")]
    assert len({line.count("|") for line in lines[2:12]}) == 1 and len(rows) >= len(NUMBERS) + 2
    code, out, _ = rlx("diff", *files, "--dim", "seq=16", "--markdown", "-")
    assert code == 0 and out.startswith("**✅ ")


def test_names_with_markup_stay_text(tmp_path: Path) -> None:
    sides = []
    for n in (4, 8):
        g = Graph("m")
        g.set_outputs(g.add(g.input("x", (n, 64)), g.param("a|b <i>*", (n, 64)), name="y"))
        sides.append(rlx_viz.compile(g))
    text = growth(*sides, names=("a|1", "b`2`")).to_markdown()
    assert r"a\|b \<i\>\*" in text and r"| | a\|1 | b\`2\` | change |" in text


def test_files_that_are_no_summary(rlx: Any, tmp_path: Path) -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", (4,))))
    save_graph(g, tmp_path / "g.json")
    assert read_summary(tmp_path / "g.json") is None  # a model
    assert rlx("diff", tmp_path / "g.json", tmp_path / "g.json")[0] == 0
    (tmp_path / "cut.json").write_text('{"allocate_bytes": 3, "tensors": []}')
    code, _, err = rlx("diff", tmp_path / "cut.json", tmp_path / "g.json")
    assert code == 1 and "a summary without weights_bytes" in err and "rlx-viz plan MODEL --json FILE" in err
    code, _, err = rlx("diff", tmp_path / "none.onnx", tmp_path / "g.json")
    assert code == 1 and "no such file" in err


@pytest.mark.parametrize(("args", "words"), [
    (("--fail-if-grows", "a lot"), "--fail-if-grows a lot: wanted a share such as 5%"), (("--of", "heap"), "--of heap: wanted one of"),
    (("--markdown", "-", "--json", "-"), "would mix on standard output"),
])
def test_wrong_command_lines(rlx: Any, files: tuple[Path, Path], args: tuple[str, ...], words: str) -> None:
    code, out, err = rlx("diff", *files, *args)
    assert (code, out) == (1, "") and words in err
