"""``rlx_viz.sweep``: the numbers of ``compile`` at each size, in any executor, a bad cell as a row."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest

import rlx_viz
from planner_core import zoo
from planner_core.errors import GraphError, OptionError, RlxError
from planner_core.ir import Graph
from rlx_viz import sweeps
from tests.symbolic_models import table_slice, transformer

COLUMNS = ["allocate_bytes", "weights_bytes", "arena_bytes", "scratch_bytes", "lower_bound_bytes", "optimal", "nodes", "dispatches",
           "compile_seconds", "error"]


@pytest.fixture
def lm(tmp_path: Path) -> Path:
    onnx.save(transformer(), tmp_path / "lm.onnx")
    return tmp_path / "lm.onnx"


def same(cell: sweeps.Cell, c: Any) -> None:
    assert cell.error == ""
    assert (cell.allocate_bytes, cell.weights_bytes, cell.arena_bytes, cell.lower_bound_bytes, cell.dispatches, cell.nodes) == (
        c.allocate_bytes, c.plan.weights_size, c.plan.arena_size, c.plan.lower_bound, c.commands.dispatches, len(c.legal))
    assert cell.allocate_bytes == cell.weights_bytes + cell.arena_bytes + cell.scratch_bytes
    assert cell.optimal == (c.plan.arena_size == c.plan.lower_bound)


@pytest.mark.parametrize("kind", ["path", "text", "proto", "template", "imported"])
def test_cells_are_what_compile_says(lm: Path, kind: str) -> None:
    proto = table_slice() if kind == "imported" else transformer()
    model = {"path": lm, "text": str(lm), "proto": proto}.get(kind) or rlx_viz.compile(proto, keep=["batch", "seq"])
    got = rlx_viz.sweep(model, seq=[4, 12], batch=[1, 3])
    assert [c.binding for c in got.cells] == [(("seq", s), ("batch", b)) for s in (4, 12) for b in (1, 3)]
    for c in got.cells:
        same(c, rlx_viz.compile(proto, dims=dict(c.binding)))


ZOO = [("minilm", {"layers": 1, "seq": 16}), ("resnet50", {}), ("hifigan", {"frames": 8}), ("llama-decode", {"layers": 1, "past": 7}),
       ("bert-base", {"layers": 2, "seq": 32})]


@pytest.mark.parametrize("target", ["cpu", "metal", "cuda"])
@pytest.mark.parametrize(("name", "sizes"), ZOO, ids=[n for n, _ in ZOO])
def test_the_zoo_says_the_same_everywhere(name: str, sizes: dict[str, int], target: str) -> None:
    """zoo.sweep = rlx_viz.sweep = compile(zoo.build)."""
    (param, value), *rest = sizes.items() or [("batch", 1)]
    row, = zoo.sweep(name, target=target, **{param: [value]}, **dict(rest))
    cell, = rlx_viz.sweep(name, target=target, **{param: [value]}, **dict(rest)).cells
    c = rlx_viz.compile(zoo.build(name, **sizes), target=target)
    same(cell, c)
    assert (row.arena, row.bound, row.allocate) == (c.plan.arena_size, c.plan.lower_bound, c.plan.arena_size + c.plan.weights_size)


def test_frame(lm: Path) -> None:
    frame = rlx_viz.sweep(lm, seq=[4, 8], batch=2).to_frame()
    assert list(frame.columns) == ["seq", "batch", *COLUMNS]
    kinds = {c: str(frame[c].dtype) for c in frame.columns}
    assert {kinds[c] for c in COLUMNS if c.endswith("_bytes") or c in ("nodes", "dispatches")} == {"Int64"}
    assert (kinds["seq"], kinds["compile_seconds"], kinds["optimal"]) == ("int64", "float64", "boolean")
    assert frame["compile_seconds"].gt(0).all() and frame["error"].eq("").all()


def test_a_bad_cell_is_a_row(lm: Path) -> None:
    got = rlx_viz.sweep(lm, seq=[4, -1, 8, "long"], batch=1)
    assert [bool(c.error) for c in got.cells] == [False, True, False, True]
    assert "dim 'seq' is given as -1; wanted an int of 0 or more" in got.cells[1].error
    frame = got.to_frame()
    assert frame["arena_bytes"].isna().tolist() == [False, True, False, True]
    assert frame["error"][3].startswith("dim 'seq' is given as 'long'")
    assert "4 cells, 2 failed" in repr(got)
    assert list(got.figure().axes[0].get_lines()[0].get_xdata()) == [4, 8]


def test_nothing_that_can_be_planned_is_an_error(lm: Path) -> None:
    with pytest.raises(RlxError, match=r"lm.onnx: no cell could be planned; the first, tokens=4: .*dims names 'tokens', which no"):
        rlx_viz.sweep(lm, tokens=[4, 8])
    with pytest.raises(GraphError, match=r"'lm\.onnx': no open dim tokens; it has batch, seq open"):
        rlx_viz.sweep(rlx_viz.compile(lm, keep=["batch", "seq"]), tokens=[4])
    with pytest.raises(GraphError, match="no values for batch"):
        rlx_viz.sweep(rlx_viz.compile(lm, keep=["batch", "seq"]), seq=[4])
    with pytest.raises(RlxError, match="no values for seq"):
        rlx_viz.sweep(lm, seq=[])
    with pytest.raises(RlxError, match="no values for any dim"):
        rlx_viz.sweep(lm)
    with pytest.raises(OptionError):
        rlx_viz.sweep(lm, seq=4, target="toaster")
    with pytest.raises(RlxError, match="can't sweep a int"):
        rlx_viz.sweep(3, seq=4)
    with pytest.raises(RlxError, match="a Compilation has its dims bound"):
        rlx_viz.sweep(rlx_viz.compile(lm, dims={"batch": 1, "seq": 4}), seq=4)


def test_options_and_target(lm: Path) -> None:
    got = rlx_viz.sweep(lm, seq=8, batch=1, target="metal", options={"fusion": False, "alignment": 256})
    want = rlx_viz.compile(lm, dims={"seq": 8, "batch": 1}, target="metal", fusion=False, alignment=256)
    same(got.cells[0], want)
    with pytest.raises(RlxError, match="no option 'fuse'"):
        rlx_viz.sweep(lm, seq=8, batch=1, options={"fuse": False})


# --- executors -----------------------------------------------------------------------------------------------


class Recording(Executor):
    """Runs at once, in the order of submission, and says what came."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append((fn, args))
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_any_executor(lm: Path) -> None:
    recording = Recording()
    got = rlx_viz.sweep(lm, seq=[4, 8, 12], batch=1, executor=recording)
    assert [args[1] for _, args in recording.calls] == [c.binding for c in got.cells]
    with ThreadPoolExecutor(2) as pool:
        threads = rlx_viz.sweep(lm, seq=[4, 8, 12], batch=1, executor=pool)
    assert [c.allocate_bytes for c in threads.cells] == [c.allocate_bytes for c in got.cells]


def test_processes(lm: Path) -> None:
    """Every source travels; order stays."""
    g = Graph("g")
    g.set_outputs(g.relu(g.mm(g.input("x", ("B", 8)), g.param("w", (8, 16)))))
    template = rlx_viz.compile(table_slice(), keep=["batch", "seq"])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for model, dims in ((lm, {"seq": [4, 8], "batch": 1}), (g, {"B": [1, 2]}), (template, {"seq": [3, 5], "batch": 1}),
                            ("minilm", {"layers": 1, "seq": [4, 8]})):
            there, here = rlx_viz.sweep(model, executor=pool, **dims), rlx_viz.sweep(model, **dims)
            assert [c.allocate_bytes for c in there.cells] == [c.allocate_bytes for c in here.cells]


def test_a_pool_is_made_when_it_is_worth_it(lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Pool(Recording):
        def __init__(self, workers: int, **_: Any) -> None:
            super().__init__()
            made.append((workers, self))

    monkeypatch.setattr(sweeps, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(sweeps.os, "cpu_count", lambda: 8)
    rlx_viz.sweep(lm, seq=[4, 8, 12], batch=1)
    assert made == []  # milliseconds each
    monkeypatch.setattr(sweeps, "WORTH_A_POOL", 0.0)
    got = rlx_viz.sweep(lm, seq=[4, 8, 12], batch=1)
    assert [(n, len(pool.calls)) for n, pool in made] == [(2, 2)]  # the first cell told what the others cost
    assert [c.binding[0] for c in got.cells] == [("seq", 4), ("seq", 8), ("seq", 12)]
    monkeypatch.setattr(sweeps, "may_start_processes", lambda: False)
    rlx_viz.sweep(lm, seq=[4, 8, 12], batch=1)
    assert len(made) == 1


def test_a_script_without_a_guard_starts_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Main:
        __spec__ = None
        __file__ = str(tmp_path / "script.py")

    monkeypatch.setitem(sys.modules, "__main__", Main)  # type: ignore[arg-type]
    Path(Main.__file__).write_text("import rlx_viz\n")
    assert not sweeps.may_start_processes()
    Path(Main.__file__).write_text('if __name__ == "__main__":\n    main()\n')
    assert sweeps.may_start_processes()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert not sweeps.may_start_processes()


# --- pictures ------------------------------------------------------------------------------------------------


def test_figure_and_html(lm: Path) -> None:
    got = rlx_viz.sweep(lm, batch=[1, 2], seq=[4, 8, 12])
    axes = got.figure().axes[0]
    assert (axes.get_xlabel(), axes.get_title()) == ("seq", "lm.onnx, cpu")  # three lengths, two batches
    assert list(axes.get_xticks()) == [4, 8, 12]
    assert got.figure("batch").axes[0].get_xlabel() == "batch"
    html = got._repr_html_()
    assert html.startswith('<img alt="lm.onnx, cpu" src="data:image/png;base64,') and html.count("<tr") == 7


def test_progress_is_for_terminals(lm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rlx_viz.sweep(lm, seq=[4, 8], batch=1)
    assert capsys.readouterr() == ("", "")
    rlx_viz.sweep(lm, seq=[4, 8], batch=1, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "/2" in err and "cell" in err
