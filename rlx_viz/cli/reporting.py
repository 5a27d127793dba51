"""Owns ``report`` and ``demo``: one HTML file that opens anywhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import rlx_viz
from planner_core.units import bytes_text
from rlx_viz.cli.arguments import Dims, Model, Redact, Sets, Shapes, TargetOption, UsageError, command_text, load, pairs
from rlx_viz.cli.text import summary_text

__all__ = ["demo", "report"]


def report(
    model: Model,
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE.html", help="Where to write the report.")] = "rlx-report.html",
    dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu", redact: Redact = False,  # noqa: B006
    other: Annotated[str, typer.Option("--compare", metavar="FILE", help=(
        "Show a second model beside it, or another tool's offsets: a .csv with id or name, offset, size[, lower, upper]."))] = "",
    whatif: Annotated[bool | None, typer.Option("--whatif/--no-whatif", help=(
        "Work out what each option saved and would save (without the flag: as far as the model's size makes that quick)."))] = None,
) -> None:
    """Write one HTML file that opens anywhere, without Python or network."""
    from rlx_viz.reports import write_report
    from rlx_viz.snapshots import snapshot
    from rlx_viz.whatif import with_whatif

    if out == "-":
        raise UsageError("a report is a page with its data: give --out a file name")
    if model.lower().endswith(".csv"):
        from rlx_viz.problems import problem_document

        doc, summary = problem_document(model, pairs(sets, "--set", "placement=exact"))
        path = write_report(doc, out, title=doc.meta["model"]["name"])
        typer.echo(summary)
        typer.echo(f"report: {path.resolve()} ({bytes_text(path.stat().st_size)})")
        return
    compilation = load(model, dim, shape, sets, target)
    doc = snapshot(
        compilation, name=Path(model).name, command=command_text("report", model, dim, shape, sets, target), redact=redact)
    doc = with_whatif(doc, compilation, whatif)
    found = rlx_viz.compare(compilation, other, redact=redact, name=Path(model).name) if other else None
    path = write_report(doc, out, title=doc.meta["model"]["name"], other=found.document() if found else None)
    typer.echo(summary_text(doc))
    if found:
        typer.echo("\n".join([f"  compared: {found.verdict}", *(f"  note: {n}" for n in found.notes)]))
    typer.echo(f"report: {path.resolve()} ({bytes_text(path.stat().st_size)})")


def demo(
    out: Annotated[str, typer.Option("-o", "--out", help="Where to write the report.")] = "rlx-report.html",
) -> None:
    """The main job on a real model: magika's file-type network, planned, run and reported."""
    from rlx_viz.demo import magika_model
    from rlx_viz.reports import write_report
    from rlx_viz.snapshots import snapshot

    start = time.perf_counter()
    model = magika_model()
    compilation = rlx_viz.compile(model)
    seconds = time.perf_counter() - start
    doc = snapshot(compilation, name=f"magika {model.parent.name}", command="rlx-viz demo")
    path = write_report(doc, out, title=doc.meta["model"]["name"])
    typer.echo(summary_text(doc))
    typer.echo(f"  imported, planned and lowered in {seconds:.2f} s")
    import numpy as np

    page = np.frombuffer(b"# A page of text\n\nNothing special: words, and a list.\n\n- one\n- two\n" * 40, np.uint8)
    block = np.concatenate([page[:1024], page[-1024:]]).astype(np.int32)[None]
    start = time.perf_counter()
    (scores,) = compilation.run({"bytes": block}, sanitize=True).values()
    typer.echo(f"  ran on the planned arena, free bytes poisoned, in {(time.perf_counter() - start) * 1e3:.0f} ms: "
               f"label {int(scores[0].argmax())} at {float(scores.max()):.2f}")
    typer.echo(f"report: {path.resolve()} ({bytes_text(path.stat().st_size)}) - open it in any browser, no network needed")
