"""The explorer's graph, command, savings and comparison views in a real browser, read through text twins and data-*."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from rlx_viz.columns import ColumnDocument, StringTable
from rlx_viz.reports import write_report
from rlx_viz.static.joiner import front_end, stylesheet
from tests.browser.conftest import READY, OpenReport
from tests.browser.synthetic import make_document
from tests.browser.synthetic_views import NONE, compared, late_tables, make_views_document

ROOT = ".rlx-viz"
VIEWS = ("occupancy", "gantt", "arena", "fusion", "commands", "waterfall", "compare")


def twin(page: Page, view: str) -> str:
    return page.locator(f'[data-twin="{view}"]').text_content() or ""


def wait_twin(page: Page, view: str, text: str) -> None:
    expect(page.locator(f'[data-twin="{view}"]')).to_contain_text(text)


def state(page: Page) -> dict[str, str]:
    return dict(page.eval_on_selector(ROOT, "root => ({...root.dataset})"))


def name_of(doc: ColumnDocument, row: int) -> str:
    return doc.strings[int(doc.tables["tensors"]["name"][row])]


def show(page: Page, *views: str) -> None:
    """Open exactly these views."""
    for view in VIEWS:
        button = page.locator(f'.rlx-tabs [data-open="{view}"]')
        if (button.get_attribute("aria-pressed") == "true") != (view in views):
            button.click()
    expect(page.locator(ROOT)).to_have_attribute("data-open", " ".join(v for v in VIEWS if v in views))


def expect_state(page: Page, name: str, value: str | re.Pattern[str]) -> None:
    expect(page.locator(ROOT)).to_have_attribute(f"data-{name}", value)


def canvas(page: Page, view: str) -> Locator:
    return page.locator(f".rlx-view-{view} canvas.rlx-over")


# Fusion


def test_the_fusion_graph_states_ops_kernels_and_refusals(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    wait_twin(page, "fusion", "side by side")
    text = twin(page, "fusion")
    source, tensors = doc.tables["source"], doc.tables["tensors"]
    ops = int((source["x"] != -1).sum())
    assert f"fusion: {ops} ops → {int((tensors['kind'] != 1).sum())} · {int((tensors['kind'] == 1).sum())} weights not drawn" in text
    twice = int((source["fused"][1:] == source["fused"][:-1]).sum())
    assert f"kernels of several ops: {twice}" in text
    assert re.search(r"kernel MatMul (\S+) = \1/product \+ \1\n", text)
    refused = int((doc.tables["decisions"]["verdict"][doc.tables["decisions"]["stage"] == 0] == 0).sum())
    assert f"refused: {refused}\nrefused residual_norm at " in text
    assert "another op reads the value (readers 2, node 5)" in text
    # What became nothing is there too.
    assert "Shape  /unused/Shape" in text or "more" in text


def test_refused_candidates_are_listed_and_lead_to_their_op(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    page.locator(".rlx-refusals summary").click()
    first = page.locator(".rlx-refusals li button").first
    expect(first).to_contain_text("residual_norm")
    expect(first).to_contain_text("another op reads the value")
    first.click()
    anchor = int(doc.tables["decisions"]["anchor"][(doc.tables["decisions"]["verdict"] == 0) & (doc.tables["decisions"]["stage"] == 0)][0])
    expect_state(page, "source", str(anchor))
    expect_state(page, "selected", str(int(doc.tables["source"]["fused"][anchor])))
    wait_twin(page, "details", "residual_norm refused: another op reads the value")


def test_hovering_an_op_marks_its_kernel_everywhere(open_report: OpenReport) -> None:
    doc = make_views_document(48)
    page = open_report(doc)
    box = canvas(page, "fusion").bounding_box()
    assert box is not None
    found = set()
    for share in range(4, 96, 4):
        page.mouse.move(box["x"] + box["width"] * share / 100, box["y"] + box["height"] / 2)
        page.wait_for_timeout(40)
        found.add(state(page)["hover"])
    assert found - {"-1"}


def test_large_graphs_fold_into_modules_and_a_click_opens_one(open_report: OpenReport) -> None:
    doc = make_views_document(1600)
    page = open_report(doc)
    groups = doc.tables["groups"]
    wait_twin(page, "fusion", "modules folded")
    expect(page.locator(".rlx-view-fusion")).to_have_attribute("data-nodes", str(len(groups["count"])))
    assert f"model.layers.0  {int(groups['count'][0])}  " in twin(page, "fusion")
    page.get_by_role("button", name="Modules", exact=True).click()
    expect(page.locator(".rlx-view-fusion")).to_have_attribute("data-folded", "0")
    page.keyboard.press("o")
    expect(page.locator(".rlx-view-fusion")).to_have_attribute("data-folded", "1")
    show(page, "fusion")
    box = canvas(page, "fusion").bounding_box()
    assert box is not None
    for step in range(60):
        page.mouse.click(box["x"] + box["width"] * (0.01 + step / 61), box["y"] + 30)
        page.wait_for_timeout(30)
        if state(page)["module"] != "-1":
            break
    module = int(state(page)["module"])
    assert module >= 0
    wait_twin(page, "fusion", f"model.layers.{module}")
    page.keyboard.press("Backspace")
    expect_state(page, "module", "-1")


def test_the_graph_can_lie_over_itself_or_stand_alone(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    view = page.locator(".rlx-view-fusion")
    both = int(view.get_attribute("data-nodes") or 0)
    page.keyboard.press("g")
    wait_twin(page, "fusion", "overlaid")
    over = int(view.get_attribute("data-nodes") or 0)
    page.keyboard.press("g")
    wait_twin(page, "fusion", "fused only")
    assert both == over + int(view.get_attribute("data-nodes") or 0)


# Commands


def test_commands_before_and_after_passes(open_report: OpenReport) -> None:
    doc = make_views_document(160, profile=True)
    page = open_report(doc)
    show(page, "arena", "commands")
    wait_twin(page, "commands", "→")
    commands, before = doc.tables["commands"], doc.tables["commands_before"]
    text = twin(page, "commands")
    assert f"commands: {len(before['node'])} → {len(commands['node'])} thunks · passes: 4 applied, 6 refused" in text
    read, written = commands["read"][1], commands["written"][1]
    assert f"\n1  {doc.strings[int(commands['label'][1])]}  {name_of(doc, int(commands['node'][1]))}  gpu  {read:.0f}  {written:.0f}  11.5  {(read + written) / 11.5 / 1000:.1f}\n" in text
    assert "before 0  thunk_input  → 0  merge_slices applied" in text
    assert re.search(r"before 1  \S+  merged", text)
    expect(page.locator('[data-before="4"]')).to_have_attribute("title", re.compile("refused: its bytes are written in between"))


def test_a_thunks_reads_and_writes_are_drawn_onto_the_arena(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    show(page, "arena", "commands")
    plain = canvas(page, "arena").evaluate("c => c.toDataURL()")
    page.locator('[data-command="6"]').click()
    expect_state(page, "command", "6")
    expect_state(page, "selected", str(int(doc.tables["commands"]["node"][6])))
    spans = doc.tables["spans"]
    want = [f"{'writes' if role else 'reads'} {o:.0f}..{o + b:.0f}" for c, role, o, b in zip(
        spans["command"].tolist(), spans["role"].tolist(), spans["offset"].tolist(), spans["bytes"].tolist(), strict=True) if c == 6]
    wait_twin(page, "arena", f"thunk 6: {', '.join(want)}")
    assert canvas(page, "arena").evaluate("c => c.toDataURL()") != plain
    page.locator(".rlx-col-after .rlx-scroll").focus()
    page.keyboard.press("ArrowDown")
    expect_state(page, "command", "7")
    # And the other way: a tensor chosen elsewhere finds its thunk.
    page.locator(".rlx-search").fill(f"source:{doc.strings[int(doc.tables['tensors']['source'][20])].split(' ')[-1]}")
    page.keyboard.press("Enter")
    expect_state(page, "command", str(doc.tables["commands"]["node"].tolist().index(20)))


def test_a_long_command_list_makes_only_the_rows_in_sight(open_report: OpenReport) -> None:
    doc = make_views_document(3000)
    page = open_report(doc)
    show(page, "commands")
    wait_twin(page, "commands", "more")
    assert page.locator(".rlx-row[data-command]").count() < 120
    page.locator(".rlx-col-after .rlx-scroll").focus()
    page.keyboard.press("End")
    last = len(doc.tables["commands"]["node"]) - 1
    expect(page.locator(f'.rlx-row[data-command="{last}"]')).to_be_visible()


# Savings


def test_the_waterfall_sums_exactly(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    show(page, "waterfall")
    wait_twin(page, "waterfall", "sums exactly")
    lines = [line.split("  ") for line in twin(page, "waterfall").splitlines()[1:]]
    start = sum(int(line[2]) for line in lines if line[0] == "start")
    steps = sum(int(line[2]) for line in lines if line[0] == "step")
    end = sum(int(line[2]) for line in lines if line[0] == "end")
    assert start + steps == end == doc.meta["headline"]["allocate"]
    # A saved page can't plan again.
    expect(page.locator('[data-saving="1"]')).to_be_disabled()


def test_a_sum_that_is_off_is_said(open_report: OpenReport) -> None:
    doc = make_views_document(100)
    savings = dict(doc.tables["savings"])
    savings["bytes"] = savings["bytes"].copy()
    savings["bytes"][2] += 7
    page = open_report(replace(doc, tables={**doc.tables, "savings": savings}))
    show(page, "waterfall")
    wait_twin(page, "waterfall", "off by 7 B")


# Why


def test_why_a_tensor_lives_where_it_does(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    node = int(doc.tables["counterfactual_nodes"]["node"][0])
    page.locator(".rlx-search").fill(f"source:{doc.strings[int(doc.tables['tensors']['source'][node])].split(' ')[-1]}")
    page.keyboard.press("Enter")
    wait_twin(page, "details", name_of(doc, node))
    text = twin(page, "details")
    death = int(doc.tables["counterfactual_nodes"]["death"][0])
    assert f"made by {doc.strings[int(doc.tables['tensors']['op'][node])]} at step {node}" in text
    assert "last read by " in text
    assert f"freed after step {death} by pin_output_ancestors = false, saves 65536" in text
    assert "why not lower: " in text
    assert f"in the model: {doc.strings[int(doc.tables['tensors']['op'][node])]} {name_of(doc, node)}" in text
    expect(page.locator("[data-frees]")).to_contain_text("pin_output_ancestors = off")
    expect(page.locator('[data-fact="blocked"]')).to_be_visible()


def test_what_blocks_a_lower_offset_is_right(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    t = doc.tables["tensors"]
    slots = [i for i in range(160) if t["space"][i] == 0 and t["size"][i] > 0 and t["root"][i] == i]
    end = {i: t["offset"][i] + t["size"][i] + t["guard"][i] for i in slots}
    for node in [i for i in slots if t["offset"][i] > 0][:40:13]:
        below = [i for i in slots if i != node and t["birth"][i] <= t["death"][node] and t["death"][i] >= t["birth"][node] and t["offset"][i] < t["offset"][node]]
        page.locator(".rlx-search").fill(f"source:{doc.strings[int(t['source'][node])].split(' ')[-1]}")
        page.keyboard.press("Enter")
        expect_state(page, "selected", str(node))
        wait_twin(page, "details", f"why not lower: {len(below)} slot")
        resting = [name_of(doc, i) for i in below if end[i] == max(end[j] for j in below)]
        assert f"rests on {', '.join(sorted(resting, key=resting.index)[:1])}" in twin(page, "details")
        page.locator(".rlx-search").fill("")


# Compare


def open_pair(page: Page, folder: Path, a: ColumnDocument, b: ColumnDocument) -> None:
    page.goto(write_report(a, folder / "pair.html", title="pair", other=b).as_uri())
    page.wait_for_selector(READY)


def test_two_plans_share_axes_and_list_what_has_no_match(page: Page, tmp_path: Path) -> None:
    a = make_views_document(160)
    b = compared(a, make_views_document(160, no_reuse=True))
    open_pair(page, tmp_path, a, b)
    expect_state(page, "compared", "1")
    wait_twin(page, "compare", "compare: same")
    text = twin(page, "compare")
    change = b.tables["match"]["change"]
    sized = (b.tables["tensors"]["size"] > 0) | (a.tables["tensors"]["size"] > 0)
    gone = int((a.tables["tensors"]["size"][-8:] > 0).sum())
    new = int(((change == 3) & (b.tables["tensors"]["size"] > 0)).sum())
    moved = int(((change == 1) & sized).sum())
    assert f"moved {moved}, resized 0, new {new}, lifetime 0, gone {gone}" in text
    assert f"allocate  {a.meta['headline']['allocate']} → {b.meta['headline']['allocate']}" in text
    assert "option arena_no_reuse: off → on" in text
    assert len(re.findall(r"^gone \(no match\)", text, re.MULTILINE)) == gone
    page.locator('[data-change="gone"]').click()
    rows = page.locator(".rlx-deltas .rlx-row")
    expect(rows.first).to_have_attribute("title", re.compile("only in A"))
    rows.first.hover()
    boxes = [page.locator(f".rlx-view-compare-{side} canvas.rlx-base").bounding_box() for side in "ab"]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["width"] == pytest.approx(boxes[1]["width"], abs=3)
    assert boxes[0]["height"] == boxes[1]["height"]


def test_pythons_sentence_stands_over_both_arenas(page: Page, tmp_path: Path) -> None:
    a = make_views_document(60)
    b = compared(a, make_views_document(60, no_reuse=True))
    verdict = {"sentence": "Ours is smaller by 5 B: <i>all</i> of it.", "notes": ["No guards.", "No scratch."], "headline": {"arena": [7, "12"]}}
    open_pair(page, tmp_path, a, replace(b, meta={**b.meta, "verdict": verdict}))
    expect(page.locator(".rlx-sentence")).to_contain_text("Ours is smaller by 5 B: <i>all</i> of it.")
    expect(page.locator(".rlx-sentence summary")).to_have_text("2 notes")
    page.locator(".rlx-sentence summary").click()
    expect(page.locator(".rlx-sentence li").first).to_be_visible()
    wait_twin(page, "compare", "Ours is smaller by 5 B: <i>all</i> of it.\nnote: No guards.\nnote: No scratch.\n")
    assert "\narena  7 → 12  5\n" in twin(page, "compare"), "numbers in terms that both have"
    sentence, pair = (page.locator(where).bounding_box() for where in (".rlx-sentence", ".rlx-pair"))
    assert sentence is not None and pair is not None
    assert sentence["y"] + sentence["height"] <= pair["y"] + 1
    assert sentence["width"] == pytest.approx(pair["width"], abs=2)


def test_a_plan_pinned_against_itself_is_the_same(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    page.keyboard.press("b")
    expect_state(page, "pinned", "this")
    wait_twin(page, "compare", "moved 0, resized 0, new 0, lifetime 0, gone 0")
    expect(page.locator(".rlx-sentence")).to_be_hidden()
    page.keyboard.press("b")
    expect_state(page, "pinned", "")
    wait_twin(page, "compare", "no baseline")


# Summary, arena heat, live ranges


def test_the_summary_counts_work_and_fragmentation(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    counters = doc.meta["counters"]
    text = twin(page, "summary")
    assert f"dispatches {counters['dispatches_source']} → {counters['dispatches_before']} before passes → {counters['dispatches']}" in text
    assert "estimated 8200 µs → 3100.5 µs (roofline, test device)" in text
    t, peak = doc.tables["tensors"], doc.meta["headline"]["peak_step"]
    live = (t["space"] == 0) & (t["birth"] <= peak) & (t["death"] >= peak) & (t["size"] > 0)
    ends = (t["offset"] + t["size"] + t["guard"])[live]
    gaps = int(ends.max() - (t["size"] + t["guard"])[live].sum())
    assert f"fragmentation at the peak {gaps:,} B of {int(ends.max()):,} B" in text
    expect(page.locator('[data-fact="estimate"] dt')).to_have_text("Estimated time")


def test_heat_shows_use_reuse_and_touches(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    pictures = set()
    for heat, words in (("occupancy", "time in use"), ("reuse", "reuse count"), ("touched", "bytes touched")):
        page.keyboard.press("h")
        expect_state(page, "heat", heat)
        wait_twin(page, "arena", words)
        pictures.add(page.locator(".rlx-view-arena canvas.rlx-base").evaluate("c => c.toDataURL()"))
        expect(page.locator(".rlx-view-arena .rlx-ramp")).to_be_visible()
    assert len(pictures) == 3
    t, edges = doc.tables["tensors"], doc.tables["edges"]
    touched = t["size"].copy()
    for a, b in {(a, b) for a, b in zip(edges["src"].tolist(), edges["dst"].tolist(), strict=True)}:
        touched[b] += t["size"][a] or t["size"][t["root"][a]]
    wait_twin(page, "arena", f"at most {int(touched.max())} in a step")
    page.keyboard.press("h")
    expect_state(page, "heat", "off")


def test_hovering_a_slot_says_what_was_there_before_and_after(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    show(page, "arena")
    t = doc.tables["tensors"]
    box = page.locator(".rlx-view-arena canvas.rlx-base").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] - 6)
    expect_state(page, "hover", re.compile(r"^\d+$"))
    row = int(state(page)["hover"])
    tip = page.locator(".rlx-tip")
    expect(tip).to_contain_text("before")
    before = [i for i in range(160) if t["space"][i] == 0 and t["size"][i] and t["death"][i] < t["birth"][row] and t["offset"][i] <= t["offset"][row] + 1
              and t["offset"][i] + t["size"][i] > t["offset"][row]]
    assert before
    assert any(name_of(doc, i) in (tip.text_content() or "") for i in before)


def test_live_ranges_sort_and_colour_by_module(open_report: OpenReport) -> None:
    doc = make_views_document(200)
    page = open_report(doc)
    page.get_by_label("Sort").select_option("module")
    wait_twin(page, "gantt", "sorted by module")
    page.get_by_label("Colour").select_option("module")
    keys = page.locator(".rlx-view-gantt .rlx-legend button")
    expect(keys.first).to_have_attribute("data-key", "model.layers.0")
    page.locator(".rlx-search").fill("module:layers.3")
    rows = doc.tables["source"]["fused"][doc.tables["source"]["group"] == 3]
    expect_state(page, "matches", re.compile(r"^\d+$"))
    assert int(state(page)["matches"]) >= len(set(rows.tolist()) - {NONE})


def test_rule_searches_reach_fusion_and_passes(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    for rule in ("residual_norm", "merge_slices"):
        page.locator(".rlx-search").fill(f"rule:{rule}")
        expect_state(page, "matches", re.compile(r"^[1-9]\d*$"))


@pytest.mark.parametrize("families", [16, 29])
def test_more_than_ten_categories_stay_apart(open_report: OpenReport, families: int) -> None:
    page = open_report(make_views_document(160, families=families))
    keys = page.locator(".rlx-view-gantt .rlx-legend button .rlx-swatch")
    expect(keys).to_have_count(families)
    marks = keys.evaluate_all("keys => keys.map(key => `${key.dataset.colour} ${key.dataset.pattern ?? ''}`)")
    assert len(set(marks)) == families


# Behaviour


def test_every_view_opens_closes_and_fills_the_space(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    for key, view in enumerate(VIEWS, start=1):
        shown = view in state(page)["open"].split()
        page.keyboard.press(str(key))
        expect(page.locator(f'.rlx-tabs [data-open="{view}"]')).to_have_attribute("aria-pressed", str(not shown).lower())
    show(page, *VIEWS)
    for view in VIEWS:
        element = page.locator(f'[data-view="{view}"]')
        element.locator("h2").first.dblclick()
        expect_state(page, "maximised", view)
        expect(page.locator(".rlx-stage > .rlx-views:visible > .rlx-view")).to_have_count(1)
        page.keyboard.press("m")
        expect_state(page, "maximised", "")
    show(page)
    expect(page.get_by_text("All views are closed.")).to_be_visible()


def test_where_handles_were_put_is_part_of_the_view(open_report: OpenReport) -> None:
    """Reopened by its address, and walked back by undo."""
    page = open_report(make_views_document(100))
    wide = page.locator(".rlx-panel").bounding_box()["width"]
    tall = page.locator('[data-view="gantt"]').bounding_box()["height"]
    for label, key in (("Height of Live ranges", "ArrowDown"), ("Width of the details", "ArrowLeft")):
        page.locator(f'[role="separator"][aria-label^="{label}"]').focus()
        for _ in range(3):
            page.keyboard.press(key)
    expect(page).to_have_url(re.compile("sizes=.*panel"))
    again = page.url
    page.goto("about:blank")
    page.goto(again)
    page.wait_for_selector(READY)
    assert page.locator(".rlx-panel").bounding_box()["width"] == pytest.approx(wide + 60, abs=2)
    assert page.locator('[data-view="gantt"]').bounding_box()["height"] > tall + 10
    bar = page.locator('[role="separator"][aria-label^="Height of Live ranges"]')
    assert bar.get_attribute("aria-valuenow") == "62"
    bar.dblclick()
    expect(page).to_have_url(re.compile("gantt%3A50"))
    page.keyboard.press("u")
    expect(page).to_have_url(re.compile("gantt%3A62"))


def test_splitters_move_by_keys(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    show(page, "gantt", "arena", "fusion")
    for splitter, key, view, side in ((".rlx-row-splitter", "ArrowDown", "gantt", "height"), (".rlx-column-splitter", "ArrowLeft", "fusion", "width")):
        element = page.locator(f'[data-view="{view}"]')
        before = (element.bounding_box() or {})[side]
        page.locator(splitter).first.focus()
        for _ in range(3):
            page.keyboard.press(key)
        page.wait_for_timeout(100)  # drawn with the next frame
        assert (element.bounding_box() or {})[side] > before + 10


def test_undo_and_redo_walk_through_views(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    page.get_by_label("Sort").select_option("size")
    page.wait_for_timeout(500)
    page.get_by_label("Colour").select_option("dtype")
    page.wait_for_timeout(500)
    page.locator("h2").first.click()
    page.keyboard.press("u")
    expect_state(page, "colour", "family")
    expect_state(page, "sort", "size")
    page.keyboard.press("Control+z")
    expect_state(page, "sort", "birth")
    page.keyboard.press("r")
    page.keyboard.press("r")
    expect_state(page, "colour", "dtype")


def test_the_address_reopens_the_same_view(open_report: OpenReport) -> None:
    doc = make_views_document(200)
    page = open_report(doc)
    show(page, "gantt", "arena", "commands")
    page.get_by_label("Sort").select_option("lifetime")
    page.locator(".rlx-search").fill("op:add")
    page.keyboard.press("Enter")
    page.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("+")
    page.keyboard.press("h")
    keys = ("selected", "zoomX", "sort", "open", "matches", "heat", "colour")
    page.wait_for_timeout(900)
    assert "heat=occupancy" in page.url
    kept = {key: state(page)[key] for key in keys}
    assert kept["selected"] != "-1"
    page.reload()
    page.wait_for_selector(READY)
    expect_state(page, "matches", kept["matches"])
    assert {key: state(page)[key] for key in keys} == kept


def test_a_damaged_address_opens_the_usual_view(page: Page, tmp_path: Path) -> None:
    path = write_report(make_views_document(60), tmp_path / "r.html", title="t")
    page.goto(f"{path.as_uri()}#open=nothing&steps=[1&rows=[5,2]&sort=evil&query=%E0%A4%A&colour=module&module=gone&bytes=[NaN,1]&maximised=x")
    page.wait_for_selector(READY)
    now = state(page)
    assert (now["sort"], now["colour"], now["zoomX"], now["zoomRows"], now["maximised"], now["module"]) == ("birth", "module", "", "", "", "-1")


def test_presentation_mode_enlarges_type(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    number = page.locator(".rlx-number")
    before = (number.bounding_box() or {})["height"]
    page.keyboard.press("e")
    expect_state(page, "present", "on")
    assert (number.bounding_box() or {})["height"] > before * 1.3


def test_help_lists_every_key(open_report: OpenReport) -> None:
    page = open_report(make_views_document(30))
    page.keyboard.press("?")
    text = page.get_by_role("dialog", name="Keys").text_content() or ""
    for word in ("pin this plan", "undo", "redo", "larger type", "fold into modules", "1 … 8", "heat"):
        assert word in text


def test_documents_without_the_new_tables_say_so(open_report: OpenReport) -> None:
    page = open_report(make_document(60))
    show(page, *VIEWS)
    wait_twin(page, "fusion", "no graph before fusion")
    wait_twin(page, "commands", "this document has none")
    wait_twin(page, "waterfall", "not in this document")
    wait_twin(page, "compare", "no baseline")
    for text in ("no graph before fusion", "has no commands", "does not say what each rule saves", "Pin this plan as the baseline"):
        expect(page.get_by_text(text).first).to_be_visible()


def test_a_graph_that_fusion_left_alone_is_drawn_once(open_report: OpenReport) -> None:
    doc = make_views_document(120)
    tables = {k: v for k, v in doc.tables.items() if k not in ("source", "source_edges")}
    page = open_report(replace(doc, meta={**doc.meta, "source_is_tensors": True}, tables=tables))
    wait_twin(page, "fusion", "fusion changed nothing")
    drawn = int((doc.tables["tensors"]["kind"] != 1).sum())
    expect(page.locator(".rlx-view-fusion")).to_have_attribute("data-nodes", str(drawn))


def test_a_document_too_large_for_positions_shows_ops_in_order(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    short = {k: v for k, v in doc.tables["source"].items() if k in ("name", "op", "family", "fused", "group")}
    tables = {**{k: v for k, v in doc.tables.items() if k not in ("layout", "source_edges", "spans")}, "source": short}
    page = open_report(replace(doc, tables=tables))
    wait_twin(page, "fusion", "in the order they run")
    assert "kernel MatMul" in twin(page, "fusion")
    page.keyboard.press("o")
    wait_twin(page, "fusion", "modules folded")
    # Without spans a thunk's bytes are its node's slots.
    show(page, "arena", "commands")
    page.locator('.rlx-row[data-command="6"]').click()
    wait_twin(page, "arena", "thunk 6: reads ")


def test_options_fold_by_group_and_are_found(open_report: OpenReport) -> None:
    doc = make_views_document(40)
    doc.meta["options"] += [
        {"name": f"rule_{k}", "group": "fusion: many", "stage": "fusion", "type": "bool", "value": True, "default": True, "choices": [], "help": "", "changed": False}
        for k in range(12)]
    page = open_report(doc)
    page.locator(".rlx-options > summary").click()
    expect(page.locator('[data-option="rule_3"]')).to_be_hidden()
    page.get_by_label("Find an option").fill("rule_3")
    expect(page.locator('[data-option="rule_3"]')).to_be_visible()
    expect(page.locator('[data-option="fuse_norm"]')).to_be_hidden()
    page.get_by_label("Find an option").fill("")
    expect(page.locator('[data-option="rule_3"]')).to_be_hidden()


@pytest.mark.parametrize("size", [(1440, 900), (900, 700), (720, 450)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("views", [("gantt", "arena", "fusion", "commands"), ("arena", "waterfall", "compare")], ids=" ".join)
@pytest.mark.parametrize("present", [False, True], ids=["usual", "presenting"])
def test_no_heading_or_control_is_cut_off(
    open_report: OpenReport, size: tuple[int, int], views: tuple[str, ...], present: bool
) -> None:
    page = open_report(make_views_document(120, unknown=1))
    page.set_viewport_size({"width": size[0], "height": size[1]})
    show(page, *views)
    if present:
        page.keyboard.press("e")
        expect_state(page, "present", "on")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.rlx-facts dd, .rlx-number, h2, .rlx-view > header button, .rlx-tools button, .rlx-remark')]
            .filter(e => e.clientWidth > 0 && e.offsetParent && (e.scrollWidth > e.clientWidth + 1 ||
              e.getBoundingClientRect().right > innerWidth + 1)).map(e => e.textContent)"""
    )
    assert cut == []
    # Headers' parts do not lie over each other.
    over = page.evaluate(
        """() => [...document.querySelectorAll('.rlx-view > header')].flatMap(header => {
            const boxes = [...header.children].filter(e => e.offsetWidth).map(e => [e.className, e.getBoundingClientRect()]);
            return boxes.flatMap(([a, p], i) => boxes.slice(0, i).filter(([, q]) =>
              p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1).map(([b]) => `${a} / ${b}`));
        })"""
    )
    assert over == []


KEYS = [*"1234567?/jkfpvwhgobuUrtedm0+-[]", "Backspace", "Escape", "ArrowLeft", "ArrowDown", "Enter", "Tab"]


@pytest.mark.parametrize("seed", range(3))
def test_random_keys_and_choices_keep_the_page_sane(open_report: OpenReport, seed: int) -> None:
    """After any sequence: every range inside its axis, choices known ones, twins of open views filled."""
    doc = make_views_document(150 + 900 * seed)
    page = open_report(doc)
    dice = random.Random(seed)
    choices: list[Callable[[], object]] = [
        lambda: page.get_by_label("Sort").select_option(dice.choice(["birth", "size", "lifetime", "offset", "module"])),
        lambda: page.get_by_label("Colour").select_option(dice.choice(["family", "dtype", "kind", "module", "rule"])),
        lambda: page.locator(".rlx-search").fill(dice.choice(["", "op:add", "module:layers.1", "size>1K", "/(/", "rule:norm"])),
        lambda: page.mouse.click(dice.uniform(5, 1000), dice.uniform(150, 840)),
        lambda: page.mouse.dblclick(dice.uniform(5, 1000), dice.uniform(150, 840)),
        lambda: page.mouse.wheel(dice.uniform(-200, 200), dice.uniform(-400, 400)),
    ]
    for _ in range(90):
        if dice.random() < 0.75:
            page.keyboard.press(dice.choice(KEYS))
        else:
            if page.locator(".rlx-help").is_visible():
                page.keyboard.press("Escape")
            dice.choice(choices)()
    page.wait_for_timeout(600)
    now = state(page)
    assert now["ready"] == "1"
    assert set(now["open"].split()) <= set(VIEWS)
    assert now["maximised"] in ("", *VIEWS)
    assert -1 <= int(now["selected"]) < doc.rows("tensors")
    assert -1 <= int(now["command"]) < doc.rows("commands")
    assert -1 <= int(now["module"]) < doc.rows("groups")
    if now["zoomX"]:
        low, high = map(float, now["zoomX"].split(".."))
        assert 0 <= low < high <= doc.rows("tensors") + 1
    for view in now["open"].split():
        if now["maximised"] in ("", view):
            assert twin(page, view) != ""


# The widget's side, against a model that only keeps what it is told


FAKE_MODEL = """
const traits = JSON.parse(document.getElementById("traits").textContent);
for (const [name, text] of Object.entries(traits)) {
  if (name.endsWith("buffer")) traits[name] = new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
}
const listeners = {};
const model = {
  get: name => traits[name],
  set: (name, value) => { traits[name] = value; },
  save_changes: () => { window.saved = (window.saved ?? 0) + 1; },
  on: (event, f) => (listeners[event] ??= new Set()).add(f),
  off: (event, f) => listeners[event]?.delete(f),
};
window.traits = traits;
window.tell = changes => {
  for (const [name, value] of Object.entries(changes)) {
    traits[name] = name.endsWith("buffer") ? new DataView(Uint8Array.from(atob(value), c => c.charCodeAt(0)).buffer) : value;
  }
  for (const name of Object.keys(changes)) for (const f of listeners["change:" + name] ?? []) f();
};
render({ model, el: document.getElementById("place") });
window.again = place => render({ model, el: place });
"""


def packed(doc: ColumnDocument, prefix: str = "") -> dict[str, str]:
    header, buffer = doc.pack()
    return {f"{prefix}header": header, f"{prefix}buffer": base64.b64encode(buffer).decode("ascii")}


def open_widget(page: Page, folder: Path, doc: ColumnDocument, **traits: object) -> None:
    given = {
        "rev": 1, "done": 0, "busy": False, "error": "", "selection": -1, "request": {}, "state": {}, "progress": -1, "progress_text": "",
        "history": {"undo": 0, "redo": 0}, "baseline": {}, "run_request": {}, "run_done": {}, "extra_header": "", "extra_rev": 0,
        "compare_header": "", "compare_rev": 0, **packed(doc), **traits,
    }
    text = json.dumps(given).replace("<", "\\u003c")
    path = folder / "widget.html"
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{stylesheet()}</style><div id="place" style="height:840px;display:flex;flex-direction:column"></div>'
        f'<script type="application/json" id="traits">{text}</script><script type="module">{front_end()}\n{FAKE_MODEL}</script>'
    )
    page.goto(path.as_uri())
    page.wait_for_selector(READY)


def trait(page: Page, name: str) -> object:
    return page.evaluate("name => window.traits[name]", name)


def tell(page: Page, **changes: object) -> None:
    page.evaluate("changes => window.tell(changes)", changes)


def test_a_live_waterfall_switches_its_option(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    show(page, "waterfall")
    page.locator('[data-saving="1"]').click()
    assert trait(page, "request") == {"option": "fuse_matmul", "value": False, "seq": 1}
    # One that is not done goes along with the next.
    page.locator('[data-saving="3"]').click()
    assert trait(page, "request") == {"options": {"fuse_matmul": False, "arena_no_reuse": True}, "seq": 2}
    tell(page, done=2)
    page.locator('[data-saving="3"]').click()
    assert trait(page, "request") == {"option": "arena_no_reuse", "value": True, "seq": 3}


def test_savings_are_told_in_the_order_that_is_asked_for(page: Page, tmp_path: Path) -> None:
    """Alt and an arrow move a change; Python is asked for the savings in that order, and waiting toggles stay."""
    open_widget(page, tmp_path, make_views_document(80))
    show(page, "waterfall")
    rows = [line.split("  ")[1] for line in twin(page, "waterfall").splitlines()[1:] if line.startswith("step")]
    page.locator('[data-saving="1"]').focus()
    page.keyboard.press("Alt+ArrowDown")
    asked = trait(page, "request")
    assert isinstance(asked, dict) and asked["seq"] == 1
    assert asked["order"][:2] == [rows[1], rows[0]] and set(asked["order"]) <= set(rows)


def test_presets_reset_and_undo_are_asked_for(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80, no_reuse=True)
    open_widget(page, tmp_path, doc)
    page.get_by_label("Preset").select_option("cautious")
    assert trait(page, "request") == {"preset": "cautious", "seq": 1}
    tell(page, history={"undo": 1, "redo": 0}, done=1)
    page.locator("[data-reset]").click()
    assert trait(page, "request") == {"reset": True, "seq": 2}
    tell(page, history={"undo": 2, "redo": 0}, done=2)
    page.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("u")
    assert trait(page, "request") == {"undo": True, "seq": 3}
    tell(page, history={"undo": 1, "redo": 1}, done=3)
    page.keyboard.press("r")
    assert trait(page, "request") == {"redo": True, "seq": 4}
    tell(page, history={"undo": 2, "redo": 0}, done=4)
    page.keyboard.press("b")
    assert trait(page, "request") == {"pin": True, "seq": 5}


def test_a_plan_is_compared_with_the_one_pinned_before_it(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80)
    open_widget(page, tmp_path, doc)
    page.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("b")
    again = make_views_document(80, no_reuse=True)
    tell(page, **packed(again), rev=2)
    expect_state(page, "pinned", "other")
    wait_twin(page, "compare", "option arena_no_reuse: off → on")
    assert not twin(page, "compare").startswith("compare: same 80")
    delta = again.meta["headline"]["allocate"] - doc.meta["headline"]["allocate"]
    assert f"against the baseline: allocate {delta} B" in twin(page, "summary")
    expect(page.locator('[data-delta="allocate"]')).to_contain_text("+")


def test_tables_that_come_later_are_taken_in(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80, late=True)
    open_widget(page, tmp_path, doc)
    show(page, "waterfall")
    expect(page.get_by_text("Working out what each rule saves")).to_be_visible()
    strings = StringTable()
    tables = late_tables(doc, strings)
    extra = ColumnDocument({}, strings.strings(), tables)
    tell(page, **packed(extra, "extra_"), extra_rev=7)
    expect(page.get_by_text("Working out what each rule saves")).to_be_visible()  # for another document
    tell(page, extra_rev=1)
    wait_twin(page, "waterfall", "sums exactly")


def test_a_freeing_option_is_one_click_away(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80)
    node = int(doc.tables["counterfactual_nodes"]["node"][0])
    open_widget(page, tmp_path, doc, selection=node)
    page.locator("[data-frees]").first.click()
    assert trait(page, "request") == {"option": "pin_output_ancestors", "value": False, "seq": 1}


def test_progress_errors_and_runs_are_shown(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    tell(page, busy=True, progress=0.4, progress_text="planning")
    expect(page.locator(".rlx-progress-text")).to_have_text("planning · 40%")
    tell(page, busy=False, progress=-1, error="PlanError: no room")
    expect(page.get_by_role("alert")).to_contain_text("PlanError: no room")
    expect(page.get_by_role("alert")).to_contain_text("The picture is the last good plan")
    show(page, "commands")
    page.get_by_role("button", name="Sanitise", exact=True).click()
    assert trait(page, "run_request") == {"seq": 1, "sanitize": True, "repeat": 1}
    tell(page, run_done={"seq": 1, "ok": True, "text": "130 thunks, nothing broke the plan", "seconds": 0.2, "sanitized": True})
    expect(page.locator(".rlx-view-commands header")).to_contain_text("nothing broke the plan")


def test_the_state_trait_reopens_the_view_and_keeps_pythons_options(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80)
    open_widget(page, tmp_path, doc, state={"sort": "size", "open": "gantt commands", "selected": name_of(doc, 9), "options": {"fuse_norm": False}})
    assert (state(page)["sort"], state(page)["open"], state(page)["selected"]) == ("size", "gantt commands", "9")
    page.get_by_label("Colour").select_option("kind")
    page.wait_for_timeout(600)
    kept = trait(page, "state")
    assert isinstance(kept, dict)
    assert kept["options"] == {"fuse_norm": False}
    assert (kept["sort"], kept["colour"], kept["open"]) == ("size", "kind", "gantt commands")
