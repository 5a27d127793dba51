"""What stands beside the numbers says the same in text, JSON, page and a report without scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx_viz
from planner_core import zoo
from planner_core.ir import save_graph
from planner_core.memory import holders
from planner_core.units import bytes_text
from rlx_viz.cli import summary_text
from rlx_viz.reports import render_html
from rlx_viz.summary import plan_schema, summary_dict

CONDITIONS = "for these live ranges, in this order, with these options"


@pytest.fixture(scope="module")
def pinned() -> rlx_viz.Compilation:  # type: ignore[name-defined]
    return rlx_viz.compile(zoo.build("minilm", layers=2), pin_output_ancestors=True)


def test_every_headline_names_what_holds_the_arena(pinned) -> None:  # type: ignore[no-untyped-def]
    doc = rlx_viz.snapshot(pinned)
    free = pinned.with_options(pin_output_ancestors=False)
    (held,) = [h for h in holders(pinned.plan) if h.options]
    assert held.arena_without == free.plan.arena_size
    said = f"pin_output_ancestors holds {bytes_text(held.held)} of the arena"
    without = f"{bytes_text(free.plan.arena_size)} without it."
    for text in (summary_text(doc), render_html(doc, title="x").split("<script")[0], json.dumps(doc.meta["claims"])):
        assert said in text and without in text
    assert "--set pin_output_ancestors=false" in summary_text(doc)
    data = summary_dict(doc)
    row = next(h for h in data["holders"] if h["options"])
    assert (row["held_bytes"], row["arena_without_bytes"]) == (held.held, free.plan.arena_size)
    jsonschema.validate(data, plan_schema())


def test_nothing_is_pinned_by_default_and_optimal_says_for_what() -> None:
    """A transformer with an embedding: its gather pins nothing; the arena is what its live ranges need."""
    c = rlx_viz.compile(zoo.build("minilm", layers=2))
    doc = rlx_viz.snapshot(c)
    assert [h for h in doc.meta["claims"]["holders"] if h["options"]] == []
    assert c.plan.arena_size < 0.15 * rlx_viz.compile(zoo.build("minilm", layers=2), pin_output_ancestors=True, fusion=False).plan.arena_size
    text = summary_text(doc)
    assert f"Optimal {CONDITIONS}: no placement is smaller." in text
    assert re.search(r"Any order of these commands needs at least [\d.]+ KiB: the largest single step, ", text)
    assert not re.search(r"\boptimal\b(?! for these live ranges)", text, re.IGNORECASE)


def choice(path: Path) -> Path:
    """An If whose branches hold more than everything around them, one with an op that nobody knows."""
    def branch(op: str, domain: str = "") -> onnx.GraphProto:
        nodes = [helper.make_node("Expand", ["x", "wide"], ["w"]), helper.make_node("Neg", ["w"], ["v"]),
                 helper.make_node("ReduceSum", ["v"], ["s"], keepdims=0), helper.make_node(op, ["s"], ["y"], domain=domain)]
        return helper.make_graph(nodes, op, [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])

    node = helper.make_node("If", ["c"], ["z"], name="choice", then_branch=branch("Neg"), else_branch=branch("Strange", "my.own"))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [])], [helper.make_tensor("wide", TensorProto.INT64, [2], [256, 256])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]), path)
    return path


def test_bodies_are_seen(tmp_path: Path) -> None:
    """Tensors, opaque ops and peak within control flow are in the counts, the text and the document."""
    c = rlx_viz.compile(choice(tmp_path / "choice.onnx"))
    doc = rlx_viz.snapshot(c)
    bodies = doc.meta["claims"]["bodies"]
    assert [b["path"].rsplit("/", 1)[1] for b in bodies] == ["then", "else"]
    assert all(int(b["bytes"]) >= 2 * 256 * 256 * 4 for b in bodies)
    assert [b["unknown"] for b in bodies] == [0, 1], "nobody knows what the strange op makes"
    assert max(int(b["bytes"]) for b in bodies) == int(doc.meta["headline"]["scratch"])
    assert doc.meta["unsupported"] == {"onnx.my.own.Strange": 1}
    assert "Inside" in summary_text(doc) and "onnx.my.own.Strange: 1" in summary_text(doc)
    t = doc.tables["body_tensors"]
    names = [doc.strings[i] for i in t["name"]]
    assert len(names) == sum(b["nodes"] for b in bodies)
    wide = [i for i, n in enumerate(names) if n.endswith(("w", "v")) and t["size"][i] == 256 * 256 * 4]
    assert len(wide) >= 4
    for k in range(len(bodies)):  # within a body no two tensors that live together share bytes
        rows = [i for i in np.flatnonzero(t["body"] == k).tolist() if t["root"][i] == i and t["size"][i] > 0]
        for a in rows:
            for b in rows:
                if a < b and t["birth"][a] <= t["death"][b] and t["birth"][b] <= t["death"][a]:
                    assert t["offset"][a] + t["size"][a] <= t["offset"][b] or t["offset"][b] + t["size"][b] <= t["offset"][a]
    assert [b.plan.total_size for b in c.bodies()] == [int(b["bytes"]) for b in bodies]


def test_redacted_claims_name_no_tensor(tmp_path: Path) -> None:
    c = rlx_viz.compile(choice(tmp_path / "choice.onnx"))
    text = json.dumps(rlx_viz.snapshot(c, redact=True).meta["claims"])
    assert "choice" not in text and "my.own" not in text
    assert len(json.loads(text)["bodies"]) == 2


def test_options_of_a_model_are_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx_viz.cli import main

    path = tmp_path / "m.json"
    save_graph(zoo.build("minilm", layers=1, seq=8), path)
    monkeypatch.setattr("sys.argv", ["rlx-viz", "options", str(path)])
    main()
    out = capsys.readouterr().out
    assert "pin_output_ancestors=false" in out and "onnx_duration=false" in out and "placement=auto" in out
