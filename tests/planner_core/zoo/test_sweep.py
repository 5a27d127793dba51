"""Several sizes at once, and the zoo's table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner_core import zoo
from planner_core.errors import GraphError, UnboundDimError
from planner_core.ir import Graph
from planner_core.memory import PlanOptions, headline, plan_graph
from planner_core.zoo.table import markdown, page, table


def symbolic() -> Graph:
    g = Graph("symbolic")
    h = g.mm(g.input("x", ("B", "S", 8)), g.param("w", (8, 16)), name="h")
    return g.set_outputs(g.relu(g.relu(h)))


def test_a_zoo_model_over_two_params() -> None:
    rows = zoo.sweep("minilm", seq=[8, 16], batch=(1, 2), layers=1)
    assert [r.binding for r in rows] == [(("seq", s), ("batch", b), ("layers", 1)) for s in (8, 16) for b in (1, 2)]
    for r in rows:
        g = zoo.build("minilm", **dict(r.binding))
        plan = plan_graph(g, PlanOptions.for_target("cpu", g))
        assert (r.arena, r.bound, r.allocate) == (plan.arena_size, plan.lower_bound, headline(plan).allocate)
        assert r.bound <= r.arena < r.allocate
    assert rows[0].arena < rows[1].arena < rows[3].arena and rows[3]["batch"] == 2


def test_text_params_are_one_value() -> None:
    rows = zoo.sweep("llama-decode", layers=1, quant=["", "q4_0"], past=[3])
    assert [r["quant"] for r in rows] == ["", "q4_0"] and rows[1].allocate < rows[0].allocate / 2
    assert zoo.sweep("llama-decode", layers=1, quant="q4_0", past=3)[0].arena == rows[1].arena


def test_any_graph_over_its_symbols() -> None:
    g = symbolic()
    rows = zoo.sweep(g, PlanOptions(pin_output_ancestors=False), B=range(1, 4), S=64)
    want = [plan_graph(g.bind({"B": b, "S": 64}), PlanOptions(pin_output_ancestors=False)).arena_size for b in (1, 2, 3)]
    assert [r.arena for r in rows] == want and len(set(want)) == 3


def test_sweep_errors() -> None:
    with pytest.raises(GraphError, match="'symbolic' needs values for S too"):
        zoo.sweep(symbolic(), B=[1])
    with pytest.raises(UnboundDimError, match="no dim named"):
        zoo.sweep(symbolic(), B=[1], S=1, T=2)
    with pytest.raises(GraphError, match="zoo graph 'minilm' has no parameter length; it has: layers"):
        zoo.sweep("minilm", length=[1])
    with pytest.raises(GraphError, match="no zoo graph 'mini'"):
        zoo.sweep("mini")
    with pytest.raises(GraphError, match="'matmul-train' is a pair"):
        zoo.sweep("matmul-train", rows=[1])
    assert zoo.sweep("minilm", seq=[]) == []


def test_table() -> None:
    rows = table()
    assert [r.model.split(".")[0] for r in rows] == sorted([*zoo.names(), "matmul-train"])
    for r in rows:
        assert r.bound <= r.in_order <= r.conservative <= r.naive and r.tensors <= r.nodes
    assert markdown(table(["minilm"])).splitlines() == [
        "| model  | nodes | tensors |  params |    naive | conservative | in-order |    bound |",
        "|--------|------:|--------:|--------:|---------:|-------------:|---------:|---------:|",
        "| minilm |   224 |     222 | 22.71 M | 123.7 MB |     123.7 MB | 123.7 MB | 123.7 MB |",
    ]


def test_the_command_prints_the_table() -> None:
    def run(*models: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "planner_core.zoo", *models], capture_output=True, text=True, check=False)

    done = run("resnet50", "hifigan")
    assert done.returncode == 0 and done.stdout == markdown(table(["resnet50", "hifigan"])) + "\n"
    wrong = run("resnet51")
    assert wrong.returncode == 1 and "did you mean 'resnet50'?" in wrong.stderr and not wrong.stdout


def test_the_readme_is_what_the_command_writes() -> None:
    readme = Path(zoo.__file__).with_name("README.md").read_text(encoding="utf-8")
    assert readme == page(), "the numbers changed: python -m planner_core.zoo --page > planner_core/zoo/README.md"
    for name in zoo.names():
        assert all(s.story in readme for s in zoo.scenarios(name))
