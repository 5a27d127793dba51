"""A sweep as a frame and a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner_core import zoo
from planner_core.errors import PlanError
from planner_core.ir import Graph
from rlx_viz.figures import sweep_figure
from rlx_viz.frames import sweep_frame


def test_frame() -> None:
    rows = zoo.sweep("minilm", seq=[8, 16], layers=1)
    frame = sweep_frame(rows)
    assert list(frame.columns) == ["seq", "layers", "arena_bytes", "bound_bytes", "allocate_bytes"]
    assert frame["seq"].tolist() == [8, 16] and frame["arena_bytes"].tolist() == [r.arena for r in rows]
    assert {str(frame[c].dtype) for c in ("arena_bytes", "bound_bytes", "allocate_bytes")} == {"int64"}
    empty = sweep_frame([])
    assert list(empty.columns) == ["arena_bytes", "bound_bytes", "allocate_bytes"] and {str(d) for d in empty.dtypes} == {"int64"}


def test_figure(tmp_path: Path) -> None:
    """One line a quantity and combination, through the rows' own numbers."""
    rows = zoo.sweep("minilm", batch=[1, 2], seq=[8, 16, 32], layers=1)
    figure = sweep_figure(rows, x="seq", title="MiniLM")
    axes = figure.axes[0]
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert list(lines) == [f"batch={b} {q}" for b in (1, 2) for q in ("allocate", "arena", "bound")]
    for b in (1, 2):
        for q in ("allocate", "arena", "bound"):
            line = lines[f"batch={b} {q}"]
            assert list(line.get_xdata()) == [8, 16, 32]
            assert list(line.get_ydata()) == [getattr(r, q) for r in rows if r["batch"] == b]
    assert (axes.get_xlabel(), axes.get_title()) == ("seq", "MiniLM")
    figure.savefig(tmp_path / "sweep.png")
    assert any("iB" in t.get_text() for t in axes.get_yticklabels())


def test_text_values_and_the_default_axis() -> None:
    rows = zoo.sweep("llama-decode", quant=["", "f16", "q4_0"], layers=1, hidden=64, heads=4, ffn=96, vocab=32, past=3)
    axes = sweep_figure(rows).axes[0]
    assert axes.get_xlabel() == "quant"
    assert [str(line.get_label()) for line in axes.get_lines()] == ["allocate", "arena", "bound"]


def test_errors() -> None:
    with pytest.raises(PlanError, match="a sweep without rows has no figure"):
        sweep_figure([])
    with pytest.raises(PlanError, match="no swept name 'width'; this sweep has: seq, layers"):
        sweep_figure(zoo.sweep("minilm", seq=8, layers=1), x="width")


def test_a_pair_has_a_line_for_each_graph() -> None:
    rows = zoo.sweep("matmul-train", rows=[4, 8], k=3, n=5)
    assert sweep_frame(rows)["graph"].tolist() == ["matmul-train.forward", "matmul-train.backward"] * 2
    axes = sweep_figure(rows).axes[0]
    assert axes.get_xlabel() == "rows" and len(axes.get_lines()) == 6
    assert str(axes.get_lines()[3].get_label()) == "graph=matmul-train.backward allocate"


def test_symbols_of_a_graph() -> None:
    """Lengths of any graph, as frame and figure."""
    g = Graph("symbolic")
    g.set_outputs(g.relu(g.mm(g.input("x", ("B", "S", 8)), g.param("w", (8, 16)))))
    rows = zoo.sweep(g, B=[1, 2], S=[16, 32, 64])
    frame = sweep_frame(rows)
    assert list(frame.columns) == ["B", "S", "arena_bytes", "bound_bytes", "allocate_bytes"] and len(frame) == 6
    assert (frame["bound_bytes"] <= frame["arena_bytes"]).all() and (frame["arena_bytes"] < frame["allocate_bytes"]).all()
    assert len(sweep_figure(rows, x="S").axes[0].get_lines()) == 6
