"""A saved report in a real browser: what it shows, how it answers, and that it stays offline."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rlx_viz.columns import ColumnDocument
from rlx_viz.reports import render_html
from rlx_viz.reports.sampling import sample
from tests.browser.conftest import OpenReport
from tests.browser.synthetic import make_document

HOSTILE = "</script><img src=x onerror=document.title='owned'>"


def root(page: Page) -> dict[str, str]:
    return dict(page.eval_on_selector(".rlx-viz", "root => ({...root.dataset})"))


def twin(page: Page, view: str) -> str:
    return page.locator(f'[data-twin="{view}"]').text_content() or ""


def wait_twin(page: Page, view: str, text: str) -> None:
    expect(page.locator(f'[data-twin="{view}"]')).to_contain_text(text)


def name_of(doc: ColumnDocument, row: int) -> str:
    return doc.strings[int(doc.tables["tensors"]["name"][row])]


def slot_point(page: Page, doc: ColumnDocument, row: int) -> tuple[float, float]:
    """Page position of the middle of a slot in the arena map, worked out from the documented axes."""
    tensors = doc.tables["tensors"]
    box = page.locator(".rlx-view-arena canvas.rlx-base").bounding_box()
    assert box is not None
    steps = doc.rows("occupancy")
    slots = (tensors["space"] == 0) & (tensors["size"] > 0)
    top = (tensors["offset"] + tensors["size"] + tensors["guard"])[slots].max()
    top /= 1 - max(0.06, 19 / max(box["height"], 80))
    x = (int(tensors["birth"][row]) + int(tensors["death"][row]) + 1) / 2 / steps
    y = 1 - (tensors["offset"][row] + tensors["size"][row] / 2) / top
    return box["x"] + x * box["width"], box["y"] + float(y) * box["height"]


def largest_slot(doc: ColumnDocument) -> int:
    tensors = doc.tables["tensors"]
    life = tensors["death"] - tensors["birth"] + 1.0
    return int(((tensors["space"] == 0) * tensors["size"] * life).argmax())


def test_the_summary_states_the_number_to_allocate_and_its_parts(open_report: OpenReport) -> None:
    doc = make_document(120)
    page = open_report(doc)
    head = doc.meta["headline"]
    text = twin(page, "summary")
    for key in ("allocate", "weights", "activations", "scratch", "padding"):
        assert re.search(rf"^ *{key} .*\({head[key]:,} B\)$", text, re.MULTILINE), key
    assert f"peak {head['peak_bytes']:,} B at step {head['peak_step']}" in text
    assert "note: dim unk__214 unknown on axis 0: took 1" in text
    shown = page.locator('.rlx-number[data-fact="allocate"]').text_content()
    assert shown == f"{head['allocate'] / 2**20:.2f} MiB"
    expect(page.locator("#rlx-static")).to_be_hidden()
    expect(page.locator("#rlx-footer")).to_contain_text("rlx-viz report synthetic.onnx")


def test_numbers_past_2_to_53_stay_exact_and_unknown_sizes_say_at_least(open_report: OpenReport) -> None:
    doc = make_document(120, big=True, unknown=2)
    page = open_report(doc)
    total = int(doc.meta["headline"]["allocate"])
    assert total > 2**53
    assert re.match(rf"allocate ≥ [\d.]+ \w+ \({total:,} B\)\n", twin(page, "summary"))
    expect(page.locator(".rlx-exact").first).to_have_text(f"≥ {total:,} B")
    assert f"unknown size: {name_of(doc, 0)}" in twin(page, "summary")
    expect(page.get_by_text("2 of unknown size")).to_be_visible()


def test_twins_state_every_row_or_how_many_more(open_report: OpenReport) -> None:
    doc = make_document(400)
    page = open_report(doc)
    tensors = doc.tables["tensors"]
    wait_twin(page, "gantt", "sorted by birth")
    rows = int((tensors["space"] != 1).sum())
    assert twin(page, "gantt").endswith(f"… {rows - 200} more")
    first = f"{name_of(doc, 0)}  Input  {tensors['birth'][0]}..{tensors['death'][0]}"
    assert first in twin(page, "gantt")
    slots = int((tensors["space"] == 0).sum())
    assert twin(page, "arena").endswith(f"… {slots - 200} more")
    live = doc.tables["occupancy"]["live"]
    assert f"\n7  {live[7]:.0f}  " in twin(page, "occupancy")


def test_a_longer_life_names_its_rule_and_cause(open_report: OpenReport) -> None:
    doc = make_document(120)
    page = open_report(doc)
    extension = doc.tables["extensions"]
    node = int(extension["node"][0])
    page.locator(".rlx-search").fill(
        f"source:{doc.strings[int(doc.tables['tensors']['source'][node])].split(' ')[-1]}"
    )
    page.keyboard.press("Enter")
    wait_twin(page, "details", name_of(doc, node))
    rule = doc.meta["rules"][int(extension["rule"][0])]
    assert f"kept alive by {rule['name']} ({extension['old'][0]} → {extension['new'][0]})" in twin(
        page, "details"
    )
    assert rule["doc"] in twin(page, "details")


def test_hover_names_the_slot_and_stays_inside_the_window(open_report: OpenReport) -> None:
    doc = make_document(120)
    page = open_report(doc)
    row = largest_slot(doc)
    page.mouse.move(*slot_point(page, doc, row))
    expect(page.locator(".rlx-viz")).to_have_attribute("data-hover", str(row))
    tip = page.locator(".rlx-tip")
    tensors = doc.tables["tensors"]
    expect(tip).to_contain_text(name_of(doc, row))
    expect(tip).to_contain_text(f"{int(tensors['size'][row]):,} B")
    expect(tip).to_contain_text(f"{int(tensors['offset'][row]):,} B")
    expect(tip).to_contain_text(doc.strings[int(tensors["source"][row])])
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1300
    assert box["y"] + box["height"] <= 850
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_a_click_in_the_arena_selects_everywhere_and_escape_clears(open_report: OpenReport) -> None:
    doc = make_document(120)
    page = open_report(doc)
    row = largest_slot(doc)
    before = page.locator(".rlx-view-gantt canvas.rlx-over").evaluate("c => c.toDataURL()")
    page.mouse.click(*slot_point(page, doc, row))
    expect(page.locator(".rlx-viz")).to_have_attribute("data-selected", str(row))
    wait_twin(page, "details", name_of(doc, row))
    page.mouse.move(5, 5)
    expect(page.locator(".rlx-viz")).to_have_attribute("data-hover", "-1")
    assert page.locator(".rlx-view-gantt canvas.rlx-over").evaluate("c => c.toDataURL()") != before
    page.keyboard.press("Escape")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-selected", "-1")
    wait_twin(page, "details", "nothing selected")


def test_producers_and_the_peak_list_are_links(open_report: OpenReport) -> None:
    doc = make_document(120)
    page = open_report(doc)
    tensors, peak = doc.tables["tensors"], doc.meta["headline"]["peak_step"]
    live = (tensors["space"] == 0) & (tensors["birth"] <= peak) & (tensors["death"] >= peak)
    entries = page.locator('[data-panel="live"] button[data-row]')
    expect(entries).to_have_count(int(live.sum()))
    row = int((live * tensors["size"]).argmax())
    expect(entries.first).to_have_attribute("data-row", str(row))
    entries.first.click()
    expect(page.locator(".rlx-viz")).to_have_attribute("data-selected", str(row))
    edges = doc.tables["edges"]
    producer = int(edges["src"][edges["dst"] == row][0])
    page.locator(f'[data-panel="selected"] button[data-row="{producer}"]').last.click()
    expect(page.locator(".rlx-viz")).to_have_attribute("data-selected", str(producer))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("op:matmul", lambda t, s: s(t["op"]) == "MatMul", id="op"),
        pytest.param("/gelu.*_0$/", lambda t, s: "Gelu" in s(t["name"]), id="regex"),
        pytest.param("dtype:i64", lambda t, s: t["dtype"] == 2, id="dtype"),
        pytest.param("size>64KiB", lambda t, s: t["size"] > 65536, id="size"),
        pytest.param("-kind:activation", lambda t, s: t["kind"] != 3, id="not"),
        pytest.param(
            "layers.3/ op:Add", lambda t, s: "layers.3/" in s(t["name"]) and s(t["op"]) == "Add", id="and"
        ),
        pytest.param("step:40", lambda t, s: t["birth"] <= 40 <= t["death"], id="step"),
    ],
)
def test_search_counts_what_matches(
    open_report: OpenReport, query: str, found: Callable[[dict[str, Any], Callable[[Any], str]], bool]
) -> None:
    doc = make_document(200)
    page = open_report(doc)
    tensors = doc.tables["tensors"]
    rows = [{name: column[i] for name, column in tensors.items()} for i in range(200)]
    want = sum(bool(found(row, lambda i: doc.strings[int(i)])) for row in rows)
    assert want > 0
    page.keyboard.press("/")
    page.keyboard.type(query)
    expect(page.locator(".rlx-viz")).to_have_attribute("data-matches", str(want))
    expect(page.locator(".rlx-found")).to_have_text(re.compile(rf"^{want} of 200( · \d+ in folded weights)?$"))


def test_search_says_no_match_and_names_mistakes(open_report: OpenReport) -> None:
    page = open_report(make_document(50))
    search = page.locator(".rlx-search")
    search.fill("no such thing")
    expect(page.locator(".rlx-found")).to_have_text("no match")
    search.fill("/(/")
    expect(page.locator(".rlx-found")).to_contain_text("Invalid regular expression")
    search.fill("size>lots")
    expect(page.locator(".rlx-found")).to_contain_text("“lots” is not a size")
    search.fill("")
    expect(page.locator(".rlx-found")).to_have_text("")


def span(text: str) -> float:
    low, high = map(float, text.split(".."))
    return high - low


def test_zoom_by_key_wheel_and_box_is_shared_and_resets(open_report: OpenReport) -> None:
    doc = make_document(400)
    page = open_report(doc)
    assert root(page)["zoomX"] == ""
    page.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("+")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-zoom-x", re.compile(r"\.\."))
    assert span(root(page)["zoomX"]) == pytest.approx(400 / 1.5, abs=0.1)
    assert root(page)["zoomOffsets"] == ""
    box = page.locator(".rlx-view-arena canvas.rlx-base").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -300)
    expect(page.locator(".rlx-viz")).to_have_attribute("data-zoom-offsets", re.compile(r"\.\."))
    assert span(root(page)["zoomX"]) < 400 / 1.5
    page.keyboard.press("0")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-zoom-x", "")
    page.mouse.dblclick(box["x"] + 30, box["y"] + 30)
    expect(page.locator(".rlx-viz")).to_have_attribute("data-zoom-offsets", "")
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] - 20, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-zoom-x", re.compile(r"\.\."))
    low, high = map(float, root(page)["zoomX"].split(".."))
    assert (low, high) == (pytest.approx(100, abs=2), pytest.approx(200, abs=2))


def test_keys_step_zoom_and_list_themselves(open_report: OpenReport) -> None:
    doc = make_document(200)
    page = open_report(doc)
    page.keyboard.press("j")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-selected", "0")
    page.keyboard.press("j")
    page.keyboard.press("f")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-zoom-rows", re.compile(r"\.\."))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("t")
    expect(page.locator('[data-twin="gantt"]')).to_be_visible()
    assert (page.locator('[data-twin="gantt"]').bounding_box() or {"width": 0})["width"] > 300


def test_weights_fold_out_and_views_fold_away(open_report: OpenReport) -> None:
    doc = make_document(160)
    page = open_report(doc)
    tensors = doc.tables["tensors"]
    weights, views = int((tensors["space"] == 1).sum()), int((tensors["kind"] == 4).sum())
    wait_twin(page, "gantt", f"{160 - weights} rows · {weights} weights folded")
    page.get_by_role("button", name="Weights", exact=True).click()
    wait_twin(page, "gantt", "160 rows,")
    wait_twin(page, "arena", f"weights map: {weights} slots")
    page.get_by_role("button", name="Views", exact=True).click()
    wait_twin(page, "gantt", f"{160 - views} rows · {views} views folded")


def test_sorting_by_size_puts_the_largest_first(open_report: OpenReport) -> None:
    doc = make_document(160)
    page = open_report(doc)
    tensors = doc.tables["tensors"]
    row = int(((tensors["space"] == 0) * tensors["size"]).argmax())
    page.get_by_label("Sort").select_option("size")
    wait_twin(page, "gantt", "sorted by size")
    assert twin(page, "gantt").splitlines()[2].startswith(name_of(doc, row))


def test_dark_follows_the_system_and_the_button(open_report: OpenReport) -> None:
    page = open_report(make_document(50))
    ground = "e => getComputedStyle(e).backgroundColor"
    assert page.eval_on_selector(".rlx-viz", ground) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-theme", "dark")
    assert page.eval_on_selector(".rlx-viz", ground) == "rgb(21, 24, 28)"
    page.keyboard.press("d")
    expect(page.locator(".rlx-viz")).to_have_attribute("data-theme", "light")


@pytest.mark.parametrize(("n", "text"), [(0, "This graph has no tensors"), (1, "input_ids")])
def test_tiny_graphs_are_shown(open_report: OpenReport, n: int, text: str) -> None:
    page = open_report(make_document(n))
    if n == 0:
        expect(page.locator(".rlx-message")).to_contain_text(text)
    else:
        wait_twin(page, "gantt", text)


def test_hostile_names_stay_text(open_report: OpenReport) -> None:
    doc = make_document(30, names=[HOSTILE])
    page = open_report(doc)
    page.keyboard.press("j")
    wait_twin(page, "details", HOSTILE)
    expect(page.locator('[data-panel="selected"] .rlx-name')).to_have_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.title() == "a test"


def test_a_sampled_page_says_so_and_keeps_steps(open_report: OpenReport) -> None:
    doc = sample(make_document(600), 40)
    page = open_report(doc)
    kept = doc.rows("tensors")
    assert f"note: Sampled: the {kept} largest of 600 tensors." in twin(page, "summary")
    weights = int((doc.tables["tensors"]["space"] == 1).sum())
    wait_twin(page, "gantt", f"{kept - weights} rows · {weights} weights folded")
    row = int(doc.tables["tensors"]["step"].argmax())
    step = int(doc.tables["tensors"]["step"][row])
    assert step > kept
    box = page.locator(".rlx-view-occupancy canvas.rlx-base").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * (step + 0.5) / 600, box["y"] + box["height"] / 2)
    expect(page.locator(".rlx-viz")).to_have_attribute("data-selected", str(row))


def test_a_damaged_page_says_what_is_wrong(page: Page, tmp_path: Path) -> None:
    text = re.sub(r'(id="rlx-payload">)[^<]*', r"\1AAAA", render_html(make_document(5), title="t"))
    path = tmp_path / "broken.html"
    path.write_text(text)
    page.goto(path.as_uri())
    expect(page.locator(".rlx-viz")).to_have_attribute("data-ready", "error")
    expect(page.locator(".rlx-message")).to_contain_text("The plan could not be shown.")


@pytest.mark.parametrize("size", [(900, 700), (1440, 900), (720, 450)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_nothing_is_cut_off_at_any_size(open_report: OpenReport, size: tuple[int, int]) -> None:
    page = open_report(make_document(120, unknown=1))
    page.set_viewport_size({"width": size[0], "height": size[1]})
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    # A fact, a heading or a control whose text is wider than its box is cut off.
    cut = page.evaluate(
        """() => [...document.querySelectorAll(
            '.rlx-facts dd, .rlx-number, .rlx-part, h2, .rlx-tools button, .rlx-remark')]
            .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.textContent)"""
    )
    assert cut == []
    for view in ("occupancy", "gantt", "arena"):
        box = page.locator(f".rlx-view-{view} canvas.rlx-base").bounding_box()
        assert box is not None
        assert box["width"] > 250
        assert box["height"] > 40


def test_the_page_fits_a_small_window_and_the_whole_hash_is_kept(open_report: OpenReport) -> None:
    doc = make_document(200)
    doc.meta["footer"]["command"] = "rlx-viz report model.onnx " + "--option value " * 30
    page = open_report(doc)
    page.set_viewport_size({"width": 900, "height": 700})
    assert page.evaluate("document.documentElement.scrollHeight") == 700
    digest = doc.meta["footer"]["model_hash"]
    model = page.locator("#rlx-footer span").first
    expect(model).to_have_text(f"model {digest[:12]}")
    expect(model).to_have_attribute("title", digest)
    assert f"model hash {digest}" in twin(page, "summary")


def test_unknown_sizes_claim_neither_optimal_nor_a_bound_on_what_was_saved(open_report: OpenReport) -> None:
    page = open_report(make_document(120, unknown=2))
    expect(page.locator('[data-fact="lower_bound"] dd')).to_contain_text("≥")
    expect(page.locator('[data-fact="lower_bound"] dd')).not_to_contain_text("optimal")
    expect(page.locator('[data-fact="saved"] dd')).to_contain_text("≈")


def test_bidi_controls_in_names_show_as_escapes(open_report: OpenReport) -> None:
    doc = make_document(60)
    strings = list(doc.strings)
    strings[int(doc.tables["tensors"]["name"][5])] = "abc\u202egnp.exe"
    page = open_report(replace(doc, strings=tuple(strings)))
    page.locator(".rlx-search").fill("abc")
    page.locator(".rlx-search").press("Enter")
    wait_twin(page, "details", "abc⟨U+202E⟩gnp.exe")
    expect(page.locator(".rlx-selected .rlx-name")).to_have_text("abc⟨U+202E⟩gnp.exe")
    assert "\u202e" not in page.locator(".rlx-viz").text_content()


def test_matches_in_folded_weights_are_counted(open_report: OpenReport) -> None:
    page = open_report(make_document(200))
    page.locator(".rlx-search").fill("space:weights")
    expect(page.locator(".rlx-found")).to_have_text(re.compile(r"^(\d+) of 200 · \1 in folded weights$"))
    page.get_by_role("button", name="Weights", exact=True).click()
    expect(page.locator(".rlx-found")).to_have_text(re.compile(r"^\d+ of 200$"))


def test_names_in_the_arena_never_overlap(open_report: OpenReport) -> None:
    page = open_report(make_document(200))
    page.evaluate(
        """() => {
            const over = document.querySelector('.rlx-view-arena .rlx-mid').getContext('2d');
            const {clearRect, fillText} = CanvasRenderingContext2D.prototype;
            over.clearRect = function (...box) { window.names = []; clearRect.apply(this, box); };
            over.fillText = function (text, x, y) {
                if (this.textAlign === 'left' && this.textBaseline !== 'bottom') {
                    const top = this.textBaseline === 'middle' ? y - 5 : y;
                    window.names.push([x, top, x + this.measureText(text).width, top + 10]);
                }
                fillText.call(this, text, x, y);
            };
        }"""
    )
    page.keyboard.press("p")
    page.keyboard.press("f")
    page.wait_for_timeout(400)
    names = page.evaluate("window.names")
    clashes = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[:i]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    assert names and clashes == []
