"""Comparison of placements as frame and figure; ``rlx-viz plan problem.csv``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner_core import zoo
from planner_core.errors import PlanError
from planner_core.memory.placement import Problem, complaints, solve
from rlx_viz.cli import main
from rlx_viz.figures import arena_figure, compare_placements, placement_figure
from rlx_viz.figures.placement import fragmentation, problem_of

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
    assert "optimal" in text and "placed by exact" in text
    assert json.loads(data.read_text())["proven"] is True
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
