"""Owns ``sweep``: a model at every combination of sizes, as a table, CSV, JSON or a figure."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from planner_core.units import bytes_text
from rlx_viz.cli.arguments import Sets, TargetOption, UsageError, pairs, write
from rlx_viz.outputs import SWEEP
from rlx_viz.sources import source_of
from rlx_viz.sweeps import Sweep, sweep_source

__all__ = ["sweep", "sweep_text"]

PICTURES = (".png", ".svg", ".pdf")


def sweep(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, a graph saved as JSON, or a name of the zoo.")],
    dim: Annotated[list[str], typer.Option("--dim", metavar="NAME=INT,INT,…", help="Sizes of a symbolic dim (of a zoo model: "
                                           "values of a parameter); repeat.")],
    sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0: as many as are worth it.")] = 0,
    as_csv: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write one row a combination; - is standard output.")] = "",
    as_json: Annotated[str, typer.Option("--json", metavar="FILE", help="Write them as JSON; - is standard output.")] = "",
    figure: Annotated[str, typer.Option("--figure", metavar="FILE", help=f"Draw it: {', '.join(PICTURES)}.")] = "",
) -> None:
    """Plan a model at every combination of sizes. A size that can't be planned is a row with its error.

    Exit codes: 0 planned, at least one; 1 an error; 2 a wrong command line.
    """
    if as_csv == as_json == "-":
        raise UsageError("--csv - and --json - would mix on standard output; give one of them a file")
    if figure and Path(figure).suffix.lower() not in PICTURES:
        raise UsageError(f"--figure {figure}: wanted a name that ends in {', '.join(PICTURES)}")
    values = {k: [_value(x) for x in v.split(",")] for k, v in pairs(dim, "--dim", "seq=128,512").items()}
    options = pairs(sets, "--set", "arena_no_reuse=true")
    if jobs:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = _swept(model, values, options, target, pool)
    else:
        found = _swept(model, values, options, target, None)
    if as_csv:
        write(as_csv, found.to_frame().to_csv(index=False, lineterminator="\n"))
    if as_json:
        frame = found.to_frame()
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        write(as_json, json.dumps(SWEEP.document({"model": found.name, "target": found.target, "rows": rows}), indent=1, default=int) + "\n")
    if figure:
        found.figure().savefig(figure, dpi=150)
    if "-" not in (as_csv, as_json):
        typer.echo(sweep_text(found))


def _swept(model: str, values: dict[str, list[Any]], options: dict[str, str], target: str, pool: Any) -> Sweep:
    return sweep_source(source_of(model, values), values, options, target, pool, None)


def _value(text: str) -> int | str:
    text = text.strip()
    return int(text) if text.lstrip("-").isdecimal() else text


def sweep_text(found: Sweep) -> str:
    """A row a cell, aligned; sizes are what was asked for, bytes as people read them."""
    head = [*found.names, "to allocate", "weights", "arena", "scratch", "lower bound", "dispatches", "seconds"]
    rows = []
    for c in found.cells:
        sizes = [str(dict(c.binding).get(n, "")) for n in found.names]
        if c.error:
            rows.append([*sizes, f"error: {' '.join(c.error.split())}"])
            continue
        numbers = (c.allocate_bytes, c.weights_bytes, c.arena_bytes, c.scratch_bytes)
        bound = "reached" if c.optimal else bytes_text(c.lower_bound_bytes or 0)
        rows.append([*sizes, *(bytes_text(n or 0) for n in numbers), bound, str(c.dispatches), f"{c.compile_seconds or 0:.2f}"])
    whole = [head, *(r for r in rows if len(r) == len(head))]
    widths = [max(len(r[k]) for r in whole) for k in range(len(head))]
    for r in rows:
        for k in range(len(found.names)):
            widths[k] = max(widths[k], len(r[k]))
    lines = ["  ".join(text.rjust(w) for text, w in zip(r, widths[: len(r)], strict=True)) if len(r) == len(head)
             else "  ".join([*(text.rjust(w) for text, w in zip(r[:-1], widths, strict=False)), r[-1]]) for r in [head, *rows]]
    return "\n".join([f"{found.name} for {found.target}", *lines])
