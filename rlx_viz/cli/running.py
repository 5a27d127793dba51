"""Owns ``run``: a model on its planned arena, from arrays to arrays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from planner_core.ir import write_atomically
from rlx_viz.cli.arguments import Dims, Model, Sets, Shapes, TargetOption, UsageError, load
from rlx_viz.inputs import random_inputs

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
    import io

    import numpy as np

    compilation = load(model, dim, shape, sets, target)
    arrays = _read_npz(inputs) if inputs else random_inputs(compilation.legal, seed)
    start = time.perf_counter()
    results = compilation.run(arrays, sanitize=sanitize)
    seconds = time.perf_counter() - start
    buffer = io.BytesIO()
    np.savez(buffer, **results)
    write_atomically(out, buffer.getvalue())
    for name, value in results.items():
        typer.echo(f"  {name}: {value.dtype}{list(value.shape)}")
    typer.echo(f"ran in {seconds * 1e3:.1f} ms{', sanitised: clean' if sanitize else ''}; outputs: {Path(out).resolve()}")


def _read_npz(path: str) -> dict[str, Any]:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as data:
            if not hasattr(data, "files"):
                raise UsageError(f"--inputs {path}: a single array; wanted an .npz with one array an input "
                                 "(numpy.savez(path, name=array))")
            return {k: data[k] for k in data.files}
    except (OSError, ValueError, zipfile.BadZipFile) as e:
        what = e.strerror if isinstance(e, OSError) and e.strerror else "not an .npz file"
        raise UsageError(f"--inputs {path}: {what}; wanted an .npz (numpy.savez(path, name=array))") from e
