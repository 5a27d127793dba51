"""Owns ``run``: a model on its planned arena, from arrays to arrays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rlx_viz.cli.arguments import Dims, Model, Sets, Shapes, TargetOption, load
from rlx_viz.inputs import random_inputs, read_arrays, write_arrays

__all__ = ["run"]


def run(
    model: Model,
    out: Annotated[str, typer.Option("--out", metavar="FILE.npz", help="Where to write the outputs.")],
    inputs: Annotated[str, typer.Option("--inputs", metavar="FILE.npz", help="Input arrays by name; random without.")] = "",
    sanitize: Annotated[bool, typer.Option("--sanitize", help="Poison free bytes and check every command.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of random inputs.")] = 0,
    dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
) -> None:
    """Run a model on its planned arena and save the outputs."""
    compilation = load(model, dim, shape, sets, target)
    arrays = read_arrays(inputs, compilation.legal) if inputs else random_inputs(compilation.legal, seed)
    start = time.perf_counter()
    results = compilation.run(arrays, sanitize=sanitize)
    seconds = time.perf_counter() - start
    saved = write_arrays(out, results)
    for name, value in results.items():
        note = "" if saved[name] == value.dtype else f", saved as {saved[name]} (every value is exact in it)"
        typer.echo(f"  {name}: {value.dtype}{list(value.shape)}{note}")
    typer.echo(f"ran in {seconds * 1e3:.1f} ms{', sanitised: clean' if sanitize else ''}; outputs: {Path(out).resolve()}")
