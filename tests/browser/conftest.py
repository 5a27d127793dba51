"""A real browser for the tests in this folder: the system's Chromium, with the network refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from rlx_viz.columns import ColumnDocument
from rlx_viz.reports import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = '.rlx-viz[data-ready="1"]'

OpenReport = Callable[[ColumnDocument], Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is a browser test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium from PATH; a machine without one fails these tests rather than skipping them."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail(f"no browser on PATH: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """What a page must not do: requests that leave the machine, script errors. Fails the test at its end."""
    found: list[str] = []
    yield found
    assert found == []


@pytest.fixture
def page(browser: Browser, faults: list[str]) -> Iterator[Page]:
    """A fresh light page of 1300×850 that records faults."""
    context = browser.new_context(viewport={"width": 1300, "height": 850}, color_scheme="light")
    fresh = context.new_page()

    def on_request(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            faults.append(f"request {request.url}")

    fresh.on("request", on_request)
    fresh.on("pageerror", lambda error: faults.append(f"page error {error}"))
    fresh.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield fresh
    context.close()


@pytest.fixture
def open_report(page: Page, tmp_path: Path) -> OpenReport:
    """Writes a document as a report, opens it from its file, and waits until it is drawn."""

    def open_one(doc: ColumnDocument) -> Page:
        path = write_report(doc, tmp_path / "report.html", title="a test")
        page.goto(path.as_uri())
        page.wait_for_selector(READY)
        return page

    return open_one
