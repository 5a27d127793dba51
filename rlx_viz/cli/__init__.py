"""Owns the command line: ``rlx-viz plan | compare | diff | sweep | decisions | report | run | options | demo``, a module a
family of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from planner_core.errors import RlxError
from rlx_viz.cli import comparing, diffing, planning, reporting, running, sweeping
from rlx_viz.cli.text import decisions_text, summary_text
from rlx_viz.version import VERSION

__all__ = ["decisions_text", "main", "summary_text"]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="See where a model's memory goes, and prove what an option saves.")


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rlx-viz {VERSION}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True,
                                          callback=_tell_version)] = False,
) -> None:
    """See where a model's memory goes, and prove what an option saves."""


for command in (planning.plan, comparing.compare, diffing.diff, sweeping.sweep, planning.decisions, reporting.report, running.run,
                planning.options, planning.schema, reporting.demo):
    app.command()(command)


def main() -> None:
    """Run the command line; a known error is one line on standard error and exit code 1. `plan` and `diff` tell their others."""
    try:
        code = app(standalone_mode=False)
        if isinstance(code, int) and code:  # what a command's typer.Exit comes to
            sys.exit(code)
    except RlxError as e:
        sys.stderr.write(f"error: {e}\n")
        sys.exit(1)
    except MemoryError as e:
        sys.stderr.write(f"error: not enough memory: {e}; `rlx-viz plan` shows what the model needs\n")
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as e:
        sys.stderr.write(f"error: {e.filename or ''}: {e.strerror or e}\n")
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except Exception as e:
        if hasattr(e, "show"):  # click's usage errors print themselves
            e.show()
            sys.exit(2)
        raise
