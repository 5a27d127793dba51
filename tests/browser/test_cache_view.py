"""The picture of a compile cache in a real browser: events, table, keys, and where it is offered."""

from __future__ import annotations

import re

import numpy as np
from playwright.sync_api import expect

import rlx_viz
from rlx_viz.snapshot_tables.caches import with_cache
from runtime.caches import BucketedCompileCache
from tests.browser.conftest import OpenReport
from tests.browser.synthetic_views import make_views_document
from tests.runtime.caches.graphs import mlp, params


def test_events_and_entries_are_shown_and_stepped_through(open_report: OpenReport) -> None:
    cache = BucketedCompileCache("cpu", [(1, 3), (3, 5), (5, 9)], bucket_dim={"x": 0})
    for key in (1, 4, 2, 4):
        cache.ensure_graph_with_params(key, lambda upper: (mlp(upper), params()))
    cache.run_padded(3, 3, mlp, [("x", np.ones((3, 4), np.float32), 4)], {"y": 4})
    cache.evict_one_except(0)
    page = open_report(with_cache(rlx_viz.snapshot(cache.largest()), cache))
    view = page.locator('[data-view="caches"]')
    expect(view.locator(".rlx-note")).to_contain_text("1 of 3 buckets compiled · 3 hits · 2 compiled in all · 1 eviction")
    rows = view.locator("tr[data-entry]")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text(re.compile("3 … 4.*not compiled"))
    twin = view.locator(".rlx-twin").text_content() or ""
    assert [line.split()[0] for line in twin.splitlines() if "key" in line] == [e.kind for e in cache.timeline() if e.kind != "hit"]
    canvas = view.locator("canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(view.locator(".rlx-cache-said")).to_contain_text("miss of key 1")
    for _ in cache.timeline():
        page.keyboard.press("ArrowRight")
    expect(view.locator(".rlx-cache-said")).to_contain_text("evict of key 4")
    expect(view.locator("tr.rlx-on")).to_contain_text("3 … 4")
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + 130, box["y"] + 64 + 14 + 10)
    expect(view.locator(".rlx-cache-said")).to_contain_text("event 0")
    view.get_by_role("button", name="By time").click()
    expect(view.get_by_role("button", name="By time")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("8")
    expect(view).not_to_be_visible()


def test_a_models_document_offers_no_cache(open_report: OpenReport) -> None:
    page = open_report(make_views_document(50))
    expect(page.locator('[data-open="caches"]')).to_be_hidden()
    page.keyboard.press("8")
    expect(page.get_by_text("This document is of a model")).to_be_visible()
