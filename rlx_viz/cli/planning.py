"""Owns ``plan``, ``decisions`` and ``options``: numbers on a terminal, as JSON and as CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from planner_core.fusion import DEVICES
from planner_core.options import options_of
from planner_core.units import bytes_text
from rlx_viz.budget import BOARDS, budget_of
from rlx_viz.cli.arguments import (
    OVER,
    Dims,
    Model,
    Redact,
    Sets,
    Shapes,
    TargetOption,
    UsageError,
    command_text,
    load,
    pairs,
    write,
)
from rlx_viz.cli.fitting import fit_text
from rlx_viz.cli.text import decisions_text, summary_text
from rlx_viz.fit import Region, fit
from runtime.compile import GROUPS, CompileOptions, environment_variables
from runtime.precision import PrecisionPolicy

__all__ = ["decisions", "options", "plan", "schema"]


def plan(
    model: Model, dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
    as_json: Annotated[str, typer.Option("--json", metavar="FILE", help="Write the summary as JSON; - is standard output.")] = "",
    as_csv: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write one row a tensor; - is standard output.")] = "",
    redact: Redact = False,
    into: Annotated[str, typer.Option("--fit", metavar="SIZE|DEVICE", help=(
        f"Say whether it fits: 512KB (= 512,000 B), 512KiB (= 524,288 B), 1.5MiB, bytes, or {', '.join(BOARDS)}, "
        f"{', '.join(n for n, d in DEVICES.items() if d.memory_gb)}."))] = "",
    region: Annotated[str, typer.Option("--fit-region", help="total: weights + arena + scratch; arena: without weights.")] = "total",
) -> None:
    """Plan a model's memory and print the headline numbers; of a problem file (.csv of id,lower,upper,size), its arena.

    Exit codes: 0 planned; 1 an error, also where no placement of a problem file can fit --set capacity=BYTES; 2 a wrong
    command line; 3 over the budget of --fit, or the best arena found is above that capacity; both are printed.
    """
    from rlx_viz.frames import tensors_frame
    from rlx_viz.snapshots import snapshot
    from rlx_viz.summary import summary_dict

    if as_json == as_csv == "-":
        raise UsageError("--json - and --csv - would mix on standard output; give one of them a file")
    if region not in [r.value for r in Region]:
        raise UsageError(f"--fit-region {region}: wanted {' or '.join(r.value for r in Region)}")
    if model.lower().endswith(".csv"):
        from rlx_viz.problems import plan_problem

        if into:
            raise UsageError("--fit is for models; of a problem file, --set capacity=BYTES asks whether it fits")

        text, as_json_text, as_csv_text, above = plan_problem(model, pairs(sets, "--set", "placement=exact"))
        for where, what in ((as_json, as_json_text), (as_csv, as_csv_text)):
            if where:
                write(where, what)
        if "-" not in (as_json, as_csv):
            typer.echo(text)
        if above:
            raise typer.Exit(OVER)
        return
    budget = budget_of(into) if into else None  # a wrong size is said before anything is planned
    compilation = load(model, dim, shape, sets, target)
    doc = snapshot(
        compilation, name=Path(model).name, command=command_text("plan", model, dim, shape, sets, target), redact=redact)
    answer = None if budget is None else fit(compilation, budget, Region(region))
    if answer is not None and redact:
        answer = answer.redacted({compilation.legal[i].label: doc.strings[n] for i, n in enumerate(doc.tables["tensors"]["name"])})
    if as_json:
        summary = summary_dict(doc) | ({} if answer is None else {"fit": answer.to_dict()})
        write(as_json, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    if as_csv:
        write(as_csv, tensors_frame(doc).to_csv(index=False, lineterminator="\n"))
    if "-" not in (as_json, as_csv):
        typer.echo(summary_text(doc))
        if answer is not None:
            typer.echo(fit_text(answer, doc.meta["model"]["name"]))
    if answer is not None and not answer.fits:
        raise typer.Exit(OVER)


def decisions(
    model: Model, dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Every rule that looked at this node of the model.")] = "",
    top: Annotated[int, typer.Option("--top", min=0, help="How many refusal reasons to list.")] = 5,
    as_csv: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write one row a decision; - is standard output.")] = "",
) -> None:
    """Say what the fusion rules and the command passes did, what they refused, and why."""
    compilation = load(model, dim, shape, sets, target)
    if as_csv:
        import pandas as pd

        logs = [log.to_frame() for log in (compilation.fusion_log, compilation.pass_log)]
        write(as_csv, pd.concat([f for f in logs if len(f)] or logs[:1]).to_csv(index=False, lineterminator="\n"))
    if as_csv == "-":
        return
    if node:
        found = compilation.fusion.at(node)
        typer.echo("\n".join(f"  {d}" for d in found) if found else f"  no rule had a say on {node!r}")
        return
    typer.echo("\n".join(decisions_text(compilation, top)))


def options(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Show the defaults as they are for this model.")] = "",
    dim: Dims = [], shape: Shapes = [], target: TargetOption = "cpu",  # noqa: B006
) -> None:
    """List every option of every stage with its default for a target, and its meaning. Of a model: the defaults as they
    are for it, and which of them hold a share of its arena."""
    if model:
        compilation = load(model, dim, shape, [], target)
        start = CompileOptions(compilation.options.target, plan=compilation.plan.options, fusion=compilation.fusion.options,
                               lower=compilation.options.lower_used, passes=compilation.options.passes_used)
        held = {name: h for h in compilation.holders() for name, _ in h.options}
    else:
        start, held = CompileOptions.for_target(target, environ={}), {}
    stages: dict[str, tuple[Any, type[Any]]] = {k: (getattr(start, k), cls) for k, cls in GROUPS.items()}
    for stage, (values, cls) in {"compile": (start, CompileOptions), **stages}.items():
        typer.echo(f"# {stage}")
        for o in options_of(cls):
            value = getattr(values, o.name) or PrecisionPolicy.F32 if o.name == "precision" else getattr(values, o.name)
            default = str(getattr(value, "value", value)).lower()
            choices = f" [{', '.join(o.choices)}]" if o.choices else ""
            env = f" (env {o.env})" if o.env else ""
            typer.echo(f"{o.name}={default}{choices}{env}\n    {o.help}")
            if o.name in held:
                typer.echo(f"    holds {bytes_text(held[o.name].held)} of the arena: {bytes_text(held[o.name].arena_without)} without it")
    typer.echo("# environment (a flag is 1, true, yes, on or 0, false, no, off)")
    for v in environment_variables():
        typer.echo(f"{v.name} ({v.kind}{f', sets {v.option}' if v.option else ''})\n    {v.help}")


def schema() -> None:
    """Print the JSON Schema that every --json follows: plan (of a model or a problem file), compare, diff, sweep."""
    from rlx_viz.outputs import all_schemas

    typer.echo(json.dumps(all_schemas(), indent=1, ensure_ascii=False))
