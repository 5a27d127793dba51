"""What a review found: states that did not come back, steps that were undone in the wrong order, keys and focus lost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rlx_viz.columns import ColumnDocument
from rlx_viz.reports import write_report
from tests.browser.conftest import READY, OpenReport
from tests.browser.synthetic import make_document
from tests.browser.synthetic_views import NONE, make_views_document
from tests.browser.test_views import (
    canvas,
    expect_state,
    name_of,
    open_widget,
    packed,
    show,
    state,
    tell,
    trait,
    twin,
    wait_twin,
)

REST = 600
"""Longer than a view takes to come to rest."""


def twins_document(n: int = 96, copies: int = 3) -> ColumnDocument:
    """A document in which `copies` tensors, rows 5, 10, …, have one name."""
    doc = make_views_document(n)
    tensors = dict(doc.tables["tensors"])
    names = tensors["name"].copy()
    names[[5 * k for k in range(1, copies + 1)]] = names[5]
    return replace(doc, tables={**doc.tables, "tensors": {**tensors, "name": names}})


def has_focus(page: Page, selector: str) -> bool:
    return bool(page.evaluate("s => document.activeElement !== document.body && document.activeElement.matches(s)", selector))


# 3: the tooltip while presenting


@pytest.mark.parametrize("share", [0.2, 0.6, 0.97])
def test_a_tooltip_is_at_the_pointer_while_presenting(open_report: OpenReport, share: float) -> None:
    page = open_report(make_views_document(160))
    show(page, "arena")
    page.keyboard.press("e")
    expect_state(page, "present", "on")
    page.wait_for_timeout(200)
    box = page.locator(".rlx-view-arena canvas.rlx-base").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * share, box["y"] + box["height"] - 8
    page.mouse.move(x, y)
    tip = page.locator(".rlx-tip")
    expect(tip).to_be_visible()
    placed = tip.bounding_box()
    assert placed is not None
    beside = (placed["x"] - x, x - placed["x"] - placed["width"])
    assert min(abs(one - 14) for one in beside) < 3, (placed, x)
    assert placed["y"] >= 0
    assert placed["y"] + placed["height"] <= 850
    assert placed["x"] + placed["width"] <= 1300


# 4: a maximised view


@pytest.mark.parametrize("view", ["fusion", "commands", "waterfall"])
def test_a_maximised_view_reopens_on_a_narrow_screen(page: Page, tmp_path: Path, view: str) -> None:
    path = write_report(make_views_document(100), tmp_path / "r.html", title="t")
    page.set_viewport_size({"width": 1400, "height": 850})
    page.goto(path.as_uri())
    page.wait_for_selector(READY)
    show(page, "occupancy", "gantt", "arena", "fusion", *([view] if view != "fusion" else []))
    page.locator(f'[data-view="{view}"] h2').first.dblclick()
    expect(page).to_have_url(re.compile(f"maximised={view}.*open="))
    again = page.url
    for hash_ in (again.split("#")[1], f"maximised={view}"):
        page.goto("about:blank")
        page.set_viewport_size({"width": 1000, "height": 700})
        page.goto(f"{path.as_uri()}#{hash_}")
        page.wait_for_selector(READY)
        expect_state(page, "maximised", view)
        expect(page.locator(f'[data-twin="{view}"]')).not_to_be_empty()
        if view == "fusion":
            expect(page.locator(".rlx-view-fusion")).to_have_attribute("data-nodes", re.compile(r"^[1-9]"))


# 5: names that repeat


def test_a_repeated_name_is_reopened_by_its_number(page: Page, tmp_path: Path) -> None:
    path = write_report(twins_document(), tmp_path / "r.html", title="t")
    page.goto(path.as_uri())
    page.wait_for_selector(READY)
    for _ in range(3):
        page.locator(".rlx-search").press("Enter") if page.locator(".rlx-search").input_value() else page.locator(".rlx-search").fill(
            name_of(twins_document(), 5))
    page.locator(".rlx-search").press("Enter")
    expect_state(page, "selected", "15")
    expect(page).to_have_url(re.compile("nth=2"))
    page.reload()
    page.wait_for_selector(READY)
    expect_state(page, "selected", "15")


def test_a_repeated_name_is_found_again_in_a_new_plan(page: Page, tmp_path: Path) -> None:
    doc = twins_document()
    open_widget(page, tmp_path, doc, selection=10)
    expect_state(page, "selected", "10")
    tensors = dict(doc.tables["tensors"])
    names = tensors["name"].copy()  # a step was put in before: the same tensors, a row further down
    names[[6, 11, 16]] = names[5]
    names[[5, 10, 15]] = names[20]
    tell(page, **packed(replace(doc, tables={**doc.tables, "tensors": {**tensors, "name": names}})), rev=2)
    expect_state(page, "rev", "2")
    expect_state(page, "selected", "11")
    assert trait(page, "selection") == 11


def test_pythons_selection_in_a_new_plan_holds(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(60), selection=10)
    tell(page, selection=70, **packed(make_views_document(90)), rev=2)
    expect_state(page, "rev", "2")
    expect_state(page, "selected", "70")


# 9: steps in their order


def test_a_failed_change_is_no_step(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    page.get_by_label("Sort").select_option("size")
    page.wait_for_timeout(REST)
    page.locator('[data-option="arena_no_reuse"]').evaluate("box => box.click()")
    tell(page, error="PlanError: no room", done=1)
    page.wait_for_timeout(REST)
    canvas(page, "gantt").focus()
    page.keyboard.press("u")
    expect_state(page, "sort", "birth")
    assert trait(page, "request")["seq"] == 1  # type: ignore[index]


def test_python_changes_take_their_place_among_the_pages_steps(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    page.get_by_label("Sort").select_option("size")
    page.wait_for_timeout(REST)
    tell(page, **packed(make_views_document(80, no_reuse=True)), rev=2, history={"undo": 1, "redo": 0})
    expect_state(page, "rev", "2")
    page.get_by_label("Colour").select_option("dtype")
    page.wait_for_timeout(REST)
    canvas(page, "gantt").focus()
    page.keyboard.press("u")
    expect_state(page, "colour", "family")
    page.keyboard.press("u")
    assert trait(page, "request") == {"undo": True, "seq": 1}
    page.keyboard.press("u")  # not planned yet: nothing is skipped
    assert trait(page, "request") == {"undo": True, "seq": 1}
    expect_state(page, "sort", "size")
    tell(page, **packed(make_views_document(80)), rev=3, history={"undo": 0, "redo": 1}, done=1)
    expect_state(page, "rev", "3")
    page.keyboard.press("u")
    expect_state(page, "sort", "birth")
    page.keyboard.press("r")
    expect_state(page, "sort", "size")
    page.keyboard.press("r")
    assert trait(page, "request") == {"redo": True, "seq": 2}
    tell(page, history={"undo": 1, "redo": 0}, done=2)
    page.keyboard.press("r")
    expect_state(page, "colour", "dtype")


def test_undo_waits_for_a_change_that_is_being_planned(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    page.get_by_label("Sort").select_option("size")
    page.wait_for_timeout(REST)
    page.locator('[data-option="arena_no_reuse"]').evaluate("box => box.click()")
    canvas(page, "gantt").focus()
    page.keyboard.press("u")
    page.wait_for_timeout(100)
    expect_state(page, "sort", "size")
    page.get_by_label("Colour").select_option("dtype")
    page.wait_for_timeout(REST)
    canvas(page, "gantt").focus()
    page.keyboard.press("u")  # what was done since can go back
    expect_state(page, "colour", "family")
    tell(page, done=1)
    page.keyboard.press("u")
    expect_state(page, "sort", "birth")


# 12, 13: a fresh view, the legend and the theme


def test_a_fresh_state_brings_the_first_view_back(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80), state={"options": {}})
    first = state(page)
    page.get_by_label("Colour").select_option("dtype")
    page.get_by_role("button", name="Text", exact=True).click()
    page.keyboard.press("5")
    page.wait_for_timeout(REST)
    assert trait(page, "state")["colour"] == "dtype"  # type: ignore[index]
    tell(page, state={"options": {}})
    for key in ("colour", "text", "open"):
        expect_state(page, key, first[key])
    # Options alone are no news about the view, even one that did not come to rest.
    page.get_by_label("Colour").select_option("kind")
    tell(page, state={"options": {"fuse_norm": False}})
    page.wait_for_timeout(REST)
    expect_state(page, "colour", "kind")


def test_an_empty_address_brings_the_first_view_back(open_report: OpenReport) -> None:
    page = open_report(make_views_document(80))
    first = state(page)
    page.get_by_label("Colour").select_option("dtype")
    show(page, "gantt")
    expect(page).to_have_url(re.compile("open="))
    page.evaluate("location.hash = ''")
    for key in ("colour", "open"):
        expect_state(page, key, first[key])


def test_the_legend_and_the_theme_are_part_of_the_view(open_report: OpenReport) -> None:
    page = open_report(make_views_document(80))
    page.locator('.rlx-legend [data-key="matmul"]').click()
    page.keyboard.press("d")
    expect_state(page, "theme", "dark")
    expect(page).to_have_url(re.compile("hidden=.*matmul.*theme=dark"))
    page.reload()
    page.wait_for_selector(READY)
    expect_state(page, "theme", "dark")
    key = page.locator('.rlx-legend [data-key="matmul"]')
    expect(key).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("Escape")
    expect(key).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(REST)
    page.keyboard.press("u")
    expect(key).to_have_attribute("aria-pressed", "false")


# 14: weights and the arena


def test_zooming_to_a_weight_shows_the_weights(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    tensors = doc.tables["tensors"]
    weight = int(((tensors["space"] == 1) & (tensors["offset"] > 0)).argmax())
    page.locator(".rlx-search").fill(name_of(doc, weight))
    page.locator(".rlx-search").press("Enter")
    expect_state(page, "selected", str(weight))
    expect_state(page, "space", "arena")
    canvas(page, "gantt").focus()
    page.keyboard.press("f")
    expect_state(page, "space", "weights")
    low, high = map(float, state(page)["zoomOffsets"].split(".."))
    assert low <= tensors["offset"][weight] < tensors["offset"][weight] + tensors["size"][weight] <= high
    # Choosing another tensor leaves the weights' zoom alone.
    kept = state(page)["zoomOffsets"]
    row = int(((tensors["space"] == 0) & (tensors["size"] > 0)).argmax())
    page.locator(".rlx-search").fill(name_of(doc, row))
    page.locator(".rlx-search").press("Enter")
    expect_state(page, "selected", str(row))
    expect_state(page, "zoom-offsets", kept)
    canvas(page, "gantt").focus()
    page.keyboard.press("f")
    expect_state(page, "space", "arena")


# 16: keys


def test_enter_looks_inside_a_module(open_report: OpenReport) -> None:
    doc = make_views_document(1600)
    page = open_report(doc)
    wait_twin(page, "fusion", "modules folded")
    row = int(doc.tables["source"]["fused"][(doc.tables["source"]["group"] == 2).argmax()])
    page.locator(".rlx-search").fill(name_of(doc, row))
    page.locator(".rlx-search").press("Enter")
    canvas(page, "fusion").focus()
    page.keyboard.press("Enter")
    expect_state(page, "module", re.compile(r"^\d+$"))
    wait_twin(page, "fusion", "model.layers.2")
    page.keyboard.press("Backspace")
    expect_state(page, "module", "-1")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("look inside the module")


def test_arrows_walk_through_the_list_before_passes(open_report: OpenReport) -> None:
    doc = make_views_document(120)
    page = open_report(doc)
    show(page, "commands")
    before = doc.tables["commands_before"]
    page.get_by_role("listbox", name="Thunks before passes").focus()
    page.keyboard.press("Home")
    for index in range(1, 12):
        page.keyboard.press("ArrowDown")
        expect(page.locator(f'.rlx-row[data-before="{index}"]')).to_have_attribute("aria-selected", "true")
        if before["first"][index] != NONE and before["count"][index]:
            expect_state(page, "command", str(int(before["first"][index])))
    page.keyboard.press("ArrowUp")
    expect(page.locator('.rlx-row[data-before="10"]')).to_have_attribute("aria-selected", "true")


def test_arrows_walk_through_the_changes_of_a_comparison(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    canvas(page, "gantt").focus()
    page.keyboard.press("b")
    tell(page, **packed(make_views_document(80, no_reuse=True)), rev=2)
    expect_state(page, "compared", "1")
    changed = page.get_by_role("listbox", name="Changed tensors")
    changed.focus()
    for at in range(3):
        page.keyboard.press("ArrowDown")
        row = changed.locator(".rlx-row").nth(at)
        expect(row).to_have_attribute("aria-selected", "true")
        expect_state(page, "selected", row.get_attribute("data-row") or "")


def test_zoom_keys_need_no_focus_in_a_report(open_report: OpenReport) -> None:
    page = open_report(make_views_document(120))
    page.keyboard.press("+")
    expect_state(page, "zoom-x", re.compile(r"\d"))
    before = state(page)["zoomX"]
    page.keyboard.press("ArrowRight")
    expect(page.locator(".rlx-viz")).not_to_have_attribute("data-zoom-x", before)
    page.keyboard.press("0")
    expect_state(page, "zoom-x", "")
    canvas(page, "arena").focus()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("]")
    expect_state(page, "zoom-offsets", re.compile(r"\d"))
    expect_state(page, "zoom-rows", "")


# 17: focus


def test_focus_stays_in_the_explorer(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80)
    node = int(doc.tables["counterfactual_nodes"]["node"][0])
    open_widget(page, tmp_path, doc, selection=node)
    panel = page.locator('[data-panel="selected"]')
    panel.locator("[data-frees]").first.click()
    tell(page, **packed(make_views_document(80, late=True)), rev=2, done=1)
    expect_state(page, "rev", "2")
    page.wait_for_timeout(100)
    assert has_focus(page, ".rlx-viz *")
    panel.locator("button[data-row]").first.click()
    page.wait_for_timeout(100)
    assert has_focus(page, ".rlx-viz *")
    panel.get_by_label("Clear the selection").click()
    expect_state(page, "selected", "-1")
    assert has_focus(page, ".rlx-viz *")
    live = page.locator('[data-panel="live"] button[data-row]').nth(1)
    row = live.get_attribute("data-row")
    live.focus()
    page.keyboard.press("d")
    expect_state(page, "theme", "dark")
    assert has_focus(page, f'[data-panel="live"] button[data-row="{row}"]')


# 20, 34: the search


def test_dtype_and_kind_want_the_whole_name(open_report: OpenReport) -> None:
    doc = make_document(120)
    meta = {**doc.meta, "dtypes": ["bf16", "f16", *doc.meta["dtypes"][2:]]}
    page = open_report(replace(doc, meta=meta))
    page.locator(".rlx-search").fill("dtype:f16")
    expect_state(page, "matches", str(int((doc.tables["tensors"]["dtype"] == 1).sum())))


def test_a_step_that_is_no_number_is_an_error(open_report: OpenReport) -> None:
    page = open_report(make_document(60))
    page.locator(".rlx-search").fill("step:abc")
    expect(page.locator(".rlx-found")).to_have_text("“abc” is not a step; try step:42")


# 21: the baseline


def test_a_pin_made_in_python_reaches_the_comparison(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80)
    open_widget(page, tmp_path, doc)
    baseline = {"label": "at first", "options": {}, "headline": doc.meta["headline"]}
    tell(page, baseline=baseline)
    expect_state(page, "pinned", "this")
    tell(page, **packed(make_views_document(80, no_reuse=True)), rev=2)
    expect_state(page, "pinned", "other")
    expect_state(page, "compared", "1")
    show(page, "compare")
    wait_twin(page, "compare", "option arena_no_reuse: off → on")
    tell(page, baseline={})
    expect_state(page, "pinned", "")


def test_a_plan_pinned_before_it_was_shown_is_the_baseline(page: Page, tmp_path: Path) -> None:
    doc = make_views_document(80)
    baseline = {"label": "at first", "options": {}, "headline": doc.meta["headline"]}
    open_widget(page, tmp_path, doc, baseline=baseline)
    expect_state(page, "pinned", "this")
    tell(page, **packed(make_views_document(80, no_reuse=True)), rev=2)
    expect_state(page, "compared", "1")


# 29: errors


def test_a_runs_error_says_so_and_messages_close(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    alert = page.get_by_role("alert")
    tell(page, run_request={"seq": 1}, error="MemoryError: too large", run_done={"seq": 1, "ok": False, "text": "MemoryError: too large", "seconds": 0, "sanitized": True})
    expect(alert).to_contain_text("The run failed. MemoryError: too large")
    expect(alert).not_to_contain_text("Not re-planned")
    alert.get_by_label("Close the message").click()
    expect(page.locator(".rlx-alert")).to_be_hidden()
    tell(page, progress=-1)  # the same news again
    expect(page.locator(".rlx-alert")).to_be_hidden()
    tell(page, error="")
    tell(page, error="PlanError: no room")
    expect(alert).to_contain_text("Not re-planned. PlanError: no room")
    canvas(page, "gantt").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".rlx-alert")).to_be_hidden()


# 35: two displays


def test_two_displays_ask_under_different_numbers(page: Page, tmp_path: Path) -> None:
    open_widget(page, tmp_path, make_views_document(80))
    page.evaluate("""() => {
      const place = document.createElement("div");
      document.getElementById("place").after(place);
      window.again(place);
    }""")
    boxes = page.locator('input[data-option="fuse_matmul"], input[data-option="fuse_norm"]')
    expect(boxes).to_have_count(4)
    boxes.nth(0).evaluate("box => box.click()")
    assert trait(page, "request") == {"option": "fuse_matmul", "value": False, "seq": 1}
    boxes.nth(3).evaluate("box => box.click()")
    assert trait(page, "request") == {"options": {"fuse_matmul": False, "fuse_norm": False}, "seq": 2}


# 37: both halves


def test_zooming_to_a_tensor_shows_it_in_both_graphs(open_report: OpenReport) -> None:
    doc = make_views_document(160)
    page = open_report(doc)
    show(page, "fusion")
    row = int(doc.tables["source"]["fused"][80])
    page.locator(".rlx-search").fill(name_of(doc, row))
    page.locator(".rlx-search").press("Enter")
    canvas(page, "fusion").focus()
    page.keyboard.press("f")
    expect_state(page, "zoom-graph", re.compile(r"\d"))
    page.wait_for_timeout(300)
    box = canvas(page, "fusion").bounding_box()
    assert box is not None
    halves = set()
    for at in range(2, 98, 5):
        for high in range(40, 66, 2):
            page.mouse.move(box["x"] + box["width"] * at / 100, box["y"] + box["height"] * high / 100)
            page.wait_for_timeout(18)
            if state(page)["hover"] == str(row):
                halves.add(at < 50)
                break
    assert halves == {True, False}, twin(page, "fusion")[:100]
