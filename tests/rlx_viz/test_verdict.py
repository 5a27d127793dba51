"""One sentence with numbers: by hand on small sides, then the same words in the notebook, the page and the report."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx_viz
from planner_core.ir import Graph
from planner_core.memory.placement import Problem, solve
from rlx_viz.comparison import compare
from rlx_viz.reports.sampling import render_capped
from rlx_viz.verdict import Deciding, Side, Smaller, judge
from tests.planner_core.memory.placement.problems import problems
from tests.rlx_viz.test_report import payload_of


def side(label: str, size: list[int], offset: list[int], bound: int, **more: int) -> Side:
    """Buffers live one step longer each: i from i to i + 1."""
    n = len(size)
    p = Problem.of(range(n), range(1, n + 1), size)
    offsets = np.asarray(offset, dtype=np.int64)
    return Side(label, label, p, offsets, tuple(f"b{i}" for i in range(n)), p.height(offsets), bound, **more)


def test_the_sentence_by_hand() -> None:
    ours, tool = side("ours", [10, 20, 10], [0, 10, 0], 30), side("tool.csv", [10, 20, 10], [0, 10, 30], 30)
    same = judge(ours, ours, "arena")
    assert str(same) == "The same plan: arena 30 B on both sides; its arena is at its lower bound."
    assert (same.same_plan, same.smaller, same.deciding) == (True, Smaller.NEITHER, None)
    found = judge(ours, tool, "arena")
    assert str(found) == ("Ours is smaller by 10 B (25%): arena 30 B against 40 B of tool.csv; the difference lies at step 2 of tool.csv "
                          "in 'b2', which ends above 30 B there; our arena is at its lower bound, that of tool.csv 10 B (33%) above its own.")
    assert (found.difference_bytes, found.a_bytes, found.b_bytes, found.a_above_bound, found.b_above_bound) == (10, 30, 40, 0, 10)
    assert found.deciding == Deciding("arena", 2, ("b2",))
    back = judge(tool, ours, "arena")
    assert back.smaller is Smaller.B
    assert str(back).startswith("Ours is smaller by 10 B (25%)")
    assert "the arena of tool.csv is 10 B (33%) above its lower bound, that of ours at its own" in str(back)


def test_equal_is_not_the_same() -> None:
    a, b = side("A", [10, 20, 10], [0, 10, 0], 30), side("B", [10, 20, 10], [20, 0, 20], 30)
    found = judge(a, b, "to allocate", moved=3)
    assert str(found) == "Equal: to allocate 30 B on both sides, 3 tensors placed differently; both arenas are at their lower bound."
    assert not found.same_plan
    assert str(judge(a, b, "arena", caveat="2 of our 5 buffers have no row")).endswith("; 2 of our 5 buffers have no row.")
    assert not judge(a, a, "arena", same_steps=False).same_plan


@pytest.mark.parametrize(("a", "b", "region"), [({"weights": 8}, {"weights": 9}, "weights"), ({"scratch": 5}, {}, "scratch")])
def test_a_difference_outside_the_arena(a: dict[str, int], b: dict[str, int], region: str) -> None:
    found = judge(side("A", [10], [0], 10, **a), side("B", [10], [0], 10, **b), "to allocate")
    assert found.deciding == Deciding(region, None, ())
    assert f"; the difference lies in {region}; " in str(found)


def test_unknown_sizes_make_lower_limits() -> None:
    assert "sizes of 2 tensors are unknown before the run, so all are lower limits." in str(
        judge(side("A", [10], [0], 10, unknown=2), side("B", [10], [0], 10), "to allocate"))


@settings(max_examples=100, deadline=None)
@given(problems(mixed=False), st.integers(0, 3))
def test_the_buffers_named_are_the_ones_above(p: Problem, pick: int) -> None:
    """By steps and bytes: all buffers that reach above the smaller arena at the step, where the highest one lives and most
    bytes are live."""
    p = dataclasses.replace(p, size=np.maximum(p.size, 1))
    less = solve(p, "first_fit")
    more = np.cumsum(p.size + pick) - p.size
    names = tuple(map(str, range(len(p))))
    a = Side("A", "A", p, less.offsets, names, less.arena_size, less.lower_bound)
    b = Side("B", "B", p, more, names, p.height(more), less.lower_bound)
    found = judge(a, b, "arena")
    assert found.difference_bytes == b.arena - a.arena
    if found.smaller is not Smaller.A:
        return
    assert found.deciding is not None
    step = found.deciding.step
    assert step is not None
    above = [i for i in range(len(p)) if more[i] + p.size[i] > a.arena]
    top = max(above, key=lambda i: more[i] + p.size[i])
    live = {t: sum(int(p.size[i]) for i in range(len(p)) if p.birth[i] <= t <= p.death[i]) for t in range(p.birth[top], p.death[top] + 1)}
    assert live[step] == max(live.values())
    assert set(found.deciding.buffers) == {str(i) for i in above if p.birth[i] <= step <= p.death[i]}


def test_two_option_sets_are_told_by_the_option(mlp: Graph) -> None:
    found = compare(mlp, {"arena_no_reuse": True})
    head = found.headline["allocate"]
    assert str(found.verdict).startswith(f"A (arena_no_reuse=false) is smaller by {head[2]:,} B (")
    assert f"to allocate {head[0]:,} B against {head[1]:,} B of B (arena_no_reuse=true)" in str(found.verdict)
    assert (found.verdict.a_bytes, found.verdict.b_bytes) == head[:2]
    assert compare(mlp, {}).verdict.same_plan


def test_the_same_sentence_everywhere(mlp: Graph, tmp_path: Path) -> None:
    table = pd.DataFrame({"name": ["x", "hidden", "y"], "offset": [0, 4096, 8192], "size": [256, 256, 256]})
    found = compare(mlp, table)
    sentence = str(found.verdict)
    assert repr(found).splitlines()[0] == sentence
    assert len(repr(found).splitlines()) <= 3
    html = found._repr_html_()
    assert sentence.replace("'", "&#x27;") in html
    assert all(n.replace("'", "&#x27;") in html for n in found.notes)
    page = rlx_viz.report(mlp, tmp_path / "r.html", compare=table, whatif=False).read_text()
    assert f"<th scope=\"row\">Compared</th><td>{sentence.replace(chr(39), '&#39;')}</td>" in page
    other = payload_of(page.replace("rlx-payload\"", "x").replace("rlx-payload-b", "rlx-payload"))
    assert other.meta["verdict"]["sentence"] == sentence
    assert other.meta["verdict"]["notes"] == list(found.notes)
    assert other.meta["verdict"]["headline"]["arena"] == list(found.headline["arena"][:2])
    left_out = render_capped(found.a, title="small", other=found.document(), limit=1)
    assert sentence.replace("'", "&#39;") in left_out


def test_names_are_markup_safe_and_redacted(tmp_path: Path) -> None:
    g = Graph("odd")
    x = g.input("x", (64,))
    c = rlx_viz.compile(g.set_outputs(g.neg(g.relu(x, name="<b>SECRET"), name="y")), fusion=False)
    path = tmp_path / "SECRET.csv"
    path.write_text("name,offset,size\nx,0,256\n<b>SECRET,4096,256\ny,256,256\n")
    found = compare(c, path)
    assert "'<b>SECRET'" in str(found.verdict)
    assert "<b>SECRET" not in found._repr_html_()
    hidden = compare(c, path, redact=True)
    assert "SECRET" not in hidden.document().to_json() + repr(hidden)
    assert str(hidden.verdict).startswith("Ours is smaller by ")
