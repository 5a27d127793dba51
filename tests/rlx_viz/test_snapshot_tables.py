"""The tables beside the plan's, against the compilation's own objects and plain counts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import rlx_viz
from planner_core import zoo
from planner_core.fusion import RULES, estimate, modules
from planner_core.ir import Graph
from planner_core.memory import is_pure_view, is_static_weight_tensor
from rlx_viz.columns import ColumnDocument
from rlx_viz.frames import commands_frame, decisions_frame
from rlx_viz.snapshot_tables import graphs
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.compile import Compilation
from runtime.passes import PASSES


def compiled(target: str = "metal") -> Compilation:
    return rlx_viz.compile(zoo.build("decoder-stack", nodes=300), target=target)


@pytest.fixture(scope="module")
def c() -> Compilation:
    return compiled()


@pytest.fixture(scope="module")
def doc(c: Compilation) -> ColumnDocument:
    return rlx_viz.snapshot(c)


def texts(doc: ColumnDocument, table: str, column: str) -> list[str]:
    return [doc.strings[i] for i in doc.tables[table][column].tolist()]


def test_source_is_the_graph_before_fusion(c: Compilation, doc: ColumnDocument) -> None:
    assert c.legal is not c.source
    s, g = doc.tables["source"], c.source
    assert texts(doc, "source", "name") == [n.label for n in g.nodes]
    assert texts(doc, "source", "op") == [n.op.detail for n in g.nodes]
    assert [doc.meta["families"][f] for f in s["family"]] == [n.op.family for n in g.nodes]
    assert s["bytes"].tolist() == [n.dtype.nbytes(n.shape.numel) for n in g.nodes]
    assert [-1 if f == NONE else f for f in s["fused"].tolist()] == list(c.fusion.fused_of)
    edges = doc.tables["source_edges"]
    assert list(zip(edges["src"], edges["dst"], strict=True)) == [(i, n.id) for n in g.nodes for i in n.inputs]
    assert doc.meta["source_is_tensors"] is False


def test_without_fusion_the_tensors_are_the_source() -> None:
    doc = rlx_viz.snapshot(compiled().with_options(fusion=False))
    assert doc.meta["source_is_tensors"] is True
    assert not doc.tables.keys() & {"source", "source_edges"}
    assert doc.meta["counters"]["traffic_source"] == doc.meta["counters"]["traffic"]


def test_edges_point_down_the_layers_and_params_are_not_drawn(c: Compilation, doc: ColumnDocument) -> None:
    for places, edges, graph in ((doc.tables["layout"], doc.tables["edges"], c.legal),
                                 (doc.tables["source"], doc.tables["source_edges"], c.source)):
        hidden = np.array([n.op.name in ("Param", "Constant") for n in graph.nodes])
        assert (places["x"][hidden] == -1).all() and (places["x"][~hidden] >= 0).all()
        drawn = ~hidden[edges["src"]]
        assert (places["layer"][edges["src"][drawn]] < places["layer"][edges["dst"][drawn]]).all()
        spots = list(zip(places["layer"][~hidden].tolist(), places["x"][~hidden].tolist(), strict=True))
        assert len(set(spots)) == len(spots)


def check_groups(doc: ColumnDocument, source: Graph) -> None:
    g, of = doc.tables["groups"], doc.tables.get("source", {}).get("group")
    assert doc.rows("groups") <= graphs.MOST_GROUPS
    shown = sum(n.op.name not in ("Param", "Constant") for n in source.nodes)
    assert g["count"].sum() == shown
    if of is not None:
        for k in range(doc.rows("groups")):
            ids = np.flatnonzero(of == k)
            assert (ids[0], ids[-1], len(ids)) == (g["first"][k], g["last"][k], g["count"][k])
    e = doc.tables["group_edges"]
    assert (g["layer"][e["src"]] < g["layer"][e["dst"]]).all()


def test_groups_are_module_runs_at_the_depth_nearest_to_a_clear_picture(doc: ColumnDocument, c: Compilation) -> None:
    check_groups(doc, c.source)
    depths = [modules(c.source, d, graphs.MOST_GROUPS) for d in range(1, 6)]
    ratios = [max(len(m.names) / graphs.CLEAR_GROUPS, graphs.CLEAR_GROUPS / len(m.names)) for m in depths]
    chosen = depths[ratios.index(min(ratios))]
    assert texts(doc, "groups", "name") == list(chosen.names)
    assert doc.tables["group_edges"]["bytes"].tolist() == chosen.edge_bytes.tolist()


def test_a_graph_without_modules_is_cut_into_stretches() -> None:
    g = Graph("flat")
    x = g.input("x", [4])
    for i in range(1000):
        x = g.relu(x) if i % 2 else g.mul(x, x)
    g.set_outputs(x)
    doc = rlx_viz.snapshot(rlx_viz.compile(g, fusion=False))
    check_groups(doc, g)
    assert doc.rows("groups") == graphs.MOST_GROUPS
    e = doc.tables["group_edges"]
    assert list(zip(e["src"], e["dst"], strict=True)) == list(pairwise(range(doc.rows("groups"))))
    assert set(e["bytes"].tolist()) == {16}


def test_decisions_repeat_both_logs(c: Compilation, doc: ColumnDocument) -> None:
    found, t = [*c.fusion_log, *c.pass_log], doc.tables["decisions"]
    assert len(found) == doc.rows("decisions") > 0
    nodes: dict[int, list[int]] = {}
    for d, n in zip(doc.tables["decision_nodes"]["decision"].tolist(), doc.tables["decision_nodes"]["node"].tolist(), strict=True):
        nodes.setdefault(d, []).append(n)
    rules, reasons = doc.meta["decision_rules"], doc.meta["reasons"]
    assert reasons[0] == {"name": "", "text": ""}
    for i, d in enumerate(found):
        rule = rules[t["rule"][i]]
        assert (rule["stage"], rule["name"]) == (d.stage, d.rule)
        assert bool(t["verdict"][i]) is d.applied
        assert (t["anchor"][i], t["bytes"][i], t["dispatches"][i]) == (d.anchor, d.bytes_saved, d.dispatches_saved)
        assert reasons[t["reason"][i]]["text"] == ("" if d.reason is None else d.reason.value)
        assert tuple(nodes.get(i, ())) == d.nodes
        assert doc.strings[t["facts"][i]] == ", ".join(f"{k} {v}" for k, v in d.facts)
    assert {(r["stage"], r["name"]) for r in rules} == {*(("fusion", r) for r in RULES), *(("passes", p.name) for p in PASSES)}
    assert all(r["doc"] for r in rules)


def test_commands_repeat_both_lists(c: Compilation, doc: ColumnDocument) -> None:
    t = doc.tables["commands"]
    assert texts(doc, "commands", "label") == [x.trace_label for x in c.commands.thunks]
    assert t["node"].tolist() == list(c.commands.node_of)
    assert [("none", "gpu", "host")[w] for w in t["where"]] == [x.place for x in c.commands.thunks]
    assert t["read"].tolist() == [sum(o.nbytes for o in x.reads()) for x in c.commands.thunks]
    assert t["written"].tolist() == [sum(o.nbytes for o in x.writes()) for x in c.commands.thunks]
    assert t["scratch"].tolist() == [x.scratch_bytes for x in c.commands.thunks]
    before = doc.tables["commands_before"]
    assert texts(doc, "commands_before", "label") == [x.trace_label for x in c.commands_before.thunks]
    for i, new in c.index_map.items():
        assert tuple(range(before["first"][i], before["first"][i] + before["count"][i])) == new
    s = doc.tables["spans"]
    wanted = [(i, role.value, o.space, o.offset, o.nbytes)
              for i, x in enumerate(c.commands.thunks) for _, role, o in x.operands()]
    got = [(i, ("in", "out", "inout")[r], doc.meta["spaces"][p], a, n) for i, r, p, a, n in zip(
        *(s[k].tolist() for k in ("command", "role", "space", "offset", "bytes")), strict=True)]
    assert sorted(got) == sorted(wanted)


@pytest.mark.parametrize("target", ["cpu", "metal"])
def test_counters_are_plain_counts(target: str) -> None:
    c = compiled(target)
    counters = rlx_viz.snapshot(c).meta["counters"]

    def work(g: Graph) -> list[int]:
        return [n.id for n in g.nodes if n.op.name not in ("Input", "Param", "Constant") and not is_pure_view(g, n.id)
                and n.op.name != "KvAppend" and not is_static_weight_tensor(g, n.id)]

    assert counters["dispatches_source"] == c.with_options(fusion=False).commands_before.dispatches
    assert (counters["dispatches_before"], counters["dispatches"]) == (c.commands_before.dispatches, c.commands.dispatches)
    for key, g in (("traffic_source", c.source), ("traffic", c.legal)):
        assert counters[key] == sum(g[i].dtype.nbytes(g[i].shape.numel) for i in work(g))


def test_without_a_gpu_everything_runs_on_the_host() -> None:
    t = rlx_viz.snapshot(compiled("cpu")).tables["commands"]
    assert set(t["where"].tolist()) <= {0, 2}


def test_a_command_that_writes_into_its_operand_is_a_dispatch_of_the_source() -> None:
    """Two appends a layer to the cache; fusion changes nothing, so the source has the dispatches of the list."""
    c = rlx_viz.compile(zoo.build("llama-decode", layers=2, hidden=256, heads=4, ffn=512, vocab=64, past=3, quant="q4_k"), target="metal")
    assert c.commands_before.counts()["kv_append"] == 4
    counters = rlx_viz.snapshot(c).meta["counters"]
    assert counters["dispatches_source"] - counters["dispatches_before"] == c.fusion_log.dispatches_saved
    assert counters["dispatches_source"] == c.with_options(fusion=False).commands_before.dispatches


def test_the_estimate_is_the_cost_views(c: Compilation, doc: ColumnDocument) -> None:
    e, view = doc.meta["estimate"], estimate(c.fusion, "m2-max")
    assert e["device"] == "m2-max" and e["us_before"] == pytest.approx(view.us_before) and e["us"] == pytest.approx(view.us)


def test_a_large_graph_goes_without_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_DRAWN", 100)
    c = compiled()
    doc = rlx_viz.snapshot(c)
    assert not doc.tables.keys() & {"layout", "source_edges"}
    assert doc.tables["source"].keys() == {"name", "op", "family", "fused", "group"}
    check_groups(doc, c.source)


def test_a_run_adds_its_profile(mlp: Graph) -> None:
    c = rlx_viz.compile(mlp)
    profile = c.profile({"x": np.zeros((4, 16), np.float32)}, repeat=1)
    doc = rlx_viz.snapshot(c, profile=profile)
    assert doc.rows("profile") == doc.rows("commands") == len(profile.seconds)
    assert doc.tables["profile"]["flops"].tolist() == profile.flops.tolist()
    assert doc.tables["profile"]["us"] == pytest.approx(profile.seconds * 1e6)


def test_toggling_the_plan_gives_the_same_document_as_a_fresh_start() -> None:
    """What is kept between documents changes nothing."""
    c = compiled()
    rlx_viz.snapshot(c)
    assert rlx_viz.snapshot(c.with_options(alignment=256)) == rlx_viz.snapshot(
        rlx_viz.compile(zoo.build("decoder-stack", nodes=300), target="metal", alignment=256))


def secretive() -> Graph:
    g = Graph("SECRETgraph")
    x = g.input("SECRETx", ["SECRETdim", 16])
    h = g.mm(x, g.param("SECRETmodule.SECRETw", [16, 16]), name="SECRETmodule.SECRETm")
    b = g.sub(h, g.param("SECRETmodule.SECRETb", [16]), name="SECRETmodule.SECRETh")
    y = g.relu(b, name="SECRETmodule.SECRETy")
    z = g.exp(g.neg(y, name="SECRETneg"), name="SECRETexp")
    shared = g.neg(g.sub(x, x), name="SECRETshared")
    return g.set_outputs(g.mul(z, b, name="SECRETz"), g.relu(shared), g.exp(shared), h)


@pytest.mark.parametrize("target", ["cpu", "metal"])
def test_redaction_reaches_every_table(target: str) -> None:
    c = rlx_viz.compile(secretive(), dims={"SECRETdim": 4}, target=target)
    assert any("SECRET" in f for f in decisions_frame(rlx_viz.snapshot(c)).facts), "a decision names a tensor"
    plain, hidden = rlx_viz.snapshot(c), rlx_viz.snapshot(c, redact=True)
    assert "SECRET" not in hidden.to_json()
    for table, columns in plain.tables.items():
        assert columns.keys() == hidden.tables[table].keys()
        for name, column in columns.items():
            text = (table, name) in {("decisions", "facts"), ("groups", "name")} or name in ("name", "shape", "source", "op", "label")
            assert text or np.array_equal(column, hidden.tables[table][name]), (table, name)


def test_decisions_and_commands_as_frames(c: Compilation, doc: ColumnDocument) -> None:
    frame = decisions_frame(doc)
    assert len(frame) == len(c.fusion_log) + len(c.pass_log)
    log = c.fusion_log.to_frame()
    mine = frame[frame.stage == "fusion"].reset_index(drop=True)
    for column in ("rule", "verdict", "anchor", "label", "reason", "bytes_saved", "dispatches_saved"):
        assert mine[column].tolist() == log[column].tolist(), column
    commands = commands_frame(doc)
    assert commands.command.tolist() == [t.trace_label for t in c.commands.thunks]
    assert commands.node.tolist() == [c.legal[n].label for n in c.commands.node_of]


def test_meta_is_plain_data(doc: ColumnDocument) -> None:
    def only(value: Any) -> None:
        assert value is None or isinstance(value, (dict, list, str, int, float, bool)), value
        for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            only(v)

    only(json.loads(json.dumps(doc.meta)))
    names = {o["name"] for o in doc.meta["options"]}
    for preset in doc.meta["presets"]:
        assert preset["doc"] and preset["options"].keys() <= names
