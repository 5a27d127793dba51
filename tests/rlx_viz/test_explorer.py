"""The explorer without a browser: requests, undo, state, runs, stale work, and that it never disagrees with a fresh plan."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from traitlets import TraitError

import rlx_viz
from planner_core import zoo
from planner_core.errors import RlxError
from planner_core.ir import Graph
from rlx_viz.columns import ColumnDocument
from rlx_viz.explorer import Explorer, Live, Picture
from rlx_viz.snapshot_tables.meta import PRESETS
from rlx_viz.whatif import step_labels, waterfall
from tests.browser.synthetic import make_document


def small() -> Graph:
    return zoo.build("minilm", layers=1, seq=8)


def opened(**kw: Any) -> Explorer:
    return rlx_viz.explore(small(), whatif=kw.pop("whatif", False), **kw)


def shown(e: Explorer) -> ColumnDocument:
    return ColumnDocument.unpack(e.header, e.buffer)


# --- never apart from a fresh plan --------------------------------------------------------------------

GRAPH = small()
FRESH = {t: rlx_viz.compile(GRAPH, target=t) for t in ("cpu", "metal")}
FLAGS = sorted(r.info.name for r in FRESH["cpu"].option_rows() if r.info.type == "bool" and r.info.group not in ("checks", "log"))


def fresh(options: dict[str, Any]) -> ColumnDocument:
    """A new plan under the options; its target is said against the one that the explorer was opened with."""
    document = rlx_viz.snapshot(FRESH["cpu"].with_options(**options))
    row = next(o for o in document.meta["options"] if o["name"] == "target")
    row.update(default="cpu", changed=row["value"] != "cpu")
    return document


MOVES = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(FLAGS), st.booleans()),
    st.tuples(st.just("set"), st.just("alignment"), st.sampled_from([1, 64, 256, 48])),
    st.tuples(st.just("set"), st.just("target"), st.sampled_from(["cpu", "metal"])),
    st.tuples(st.just("set"), st.just("precision"), st.sampled_from(["f32", "auto_mixed"])),
    st.tuples(st.just("set"), st.just("width_policy"), st.sampled_from(["native", "f32_uniform"])),
    st.tuples(st.sampled_from(["undo", "redo", "reset"]), st.none(), st.none()),
    st.tuples(st.just("preset"), st.sampled_from([p["name"] for p in PRESETS]), st.none()),
)


@example([("set", "target", "metal"), ("set", "decode_forms", True)], False)
@example([("set", "alignment", 48), ("undo", None, None)], True)
@example([("set", "precision", "auto_mixed"), ("set", "width_policy", "f32_uniform"), ("preset", "as written", None),
          ("set", "precision", "f32"), ("undo", None, None)], False)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MOVES, min_size=1, max_size=8), st.booleans())
def test_any_sequence_of_changes_shows_what_a_fresh_plan_shows(moves: list[tuple[str, Any, Any]], by_request: bool) -> None:
    e = rlx_viz.explore(FRESH["cpu"], whatif=False)
    for seq, (verb, name, value) in enumerate(moves, 1):
        before = e.options, e.header
        if by_request:
            e.request = {"seq": seq, **({"option": name, "value": value} if verb == "set" else {"preset": name} if verb == "preset" else {verb: True})}
            e.wait(60)
            assert e.done == seq
            failed = bool(e.error)
        else:
            try:
                arguments = [name, value] if verb == "set" else [name] if verb == "preset" else []
                getattr(e, "set_option" if verb == "set" else verb)(*arguments)
                failed = False
            except RlxError:
                failed = True
        assert failed is (verb == "set" and name == "alignment" and value == 48)
        if failed:
            assert (e.options, e.header) == before and e.error
        document = fresh(e.options)
        assert shown(e) == e.document == document
        assert e.state["options"] == e.options
        assert not e.busy and e.progress == -1


# --- undo, presets, state -----------------------------------------------------------------------------


def test_undo_and_redo_walk_the_changes() -> None:
    e = opened()
    e.set_option("arena_no_reuse", True)
    e.set_option("alignment", 256)
    assert e.history == {"undo": 2, "redo": 0}
    assert e.undo() and e.options == {"arena_no_reuse": True}
    assert e.undo() and e.options == {} and not e.undo()
    assert e.redo() and e.redo() and not e.redo()
    assert e.options == {"arena_no_reuse": True, "alignment": 256}
    e.undo()
    e.set_option("separate_weights", False)
    assert e.history == {"undo": 2, "redo": 0}
    e.reset()
    assert e.options == {} and e.undo() and e.options == {"arena_no_reuse": True, "separate_weights": False}


def test_setting_a_value_back_is_no_change() -> None:
    e = opened()
    e.set_option("arena_no_reuse", "true")
    e.set_option("arena_no_reuse", False)
    assert e.options == {}


def test_a_preset_starts_from_the_targets_defaults() -> None:
    e = rlx_viz.explore(small(), whatif=False, alignment=256)
    e.set_option("separate_weights", False)
    e.preset("nothing reused")
    assert {o["name"]: o["value"] for o in e.document.meta["options"] if o["changed"]} == {"arena_no_reuse": True}
    e.preset("defaults")
    assert not any(o["changed"] for o in e.document.meta["options"])
    with pytest.raises(RlxError, match="no preset 'x'; wanted one of defaults, nothing reused"):
        e.preset("x")


def test_state_reopens_the_same_view() -> None:
    e = opened()
    e.set_options(arena_no_reuse=True, fusion=False)
    e.state = {**e.state, "selection": "layer0", "zoom": [1, 2], "query": "op:MatMul"}
    again = opened(state=e.state)
    assert again.state == e.state
    assert again.document == e.document
    again.state = {"zoom": [3, 4], "options": {}}
    assert again.options == {} and again.state["zoom"] == [3, 4]
    assert again.undo() and again.options == {"arena_no_reuse": True, "fusion": False}


def test_the_picture_can_not_write_options_into_the_state() -> None:
    e = opened()
    e.set_option("arena_no_reuse", True)
    e.set_state({"state": {"zoom": [1, 1], "options": {"fusion": False}}})
    assert e.state == {"zoom": [1, 1], "options": {"arena_no_reuse": True}}
    assert e.options == {"arena_no_reuse": True}


def test_selection_follows_the_tensor_through_fusion() -> None:
    e = opened()
    name = e.to_frame().query("space == 'arena'").name.iloc[-1]
    e.select(name)
    e.set_option("fusion", False)
    assert e.to_frame().name[e.selection] == name
    with pytest.raises(RlxError, match="no tensor 'nothing'"):
        e.select("nothing")
    e.select(-1)
    assert e.selection == -1


def test_observers_hear_of_every_plan() -> None:
    e, heard = opened(), []
    e.observe(lambda change: heard.append(change["new"]), names="rev")
    e.set_option("arena_no_reuse", True)
    e.undo()
    assert heard == [1, 2]


def test_a_pinned_plan_is_the_baseline() -> None:
    e = opened()
    e.request = {"seq": 1, "pin": True}
    assert e.baseline["headline"]["arena"] == e.document.meta["headline"]["arena"]
    assert e.baseline["label"] == "as opened"
    assert "traffic" in e.baseline["headline"]
    kept = e.baseline
    e.set_option("arena_no_reuse", True)
    assert e.baseline == kept
    e.pin()
    assert (e.baseline["label"], e.baseline["options"]) == ("arena_no_reuse=true", {"arena_no_reuse": True})
    e.request = {"seq": 2, "pin": False}
    assert e.baseline == {}


# --- work behind the picture --------------------------------------------------------------------------


def held() -> tuple[Callable[[dict[str, object]], ColumnDocument], dict[str, threading.Event]]:
    """A replan that waits for the gate of an option's name, if there is one."""
    gates = {"arena_no_reuse": threading.Event()}

    def replan(options: dict[str, object]) -> ColumnDocument:
        for name, gate in gates.items():
            if options.get(name):
                assert gate.wait(30)
        return make_document(30, no_reuse=bool(options.get("arena_no_reuse")), pin=bool(options.get("pin_output_ancestors")))

    return replan, gates


def test_slow_planning_shows_progress_and_comes_later() -> None:
    replan, gates = held()
    e = Explorer(replan, make_document(30))
    e.request = {"seq": 1, "option": "arena_no_reuse", "value": True}
    assert (e.busy, e.progress, e.progress_text, e.done, e.rev) == (True, 0.0, "planning", 0, 0)
    gates["arena_no_reuse"].set()
    assert e.wait(30)
    assert (e.busy, e.progress, e.done, e.rev, e.options) == (False, -1.0, 1, 1, {"arena_no_reuse": True})


def test_a_stale_plan_is_never_shown() -> None:
    replan, gates = held()
    e = Explorer(replan, make_document(30))
    e.request = {"seq": 1, "option": "arena_no_reuse", "value": True}
    e.request = {"seq": 2, "option": "pin_output_ancestors", "value": True}
    assert (e.done, e.options) == (2, {"pin_output_ancestors": True})
    gates["arena_no_reuse"].set()
    for thread in [t for t in threading.enumerate() if t.name == "rlx-viz"]:
        thread.join(30)
    e.wait(30)
    assert (e.rev, e.done, e.options, e.busy) == (1, 2, {"pin_output_ancestors": True}, False)


def test_python_overtakes_a_request() -> None:
    replan, gates = held()
    e = Explorer(replan, make_document(30))
    e.request = {"seq": 1, "option": "arena_no_reuse", "value": True}
    e.set_option("pin_output_ancestors", True)
    assert (e.done, e.options, e.busy) == (1, {"pin_output_ancestors": True}, False)
    gates["arena_no_reuse"].set()
    e.wait(30)
    assert e.options == {"pin_output_ancestors": True}


def test_the_waterfall_does_not_wait_for_the_toggles() -> None:
    e, parts = opened(whatif=True), []
    e.observe(lambda change: parts.append(sorted(ColumnDocument.unpack(e.extra_header, e.extra_buffer).tables)) if change["new"] == 0 else None,
              names="extra_rev")
    assert e.wait(60)
    assert parts == [["savings"], ["counterfactual_nodes", "counterfactuals", "savings"]]


def test_a_large_graph_is_worked_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx_viz.explorer.widget.MOST_BEHIND", 10)
    e = opened(whatif=True)
    assert e.wait(60) and e.whatifs is None
    e.work_out()
    assert e.wait(60) and e.whatifs is not None


def test_whatifs_come_behind_and_belong_to_their_plan() -> None:
    e = opened(whatif=True)
    assert e.whatifs is None
    e.set_option("pin_output_ancestors", True)
    assert e.wait(60)
    found = e.whatifs
    assert found is not None and e.extra_rev == e.rev == 1
    assert found.tables["savings"]["bytes"].tolist() == [s.nbytes for s in waterfall(e.compilation)]
    options = {found.strings[i] for i in found.tables["counterfactuals"]["option"]}
    assert "pin_output_ancestors" in options
    e.set_option("pin_output_ancestors", False)
    assert e.whatifs is None
    e.close()


# --- running ------------------------------------------------------------------------------------------


def test_run_shows_the_profile_and_returns_outputs(mlp: Graph) -> None:
    e = rlx_viz.explore(mlp, whatif=False)
    x = np.ones((4, 16), np.float32)
    out = e.run({"x": x}, repeat=2)
    np.testing.assert_allclose(out["y"], (x @ mlp.weights["w"] - x).ravel(), rtol=1e-5)
    assert e.document.rows("profile") == e.document.rows("commands")
    assert e.run_done["ok"] and e.run_done["text"].startswith("every command checked, 1 output, ")
    e.set_option("alignment", 256)
    assert "profile" not in e.document.tables


def test_weights_without_data_are_made_up_and_said_to_be() -> None:
    e = opened()
    e.run(repeat=1)
    assert "random values for" in e.run_done["text"] and e.run_done["ok"]


def test_a_run_that_does_not_fit_is_refused_before_it_starts() -> None:
    g = Graph("huge")
    g.set_outputs(g.relu(g.input("x", [1 << 40])))
    e = rlx_viz.explore(g, whatif=False)
    with pytest.raises(RlxError, match="a run takes"):
        e.run()
    assert e.error.startswith("RlxError: a run takes")


def test_a_requested_run_answers(mlp: Graph) -> None:
    e = rlx_viz.explore(mlp, whatif=False)
    e.run_request = {"seq": 1, "sanitize": True, "repeat": 1}
    assert e.wait(30)
    assert (e.run_done["seq"], e.run_done["ok"], e.run_done["sanitized"], e.rev) == (1, True, True, 1)
    e.run_request = {"seq": 1, "sanitize": True, "repeat": 1}
    assert e.rev == 1


def test_a_run_that_fails_says_so_and_keeps_the_picture(mlp: Graph) -> None:
    e = rlx_viz.explore(mlp, whatif=False)
    before = e.header
    with pytest.raises(Exception, match="x"):
        e.run({"x": np.ones((2, 2), np.float32)})
    assert e.error and e.header == before and not e.busy
    hand_made = Explorer(lambda _: make_document(9), make_document(9))
    hand_made.run_request = {"seq": 3}
    assert (hand_made.run_done["seq"], hand_made.run_done["ok"]) == (3, False)
    with pytest.raises(RlxError, match="without its compilation"):
        hand_made.run()


# --- comparing ----------------------------------------------------------------------------------------


def test_the_comparison_follows_the_picture() -> None:
    e = opened(compare={"pin_output_ancestors": True})
    assert e.compare_rev == e.rev == 0
    other = ColumnDocument.unpack(e.compare_header, e.compare_buffer)
    assert other.rows("match") == other.rows("tensors")
    assert (other.tables["match"]["change"] > 0).any()
    e.set_option("pin_output_ancestors", True)
    assert e.compare_rev == e.rev == 1
    assert not ColumnDocument.unpack(e.compare_header, e.compare_buffer).tables["match"]["change"].any()
    assert e.comparison is not None and e.comparison.to_frame().empty


def test_savings_in_another_order() -> None:
    e = opened(whatif=True)
    e.work_out()
    assert e.wait(60)
    assert e.whatifs is not None and e.compilation is not None
    labels = step_labels(e.compilation)
    e.request = {"seq": 1, "order": labels[::-1]}
    assert e.wait(60) and e.done == 1 and e.error == ""
    assert e.whatifs.tables["savings"]["bytes"].tolist() == [s.nbytes for s in waterfall(e.compilation, order=labels[::-1])]
    e.request = {"seq": 2, "order": ["no such change"]}
    assert "no step 'no such change' in these savings" in e.error and e.done == 2


def test_live_reuses_stages() -> None:
    live = Live(FRESH["metal"])
    a = live({"elementwise_region": False})
    b = live({"elementwise_region": False, "alignment": 256})
    assert isinstance(b, Picture) and b.compilation is not None and a.compilation is not None
    assert b.compilation.legal is a.compilation.legal
    assert live({}).compilation.plan.options == FRESH["metal"].plan.options  # type: ignore[union-attr]


def test_work_behind_the_picture_ends_with_the_process() -> None:
    """Left to itself a daemon thread dies within some library's C++, which aborts the process."""
    code = ("import rlx_viz, threading\nfrom planner_core import zoo\nfrom rlx_viz.explorer import worker\n"
            "e = rlx_viz.explore(zoo.build('minilm', seq=8))\ne.work_out()\n"
            "import atexit, time\natexit._run_exitfuncs()\n"
            "print(sum(t.name == worker._NAME for t in threading.enumerate()))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_a_state_that_can_not_be_planned_is_not_kept() -> None:
    e = opened()
    with pytest.raises(RlxError):
        e.state = {"options": {"alignment": 3}, "colour": "dtype"}
    assert e.state == {"options": {}, "colour": "dtype"}
    again = rlx_viz.explore(small(), state=e.state, whatif=False)
    assert again.options == {}


def test_half_a_byte_is_no_alignment() -> None:
    e = opened()
    with pytest.raises(RlxError, match=r"option alignment: got 2\.5, wanted an integer"):
        e.set_option("alignment", 2.5)
    e.set_option("alignment", 128.0)
    assert e.compilation.plan.options.alignment == 128


@pytest.mark.parametrize("row", [10**6, -7])
def test_a_selection_is_a_row(row: int) -> None:
    e = opened()
    e.selection = 3
    with pytest.raises(TraitError, match=rf"selection is row {row}: wanted 0 to \d+, or -1 for none"):
        e.selection = row
    assert e.selection == 3


def test_of_equal_names_the_same_one_stays_selected() -> None:
    def doc(first: int) -> ColumnDocument:
        g = Graph("twins")
        x = g.input("x", (4,))
        for k in range(first):
            x = g.exp(x, name=f"lead{k}")
        for _ in range(3):
            x = g.relu(x, name="twin")
        g.set_outputs(x)
        return rlx_viz.snapshot(rlx_viz.compile(g, fusion=False))

    e = Explorer(lambda options: doc(0), doc(0))
    e.selection = 2  # the second of them
    e.show(doc(2))
    assert e.selection == 4
    e.show(doc(0))
    assert e.selection == 2


@pytest.mark.parametrize("outputs", [False, True])
def test_an_empty_graph_is_shown(outputs: bool, tmp_path: Path) -> None:
    g = Graph("nothing")
    if outputs:
        g.set_outputs()
    e = rlx_viz.explore(g)
    assert e.wait(30)
    assert e.document.rows("tensors") == 0
    assert rlx_viz.report(g, tmp_path / "nothing.html").exists()


def test_what_was_dealt_with_never_counts_down() -> None:
    e = opened()
    e.request = {"seq": 2, "pin": True}
    assert e.done == 2
    e.set_option("alignment", 128)
    assert e.done == 2
    e.request = {"seq": 3, "option": "alignment", "value": 256}
    assert e.wait(30)
    assert (e.done, e.options) == (3, {"alignment": 256})


def test_a_run_that_fails_says_so_as_a_run() -> None:
    e = opened()
    with pytest.raises(RlxError):
        e.run({"nobody": np.zeros(1, np.float32)})
    assert e.error
    assert (e.run_done["ok"], e.run_done["text"], e.run_done["seq"] >= 1) == (False, e.error, True)
