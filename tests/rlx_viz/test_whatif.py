"""What-ifs against plans made the long way: sums are exact, a toggle's figures are those of compiling with it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlx_viz
from planner_core import zoo
from planner_core.errors import OptionError
from planner_core.fusion import RULES
from planner_core.ir import Graph
from planner_core.memory import plan_graph
from rlx_viz import whatif
from rlx_viz.whatif import START, STEP, Stopped, counterfactuals, step_labels, waterfall, with_whatif
from runtime.compile import Compilation

TOGGLES = ("pin_output_ancestors", "arena_no_reuse", "separate_weights", "fusion", "elementwise_region", "conv_bias_act",
           "matmul_bias_act", "common_subexpressions", "region_rewrite")


def small(model: str = "minilm", target: str = "cpu", **options: object) -> Compilation:
    return rlx_viz.compile(zoo.build(model, **({"layers": 1} if model == "minilm" else {})), target=target, **options)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(TOGGLES), st.booleans()), st.sampled_from(["cpu", "metal"]), st.sampled_from(["minilm", "hifigan"]))
def test_the_waterfall_sums_exactly(options: dict[str, bool], target: str, model: str) -> None:
    c = small(model, target, **options)
    steps = waterfall(c)
    assert [s.kind for s in steps] == [START, *[STEP] * (len(steps) - 2), 2]
    assert sum(s.nbytes for s in steps[:-1]) == steps[-1].nbytes == c.allocate_bytes
    known = {r.info.name for r in c.option_rows()}
    assert {s.option for s in steps} <= known | {""}
    assert {s.option for s in steps} >= {r for r in c.fusion_log.counts() if c.fusion_log.applied(r)}


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.sampled_from(["minilm", "hifigan"]))
def test_any_order_sums_exactly(random: random.Random, model: str) -> None:
    """The order moves bytes between changes; start, end and every column's sum stay."""
    c = small(model, pin_output_ancestors=True)
    usual, order = waterfall(c), step_labels(c)
    random.shuffle(order)
    told = waterfall(c, order=order)
    for column in ("nbytes", "traffic", "dispatches"):
        assert sum(getattr(s, column) for s in told[:-1]) == getattr(told[-1], column)
    assert (told[0], told[-1]) == (usual[0], usual[-1])
    shown = [s.label for s in told[1:-1] if s.label in order]
    assert shown == [label for label in order if label in shown]


def test_an_order_of_strangers_is_refused() -> None:
    with pytest.raises(OptionError, match="no step 'resue' in this waterfall; wanted an order of views, reuse"):
        waterfall(small(), order=["resue"])


def test_fusion_is_told_what_it_saves_of_a_reused_arena() -> None:
    """A U-Net's convolutions take their activation: traffic and dispatches go down, the arena does not (one-step peaks)."""
    c = rlx_viz.compile(zoo.build("unet3d"))
    plain = rlx_viz.compile(zoo.build("unet3d"), fusion=False)
    assert abs(c.plan.arena_size - plain.plan.arena_size) < 4096
    step = next(s for s in waterfall(c) if s.label == "conv_bias_act")
    assert abs(step.nbytes) < 4096  # biases that need no constants of their own
    relus = [n for n in c.source.nodes if n.op.name == "Binary" and n.op.kind == "max"]
    muls = [n for n in c.source.nodes if n.op.name == "Binary" and n.op.kind == "mul"]
    assert step.dispatches == -(len(relus) + len(muls))
    assert step.traffic == -sum(n.shape.nbytes for n in (*relus, *muls))


@pytest.mark.parametrize("target", ["cpu", "metal"])
def test_alone_and_in_order_agree_on_a_single_change(target: str) -> None:
    """With one fusion rule applied, told last, both ways say the same."""
    c = small("minilm", target, **{r: r == "matmul_bias_act" for r in RULES})
    told = next(s for s in waterfall(c, order=[x for x in step_labels(c) if x != "matmul_bias_act"]) if s.label == "matmul_bias_act")
    alone = next(o for o in counterfactuals(c) if o.option == "matmul_bias_act")
    assert (-alone.traffic_saved, -alone.dispatches_saved) == (-told.traffic, -told.dispatches)
    assert told.nbytes == c.plan.arena_size + c.plan.weights_size - _total(c.with_options(matmul_bias_act=False))
    assert alone.arena_saved == c.plan.arena_size - c.with_options(matmul_bias_act=False).plan.arena_size


def _total(c: Compilation) -> int:
    return c.plan.arena_size + c.plan.weights_size


def test_the_start_is_the_source_with_nothing_shared() -> None:
    c = small("hifigan")
    sizes = [n.dtype.nbytes(n.shape.numel) for n in c.source.nodes]
    assert sum(sizes) <= waterfall(c)[0].nbytes <= sum(-(-s // 64) * 64 + 256 for s in sizes)  # convs have guards


@pytest.mark.parametrize("model", ["minilm", "hifigan"])
def test_a_counterfactual_is_the_plan_with_the_toggle(model: str) -> None:
    c = small(model)
    found = {o.option: o for o in counterfactuals(c)}
    assert "arena_no_reuse" in found or c.plan.options.pin_output_ancestors
    for row in c.option_rows():
        if row.info.type != "bool" or row.info.name.startswith("allocate_"):
            continue
        other = c.with_options(**{row.info.name: not row.value})
        if row.info.name not in found:
            assert other.allocate_bytes == c.allocate_bytes, row.info.name
            continue
        o = found[row.info.name]
        assert (o.value, o.allocate, o.saved) == (not row.value, other.allocate_bytes, c.allocate_bytes - other.allocate_bytes)
        if other.legal is c.legal:
            own = [i for i in c.plan.assignments if c.plan.root[i] == i]
            earlier = {i: int(other.plan.death[i]) for i in own if other.plan.death[i] < c.plan.death[i]}
            assert dict(zip(o.nodes.tolist(), o.deaths.tolist(), strict=True)) == earlier


def test_a_region_keeps_its_inputs_and_its_toggle_would_free_them() -> None:
    """Three branches wait for one kernel; without it the first two die at the first sum."""
    g = Graph("branches")
    x = g.input("x", [1024])
    a, b, d = (g.softmax(g.narrow(g.concat(x, x, axis=0), axis=0, start=i, len=1024), axis=0, name=f"branch{i}") for i in range(3))
    g.set_outputs(g.mul(g.sub(g.sub(a, b), d), d, name="y"))
    c = rlx_viz.compile(g, pin_output_ancestors=False)
    if not c.fusion_log.applied("elementwise_region"):
        pytest.fail("the case needs a region")
    found = {o.option: o for o in counterfactuals(c)}["elementwise_region"]
    freed = {c.legal[int(i)].name for i in found.nodes}
    assert {"branch0", "branch1"} <= freed
    assert "branch2" not in freed
    assert all(d < c.plan.death[i] for i, d in zip(found.nodes.tolist(), found.deaths.tolist(), strict=True))


def test_work_that_is_called_off_stops_between_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    c, calls = small(), []

    def stop() -> bool:
        calls.append(1)
        return len(calls) > 2

    with pytest.raises(Stopped):
        list(counterfactuals(c, stop))
    assert len(calls) == 3
    with pytest.raises(Stopped):
        waterfall(c, lambda: True)


def test_in_a_document() -> None:
    c = small()
    doc = with_whatif(rlx_viz.snapshot(c), c)
    s, f, n = (doc.tables[t] for t in ("savings", "counterfactuals", "counterfactual_nodes"))
    assert s["bytes"][:-1].sum() == s["bytes"][-1] == c.allocate_bytes
    assert len(f["option"]) > 0
    assert doc.strings[f["option"][0]] == "pin_output_ancestors" or f["saved"][0] != 0
    assert (np.diff(n["row"].astype(int)) >= 0).all()
    assert [doc.strings[i] for i in doc.tables["tensors"]["name"]] == [x.label for x in c.legal.nodes]
    naive = plan_graph(c.legal, c.plan.options.replace(arena_no_reuse=True)).arena_size
    assert naive <= s["bytes"][0]


def test_a_report_carries_what_its_size_makes_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    c = small()
    doc = rlx_viz.snapshot(c)
    tables = {"savings", "counterfactuals", "counterfactual_nodes"}
    for most, cheap, wanted, want in ((1 << 20, 1 << 20, None, tables), (1 << 20, 1, None, {"savings"}), (1, 1, None, set()),
                                      (1, 1, True, tables), (1 << 20, 1 << 20, False, set())):
        monkeypatch.setattr(whatif, "SAVINGS_NODES", most)
        monkeypatch.setattr(whatif, "CHEAP_NODES", cheap)
        assert set(with_whatif(doc, c, wanted).tables) - set(doc.tables) == want
