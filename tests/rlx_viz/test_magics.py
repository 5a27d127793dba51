"""The magics in a shell: what they show, what they leave in the notebook, and how they explain a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from planner_core.ir import Graph
from rlx_viz.explorer import Explorer


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "rlx_viz")
    yield made
    InteractiveShell.clear_instance()


def test_a_file_with_options(shell: InteractiveShell, mlp_file: Path) -> None:
    e = shell.run_line_magic("rlx", f"{mlp_file} --set arena_no_reuse=true --target metal --into e")
    assert isinstance(e, Explorer) and shell.user_ns["e"] is e
    assert e.compilation.plan.options.arena_no_reuse and e.document.meta["target"] == "metal"


def test_a_variable_and_a_comparison(shell: InteractiveShell, mlp: Graph, mlp_file: Path) -> None:
    shell.user_ns["net"] = mlp
    e = shell.run_line_magic("rlx", f"net --compare {mlp_file}")
    assert e.document.meta["model"]["nodes"] == 7 and e.comparison.to_frame().empty


def test_a_cell_builds_a_graph(shell: InteractiveShell) -> None:
    e = shell.run_cell_magic("rlx", "--set alignment=256", 'x = g.input("x", [4, 4])\ng.set_outputs(g.exp(x))')
    assert [n.op.name for n in e.compilation.source.nodes] == ["Input", "Activation"]
    assert e.compilation.plan.options.alignment == 256
    e = shell.run_cell_magic("rlx", "mine", 'mine = Graph("named")\nmine.set_outputs(mine.relu(mine.input("x", [2])))')
    assert e.document.meta["model"]["name"] == "named"


@pytest.mark.parametrize(("line", "cell", "wanted"), [
    ("", None, "wants a model"),
    ("nowhere.onnx", None, "nowhere.onnx"),
    ("MLP --set aligment=64", None, "did you mean 'alignment'"),
    ("MLP --set alignment", None, "wanted NAME=VALUE"),
    ("MLP --dim B=two", None, "wanted an integer"),
    ("MLP --what", None, "unrecognized arguments: --what; %rlx --help"),
    ("MLP 'open", None, "No closing quotation"),
    ("", "pass", "left the graph g empty"),
    ("", "g.input('x', [2])", "no outputs; end the cell with g.set_outputs"),
    ("", "g = 3", "g is a int after the cell"),
])
def test_mistakes_are_explained(shell: InteractiveShell, mlp_file: Path, line: str, cell: str | None, wanted: str) -> None:
    line = line.replace("MLP", str(mlp_file))
    with pytest.raises(UsageError) as error:
        shell.run_line_magic("rlx", line) if cell is None else shell.run_cell_magic("rlx", line, cell)
    assert wanted in str(error.value)


def test_an_error_in_the_cell_is_the_cells(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("rlx", "", "1 / 0")


def test_help(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_line_magic("rlx", "--help") is None
    out = capsys.readouterr().out
    assert "--set OPTION=VALUE" in out and "%%rlx" in out
