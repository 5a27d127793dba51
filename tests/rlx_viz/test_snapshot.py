"""A snapshot says what the plan says: every number is compared with the plan or a formula written here."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import rlx_viz
from planner_core.ir import UNKNOWN, Graph, Shape
from planner_core.ir.ops import Custom
from planner_core.memory import verify_plan
from planner_core.units import bytes_text
from rlx_viz.columns import ColumnDocument
from rlx_viz.frames import tensors_frame
from rlx_viz.snapshots import snapshot
from rlx_viz.summary import summary_dict


def test_columns_repeat_the_plan(mlp: Graph) -> None:
    c = rlx_viz.compile(mlp)
    assert verify_plan(c.legal, c.plan) == []
    doc = snapshot(c)
    t = doc.tables["tensors"]
    for node, slot in c.plan.assignments.items():
        assert (t["offset"][node], t["size"][node], t["guard"][node]) == (slot.offset, slot.size, slot.guard)
        assert doc.meta["spaces"][t["space"][node]] == slot.space
    assert t["birth"].tolist() == c.plan.birth.tolist()
    assert t["death"].tolist() == c.plan.death.tolist()
    assert [doc.strings[i] for i in t["name"]][:2] == ["x", "w"]
    kinds = [doc.meta["kinds"][k] for k in t["kind"]]
    assert kinds == ["input", "param", "activation", "activation", "view", "view", "activation"]


def test_occupancy_classes_sum_to_live_and_match_a_plain_count(mlp: Graph) -> None:
    c = rlx_viz.compile(mlp)
    o = snapshot(c).tables["occupancy"]
    assert np.array_equal(sum(o[k] for k in ("inputs", "constants", "params", "packs", "activations")), o["live"])
    for step, live in enumerate(o["live"].tolist()):
        plain = 0
        for node, slot in c.plan.assignments.items():
            if slot.space == "arena" and c.plan.root[node] == node and c.plan.birth[node] <= step <= c.plan.death[node]:
                plain += slot.size
        assert live == plain <= c.plan.arena_size


def test_headline_parts_sum_exactly(mlp: Graph) -> None:
    for options in ({}, {"arena_no_reuse": True}, {"separate_weights": False}, {"pin_output_ancestors": True}):
        h = snapshot(rlx_viz.compile(mlp, **options)).meta["headline"]
        assert h["allocate"] == h["weights"] + h["activations"] + h["scratch"] + h["padding"]
        assert h["saved"] == h["naive"] - h["arena"]
        assert h["lower_bound"] <= h["arena"]
        assert h["weights"] == 16 * 16 * 4


def test_no_reuse_is_the_naive_arena(mlp: Graph) -> None:
    naive = snapshot(rlx_viz.compile(mlp)).meta["headline"]["naive"]
    assert rlx_viz.compile(mlp, arena_no_reuse=True).plan.arena_size == naive


def test_budget_of_64_bytes_a_tensor(mlp: Graph) -> None:
    columns = snapshot(rlx_viz.compile(mlp)).tables["tensors"]
    assert sum(c.dtype.itemsize for c in columns.values()) <= 64


def test_opaque_and_unknown_tensors_are_counted_and_named() -> None:
    g = Graph("odd")
    x = g.input("x", [2, 3])
    a = g.add(Custom("onnx.NonZero", Shape((UNKNOWN,), g[x].dtype), 1), x, name="where")
    b = g.add(Custom("onnx.NonZero", Shape.of([4]), 1), a, name="back")
    g.set_outputs(b)
    doc = snapshot(rlx_viz.compile(g))
    assert doc.meta["unsupported"] == {"onnx.NonZero": 2}
    assert doc.meta["headline"]["unknown"] == 1
    assert doc.meta["headline"]["unknown_names"] == ["where"]
    assert summary_dict(doc)["at_least"] is True


def test_round_trip_and_determinism(mlp: Graph) -> None:
    a, b = (snapshot(rlx_viz.compile(mlp)) for _ in range(2))
    assert a == b
    assert ColumnDocument.unpack(*a.pack()) == a
    assert a.pack() == b.pack()


def test_peak_is_activations_and_fits_the_arena(mlp: Graph) -> None:
    h = snapshot(rlx_viz.compile(mlp)).meta["headline"]
    assert h["peak_bytes"] == h["activations"] <= h["arena"]


def test_nothing_is_optimal_with_unknown_sizes() -> None:
    g = Graph("odd")
    x = g.input("x", [2, 3])
    g.set_outputs(g.add(Custom("onnx.NonZero", Shape((UNKNOWN,), g[x].dtype), 1), x))
    assert snapshot(rlx_viz.compile(g)).meta["headline"]["optimal"] is False


def test_redact_hides_dims_domains_and_notes() -> None:
    g = Graph("odd")
    x = g.input("x", ["SECRET", 3])
    g.set_outputs(g.add(Custom("onnx.SECRET.Op", Shape.of([4]), 1), x, name="SECRET"))
    g.notes.append("dim SECRET taken as 1")
    doc = snapshot(rlx_viz.compile(g, dims={"SECRET": 2}), redact=True)
    assert "SECRET" in snapshot(rlx_viz.compile(g, dims={"SECRET": 2})).to_json()
    assert "SECRET" not in doc.to_json()
    assert doc.meta["unsupported"] == {"custom0": 1}
    assert doc.meta["notes"] == ["Importer's notes withheld (they name tensors and dims): 1"]
    assert doc.strings[doc.tables["tensors"]["shape"][0]] == "f32[2, 3]"


def test_redact_keeps_numbers_and_drops_names(mlp: Graph) -> None:
    c = rlx_viz.compile(mlp)
    plain, hidden = snapshot(c, command="rlx-viz plan secret.onnx"), snapshot(c, command="x", redact=True)
    text = hidden.to_json()
    for name in ('"hidden"', '"flat"', '"mlp"', "secret"):
        assert name in plain.to_json()
        assert name not in text
    assert [hidden.strings[i] for i in hidden.tables["tensors"]["name"]][:3] == ["t0", "t1", "t2"]
    assert np.array_equal(plain.tables["tensors"]["offset"], hidden.tables["tensors"]["offset"])
    assert plain.meta["headline"] == hidden.meta["headline"]


def test_frame_has_one_row_a_tensor_with_exact_integers(mlp: Graph) -> None:
    c = rlx_viz.compile(mlp)
    frame = tensors_frame(snapshot(c))
    assert len(frame) == len(mlp)
    assert frame.loc[frame.name == "w", "space"].item() == "weights"
    assert frame.loc[frame.name == "hidden", "size_bytes"].item() == 4 * 16 * 4
    assert str(frame.offset_bytes.dtype) == "Int64"
    assert int((frame.birth - frame.death).min()) < 0, "signed: no wrap around 2^32"


def test_frames_count_commands_that_run_and_keep_the_node(mlp: Graph) -> None:
    """A step is a command: params take none. The plan's own frame and the document's agree."""
    c = rlx_viz.compile(mlp)
    frame, own = tensors_frame(snapshot(c)), c.tensors()
    shared = [x for x in frame.columns if x in own.columns]
    assert set(frame.columns) - set(shared) == {"kind"}
    pd.testing.assert_frame_equal(frame[shared], own[shared])
    nodes = list(c.commands.node_of)
    for row in own.itertuples():
        assert row.birth == sum(n < row.birth_node for n in nodes)
        last = len(nodes) if row.death_node >= len(mlp) else max(sum(n <= row.death_node for n in nodes) - 1, row.birth)
        assert row.death == last
        assert row.death_node == c.plan.death[row.id]
    assert own.death.max() == len(nodes) < len(mlp)


def test_an_empty_frame_has_its_types() -> None:
    from planner_core.frames import typed

    frame = typed({"name": ([], "object"), "offset_bytes": ([], "Int64"), "size_bytes": ([], "int64")})
    assert [str(d) for d in frame.dtypes] == ["object", "Int64", "int64"]


def test_changed_options_are_marked_against_the_targets_defaults(mlp: Graph) -> None:
    doc = snapshot(rlx_viz.compile(mlp, alignment=256, arena_no_reuse="true"))
    assert {o["name"] for o in doc.meta["options"] if o["changed"]} == {"alignment", "arena_no_reuse"}
    assert "alignment=256" in doc.meta["footer"]["options"]


@pytest.mark.parametrize(("n", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (1 << 20, "1.00 MiB"),
    (-2048, "-2.00 KiB"), (22 << 20, "22.0 MiB"), (512 << 10, "512 KiB"), (7 << 60, "7168 PiB"),
])
def test_units(n: int, text: str) -> None:
    assert bytes_text(n) == text
