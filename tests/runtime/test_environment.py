"""Environment variables: one module reads them, one convention holds, every one is listed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import planner_core
import rlx_viz
import runtime
from planner_core.environment import VARIABLES, flag
from planner_core.errors import OptionError
from planner_core.ir import Graph, save_graph
from planner_core.ir.ops.region import binary_step
from runtime.compile import CompileOptions, compile_graph, environment_variables
from runtime.lowering import LowerOptions

ROOT = Path(__file__).parents[2]


def packed() -> Graph:
    """A static pack: a weight turned over before the run."""
    rng = np.random.default_rng(0)
    g = Graph("packed")
    x, w = g.input("x", (2, 3)), g.param("w", (4, 3), data=rng.standard_normal((4, 3)).astype(np.float32))
    return g.set_outputs(g.mm(x, g.relu(g.transpose(w, perm=(1, 0)))))


def test_one_module_reads_the_environment() -> None:
    found = [str(p) for m in (planner_core, runtime, rlx_viz) if m.__file__ for p in Path(m.__file__).parent.rglob("*.py")
             if re.search(r"os\\.environ|getenv", p.read_text(encoding="utf-8")) and p.name != "environment.py"]
    assert found == []


def test_every_variable_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(RLX_[A-Z0-9_]+)`", readme))
    rows = [f"| `{v.name}` | {v.kind} | {f'`{v.option}`' if v.option else ''} | {v.help} |" for v in environment_variables()]
    assert {v.name for v in environment_variables()} == set(VARIABLES) == listed
    assert "\n".join(rows) in readme


@pytest.mark.parametrize("variable", [v.name for v in environment_variables() if v.kind == "flag"])
def test_a_flag_is_on_off_unset_or_an_error(variable: str) -> None:
    assert [flag(variable, {variable: t}) for t in ("1", "TRUE", "yes", " on")] == [True] * 4
    assert [flag(variable, {variable: t}) for t in ("0", "False", "no", "off ")] == [False] * 4
    assert flag(variable, {}) is flag(variable, {variable: ""}) is None
    with pytest.raises(OptionError, match=f"environment variable {variable} is 'abc'; wanted one of 1, true"):
        flag(variable, {variable: "abc"})


def test_static_packs_are_an_option_of_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal cache key is an equal list: the variable changes the option, and with it the key."""
    g = packed()
    keys, dispatches = set(), []
    for text in ("1", "0"):
        monkeypatch.setenv("RLX_STATIC_WEIGHT_PACK", text)
        options = CompileOptions().changed(g, fusion=False).at_compile()
        c = compile_graph(g, options)
        keys.add(c.options.cache_key(g))
        dispatches.append(c.commands.dispatches)
        assert c.options.lower_used == LowerOptions(static_packs_once=text == "1")
        row = next(r for r in c.option_rows() if r.info.name == "static_packs_once")
        assert (row.stage, row.value) == ("lower", text == "1")
    assert len(keys) == 2
    assert dispatches[0] < dispatches[1]
    monkeypatch.delenv("RLX_STATIC_WEIGHT_PACK")
    off = compile_graph(g, options).with_options(static_packs_once=True)
    assert off.commands.dispatches == dispatches[0]


def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rlx_viz", *args], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **variables})


def test_standard_output_is_the_commands(tmp_path: Path) -> None:
    """``plan --set verbose=true --json -`` is JSON; what was asked for goes to standard error."""
    save_graph(decoding(), tmp_path / "g.json")
    for how in (("--set", "verbose=true"), ()):
        done = run("plan", str(tmp_path / "g.json"), "--target", "metal", *how, "--json", "-", **({} if how else {"RLX_VERBOSE": "yes"}))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["format"] == "rlx-viz-plan"
        assert "region_rewrite at 0: applied" in done.stderr


def test_a_wrong_variable_is_one_line(tmp_path: Path) -> None:
    save_graph(decoding(), tmp_path / "g.json")
    done = run("plan", str(tmp_path / "g.json"), "--target", "metal", RLX_VERBOSE="abc")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: environment variable RLX_VERBOSE is 'abc'")


def decoding() -> Graph:
    """A short region, which a command pass makes plain thunks."""
    g = Graph("decoding")
    return g.set_outputs(g.elementwise_region(g.input("x", (1, 8)), g.input("y", (1, 8)), steps=(binary_step("mul", 0, 1),)))
