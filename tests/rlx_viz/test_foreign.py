"""Another allocator's table: read, checked in full, matched, and compared in terms that both have."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rlx_viz
from planner_core import zoo
from planner_core.errors import RlxError
from planner_core.ir import Graph
from planner_core.memory import ViolationKind
from planner_core.memory.placement import Problem, available, solve
from planner_core.memory.placement.problem_csv import write_problem
from rlx_viz.comparison import CHANGES, Comparison, compare
from rlx_viz.foreign import Ends, ForeignPlan, Includes, InvalidPlanError, read_foreign
from rlx_viz.foreign.plan import Region
from rlx_viz.frames import tensors_frame
from rlx_viz.snapshot_tables.tensors import NONE
from rlx_viz.verdict import Smaller
from runtime.compile import Compilation
from tests.planner_core.memory.graphs import graphs
from tests.planner_core.memory.placement.problems import apart, problems


@pytest.fixture(scope="module")
def bert() -> Compilation:
    return rlx_viz.compile(zoo.build("minilm", layers=1), pin_output_ancestors=False)


@pytest.fixture
def chain() -> Compilation:
    """Five buffers of 256 B in a row: x, a, b, c, y live one after another, two at a time."""
    g = Graph("chain")
    x = g.input("x", (64,))
    for name in ("a", "b", "c", "y"):
        x = g.relu(x, name=name)
    return rlx_viz.compile(g.set_outputs(x), fusion=False)


def own_table(c: Compilation) -> pd.DataFrame:
    """Our arena as another tool would write it: names, half-open live ranges, sizes, offsets."""
    p, ids = c.plan, c.plan.buffers().tolist()
    return pd.DataFrame({"name": [c.legal[i].label for i in ids], "lower": p.birth[ids], "upper": p.death[ids] + 1,
                         "size": p.size[ids], "offset": p.offset[ids]})


def is_same(found: Comparison) -> bool:
    return (found.verdict.same_plan and found.verdict.difference_bytes == 0 and found.verdict.smaller is Smaller.NEITHER
            and str(found.verdict).startswith("The same plan: ") and not any(d for _, _, d in found.headline.values()))


# --- reading ------------------------------------------------------------------------------------------


def test_a_foreign_plan_is_a_problem_with_offsets_names_and_what_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "tool.csv"
    path.write_text("id,lower,upper,size,offset,guard\na,0,3,64,0,8\nb,,,32,72,\n")
    plan = read_foreign(path)
    p = plan.problem
    assert [c.tolist() for c in (p.birth, p.death, p.size, p.guard, plan.offsets)] == [[0, 0], [2, 0], [64, 32], [8, 0], [0, 72]]
    assert (plan.names, plan.provenance, plan.ends) == (("a", "b"), "tool.csv", Ends.EXCLUSIVE)
    assert plan.includes == Includes(guards=True)
    assert plan.lived.tolist() == [True, False]
    assert "tool.csv: 2 rows, 1 with a live range" in repr(plan)
    inclusive = read_foreign(pd.DataFrame({"id": ["a"], "birth": [0], "death": [2], "size": [64], "offset": [0]}))
    assert (inclusive.problem.death.tolist(), inclusive.ends) == ([2], Ends.INCLUSIVE)


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": ["a", "b"], "size": [8, 8], "offset": [0, 8]} | columns)


@pytest.mark.parametrize(("table", "message"), [
    (frame()[:0], "a header and no rows"),
    (frame(offset=[None, None]), "none of 2 rows has an offset"),
    (frame(offset=[0, -1]), "row 2, column offset: got '-1', wanted a whole number ≥ 0"),
    (frame(size=[8, -8]), "row 2, column size: got '-8'"),
    (frame(lower=[-1, 0], upper=[1, 1]), "row 1, column lower: got '-1'"),
    (frame(guard=[0, -4]), "row 2, column guard: got '-4'"),
    (frame(alignment=[4, 3]), "row 2, column alignment: got 3, wanted a power of two"),
    (frame(lower=[0, 2], upper=[1, 2]), "row 2: lower 2, upper 2; wanted lower < upper"),
    (frame(birth=[0, 2], death=[1, 1]), "row 2: birth 2, death 1; wanted birth ≤ death"),
    (frame(lower=[0, 0]), "has lower and no upper"),
    (frame(space=["arena", "heap"]), "row 2, column space: got 'heap'"),
    (frame(offset=[0, 1 << 62], size=[8, (1 << 62) + 4096]), "row 2, column size: got .* wanted at most"),
])
def test_tables_that_mean_nothing_are_explained(chain: Compilation, table: pd.DataFrame, message: str) -> None:
    with pytest.raises(RlxError, match=message):
        compare(chain, table)


def test_a_file_of_the_header_alone(chain: Compilation, tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("id,lower,upper,size,offset\n")
    with pytest.raises(RlxError, match=r"empty\.csv: a header and no rows"):
        compare(chain, path)


# --- the check ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(set(available()) - {"cpsat"})))
def test_our_placements_are_valid_as_tables_and_a_broken_one_names_both(data: st.DataObject, strategy: str) -> None:
    p = data.draw(problems())
    assume(len(p))
    s = solve(p, strategy, work=2000)
    assert apart(p, s.offsets)
    ids = [f"buffer {i}" for i in range(len(p))]

    def table(offsets: np.ndarray) -> ForeignPlan:
        import io

        return read_foreign(pd.read_csv(io.StringIO(write_problem(p, offsets=offsets, ids=ids))))

    plan = table(s.offsets)
    assert plan.violations() == []
    assert plan.height(Region.ARENA) == s.arena_size
    live = [(i, j) for i, j in itertools.permutations(range(len(p)), 2)
            if p.birth[i] <= p.death[j] and p.birth[j] <= p.death[i] and p.size[i] and p.size[j]]
    assume(live)
    i, j = data.draw(st.sampled_from(live))
    broken = s.offsets.copy()
    broken[j] = broken[i]
    found = [v for v in table(broken).violations() if v.kind is ViolationKind.OVERLAP]
    hit = next(v for v in found if {v.a, v.b} == {ids[i], ids[j]})
    assert hit.steps == (max(p.birth[i], p.birth[j]), min(p.death[i], p.death[j]))
    assert hit.nbytes[0] == broken[i]
    assert repr(ids[i]) in str(hit) and repr(ids[j]) in str(hit)


def test_an_invalid_plan_is_an_error_and_no_verdict(chain: Compilation) -> None:
    """Less than the arena may be live where two buffers share bytes: the peak alone says nothing."""
    table = own_table(chain)
    top = table.offset.max()
    table.loc[table.name == "b", "offset"] = table.offset[table.name == "a"].item()
    table.loc[len(table)] = ["tail", 0, 1, 8, top + 4096]
    with pytest.raises(InvalidPlanError) as caught:
        compare(chain, table)
    (hit,) = [v for v in caught.value.violations if {v.a, v.b} == {"a", "b"}]
    a, b = (chain.legal.find(n).id for n in "ab")
    assert hit.steps == (b, int(chain.plan.death[a]))
    start = int(chain.plan.offset[a])
    assert hit.nbytes == (start, start + 256)
    assert f"share bytes [{start}, {start + 256}) at step {b}" in str(caught.value)
    assert "the table is not a valid plan (2 found)" in str(caught.value), "c takes the bytes of a too"


def test_a_table_without_lives_is_checked_by_ours_and_says_so(chain: Compilation) -> None:
    table = own_table(chain)[["name", "size", "offset"]].assign(offset=0)
    with pytest.raises(InvalidPlanError, match=r"'x' .* and 'a' .* share bytes(.|\n)*The live ranges are ours"):
        compare(chain, table)


@pytest.mark.parametrize(("columns", "kind", "words"), [
    ({"lower": [0, 1], "upper": [2, 3], "offset": [0, 8], "guard": [4, 0]}, ViolationKind.GUARD_OVERRUN, "share bytes [8, 12) of a guard at step 1"),
    ({"lower": [0, 2], "upper": [2, 3], "offset": [0, 4], "alignment": [1, 8]}, ViolationKind.MISALIGNED, "'b' starts at 4, wanted a multiple of 8"),
    ({"lower": [0, 0], "upper": [2, 2], "offset": [0, 4], "id": ["0", "1"], "root": ["0", "0"]}, ViolationKind.VIEW_OUT_OF_ROOT,
     "is a view of '0', outside its bytes [0, 8)"),
])
def test_the_other_promises(columns: dict[str, Any], kind: ViolationKind, words: str) -> None:
    (found,) = read_foreign(frame(**columns)).violations()
    assert found.kind is kind
    assert words in str(found)


def test_ends_are_told_apart() -> None:
    """A buffer may take the bytes of one that ends where it starts only if ends are exclusive."""
    lives = {"offset": [0, 0]}
    assert read_foreign(frame(lower=[0, 2], upper=[2, 3], **lives)).violations() == []
    assert len(read_foreign(frame(birth=[0, 2], death=[2, 3], **lives)).violations()) == 1


# --- like for like ------------------------------------------------------------------------------------


OPTIONS = st.fixed_dictionaries({}, optional={
    "in_place": st.booleans(), "separate_weights": st.booleans(), "arena_no_reuse": st.booleans(),
    "alignment": st.sampled_from([1, 64, 256])})


@settings(max_examples=40, deadline=None)
@given(graphs(max_steps=12), OPTIONS)
def test_our_own_frame_is_the_same_plan(g: Graph, options: dict[str, Any]) -> None:
    c = rlx_viz.compile(g, **options)
    table = tensors_frame(rlx_viz.snapshot(c))
    assume(table.offset_bytes.notna().any())
    assert is_same(compare(c, table))


@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"separate_weights": False}, {"arena_no_reuse": True}], ids=str)
def test_our_own_csv_is_the_same_plan(bert: Compilation, tmp_path: Path, options: dict[str, Any]) -> None:
    c, path = bert.with_options(**options), tmp_path / "own.csv"
    tensors_frame(rlx_viz.snapshot(c)).to_csv(path, index=False)
    found = compare(c, path)
    assert is_same(found)
    assert found.only_b == []
    assert set(found.change[found.other != NONE].tolist()) == {0}
    assert f"{c.plan.arena_size + c.plan.weights_size:,} B on both sides" in str(found.verdict)
    problem = tmp_path / "problem.csv"
    slots = [i for i, _ in c.plan.slot_lives()]
    c.plan.problem().to_csv(problem, c.plan.offset[slots])
    assert is_same(compare(c, problem)), "its ids are no names of ours: matched by size and live range"


def test_in_place_pairs_share_bytes_and_are_no_overlap(chain: Compilation) -> None:
    c = chain.with_options(in_place=True)
    assert c.plan.inplace
    assert is_same(compare(c, own_table(c)))


def test_guards_and_alignment_are_of_both_sides_or_of_neither(bert: Compilation) -> None:
    """A tool without guards that reaches the bound of its problem is no smaller than we would be without them."""
    plan = bert.plan
    bare = Problem.of(plan.birth[plan.buffers()], plan.death[plan.buffers()], plan.size[plan.buffers()], alignment=64)
    placed = solve(bare, "exact")
    table = own_table(bert).assign(offset=placed.offsets)
    found = compare(bert, table)
    assert placed.arena_size < plan.arena_size
    assert (found.verdict.difference_bytes, found.verdict.a_bytes) == (0, placed.arena_size)
    assert any("has no guards: ours (256 B on 2 buffers) are on neither side" in n for n in found.verdict.notes)
    assert any("placed again" in n for n in found.verdict.notes)
    loose = compare(bert, table.assign(offset=placed.offsets + 8)).verdict
    assert any("aligned to 1 B, ours to 64 B: both sides count 1 B" in n for n in loose.notes)


def test_weights_count_where_both_have_them(bert: Compilation) -> None:
    table = tensors_frame(rlx_viz.snapshot(bert))
    arena = compare(bert, table[table.space == "arena"])
    assert is_same(arena)
    assert arena.verdict.compared == "arena"
    assert arena.verdict.a_bytes == bert.plan.arena_size
    some = compare(bert, table[(table.space == "arena") | (table.name == table.name[table.space == "weights"].iloc[0])])
    assert any("Weights are on neither side: " in n for n in some.verdict.notes)
    assert some.verdict.same_plan
    both = table[table.space != "none"].drop(columns=["space", "root", "id"])
    stacked = both.assign(offset_bytes=both.offset_bytes + np.where(table.space[both.index] == "arena", bert.plan.weights_size, 0))
    one = compare(bert, stacked)
    assert any("one address space" in n for n in one.b.meta["notes"])
    assert is_same(one)


def test_scratch_counts_where_the_table_has_it(bert: Compilation) -> None:
    table = tensors_frame(rlx_viz.snapshot(bert))[["name", "birth_node", "death_node", "size_bytes", "offset_bytes", "guard_bytes", "space"]]
    scratch = int(rlx_viz.snapshot(bert).meta["headline"]["scratch"])
    assert any(f"no scratch: our {scratch:,} B are on neither side" in n for n in compare(bert, table).verdict.notes)
    table.loc[len(table)] = ["workspace", 0, 1, scratch + 64, 0, 0, "scratch"]
    found = compare(bert, table).verdict
    assert (found.smaller, found.difference_bytes, found.compared) == (Smaller.A, 64, "arena, weights and scratch")
    assert found.deciding is not None and found.deciding.region == "scratch"


# --- matching and orders ------------------------------------------------------------------------------


def test_a_name_on_several_rows_matches_none_of_them_by_name(chain: Compilation) -> None:
    table = own_table(chain)
    table.loc[table.name.isin(["a", "b"]), "name"] = "twice"
    found = compare(chain, table)
    assert any(n.startswith("Names on several rows, 1 of them ('twice')") for n in found.b.meta["notes"])
    assert found.only_b == [], "size and live range tell them apart"
    assert is_same(found)


def test_names_that_repeat_match_in_order_where_both_have_as_many() -> None:
    g = Graph("twins")
    x = g.input("x", (64,))
    a, b = g.relu(x, name="twin"), g.relu(x, name="twin2")
    g.set_outputs(g.add(g.neg(a, name="n"), b, name="y"))
    g.nodes[b] = dataclasses.replace(g[b], name="twin")  # importers may give a name twice
    c = rlx_viz.compile(g, fusion=False)
    table = own_table(c).sample(frac=1, random_state=0)
    assert sorted(table.name).count("twin") == 2
    found = compare(c, table)
    assert (found.only_a, found.only_b) == ([], [])
    assert is_same(found)
    assert found.b.meta["notes"] == []


def test_our_own_redacted_csv_is_the_same_plan(bert: Compilation) -> None:
    found = compare(bert, tensors_frame(rlx_viz.snapshot(bert, redact=True)))
    assert is_same(found)
    assert found.only_b == [], "each row by its number"
    assert set(found.change.tolist()) == {0}


def test_coarser_steps_keep_our_order_within_them(bert: Compilation) -> None:
    """Two of our steps are one of the table's: a buffer starts where we make it, and ends with the table's step."""
    c = bert.with_options(arena_no_reuse=True)
    table = own_table(c)
    table["lower"], table["upper"] = table.lower // 2, (table.upper - 1) // 2 + 1
    found = compare(c, table)
    assert any("laid over ours" in n for n in found.b.meta["notes"])
    t = found.b.tables["tensors"]
    assert t["birth"][: len(table)].tolist() == c.plan.birth[c.plan.buffers()].tolist()
    assert (t["death"][: len(table)] >= c.plan.death[c.plan.buffers()]).all()


def test_errors_speak_in_the_tables_own_steps(chain: Compilation) -> None:
    table = own_table(chain)
    table["lower"], table["upper"] = table.lower * 10, table.upper * 10 - 9
    table.loc[table.name == "b", "offset"] = table.offset[table.name == "a"].item()
    with pytest.raises(InvalidPlanError, match=r"'a' \[.*\) live 10 to 20 and 'b' .* at step 20"):
        compare(chain, table)


@pytest.mark.parametrize(("scale", "shift"), [(10, 0), (1, 7), (3, 100)])
def test_another_numbering_is_laid_over_ours(bert: Compilation, scale: int, shift: int) -> None:
    table = own_table(bert)
    table["lower"], table["upper"] = table.lower * scale + shift, (table.upper - 1) * scale + shift + 1
    found = compare(bert, table)
    assert is_same(found)
    assert set(found.change[found.other != NONE].tolist()) == {0}
    assert any("numbers steps in another way" in n for n in found.b.meta["notes"])


def test_orders_that_disagree_are_not_mixed(bert: Compilation) -> None:
    table = own_table(bert).assign(guard=bert.plan.guard[bert.plan.buffers()])
    last = int(table.upper.max())
    table["lower"], table["upper"] = last - table.upper, last - table.lower
    found = compare(bert, table)
    note = next(n for n in found.b.meta["notes"] if n.startswith("The two orders differ: the table makes "))
    assert "no live range is called changed" in note
    assert "lifetime" not in {CHANGES[i] for i in found.change.tolist()}
    assert not found.verdict.same_plan
    assert found.verdict.difference_bytes == 0
    t = found.b.tables["tensors"]
    rows = len(table)
    assert t["birth"][:rows].tolist() == table.lower.tolist()
    assert found.b.meta["headline"]["peak_bytes"] == found.a.meta["headline"]["peak_bytes"], "its own steps, nothing of ours among them"


def test_rows_without_a_live_range_are_counted_and_left_out(chain: Compilation) -> None:
    """Taken as live for the whole run, the stray would meet every buffer."""
    table = own_table(chain)
    table["lower"], table["upper"] = table.lower.astype("Int64"), table.upper.astype("Int64")
    table.loc[len(table)] = ["stray", None, None, 512, 0]
    found = compare(chain, table)
    assert "No live range known: 1 of 6 rows, left out of the check and of the peak." in found.b.meta["notes"]
    assert found.only_b == ["stray"]
    assert str(found.verdict).endswith("; 1 row without a live range is not checked.")
    assert found.b.meta["headline"]["peak_bytes"] == found.a.meta["headline"]["peak_bytes"]
    row = found.other.tolist().index(NONE)
    assert found.b.meta["spaces"][int(found.b.tables["tensors"]["space"][row])] == "none"
    bare = table[["name", "size", "offset"]]
    assert "No live range known: 1 of 6 rows, left out of the check and of the peak." in compare(chain, bare).b.meta["notes"]


def test_a_plan_that_lets_go_too_early_is_noted(chain: Compilation) -> None:
    table = own_table(chain)
    table.loc[table.name == "a", "upper"] -= 1
    found = compare(chain, table)
    a = chain.legal.find("a").id
    assert any(f"Ending before our graph's last read: 1 row, the first 'a' at step {a}, read at step {a + 1}" in n for n in found.b.meta["notes"])


def test_a_plan_made_by_hand(chain: Compilation) -> None:
    """Readers of other files make a ``ForeignPlan``; the comparison takes it as it is."""
    table = own_table(chain)
    problem = Problem.of(table.lower, table.upper - 1, table["size"])
    plan = ForeignPlan(problem, table.offset.to_numpy(dtype=np.int64), tuple(table.name), "tool 1.2", Ends.INCLUSIVE)
    found = compare(chain, plan)
    assert is_same(found)
    assert found.b.meta["model"]["name"] == "tool 1.2"
    with pytest.raises(RlxError, match="tool: 1 names, wanted 5"):
        ForeignPlan(problem, plan.offsets, ("a",), "tool")


def test_sparse_times_are_drawn_as_ranks(chain: Compilation) -> None:
    table = own_table(chain).assign(name=[f"b{i}" for i in range(5)])
    table["lower"] *= 10**12
    table["upper"] = (table.upper - 1) * 10**12 + 1
    found = compare(chain, table)
    assert any("ranks of the table's" in n for n in found.b.meta["notes"])
    assert found.b.rows("occupancy") < 100
    assert found.b.meta["headline"]["peak_bytes"] == found.a.meta["headline"]["peak_bytes"]


def test_an_explorer_outlives_a_table_that_its_options_make_invalid(chain: Compilation) -> None:
    """Without live ranges a table is checked by those on screen; the picture goes on, and the message says why alone."""
    e = rlx_viz.explore(chain, compare=own_table(chain)[["name", "size", "offset"]], whatif=False)
    assert e.compare_rev == e.rev == 0
    e.set_option("pin_output_ancestors", True)
    assert e.rev == 1
    assert e.compare_rev == 0, "no comparison of this picture"
    assert "InvalidPlanError: the table is not a valid plan" in e.error
    e.set_option("pin_output_ancestors", False)
    assert e.compare_rev == e.rev == 2
    assert e.error == ""
