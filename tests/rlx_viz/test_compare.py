"""Two plans side by side: what matches, what changed, and why, against the plans' own numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx_viz
from planner_core import zoo
from planner_core.errors import RlxError
from planner_core.ir import Graph
from planner_core.memory import SPACES, diff_plans
from rlx_viz.comparison import CHANGES, compare
from rlx_viz.frames import tensors_frame
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.compile import Compilation
from tests.rlx_viz.test_report import payload_of


@pytest.fixture(scope="module")
def bert() -> Compilation:
    return rlx_viz.compile(zoo.build("minilm", layers=1), pin_output_ancestors=False)


PLAN = st.dictionaries(st.sampled_from(["pin_output_ancestors", "arena_no_reuse", "separate_weights", "pin_host_structure"]), st.booleans())


@settings(max_examples=15, deadline=None)
@given(PLAN, st.sampled_from([1, 64, 256]))
def test_two_option_sets_differ_as_the_plans_do(options: dict[str, bool], alignment: int) -> None:
    a = rlx_viz.compile(zoo.build("minilm", layers=1), pin_output_ancestors=False)
    b = {**options, "alignment": alignment}
    two = a.with_options(**b)
    found, wanted = compare(a, b), diff_plans(a.plan, two.plan)
    assert found.other.tolist() == list(range(len(a.legal)))
    kinds = {c.a: set(c.kinds) for c in wanted.changes}
    for i, code in enumerate(found.change.tolist()):
        got, real = CHANGES[code], kinds.get(i, set())
        if a.plan.guard[i] != two.plan.guard[i]:
            real = real | {"grew"}
        assert (got == "moved") <= bool(real & {"moved", "gained", "lost"})
        assert (got == "resized") <= bool(real & {"grew", "shrank", "gained", "lost"})
        assert (got == "same") <= (not real)
    frame = found.to_frame()
    assert len(frame) == int((found.change != 0).sum())
    assert found.options == {o: (x, y) for o, x, y in wanted.options}
    assert found.headline["arena"][2] == wanted.arena_delta
    assert found.only_a == found.only_b == []


def test_causes_name_the_rule_or_the_option(bert: Compilation) -> None:
    pinned = compare(bert, {"pin_output_ancestors": True}).to_frame()
    assert pinned.cause.str.contains("rule output_ancestors in B only").any()
    assert compare(bert, {"alignment": 256}).to_frame().cause.str.contains("alignment 64 -> 256").any()


def test_fusion_lists_what_has_no_match(bert: Compilation) -> None:
    plain = bert.with_options(fusion=False)
    found = compare(plain, bert)
    fused = {i for d in bert.fusion_log.applied() for i in d.nodes}
    for j, i in enumerate(found.other.tolist()):
        if i != NONE:
            assert max(bert.fusion.origins[j]) == i, "the same value"
    assert fused >= {plain.legal.find(n).id for n in found.only_a if not n.startswith("%")}
    assert len(found.only_a) < len(fused)
    assert len(found.only_a) == int(found.a.rows("tensors") - (found.other != NONE).sum())
    frame = found.to_frame()
    assert set(frame[frame.change == "gone"].name) == set(found.only_a)
    assert (frame[frame.change == "gone"].cause == "no match").all()
    assert frame[frame.change == "new"].name_b.tolist() == found.only_b


def test_two_models() -> None:
    found = compare(zoo.build("minilm", layers=1), zoo.build("minilm", layers=2))
    assert any("1" in n for n in found.only_b)
    assert found.headline["weights"][2] > 0


def csv_of(c: Compilation, path: Path, steps: bool, **rename: str) -> Path:
    ids = [i for i in c.plan.assignments if c.plan.root[i] == i]
    frame = pd.DataFrame({"id": [c.legal[i].label for i in ids], "lower": c.plan.birth[ids], "upper": c.plan.death[ids] + 1,
                          "size": c.plan.size[ids], "offset": c.plan.offset[ids]})
    frame[["id", "lower", "upper", "size", "offset"] if steps else ["id", "size", "offset"]].rename(columns=rename).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("steps", [True, False])
def test_our_own_offsets_come_back_unchanged(bert: Compilation, tmp_path: Path, steps: bool) -> None:
    found = compare(bert, csv_of(bert, tmp_path / "ours.csv", steps))
    assert set(found.change.tolist()) == {0}
    assert found.only_b == []
    slots = set(bert.plan.assignments)
    assert {bert.legal.find(n).id for n in found.only_a if not n.startswith("%")} & slots == set(), "views follow their root"
    ends = [s.offset + s.size for s in bert.plan.assignments.values() if s.space == "arena"]
    assert int(found.b.meta["headline"]["arena"]) == max(ends)
    if steps:
        assert found.b.meta["headline"]["peak_bytes"] == found.a.meta["headline"]["peak_bytes"]


def test_rows_without_a_name_match_by_life_and_size_and_strays_are_listed(bert: Compilation, tmp_path: Path) -> None:
    path = csv_of(bert, tmp_path / "o.csv", True)
    table = pd.read_csv(path)
    table["id"] = [f"buffer {i}" for i in range(len(table))]
    table.loc[len(table)] = ["stray", 0, 3, 999, 1 << 20]
    found = compare(bert, table)
    assert found.only_b[-1] == "stray"
    keys = table.iloc[:-1][["lower", "upper", "size"]].apply(tuple, axis=1)
    assert int((found.other[: len(table)] != NONE).sum()) == int((keys.map(keys.value_counts()) == 1).sum())
    assert f"No match among our tensors: {len(found.only_b)} of" in found.b.meta["notes"][0]


def test_moved_offsets_are_seen(bert: Compilation, tmp_path: Path) -> None:
    table = pd.read_csv(csv_of(bert, tmp_path / "o.csv", True))
    table.loc[table["size"].idxmax(), "offset"] += 64
    found = compare(bert, table)
    moved = found.to_frame()
    assert moved[moved.change == "moved"].name.tolist() == [table.id[table["size"].idxmax()]]
    assert moved[moved.change == "moved"].cause.tolist() == ["placed differently"]


@pytest.mark.parametrize(("columns", "message"), [
    ({"size": [1], "offset": [0]}, "missing: id"),
    ({"id": ["a"], "size": [1]}, "missing: offset"),
    ({"id": ["a"], "size": [-1], "offset": [0]}, "row 1, column size: got '-1'"),
    ({"id": ["a"], "size": ["x"], "offset": [0]}, "wanted a whole number"),
])
def test_broken_tables_are_explained(bert: Compilation, columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(RlxError, match=message):
        compare(bert, pd.DataFrame(columns))


def test_a_missing_file_is_explained(bert: Compilation) -> None:
    with pytest.raises(RlxError, match="no such file"):
        compare(bert, "nowhere.csv")


def test_a_report_carries_the_other_document(mlp: Graph, tmp_path: Path) -> None:
    page = rlx_viz.report(mlp, tmp_path / "r.html", compare={"arena_no_reuse": True}).read_text()
    other = payload_of(page.replace("rlx-payload\"", "x").replace("rlx-payload-b", "rlx-payload"))
    assert other.rows("match") == other.rows("tensors")
    assert "savings" in payload_of(page).tables
    plain = rlx_viz.report(mlp, tmp_path / "p.html", whatif=False).read_text()
    assert 'id="rlx-payload-b"' not in plain
    assert "savings" not in payload_of(plain).tables


def test_redaction_hides_the_tables_names(bert: Compilation, tmp_path: Path) -> None:
    table = pd.read_csv(csv_of(bert, tmp_path / "o.csv", False))
    table.loc[len(table)] = ["SECRET", 8, 0]
    names = {bert.legal[i].label for i in bert.plan.assignments}
    text = compare(bert, table, redact=True).document().to_json()
    assert "SECRET" not in text
    assert not any(f'"{n}"' in text for n in names)


def test_our_own_frame_comes_back_sound(bert: Compilation, tmp_path: Path) -> None:
    """to_frame() has a row for views too: they share their root's bytes, and nothing overlaps."""
    path = tmp_path / "own.csv"
    tensors_frame(rlx_viz.snapshot(bert)).to_csv(path)
    found = compare(bert, path)
    assert set(found.change[found.other != NONE].tolist()) == {0}
    assert not [n for n in found.b.meta["notes"] if "overlap" in n]
    head = found.b.meta["headline"]
    assert head["lower_bound"] <= head["arena"] == bert.plan.arena_size, "the frame has guards, so they count"


def test_a_table_of_the_arena_alone_says_nothing_of_weights(bert: Compilation, tmp_path: Path) -> None:
    table = pd.read_csv(csv_of(bert, tmp_path / "o.csv", True))
    arena = [SPACES[int(bert.plan.space[bert.legal.find(n).id])] == "arena" if not n.startswith("%") else True for n in table.id]
    found = compare(bert, table[arena])
    assert "The table has no row of a weight: ours are shown where they are." in found.b.meta["notes"]
    assert found.headline["weights"][2] == 0
    assert set(found.change[found.other != NONE].tolist()) == {0}


def test_names_are_taken_as_they_stand(bert: Compilation, tmp_path: Path) -> None:
    g = Graph("odd")
    x = g.input("NA", (4,))
    g.set_outputs(g.neg(g.relu(x, name="null"), name="last"))
    c = rlx_viz.compile(g, fusion=False)
    rows = [f'"{c.legal[i].label}" , {a.offset} , {a.size}' for i, a in c.plan.assignments.items()]
    path = tmp_path / "odd.csv"
    path.write_text("\n".join(["id , offset , size", *rows, "unplaced,,64"]))
    found = compare(c, path)
    assert (found.only_a, found.only_b) == ([], [])
    assert found.b.meta["notes"] == ["1 of 4 rows have no offset and are left out."]


def test_a_size_beyond_any_memory_is_refused(bert: Compilation) -> None:
    for size in (1 << 64, 1 << 63, (1 << 62) + 4096):
        with pytest.raises(RlxError, match=r"row 2, column size: got .* wanted at most 2"):
            compare(bert, pd.DataFrame({"id": ["a", "b"], "offset": [0, 0], "size": [1, size]}))
