"""Public objects show themselves in a line, and in a notebook as a small table; plans and graphs are values."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import rlx_viz
from planner_core import zoo
from planner_core.ir import Graph
from planner_core.ir.views import static_mask
from planner_core.memory import diff_plans
from planner_core.memory.placement import Problem, solve
from runtime import CompileOptions, compile_graph
from runtime.caches import BucketedCompileCache, CompileCache
from runtime.profile import profile

HOSTILE = "<script>alert('x')</script>\n" + "n" * 500


def shown() -> dict[str, Any]:
    g = zoo.build("moe")
    g.name = HOSTILE
    c = rlx_viz.compile(g)
    small = Graph(HOSTILE)
    small.set_outputs(small.relu(small.input("x", (2, 3))))
    problem = Problem.of([0], [1], [8])
    ran = compile_graph(small, CompileOptions())
    return {
        "Graph": g, "MemoryPlan": c.plan, "Compilation": c, "CommandList": c.commands, "Fusion": c.fusion,
        "DecisionLog": c.fusion_log, "PassResult": c.passed, "Problem": problem, "Solution": solve(problem),
        "CompileCache": CompileCache("cpu", 2), "BucketedCompileCache": BucketedCompileCache("cpu", [(1, 3)]),
        "Profile": profile(ran, {"x": np.ones((2, 3), np.float32)}, 1),
        "PlanDiff": diff_plans(c.plan, c.with_options(arena_no_reuse=True).plan),
    }


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return shown()


def test_each_is_a_line_and_a_table(objects: dict[str, Any]) -> None:
    for name, o in objects.items():
        text = repr(o)
        assert text.startswith(f"<{name}"), text
        assert len(text) <= 400 and "\n" not in text, name
        html = o._repr_html_()
        assert Tags(html).tags <= {"div", "p", "b", "table", "tr", "th", "td", "code"}, html
        assert len(html) < 2_000
    assert "to allocate" in repr(objects["Compilation"])


def test_a_plan_is_a_value() -> None:
    c = rlx_viz.compile(zoo.build("moe"))
    for name in ("birth", "death", "offset", "size", "guard", "root", "space", "elided"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(c.plan, name)[0] = 1
    assert c.plan.peak() is c.plan.peak()


def test_a_bound_graph_has_weights_of_its_own() -> None:
    g = Graph("g")
    x = g.input("x", ("B", 2))
    g.set_outputs(g.mul(x, g.param("w", (2,), data=np.ones(2, np.float32))))
    one = g.bind({"B": 1})
    one.weights["w"] = np.zeros(2, np.float32)
    assert g.weights["w"].tolist() == [1, 1]


def test_what_is_derived_is_kept_until_a_node_is_added() -> None:
    g = Graph("g")
    x = g.input("x", (2,))
    calls: list[int] = []

    def size(graph: Graph, scale: int) -> int:
        calls.append(scale)
        return scale * len(graph)

    assert [g.derived(size, 2), g.derived(size, 2), g.derived(size, 3)] == [2, 2, 3]
    assert calls == [2, 3]
    assert static_mask(g) is static_mask(g)
    g.relu(x)
    assert g.derived(size, 2) == 4
