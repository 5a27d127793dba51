"""Graphs that the tests of pictures and the command line share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner_core.ir import Graph, save_graph
from rlx_viz import cli


@pytest.fixture
def mlp() -> Graph:
    """A layer, two views and a residual, with nothing that a rule would fuse: every kind of tensor but an opaque one."""
    rng = np.random.default_rng(0)
    g = Graph("mlp")
    x = g.input("x", [4, 16])
    w = g.param("w", [16, 16], data=rng.standard_normal((16, 16)).astype(np.float32))
    h = g.mm(g.relu(x), w, name="hidden")
    flat = g.reshape(h, dims=(64,), name="flat")
    y = g.sub(flat, g.reshape(x, dims=(64,)), name="y")
    return g.set_outputs(y)


@pytest.fixture
def mlp_file(mlp: Graph, tmp_path: Path) -> Path:
    path = tmp_path / "mlp.json"
    save_graph(mlp, path)
    return path


@pytest.fixture
def rlx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line as a function of its arguments: exit code, standard output, standard error."""
    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlx-viz", *map(str, args)])
        code = 0
        try:
            cli.main()
        except SystemExit as e:
            code = int(e.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err

    return call
