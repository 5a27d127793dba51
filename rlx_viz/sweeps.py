"""Owns ``sweep``: a model compiled for every combination of sizes, a row each. The figure: ``figures/sweep.py``.

Cells are independent, so any ``concurrent.futures.Executor`` can plan them; a bad one is a row with its error.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner_core.errors import RlxError
from planner_core.zoo import SweepRow
from rlx_viz.sources import Source, source_of
from runtime.compile import Compilation, CompileOptions, compile_graph

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Cell", "Sweep", "plan_cell", "sweep", "sweep_source"]

WORTH_A_POOL = 1.0
"""Seconds of compiling still to do that make starting processes worth it."""

Binding = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of sizes. Bytes as in ``Compilation``: ``allocate_bytes`` is weights, arena and scratch.

    ``error`` is "" where it was planned; else the numbers are None.
    """

    binding: Binding
    allocate_bytes: int | None = None
    weights_bytes: int | None = None
    arena_bytes: int | None = None
    scratch_bytes: int | None = None
    lower_bound_bytes: int | None = None
    optimal: bool | None = None
    nodes: int | None = None
    dispatches: int | None = None
    compile_seconds: float | None = None
    error: str = ""

    @classmethod
    def of(cls, binding: Binding, c: Compilation, seconds: float) -> Cell:
        """The numbers of a compilation."""
        plan = c.plan
        return cls(binding, c.allocate_bytes, plan.weights_size, plan.arena_size,
                   c.allocate_bytes - plan.weights_size - plan.arena_size, plan.lower_bound, plan.arena_size == plan.lower_bound,
                   len(c.legal), c.commands.dispatches, seconds)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Cells in the order of the sizes, the last name varying fastest."""

    name: str
    target: str
    cells: tuple[Cell, ...]

    def __repr__(self) -> str:
        bad = sum(bool(c.error) for c in self.cells)
        return f"<Sweep {self.name!r} for {self.target}: {len(self.cells)} cells{f', {bad} failed' if bad else ''}; .to_frame(), .figure()>"

    @property
    def names(self) -> tuple[str, ...]:
        """What was swept; ``graph`` last where a combination gives several."""
        return tuple(dict.fromkeys(n for c in self.cells for n, _ in c.binding))

    def to_frame(self) -> pd.DataFrame:
        """One row a cell: the swept sizes, then every field of ``Cell``; numbers are missing where ``error`` says why."""
        import pandas as pd

        columns = {n: [dict(c.binding).get(n) for c in self.cells] for n in self.names}
        numbers = {f.name: [getattr(c, f.name) for c in self.cells] for f in fields(Cell) if f.name != "binding"}
        kinds = dict.fromkeys(numbers, "Int64") | {"compile_seconds": "float64", "optimal": "boolean", "error": "object"}
        return pd.DataFrame({**columns, **numbers}).astype(kinds)

    def figure(self, x: str = "") -> Figure:
        """Bytes to allocate, arena and bound over ``x`` ("": the name with the most numbers), a colour for each combination of
        the others. ``PlanError`` for a name that was not swept."""
        from rlx_viz.figures import sweep_figure

        good = [c for c in self.cells if not c.error]
        rows = [SweepRow(c.binding, c.arena_bytes or 0, c.lower_bound_bytes or 0, c.allocate_bytes or 0) for c in good]
        if not x and rows:
            x = max(self.names, key=lambda n: len({r[n] for r in rows if isinstance(r[n], int)}))
        return sweep_figure(rows, x, f"{self.name}, {self.target}")

    def _repr_html_(self) -> str:
        from rlx_viz.figures.embed import figure_html

        return figure_html(self.figure(), self.to_frame())


def sweep(model: Any, *, options: Mapping[str, Any] | None = None, target: str = "cpu", executor: Executor | None = None,
          progress: bool | None = None, **dims: Any) -> Sweep:
    """Compile a model for every combination of sizes: ``sweep("bert.onnx", seq=[128, 512], batch=[1, 8])``.

    ``model``: what ``rlx_viz.compile`` takes, a ``Template``, or a zoo name, whose parameters the dims are. A dim is a list of
    values or one value. ``options`` by name, as ``Compilation.with_options`` takes them. Numbers are those of
    ``rlx_viz.compile`` at the same sizes. ``executor``: plans the cells; without one they go to a process pool when that is
    worth its start. ``progress``: a bar on standard error (None: where that is a terminal).

    ``RlxError`` where no cell can be planned (the first one's error), or for a dim that the model doesn't have.
    """
    values = {k: list(v) if isinstance(v, Iterable) and not isinstance(v, (str, bytes)) else [v] for k, v in dims.items()}
    return sweep_source(source_of(model, values), values, options, target, executor, progress)


def sweep_source(source: Source, values: Mapping[str, Sequence[Any]], options: Mapping[str, Any] | None, target: str,
                 executor: Executor | None, progress: bool | None) -> Sweep:
    """``sweep`` of a source, whose names may be any text (a model's own ``target``, say)."""
    empty = [k for k, v in values.items() if not v]
    if empty or not values:
        raise RlxError(f"sweep: no values for {', '.join(empty) or 'any dim'}; wanted lists of sizes, e.g. seq=[128, 512]")
    bindings = [tuple(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    changes = dict(options or {})
    CompileOptions.for_target(target)  # checks the name before anything is planned
    shown = sys.stderr.isatty() if progress is None else progress
    with _bar(len(bindings), shown) as step:
        found = _run([(source, b, target, changes) for b in bindings], executor, step)
    cells = tuple(c for row in found for c in row)
    if all(c.error for c in cells):
        raise RlxError(f"{source.name}: no cell could be planned; the first, {_text(cells[0].binding)}: {cells[0].error}")
    return Sweep(source.name, target, cells)


Task = tuple[Source, Binding, str, Mapping[str, Any]]


def plan_cell(source: Source, binding: Binding, target: str, changes: Mapping[str, Any]) -> list[Cell]:
    """The cells of one combination (a training pair has two). A known error is the cell's; anything else is a fault."""
    try:
        graphs = source.graphs(dict(binding))
        out = []
        for graph in graphs:
            start = time.perf_counter()
            made = compile_graph(graph, CompileOptions.for_target(target, graph, **changes))
            which = (("graph", graph.name),) if len(graphs) > 1 else ()
            out.append(Cell.of((*binding, *which), made, time.perf_counter() - start))
        return out
    except (RlxError, MemoryError) as e:
        return [Cell(binding, error=str(e) or type(e).__name__)]


def _run(tasks: Sequence[Task], executor: Executor | None, step: Callable[[], None]) -> list[list[Cell]]:
    """Every task's cells, in order."""
    if executor is not None:
        return _spread(tasks, executor, step)
    out: list[list[Cell]] = []
    for i, task in enumerate(tasks):
        start = time.perf_counter()
        out.append(plan_cell(*task))
        step()
        left = len(tasks) - i - 1
        workers = min(left, os.cpu_count() or 1)
        if workers > 1 and left * (time.perf_counter() - start) > WORTH_A_POOL and may_start_processes():
            try:
                # processes of their own: a fork of one with threads may hang
                with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
                    return [*out, *_spread(tasks[i + 1:], pool, step)]
            except BrokenProcessPool:
                return [*out, *(plan_cell(*t) for t in tasks[i + 1:])]
    return out


def _spread(tasks: Sequence[Task], executor: Executor, step: Callable[[], None]) -> list[list[Cell]]:
    futures = {executor.submit(plan_cell, *task): i for i, task in enumerate(tasks)}
    found: dict[int, list[Cell]] = {}
    try:
        for f in as_completed(futures):
            found[futures[f]] = f.result()
            step()
    finally:
        for f in futures:
            f.cancel()
    return [found[i] for i in range(len(tasks))]


def may_start_processes() -> bool:
    """A process started from here would not run a script's top level again: it is a child's own, or guarded."""
    main = sys.modules.get("__main__")
    if multiprocessing.parent_process() is not None:
        return False
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return True  # a notebook or `python -m`
    try:
        return "__main__" in Path(file).read_text(errors="replace")
    except OSError:
        return False


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    if not shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="cell", file=sys.stderr, leave=False) as bar:
        def step() -> None:
            bar.update()

        yield step


def _text(binding: Binding) -> str:
    return ", ".join(f"{k}={v}" for k, v in binding)
