"""``rlx-viz compare`` and ``report --compare``: the sentence, the table, JSON and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlx_viz
from planner_core import zoo
from planner_core.ir import Graph
from rlx_viz.cli.comparing import comparison_text


@pytest.fixture
def own(rlx, mlp_file: Path, tmp_path: Path) -> Path:  # type: ignore[no-untyped-def]
    path = tmp_path / "own.csv"
    assert rlx("plan", mlp_file, "--csv", path)[0] == 0
    return path


def test_our_own_csv_is_the_same_plan(rlx, mlp_file: Path, own: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = rlx("compare", mlp_file, own)
    assert (code, err) == (0, "")
    assert out.startswith("The same plan: arena and weights ")
    assert "moved" not in out


def test_exit_codes_say_which_is_smaller(rlx, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = rlx("compare", mlp_file, "--other-set", "arena_no_reuse=true")
    assert (code, out.split(" is smaller by ")[0]) == (0, "A (arena_no_reuse=false)")
    code, out, _ = rlx("compare", mlp_file, "--set", "arena_no_reuse=true", "--other-set", "arena_no_reuse=false")
    assert (code, out.split(" is smaller by ")[0]) == (3, "B (arena_no_reuse=false)")
    path = tmp_path / "small.csv"
    path.write_text("name,offset,size\nhidden,0,256\n")
    code, out, _ = rlx("compare", mlp_file, path)
    assert code == 3
    assert "Small.csv is smaller by" in out, "a sentence starts with a capital"
    assert "of our 4 arena buffers, " in out and "have no row in small.csv" in out


def test_an_invalid_plan_is_an_error(rlx, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "bad.csv"
    path.write_text("name,lower,upper,size,offset\nx,0,8,256,0\nhidden,3,6,256,128\n")
    for verb in (("compare", mlp_file, path), ("report", mlp_file, "-o", tmp_path / "r.html", "--compare", path)):
        code, out, err = rlx(*verb)
        assert (code, out) == (1, "")
        assert "'x' [0, 256) live 0 to 7 and 'hidden' [128, 384) live 3 to 5 share bytes [128, 256) at steps 3 to 5" in err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("args", [(), ("b.csv", "--other-set", "alignment=1"), ("--nonsense",)], ids=" ".join)
def test_wrong_command_lines(rlx, mlp_file: Path, args: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    assert rlx("compare", mlp_file, *args)[0] == 2
    assert rlx("compare", "problem.csv", "b.csv")[0] == 2


def test_json_has_the_verdict_and_the_changes(rlx, mlp: Graph, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "c.json"
    code, out, _ = rlx("compare", mlp_file, "--other-set", "arena_no_reuse=true", "--json", target)
    data = json.loads(target.read_text())
    found = rlx_viz.compare(mlp, {"arena_no_reuse": True})
    assert code == 0
    assert out.splitlines()[0] == data["verdict"]["sentence"] == str(found.verdict)
    assert data["verdict"]["smaller"] == "a"
    assert data["verdict"]["difference_bytes"] == data["headline"]["allocate"]["difference"] == found.verdict.difference_bytes
    assert data["verdict"]["deciding"]["step"] == found.verdict.deciding.step  # type: ignore[union-attr]
    assert data["options"] == {"arena_no_reuse": {"a": False, "b": True}}
    assert len(data["changes"]) == len(found.to_frame())
    code, out, _ = rlx("compare", mlp_file, "--other-set", "arena_no_reuse=true", "--json", "-")
    assert json.loads(out) == data


def test_the_largest_changes_come_first() -> None:
    found = rlx_viz.compare(rlx_viz.compile(zoo.build("minilm", layers=1), pin_output_ancestors=False), {"arena_no_reuse": True})
    whole, short = (comparison_text(found, top).splitlines() for top in (100, 3))
    rows = [line for line in whole if line.startswith("  moved")]
    assert len(rows) == len(found.to_frame()) > 3
    sizes = [int(re.search(r"bytes [\d,]+ -> ([\d,]+)", line)[1].replace(",", "")) for line in rows]  # type: ignore[index]
    assert sizes == sorted(sizes, reverse=True)
    assert short[-1] == f"  … {len(rows) - 3} more; --top {len(rows)} lists all, --json FILE writes them"
    assert short[-4:-1] == rows[:3]


def test_the_report_prints_the_sentence(rlx, mlp_file: Path, own: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = rlx("report", mlp_file, "-o", tmp_path / "r.html", "--compare", own, "--no-whatif")
    assert code == 0
    assert "  compared: The same plan: arena and weights " in out
    assert "The same plan: arena and weights " in (tmp_path / "r.html").read_text()


def test_help_has_the_exit_codes(rlx) -> None:  # type: ignore[no-untyped-def]
    out = " ".join(rlx("compare", "--help")[1].split())
    for words in ("Exit codes: 0 the first is not larger", "3 the second is smaller"):
        assert words in out
