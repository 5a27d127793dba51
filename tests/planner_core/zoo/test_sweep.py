"""Several sizes at once, and the zoo's table."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner_core import zoo
from planner_core.errors import GraphError, UnboundDimError
from planner_core.fusion import RULES, fuse_graph, fusion_for_target
from planner_core.ir import Graph
from planner_core.memory import PlanOptions, headline, plan_graph
from planner_core.zoo import registry
from planner_core.zoo.table import figures_markdown, fusion_ready, markdown, page, table
from tests.planner_core.zoo.test_numeric import TINY


def symbolic() -> Graph:
    g = Graph("symbolic")
    h = g.mm(g.input("x", ("B", "S", 8)), g.param("w", (8, 16)), name="h")
    return g.set_outputs(g.relu(g.relu(h)))


def test_a_zoo_model_over_two_params() -> None:
    rows = zoo.sweep("minilm", seq=[8, 16], batch=(1, 2), layers=1)
    assert [r.binding for r in rows] == [(("seq", s), ("batch", b), ("layers", 1)) for s in (8, 16) for b in (1, 2)]
    for r in rows:
        g = zoo.build("minilm", **dict(r.binding))
        plan = plan_graph(fuse_graph(g).graph, PlanOptions.for_target("cpu", g))
        assert (r.arena, r.bound, r.allocate) == (plan.arena_size, plan.lower_bound, headline(plan).allocate)
        assert r.bound <= r.arena < r.allocate
    assert rows[0].arena < rows[1].arena < rows[3].arena and rows[3]["batch"] == 2


def test_text_params_are_one_value() -> None:
    rows = zoo.sweep("llama-decode", layers=1, quant=["", "q4_0"], past=[3])
    assert [r["quant"] for r in rows] == ["", "q4_0"] and rows[1].allocate < rows[0].allocate / 2
    assert zoo.sweep("llama-decode", layers=1, quant="q4_0", past=3)[0].arena == rows[1].arena


GROWS = {
    "albert-onnx": "seq", "bert-base": "seq", "decoder-stack": "batch", "dit-block": "batch", "hifigan": "frames",
    "llama-decode": "past", "llama-prefill": "seq", "mamba": "batch", "mamba-train": "seq", "matmul-train": "rows",
    "minilm": "batch", "moe": "seq", "resnet50": "batch", "sam-attention": "side", "tts-duration": "frames",
    "unet3d": "batch",
}
"""A batch or a length of each model."""


@pytest.mark.parametrize(("name", "tiny"), TINY, ids=[t[0] for t in TINY])
def test_every_model_over_its_sizes(name: str, tiny: dict[str, Any]) -> None:
    """Twice the batch or length needs more bytes; every parameter can be swept; NumPy's integers are integers."""
    grown = GROWS[name]
    once = tiny.get(grown, 1)
    rows = zoo.sweep(name, **{**tiny, grown: np.array([once, 2 * once])})
    graphs = len(zoo.graphs_of(name, **tiny))
    assert len(rows) == 2 * graphs and [r[grown] for r in rows] == [once] * graphs + [2 * once] * graphs
    for small, large in zip(rows[:graphs], rows[graphs:], strict=True):
        assert small.allocate < large.allocate and small.bound < large.bound
    for parameter, found in inspect.signature(registry.require_name(name)).parameters.items():
        fixed = {k: v for k, v in tiny.items() if k != parameter}
        swept = zoo.sweep(name, **fixed, **{parameter: [tiny.get(parameter, found.default)]})
        assert [r.allocate for r in swept] == [r.allocate for r in rows[:graphs]], parameter


def test_a_pair_has_a_row_for_each_graph() -> None:
    rows = zoo.sweep("matmul-train", rows=[4, 8], k=3, n=5)
    assert [(r["rows"], r["graph"]) for r in rows] == [
        (n, f"matmul-train.{part}") for n in (4, 8) for part in ("forward", "backward")]


def test_any_graph_over_its_symbols() -> None:
    g = symbolic()
    rows = zoo.sweep(g, PlanOptions(pin_output_ancestors=False), B=range(1, 4), S=64)
    want = [plan_graph(fuse_graph(g.bind({"B": b, "S": 64})).graph, PlanOptions(pin_output_ancestors=False)).arena_size for b in (1, 2, 3)]
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
    with pytest.raises(GraphError, match="minilm: seq='8': wanted int, like its default 128"):
        zoo.sweep("minilm", seq="8", layers=1)
    with pytest.raises(GraphError, match=r"minilm: seq=8\.0: wanted int"):
        zoo.sweep("minilm", seq=[8.0], layers=1)
    with pytest.raises(GraphError, match="minilm: layers=True: wanted int"):
        zoo.build("minilm", layers=True)
    with pytest.raises(GraphError, match="minilm: embed=1: wanted bool"):
        zoo.build("minilm", embed=1)
    with pytest.raises(GraphError, match="bert-base: wanted seq within positions"):
        zoo.sweep("bert-base", seq=[8, 600], layers=1)
    assert zoo.sweep("minilm", seq=[]) == []


def test_table() -> None:
    rows = table()
    assert [r.model.split(".")[0] for r in rows] == sorted([*zoo.names(), "matmul-train"])
    for r in rows:
        assert r.bound <= r.default <= r.conservative <= r.naive and r.tensors <= r.nodes
    lines = markdown(table(["minilm"])).splitlines()
    assert [c.strip() for c in lines[0].split("|")[1:-1]] == [
        "model", "nodes", "tensors", "params", "naive", "conservative", "default", "bound", "fusion-ready"]
    assert [c.strip() for c in lines[2].split("|")[1:-1]][:8] == [
        "minilm", "224", "222", "22.71 M", "123.7 MB", "123.7 MB", "1.2 MB", "1.2 MB"]
    assert len({len(line) for line in lines}) == 1 and lines[1].startswith("|---") and len(lines) == 3


def test_fusion_ready() -> None:
    """A graph that a rule would fuse; tidying alone is no fusion."""
    for name in ("resnet50", "minilm", "matmul-train"):
        for g in zoo.graphs_of(name):
            fused = fuse_graph(g, "metal", fusion_for_target("metal", decode_forms=True))
            rules = {d.rule for d in fused.log if d.applied}
            assert fusion_ready(g) == any(RULES[r].group != "cleanup" for r in rules)
            assert not fusion_ready(fused.graph)
    g = Graph("tidy")
    x = g.transpose(g.transpose(g.input("x", (2, 3)), perm=(1, 0)), perm=(1, 0))
    g.set_outputs(g.relu(x))
    assert fuse_graph(g, "metal").log and not fusion_ready(g)


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
    top = Path(zoo.__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    assert figures_markdown() in top, "the figures changed: copy their table from planner_core/zoo/README.md"
