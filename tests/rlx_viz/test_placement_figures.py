"""Comparison of placements as frame and figure; ``rlx-viz plan problem.csv``."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from planner_core import zoo
from planner_core.errors import PlanError
from planner_core.memory.placement import DOCS, STRATEGIES, Problem, complaints, solve, strategy
from rlx_viz.cli import main
from rlx_viz.figures import arena_figure, compare_placements, placement_figure
from rlx_viz.figures.placement import fragmentation, problem_of
from rlx_viz.summary import FIELDS, plan_schema

QUICK = ["first_fit", "best_fit", "onnxruntime", "auto"]


def small() -> Problem:
    return Problem.of([0, 0, 1, 2, 3], [1, 3, 2, 4, 4], [64, 32, 64, 96, 32])


def test_a_frame_and_its_figure() -> None:
    frame = compare_placements(zoo.build("decoder-stack", nodes=120), QUICK, work=20_000, title="decoder")
    assert set(frame["strategy"]) == set(QUICK)
    assert frame["arena"].is_monotonic_increasing
    assert frame["lower_bound"].nunique() == 1
    assert (frame["ratio"] >= 1).all() and (frame["fragmentation"] >= 0).all()
    assert frame["proven"].tolist() == (frame["arena"] == frame["lower_bound"]).tolist()
    figure = placement_figure(frame, frame)
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels == frame["strategy"].tolist()[::-1]
    assert figure.axes[0].get_title().startswith("decoder\n")
    figure.savefig(__import__("io").BytesIO())
    with pytest.raises(PlanError, match="nothing to draw"):
        placement_figure()


def test_an_arena() -> None:
    p = small()
    s = solve(p, "auto")
    figure = arena_figure(p, s)
    assert len(figure.axes[0].collections[0].get_paths()) == len(p)
    figure.savefig(__import__("io").BytesIO())
    arena_figure(Problem.of([], [], []), solve(Problem.of([], [], []), "auto")).savefig(__import__("io").BytesIO())


def test_fragmentation_is_free_bytes_below_live_ones() -> None:
    p = Problem.of([0, 0], [0, 1], [10, 10])  # one crowded step
    assert fragmentation(p, np.asarray([0, 10])) == 0
    p = Problem.of([0, 0, 1], [0, 1, 1], [10, 10, 5])  # the second step has a hole of 5 below
    assert fragmentation(p, np.asarray([0, 10, 0])) == pytest.approx((0 + 5) / 2 / 20)


def test_the_problem_of_a_graph_is_its_plans() -> None:
    graph = zoo.build("decoder-stack", nodes=120)
    p = problem_of(graph)
    assert problem_of(p) is p
    assert len(p) > 20


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr("sys.argv", ["rlx-viz", *argv])
    try:
        main()
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def test_plan_a_problem_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.csv"
    path.write_text("id,lower,upper,size\na,0,2,64\nb,0,4,32\nc,1,3,64\nd,2,5,96\n", encoding="utf-8")
    out, data = tmp_path / "out.csv", tmp_path / "out.json"
    assert run(monkeypatch, "plan", str(path), "--csv", str(out), "--json", str(data), "--set", "placement=exact") == 0
    text = capsys.readouterr().out
    assert text.startswith("p.csv: 4 buffers\n")
    assert "Optimal for these live ranges: no placement is smaller." in text and "placed by exact" in text
    written = json.loads(data.read_text())
    assert (written["optimal"], written["kind"], written["placement"]) == (True, "problem", "exact")
    jsonschema.validate(written, plan_schema())
    assert list(written)[:-1] == [f.name for f in FIELDS]
    solved = Problem.from_csv(out)
    assert complaints(solved, solved.fixed) == []
    assert out.read_text().splitlines()[1].startswith("a,0,2,64,")


@pytest.mark.parametrize(("extra", "message"), [
    (["--set", "seconds=soon"], "option seconds: got 'soon'"),
    (["--set", "alignment=4"], "a problem file has no option 'alignment'"),
    (["--set", "placement=none"], "no placement strategy 'none'"),
    (["--set", "capacity=1"], "no placement fits 1 bytes"),
])
def test_problem_file_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                               extra: list[str], message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text("id,lower,upper,size\na,0,2,64\n", encoding="utf-8")
    assert run(monkeypatch, "plan", str(path), *extra) == 1
    assert message in capsys.readouterr().err


def test_above_the_capacity_is_an_exit_code_of_its_own(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """3 where the arena found is above the capacity, all printed and written; 1 where none can fit; 0 where it fits."""
    path, out = tmp_path / "p.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size\na,0,2,10\nb,0,4,6\nc,2,4,9\nd,3,6,5\ne,4,6,11\n", encoding="utf-8")
    stack = ["plan", str(path), "--set", "placement=usmp_conflicts", "--csv", str(out), "--set"]
    assert run(monkeypatch, *stack, "capacity=20") == 3
    assert "above the capacity of 20 B" in capsys.readouterr().out
    assert out.read_text().count("\n") == 6
    assert run(monkeypatch, *stack, "capacity=100") == 0
    assert run(monkeypatch, *stack, "capacity=10") == 1
    assert "no placement fits 10 bytes" in capsys.readouterr().err
    assert run(monkeypatch, *stack[:4], "--json", "-", "--set", "capacity=20") == 3
    assert json.loads(capsys.readouterr().out)["arena_bytes"] > 20


def test_contradictory_offsets_are_named_by_id(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.csv"
    path.write_text("id,lower,upper,size,offset\nleft,0,2,64,0\nright,1,4,32,32\n", encoding="utf-8")
    assert run(monkeypatch, "plan", str(path)) == 1
    assert "buffer 'left' fixed at [0, 64) live [0, 1] and buffer 'right' fixed at [32, 64) live [1, 3] overlap" in capsys.readouterr().err


def test_a_strategy_that_fails_is_a_row() -> None:
    """Last, with its error and no arena; the figure draws the others."""
    strategy("broken", "Of a test.")(lambda problem, budget: 1 // 0)
    try:
        frame = compare_placements(small(), ["broken", "first_fit"])
        alone = compare_placements(small(), ["broken"])
    finally:
        STRATEGIES.pop("broken")
        DOCS.pop("broken")
    assert frame["strategy"].tolist() == ["first_fit", "broken"]
    assert frame["error"].tolist() == ["", "strategy 'broken' failed: ZeroDivisionError: integer division or modulo by zero"]
    assert frame["arena"].isna().tolist() == [False, True]
    assert [t.get_text() for t in placement_figure(frame).axes[0].get_yticklabels()] == ["first_fit"]
    with pytest.raises(PlanError, match="nothing to draw"):
        placement_figure(alone)
