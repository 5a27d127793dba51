"""What a person meets first: names behind ``rlx_viz.<TAB>``, types for a client, what an import costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import planner_core
import rlx_viz
import runtime

ROOT = Path(__file__).parents[2]


def test_tab_shows_what_is_meant_to_be_used() -> None:
    assert sorted(rlx_viz.__all__) == dir(rlx_viz)
    for name in rlx_viz.__all__:
        assert getattr(rlx_viz, name) is not None and not isinstance(getattr(rlx_viz, name), ModuleType), name


def test_no_module_hides_behind_a_function_of_its_name() -> None:
    assert {m.name for m in pkgutil.iter_modules(rlx_viz.__path__)} & set(rlx_viz.__all__) == set()


def test_a_missing_name_says_what_there_is() -> None:
    done = subprocess.run([sys.executable, "-c", "import rlx_viz; rlx_viz.explor"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "has no attribute 'explor'" in done.stderr


def test_an_import_loads_nothing_heavy() -> None:
    """pandas, Matplotlib, SciPy and onnx are loaded by what uses them."""
    code = ("import sys, rlx_viz; print(sorted({m.partition('.')[0] for m in sys.modules}"
            " & {'pandas', 'matplotlib', 'scipy', 'onnx', 'ipywidgets', 'numpy'}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
    code = ("import sys, rlx_viz; from planner_core.ir import Graph; g = Graph('g'); g.set_outputs(g.exp(g.input('x', (2,))));"
            "rlx_viz.compile(g); print('scipy' in sys.modules, 'pandas' in sys.modules, 'onnx' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False False False"


def test_all_three_packages_are_typed() -> None:
    for package in (planner_core, runtime, rlx_viz):
        assert package.__file__ and Path(package.__file__).with_name("py.typed").is_file()
    assert importlib.import_module("rlx_viz.reports").__name__ == "rlx_viz.reports"


@pytest.mark.slow
def test_a_clients_mypy_sees_types(tmp_path: Path) -> None:
    """Skipped where mypy isn't installed: it is a development extra."""
    pytest.importorskip("mypy")
    client = tmp_path / "client.py"
    client.write_text("import rlx_viz\nreveal_type(rlx_viz.compile('m.onnx'))\nreveal_type(rlx_viz.snapshot)\nrlx_viz.compile(1, dims=3)\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-incremental", str(client)], capture_output=True, text=True, check=False,
                          cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""})
    assert 'Revealed type is "runtime.compile.Compilation"' in done.stdout, done.stdout + done.stderr
    assert "No overload variant" in done.stdout or "incompatible type" in done.stdout


def test_the_version_is_printed(rlx: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = rlx("--version")
    assert (code, out) == (0, f"rlx-viz {rlx_viz.__version__}\n")
