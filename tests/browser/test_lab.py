"""The widget in a live JupyterLab, and the saved notebook as a page without a kernel."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, TimeoutError, expect

from tests.browser.conftest import READY
from tests.browser.synthetic import make_document

ROOT = Path(__file__).resolve().parents[2]
CELL = """
from rlx_viz.explorer import Explorer
from tests.browser.synthetic import make_document

def replan(options):
    if options.get("pin_output_ancestors"):
        raise RuntimeError("no room for ancestors")
    return make_document(90, no_reuse=bool(options.get("arena_no_reuse")))

explorer = Explorer(replan, make_document(90))
explorer
"""
REAL_CELL = """
import rlx_viz
from rlx_viz.demo import magika_model

rlx_viz.explore(magika_model())
"""
ZOO_CELL = """
import rlx_viz
from planner_core import zoo

explorer = rlx_viz.explore(zoo.build("minilm", layers=1, seq=8), target="metal")
explorer.pin("at first")
explorer
"""
PATIENCE = 90_000


def environment() -> dict[str, str]:
    """The tests' interpreter and packages for the server and its kernels."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a JupyterLab that serves a folder with one notebook, `explore.ipynb` (its cell: the param)."""
    cell = getattr(request, "param", CELL)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "explore.ipynb")
    port = free_port()
    state = tmp_path / ".jupyter"
    command = [
        *(
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            f"--port={port}",
        ),
        *(
            "--ServerApp.port_retries=0",
            "--IdentityProvider.token=",
            "--ServerApp.password=",
            "--LabApp.news_url=",
        ),
        *(
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            f"--ServerApp.root_dir={tmp_path}",
        ),
    ]
    own = {
        name: str(state)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    }
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment() | own)
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(240):
                try:
                    with urllib.request.urlopen(f"{address}/api/status"):
                        break
                except (urllib.error.URLError, ConnectionError):
                    assert server.poll() is None, (tmp_path / "lab.log").read_text()
                    time.sleep(0.5)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def run_first_cell(page: Page) -> None:
    """Runs the notebook's first cell and waits until the explorer in its output is drawn."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").first
    cell.wait_for(timeout=PATIENCE)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(timeout=PATIENCE)
    # A press can fall into the moment in which JupyterLab swaps the cell's editor: see it taken.
    taken = cell.locator(".jp-InputPrompt").filter(has_text=re.compile(r"\[[*\d]+\]"))
    dialog = page.locator(".jp-Dialog .jp-mod-accept")
    for _ in range(10):
        try:
            if dialog.is_visible():  # a slow machine's Lab may ask for the kernel that it is still starting
                dialog.click(timeout=3000)
            cell.locator(".cm-content").click(timeout=3000)
            page.keyboard.press("Control+Enter")
            taken.wait_for(timeout=3000)
            break
        except TimeoutError:
            continue
    page.wait_for_selector(READY, timeout=PATIENCE)


@pytest.fixture
def lab_page(browser: Browser, lab: str) -> Iterator[Page]:
    """The notebook with its cell run and the explorer drawn."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    page = context.new_page()
    page.goto(f"{lab}/lab/tree/explore.ipynb?reset", timeout=PATIENCE)
    run_first_cell(page)
    yield page
    context.close()


def test_a_toggle_replans_in_python_and_keeps_the_selection(lab_page: Page) -> None:
    page, root = lab_page, lab_page.locator(".rlx-viz")
    summary, details = page.locator('[data-twin="summary"]'), page.locator('[data-twin="details"]')
    before, after = make_document(90), make_document(90, no_reuse=True)
    assert before.meta["headline"]["arena"] != after.meta["headline"]["arena"]
    expect(root).to_have_attribute("data-host", "jupyter", timeout=PATIENCE)
    expect(summary).to_contain_text(f"arena {before.meta['headline']['arena']:,} B", timeout=PATIENCE)

    page.locator('[data-panel="live"] button[data-row]').first.click(timeout=PATIENCE)
    expect(root).to_have_attribute("data-selected", re.compile(r"^\d+$"), timeout=PATIENCE)  # shown a frame later
    row = root.get_attribute("data-selected")
    name = before.strings[int(before.tables["tensors"]["name"][int(row or -1)])]
    expect(details).to_contain_text(name)

    page.locator('[data-option="arena_no_reuse"]').click()
    expect(root).to_have_attribute("data-rev", "1", timeout=PATIENCE)
    expect(summary).to_contain_text(f"arena {after.meta['headline']['arena']:,} B")
    expect(root).to_have_attribute("data-selected", row or "")
    expect(details).to_contain_text(f"offset: {int(after.tables['tensors']['offset'][int(row or -1)]):,} B")
    expect(page.locator('[data-option="arena_no_reuse"]')).to_be_checked()

    page.locator('[data-option="pin_output_ancestors"]').click()
    alert = root.get_by_role("alert")
    expect(alert).to_contain_text("RuntimeError: no room for ancestors", timeout=PATIENCE)
    expect(summary).to_contain_text(f"arena {after.meta['headline']['arena']:,} B")
    expect(page.locator('[data-option="pin_output_ancestors"]')).not_to_be_checked()
    page.locator('[data-option="pin_output_ancestors"]').click()
    expect(page.locator('[data-option="pin_output_ancestors"]')).not_to_be_checked(timeout=PATIENCE)
    expect(alert).to_contain_text("RuntimeError: no room for ancestors")

    page.locator('[data-option="arena_no_reuse"]').click()
    expect(root).to_have_attribute("data-rev", "2", timeout=PATIENCE)
    expect(summary).to_contain_text(f"arena {before.meta['headline']['arena']:,} B")
    expect(alert).to_be_hidden()

    # Keys belong to the explorer while it has the focus: in the notebook j would move to another cell.
    root.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("Escape")
    expect(root).to_have_attribute("data-selected", "-1")
    page.keyboard.press("j")
    expect(root).to_have_attribute("data-selected", "0")

    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    expect(root).to_have_attribute("data-theme", "dark")


def test_keys_pressed_in_the_explorer_leave_the_notebook_alone(lab_page: Page) -> None:
    """In a notebook's command mode x cuts a cell, a and b insert one, Shift+M merges, z brings one back."""
    page, root = lab_page, lab_page.locator(".rlx-viz")
    cells = page.locator(".jp-Notebook .jp-Cell")
    expect(cells).to_have_count(1)
    text = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.text_content()
    places = (".rlx-view-gantt canvas.rlx-over", "[role=separator]", ".rlx-tabs button", ".rlx-panel summary", ".rlx-bar select")
    for place in places:
        for key in ("a", "x", "z", "Shift+M", "y", "m", "m", "c", "v", "v", "d", "d", "i", "s", "Delete", "Enter", "0", "0", "ArrowUp"):
            element = root.locator(place).first
            element.focus()
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        expect(cells).to_have_count(1)
        assert page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.text_content() == text
    for text_place in (".rlx-view-gantt .rlx-note", ".rlx-summary", ".rlx-panel h2"):
        root.locator(text_place).last.click()
        for key in ("x", "a", "Shift+M"):
            page.keyboard.press(key)
        page.wait_for_timeout(200)
        expect(cells).to_have_count(1)
    root.locator(".rlx-view-gantt canvas.rlx-over").focus()
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    # What the page needs still works: Tab moves on, Ctrl+S saves the notebook.
    root.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("Tab")
    assert not root.locator(".rlx-view-gantt canvas.rlx-over").evaluate("canvas => canvas === document.activeElement")
    root.locator(".rlx-view-gantt canvas.rlx-over").focus()
    with page.expect_response(lambda answer: answer.request.method == "PUT" and "/api/contents/" in answer.url, timeout=PATIENCE):
        page.keyboard.press("Control+s")


@pytest.mark.parametrize("lab", [REAL_CELL], indirect=True, ids=["magika"])
def test_both_toggles_plan_a_real_model_again(lab_page: Page) -> None:
    import rlx_viz
    from rlx_viz.demo import magika_model

    page, summary = lab_page, lab_page.locator('[data-twin="summary"]')
    plain = rlx_viz.compile(magika_model())
    pinned, bare = plain.with_options(pin_output_ancestors=True), plain.with_options(arena_no_reuse=True)
    assert pinned.plan.arena_size > plain.plan.arena_size
    expect(summary).to_contain_text(f"arena {plain.plan.arena_size:,} B")
    for option, other in (("pin_output_ancestors", pinned), ("arena_no_reuse", bare)):
        page.locator(f'[data-option="{option}"]').click()
        expect(summary).to_contain_text(f"arena {other.plan.arena_size:,} B", timeout=PATIENCE)
        page.locator(f'[data-option="{option}"]').click()
        expect(summary).to_contain_text(f"arena {plain.plan.arena_size:,} B", timeout=PATIENCE)


@pytest.mark.parametrize("lab", [ZOO_CELL], indirect=True, ids=["minilm"])
def test_every_switch_shows_what_python_plans(lab_page: Page) -> None:
    """Each boolean option there and back; the page's numbers are those of the same change made in Python."""
    import rlx_viz
    from planner_core import zoo

    page, root, summary = lab_page, lab_page.locator(".rlx-viz"), lab_page.locator('[data-twin="summary"]')
    plain = rlx_viz.compile(zoo.build("minilm", layers=1, seq=8), target="metal")
    rev = 0
    for row in plain.option_rows():
        if row.info.type != "bool":
            continue
        control = page.locator(f'input[data-option="{row.info.name}"]')
        for wanted in (plain.with_options(**{row.info.name: not row.value}), plain):
            control.evaluate("box => box.click()")  # its group may be folded
            rev += 1
            expect(root).to_have_attribute("data-rev", str(rev), timeout=PATIENCE)
            expect(summary).to_contain_text(f"({wanted.allocate_bytes:,} B)")
            expect(summary).to_contain_text(f"arena {wanted.plan.arena_size:,} B")


@pytest.mark.parametrize("lab", [ZOO_CELL], indirect=True, ids=["minilm"])
def test_presets_undo_and_a_run_reach_the_kernel(lab_page: Page) -> None:
    import rlx_viz
    from planner_core import zoo
    from rlx_viz.whatif import waterfall

    page, root, summary = lab_page, lab_page.locator(".rlx-viz"), lab_page.locator('[data-twin="summary"]')
    plain = rlx_viz.compile(zoo.build("minilm", layers=1, seq=8), target="metal")
    written = plain.with_options(fusion=False)
    page.get_by_label("Preset").select_option("as written")
    expect(root).to_have_attribute("data-rev", "1", timeout=PATIENCE)
    expect(summary).to_contain_text(f"({written.allocate_bytes:,} B)")
    page.locator("[data-reset]").evaluate("button => button.click()")
    expect(root).to_have_attribute("data-rev", "2", timeout=PATIENCE)
    expect(summary).to_contain_text(f"({plain.allocate_bytes:,} B)")
    root.locator(".rlx-view-gantt canvas.rlx-over").focus()
    page.keyboard.press("u")
    expect(root).to_have_attribute("data-rev", "3", timeout=PATIENCE)
    expect(summary).to_contain_text(f"({written.allocate_bytes:,} B)")
    for view in ("commands", "waterfall"):
        page.locator(f'.rlx-tabs [data-open="{view}"]').evaluate("tab => tab.getAttribute('aria-pressed') === 'true' || tab.click()")
    root.locator("button", has_text="Sanitise").first.evaluate("button => button.click()")
    expect(root).to_have_attribute("data-rev", "4", timeout=PATIENCE)
    expect(root).to_contain_text("every command checked", timeout=PATIENCE)
    # What-ifs are worked out behind the picture and come by themselves.
    steps = waterfall(written)
    twin = page.locator('[data-twin="waterfall"]')
    for step in steps:
        expect(twin).to_contain_text(f"{step.label}  {step.nbytes}", timeout=PATIENCE)


def test_a_saved_notebook_shows_the_picture_without_kernel_or_network(page: Page, tmp_path: Path) -> None:
    from rlx_viz.explorer import Explorer

    doc = make_document(90)
    bundle = Explorer(lambda _: doc, doc)._repr_mimebundle_()
    assert bundle is not None
    output = nbformat.v4.new_output("display_data", data={"text/html": bundle[0]["text/html"]})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("explorer", outputs=[output])])
    html, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    path = tmp_path / "saved.html"
    path.write_text(html)
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(READY).wait_for()
    expect(frame.locator('[data-twin="summary"]')).to_contain_text(
        f"arena {doc.meta['headline']['arena']:,} B"
    )
