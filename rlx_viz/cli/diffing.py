"""Owns ``diff``: two models, or two saved summaries, for a person or for CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlx_viz.cli.arguments import OVER, Dims, Sets, Shapes, TargetOption, UsageError, load, write
from rlx_viz.growth import NUMBERS, growth, limit_of, read_summary

__all__ = ["diff"]

_SIDE = "An ONNX file, a graph saved as JSON, or a summary that `plan --json` wrote."


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=f"Before: {_SIDE}")],
    b: Annotated[str, typer.Argument(metavar="B", help=f"After: {_SIDE}")],
    fail: Annotated[str, typer.Option("--fail-if-grows", metavar="5%|BYTES", help="Exit with 3 where it grew by more.")] = "",
    number: Annotated[str, typer.Option("--of", metavar="NUMBER", help=f"What that is about: {', '.join(NUMBERS)}.")] = "allocate",
    as_markdown: Annotated[str, typer.Option("--markdown", metavar="FILE", help=(
        "Write a summary as Markdown; - is standard output."))] = "",
    as_json: Annotated[str, typer.Option("--json", metavar="FILE", help="Write it as JSON; - is standard output.")] = "",
    dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
) -> None:
    """Compare two plans: headline numbers before and after, and the tensors that grew. Dims, shapes, options and target hold for
    both models.

    Exit codes: 0 compared; 1 an error; 2 a wrong command line; 3 it grew by more than --fail-if-grows allows, and is printed.
    """
    if as_markdown == as_json == "-":
        raise UsageError("--markdown - and --json - would mix on standard output; give one of them a file")
    limit = limit_of(fail) if fail else None
    if number not in NUMBERS:
        raise UsageError(f"--of {number}: wanted one of {', '.join(NUMBERS)}")
    sides: list[Any] = [read_summary(p) or load(p, dim, shape, sets, target) for p in (a, b)]
    first, second = Path(a).name, Path(b).name
    names = (first, second) if first != second else (str(a), str(b))
    found = growth(*sides, names=names, number=number, limit=limit)
    if as_markdown:
        write(as_markdown, found.to_markdown())
    if as_json:
        write(as_json, json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n")
    if "-" not in (as_markdown, as_json):
        typer.echo(found.to_text())
    if found.fails:
        raise typer.Exit(OVER)
