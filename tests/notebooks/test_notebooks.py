"""The notebooks run from top to bottom, and each pair says the same."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
PAIRS = sorted(FOLDER.glob("*.py"))


def test_there_are_notebooks() -> None:
    assert PAIRS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("script", PAIRS, ids=lambda p: p.stem)
def test_runs(script: Path) -> None:
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs), "no explorer shown"


@pytest.mark.parametrize("script", PAIRS, ids=lambda p: p.stem)
def test_pair_is_in_step(script: Path) -> None:
    import jupytext

    def cells(path: Path) -> list[tuple[str, str]]:
        return [(c.cell_type, c.source) for c in jupytext.read(path).cells]

    assert cells(script) == cells(script.with_suffix(".ipynb")), f"run: jupytext --sync notebooks/{script.name}"
