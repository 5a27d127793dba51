"""Owns the words of a command line: arguments that commands share, and a model compiled from them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import rlx_viz
from planner_core.errors import RlxError
from planner_core.ir import write_atomically
from planner_core.memory import Target

__all__ = ["OVER", "Dims", "Model", "Redact", "Sets", "Shapes", "TargetOption", "UsageError", "command_text", "load", "pairs", "write"]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, a graph saved as JSON, or a placement problem (.csv).")]
Dims = Annotated[list[str], typer.Option("--dim", metavar="NAME=INT", help="Bind a symbolic dim; repeat.")]
Shapes = Annotated[list[str], typer.Option("--shape", metavar="INPUT=1,3,48,192", help="Fix an input's shape; repeat.")]
Sets = Annotated[list[str], typer.Option("--set", metavar="OPTION=VALUE", help="Change an option; see `options`.")]
TargetOption = Annotated[str, typer.Option("--target", help=", ".join(t.value for t in Target))]
Redact = Annotated[bool, typer.Option("--redact", help="Replace names, paths and sources by stable tokens.")]


OVER = 3
"""Exit code where a limit that was asked for is passed: --fit, --fail-if-grows, a problem file's capacity. The result is
printed all the same."""


class UsageError(RlxError):
    """A command line that can't be understood."""


def pairs(items: list[str], flag: str, example: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for item in items:
        name, eq, value = item.rpartition("=")
        if not eq or not name or not value:
            raise UsageError(f"{flag} {item}: wanted NAME=VALUE, such as {flag} {example}")
        if name in out:
            raise UsageError(f"{flag} {name} is given twice: {out[name]} and {value}; keep one")
        out[name] = value
    return out


def _int(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag}: got {text!r}, wanted an integer, as in --dim batch=1 --shape x=1,3,48,192") from None


def load(model: str, dim: list[str], shape: list[str], sets: list[str], target: str) -> Any:
    dims = {k: _int(v, f"--dim {k}") for k, v in pairs(dim, "--dim", "batch=1").items()}
    shapes = {k: [_int(x, f"--shape {k}={v}") for x in v.split(",")]
              for k, v in pairs(shape, "--shape", "x=1,3,48,192").items()}
    options = pairs(sets, "--set", "arena_no_reuse=true")
    return rlx_viz.compile(model, dims=dims, shapes=shapes, target=target, **options)


def command_text(verb: str, model: str, dim: list[str], shape: list[str], sets: list[str], target: str) -> str:
    words = ["rlx-viz", verb, Path(model).name]
    words += [w for flag, items in (("--dim", dim), ("--shape", shape), ("--set", sets)) for i in items for w in (flag, i)]
    return shlex.join([*words, *(["--target", target] if target != "cpu" else [])])


def write(target: str, text: str) -> None:
    if target == "-":
        sys.stdout.write(text)
    else:
        write_atomically(target, text.encode())
