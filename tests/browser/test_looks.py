"""What a reader of the page met: ticks that repeat, answers that are cut off, legends that don't answer."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import rlx_viz
from planner_core.ir import Graph
from rlx_viz.reports.sampling import sample
from tests.browser.conftest import OpenReport
from tests.browser.synthetic_views import make_views_document

STATIC = Path(rlx_viz.__file__).parent / "static"
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def formatted(page: Page, values: list[int]) -> list[str]:
    page.goto("about:blank")
    source = (STATIC / "format.js").read_text().replace("export ", "")
    return list(page.evaluate(f"(values) => {{ {source}; return values.map(formatTick); }}", values))


def test_ticks_say_exactly_where_they_are(page: Page) -> None:
    low = 96_750_000 // 4096 * 4096
    near = [low + 4096 * k for k in range(8)]
    values = [0, 1, 1023, 1024, 1536, 1 << 20, 3 << 19, (1 << 20) + 1, 5 << 30, (1 << 53) - 1, *near]
    texts = formatted(page, values)
    assert len(set(texts)) == len(texts), "no two ticks read the same"
    for value, text in zip(values, texts, strict=True):
        number, _, unit = text.partition(" ")
        assert round(float(number.replace(",", "")) * SIZES[unit.removesuffix("B").removesuffix("i")]) == value
    assert texts[4:7] == ["1.5 KiB", "1 MiB", "1.5 MiB"]


@pytest.mark.parametrize("query", ["layer", "op:matmul size>1K", "zzz"])
def test_the_answer_to_a_search_is_seen(open_report: OpenReport, query: str) -> None:
    page = open_report(make_views_document(300))
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator(".rlx-search").fill(query)
    expect(page.locator(".rlx-found")).not_to_be_empty()
    box, answer = page.locator(".rlx-search").bounding_box(), page.locator(".rlx-found").bounding_box()
    assert box and answer
    assert box["width"] >= 220
    assert answer["x"] + answer["width"] <= page.locator(".rlx-tools").bounding_box()["x"]  # type: ignore[index]


def test_what_is_wrong_with_a_search_is_read_in_full(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator(".rlx-search").fill("/[/")
    wrong = page.locator(".rlx-found.rlx-wrong")
    expect(wrong).to_contain_text("Unterminated character class")
    assert wrong.evaluate("(e) => e.scrollWidth <= e.clientWidth")


def test_the_occupancy_legend_takes_a_class_out(open_report: OpenReport) -> None:
    page = open_report(make_views_document(100))
    key = page.locator('[data-view="occupancy"] .rlx-legend button').first
    expect(key).to_have_attribute("aria-pressed", "true")
    key.focus()
    page.keyboard.press("Enter")
    expect(page.locator('[data-view="occupancy"] .rlx-legend button').first).to_have_attribute("aria-pressed", "false")
    expect(page.locator('[data-view="occupancy"] .rlx-legend button').first).to_be_focused()


def test_a_sample_says_that_it_is_one(open_report: OpenReport) -> None:
    page = open_report(sample(make_views_document(400), 60))
    expect(page.locator('[data-view="fusion"] .rlx-note')).to_contain_text("a sample, without the graph before fusion")
    assert "fragmentation" not in (page.locator('[data-twin="summary"]').text_content() or "")


def test_an_unknown_size_is_not_zero(open_report: OpenReport) -> None:
    g = Graph("opaque")
    x = g.input("x", (4, 4))
    g.set_outputs(g.relu(x, name="known"))
    doc = rlx_viz.snapshot(rlx_viz.compile(g, fusion=False))
    row = [doc.strings[i] for i in doc.tables["tensors"]["name"]].index("known")
    doc.tables["tensors"]["flags"] = doc.tables["tensors"]["flags"].copy()
    doc.tables["tensors"]["flags"][row] |= 4
    doc.tables["tensors"]["size"] = np.where(np.arange(doc.rows("tensors")) == row, 0, doc.tables["tensors"]["size"])
    page = open_report(doc)
    twin = page.locator('[data-twin="gantt"]').text_content() or ""
    assert re.search(r"known  .*size unknown", twin), twin


def test_the_list_of_refusals_is_whole_when_fusion_fills_the_space(open_report: OpenReport) -> None:
    page = open_report(make_views_document(300))
    page.locator('[data-view="fusion"] [aria-label="Maximise Fusion"]').click()
    page.locator(".rlx-refusals summary").click()
    popup, view = page.locator(".rlx-refusals ul").bounding_box(), page.locator('[data-view="fusion"]').bounding_box()
    assert popup and view
    assert view["x"] <= popup["x"] and popup["x"] + popup["width"] <= view["x"] + view["width"] + 1


def test_an_option_search_without_a_match_says_so(open_report: OpenReport) -> None:
    doc = rlx_viz.snapshot(rlx_viz.compile(_small()))
    page = open_report(doc)
    page.locator('[data-panel="options"] > summary').click()
    box = page.get_by_label("Find an option")
    box.fill("qqq")
    expect(page.get_by_text("No option matches.")).to_be_visible()
    expect(page.locator('[data-panel="options"] .rlx-option-list h3:visible')).to_have_count(0)
    box.fill("alignment")
    expect(page.locator('[data-panel="options"] .rlx-option:visible')).to_have_count(1)
    expect(page.locator('[data-panel="options"] .rlx-option-list > h3:visible')).to_have_count(1)


def _small() -> Graph:
    g = Graph("g")
    return g.set_outputs(g.relu(g.input("x", (4,))))
