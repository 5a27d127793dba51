"""What is told of a plan beside its numbers: every holder under its own name, what helps together, what a table can't say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from onnx import TensorProto, helper, save_model

import rlx_viz
from planner_core import zoo
from planner_core.errors import GraphError, UnboundDimError
from planner_core.ir import DType, Graph
from planner_core.memory import RULES
from planner_core.options import options_of
from rlx_viz.budget import budget_of
from rlx_viz.fit import fit
from rlx_viz.snapshot_tables.claims import optimal_text
from runtime.compile import GROUPS


def ladder() -> Graph:
    """Activations that die one after the other, and an int64 output: two options hold all of them, neither alone."""
    g = Graph("ladder")
    x = g.input("x", (64, 64))
    y = x
    for k in range(6):
        y = g.mm(y, g.param(f"w{k}", (64, 64), data=np.eye(64, dtype=np.float32)))
    return g.set_outputs(y, g.cast(g.reduce_max(y, axes=(0, 1), keepdims=True), to=DType.I64), names=["y", "i"])


def test_what_helps_only_together_is_offered() -> None:
    c = rlx_viz.compile(ladder(), pin_output_ancestors=True, onnx_duration=True)
    (held,) = [h for h in c.holders() if len(h.options) > 1]
    free = c.with_options(**dict(held.options))
    assert free.plan.arena_size == held.arena_without < c.plan.arena_size
    found = fit(c, budget_of(str(free.allocate_bytes)))
    assert not found.fits
    assert found.best is not None and found.best.fits
    assert {"pin_output_ancestors", "onnx_duration"} <= dict(found.best.options).keys()


@pytest.mark.parametrize(("changes", "name"), [({"precision": "auto_mixed"}, "precision=auto_mixed"), ({"fusion": False}, "fusion=false")])
def test_options_of_earlier_stages_are_named(changes: dict[str, object], name: str) -> None:
    """The figure is a plan under the default, made from scratch."""
    plain = rlx_viz.compile(zoo.build("bert-base"))
    c = plain.with_options(**changes)
    held = next(h for h in c.holders() if h.name == name)
    assert (held.arena, held.arena_without) == (c.plan.arena_size, plain.plan.arena_size)
    assert f"{name} holds" in str(c.summary())
    assert any(h["name"] == name for h in rlx_viz.snapshot(c).meta["claims"]["holders"])
    assert name.partition("=")[0] not in "".join(h.name for h in plain.holders())


def test_the_option_of_static_packs_has_a_name_of_its_own() -> None:
    """The planner's rule ``static_weight_pack`` is always on: an option of that name, switched off, would be a riddle."""
    names = {o.name for cls in GROUPS.values() for o in options_of(cls)}
    assert "static_weight_pack" in {r.name for r in RULES}
    assert "static_weight_pack" not in names


def test_a_table_of_smaller_buffers_says_so(tmp_path: Path, rlx: Callable[..., tuple[int, str, str]]) -> None:
    from planner_core.ir import save_graph

    save_graph(ladder(), tmp_path / "g.json")
    assert rlx("plan", tmp_path / "g.json", "--csv", tmp_path / "own.csv")[0] == 0
    frame = pd.read_csv(tmp_path / "own.csv", keep_default_na=False)
    frame["size_bytes"] //= 2
    frame["gap"] = "1-2"
    frame.to_csv(tmp_path / "half.csv", index=False)
    code, out, _ = rlx("compare", tmp_path / "g.json", tmp_path / "half.csv")
    assert code in (0, 3)
    assert "of it are smaller than our tensors, so that it may not hold this model" in out
    assert "The column gap is not read: a buffer lives through its gaps." in out


def test_a_template_takes_whole_numbers_from_0(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    t = rlx_viz.compile(tmp_path / "m.onnx", keep=["batch"])
    assert t.at(batch=np.int64(3)).source.find("x").shape.sizes == (3, 4)
    assert t.at(batch=0).source.find("x").shape.sizes == (0, 4)
    for wrong in (1.5, True, "3", -1):
        with pytest.raises(GraphError, match=r"dim 'batch' bound to .*; wanted an int of 0 or more"):
            t.at(batch=wrong)
    with pytest.raises(UnboundDimError, match="no value for batch and seq is not open"):
        t.at(seq=1)


def test_an_empty_log_is_a_typed_frame() -> None:
    c = rlx_viz.compile(ladder(), fusion=False)
    for log in (c.pass_log, c.fusion_log):
        frame = log.to_frame()
        assert len(frame) == 0
        assert all(frame[k].dtype == np.int64 for k in ("anchor", "nodes", "bytes_saved", "dispatches_saved"))


def test_a_large_gap_is_a_plain_number() -> None:
    assert optimal_text(2500, 100, False).startswith("2,400% above the bound")
    assert optimal_text(1012, 1000, False).startswith("1.2% above the bound")
