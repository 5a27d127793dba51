"""Owns ``compare``: the verdict of two plans, the table of changes, and an exit code for CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import rlx_viz
from rlx_viz.cli.arguments import Dims, Redact, Sets, Shapes, TargetOption, load, pairs, write
from rlx_viz.outputs import COMPARE
from rlx_viz.verdict import Smaller

__all__ = ["compare", "comparison_dict", "comparison_text"]

OTHER_SMALLER = 3
"""Exit code of ``compare`` where the second plan is the smaller one."""
ROWS = 20


def compare(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, or a graph saved as JSON.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help=(
        "A second model, or another tool's offsets: a .csv with id or name, offset, size[, lower, upper]. "
        "Without it, the same model under --other-set."))] = "",
    dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu", redact: Redact = False,  # noqa: B006
    other_set: Annotated[list[str], typer.Option("--other-set", metavar="OPTION=VALUE", help=(
        "An option of the second plan, over the first's; repeat. In the place of OTHER."))] = [],  # noqa: B006
    top: Annotated[int, typer.Option("--top", min=0, help="How many changes to list.")] = ROWS,
    as_json: Annotated[str, typer.Option("--json", metavar="FILE", help="Write verdict and changes as JSON; - is standard output.")] = "",
) -> None:
    """Compare two plans: one sentence says which is smaller, by how much, on which buffers, and how far each is from the bound.

    Exit codes: 0 the first is not larger, or both are the same; 1 an error, also where the other tool's plan is not valid
    (two buffers share bytes at a step); 2 a wrong command line; 3 the second is smaller.
    """
    if bool(other) == bool(other_set):
        raise typer.BadParameter("wanted OTHER (a model, or another tool's .csv) or --other-set OPTION=VALUE, one of them")
    if model.lower().endswith(".csv"):
        raise typer.BadParameter(f"{model}: a placement problem has no tensors to match; wanted a model, and the .csv as OTHER")
    compilation = load(model, dim, shape, sets, target)
    second: Any = pairs(other_set, "--other-set", "alignment=256") if other_set else other
    found = rlx_viz.compare(compilation, second, redact=redact, name="" if redact else Path(model).name)
    if as_json:
        write(as_json, json.dumps(comparison_dict(found), indent=1, ensure_ascii=False) + "\n")
    if as_json != "-":
        typer.echo(comparison_text(found, top))
    if found.verdict.smaller is Smaller.B:
        raise typer.Exit(OTHER_SMALLER)


def comparison_dict(found: rlx_viz.Comparison) -> dict[str, Any]:
    """Verdict, headline (bytes of A, of B, B - A), options that differ and changed tensors, as plain values."""
    frame = found.to_frame()
    return COMPARE.document({
        "verdict": found.verdict.to_dict() | {"notes": list(found.notes)},
        "headline": {k: {"a": a, "b": b, "difference": d} for k, (a, b, d) in found.headline.items()},
        "options": {k: {"a": a, "b": b} for k, (a, b) in found.options.items()},
        "changes": frame.astype(object).where(frame.notna(), None).to_dict("records"),
    })


def comparison_text(found: rlx_viz.Comparison, top: int = ROWS) -> str:
    """The verdict, its notes, then the largest changes a line each."""
    frame = found.to_frame()
    out = [str(found.verdict), *(f"  note: {n}" for n in found.notes)]
    size = frame[["size_a", "size_b"]].fillna(0).max(axis=1).tolist()
    delta = frame.size_delta.abs().tolist()
    order = sorted(range(len(frame)), key=lambda i: (-delta[i], -size[i]))
    for _, row in frame.iloc[order[:top]].iterrows():
        sides = [f"{what} {_side(row[a])} -> {_side(row[b])}" for what, a, b in (("bytes", "size_a", "size_b"), ("offset", "offset_a", "offset_b"))]
        out.append(f"  {row.change:<8}  {row['name'] or row.name_b}  {'  '.join(sides)}  {row.cause}")
    if len(frame) > top:
        out.append(f"  … {len(frame) - top:,} more; --top {len(frame)} lists all, --json FILE writes them")
    return "\n".join(out)


def _side(value: Any) -> str:
    import pandas as pd

    return "none" if pd.isna(value) else f"{int(value):,}"
