"""Owns the command line: ``rlx-viz plan | decisions | report | run | options | demo``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import rlx_viz
from planner_core.errors import RlxError
from planner_core.ir import write_atomically
from planner_core.memory import Target
from planner_core.options import options_of
from rlx_viz.inputs import random_inputs
from rlx_viz.units import bytes_text
from runtime.compile import GROUPS, CompileOptions
from runtime.precision import PrecisionPolicy

__all__ = ["main"]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="See where a model's memory goes, and prove what an option saves.")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, a graph saved as JSON, or a placement problem (.csv).")]
Dims = Annotated[list[str], typer.Option("--dim", metavar="NAME=INT", help="Bind a symbolic dim; repeat.")]
Shapes = Annotated[list[str], typer.Option("--shape", metavar="INPUT=1,3,48,192", help="Fix an input's shape; repeat.")]
Sets = Annotated[list[str], typer.Option("--set", metavar="OPTION=VALUE", help="Change an option; see `options`.")]
TargetOption = Annotated[str, typer.Option("--target", help=", ".join(t.value for t in Target))]
Redact = Annotated[bool, typer.Option("--redact", help="Replace names, paths and sources by stable tokens.")]


ABOVE_CAPACITY = 3
"""Exit code of ``plan`` on a problem file whose best arena found is above the capacity asked for (it is printed)."""


class UsageError(RlxError):
    """A command line that can't be understood."""


def _pairs(items: list[str], flag: str, example: str) -> dict[str, str]:
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


def _load(model: str, dim: list[str], shape: list[str], sets: list[str], target: str) -> Any:
    dims = {k: _int(v, f"--dim {k}") for k, v in _pairs(dim, "--dim", "batch=1").items()}
    shapes = {k: [_int(x, f"--shape {k}={v}") for x in v.split(",")]
              for k, v in _pairs(shape, "--shape", "x=1,3,48,192").items()}
    options = _pairs(sets, "--set", "arena_no_reuse=true")
    return rlx_viz.compile(model, dims=dims, shapes=shapes, target=target, **options)


def _command(verb: str, model: str, dim: list[str], shape: list[str], sets: list[str], target: str) -> str:
    words = ["rlx-viz", verb, Path(model).name]
    words += [w for flag, items in (("--dim", dim), ("--shape", shape), ("--set", sets)) for i in items for w in (flag, i)]
    return " ".join([*words, *(["--target", target] if target != "cpu" else [])])


def summary_text(doc: Any) -> str:
    """The headline as aligned lines; the number to allocate first."""
    meta = doc.meta
    h = {k: int(v) if isinstance(v, str) and k not in ("unknown_names",) else v for k, v in meta["headline"].items()}
    least, about = ("≥ ", "≈ ") if h["unknown"] else ("", "")  # a difference of lower limits is no limit

    def line(name: str, value: int, note: str = "") -> str:
        return f"  {name:<14}{(about if name == 'saved' else least) + bytes_text(value):>14}  {value:>16,} B{'  ' + note if note else ''}"

    saved = f"{100 * h['saved'] / h['naive']:.1f}% of naive" if h["naive"] else ""
    gap = "reached: no plan of these live ranges is smaller" if h["optimal"] else (
        f"arena is {100 * (h['arena'] / h['lower_bound'] - 1):.2f}% above" if h["lower_bound"] else "")
    out = [f"{meta['model']['name']}: {_nodes_text(doc)}, model {meta['model']['hash'][:12]}",
           line("to allocate", h["allocate"], "= weights + activations + scratch + padding"),
           line("weights", h["weights"]), line("activations", h["activations"], "live at once, at most"),
           line("scratch", h["scratch"]), line("padding", h["padding"], "alignment, guards, gaps"),
           line("arena", h["arena"]), line("naive", h["naive"], "arena with nothing reused"),
           line("saved", h["saved"], saved), line("lower bound", h["lower_bound"], gap),
           f"  peak at step {h['peak_step']}: {bytes_text(h['peak_bytes'])} live"]
    if h["unknown"]:
        out.append(f"  {h['unknown']} tensors of a size unknown before the run: totals are lower limits")
    out += _stages_text(doc)
    for name, count in meta["unsupported"].items():
        out.append(f"  opaque op {name}: {count}")
    out += [f"  note: {n}" for n in meta["notes"]]
    changed = [o for o in meta["options"] if o["changed"]]
    if changed:
        out.append("  changed: " + ", ".join(f"{o['name']}={str(o['value']).lower()}" for o in changed))
    return "\n".join(out)


def _nodes_text(doc: Any) -> str:
    nodes = doc.meta["model"]["nodes"]
    if doc.meta.get("source_is_tensors", True):
        return f"{nodes} nodes"
    return f"{doc.rows('source')} nodes, {nodes} after fusion"


def _stages_text(doc: Any) -> list[str]:
    """What fusion and the command passes did, in dispatches and in bytes written between commands."""
    c = {k: int(v) for k, v in doc.meta.get("counters", {}).items()}
    out = []
    if c and c["dispatches_source"] != c["dispatches_before"]:
        out.append(f"  fusion: {c['dispatches_source']} -> {c['dispatches_before']} dispatches, "
                   f"{bytes_text(c['traffic_source'])} -> {bytes_text(c['traffic'])} of intermediate values written in a run")
    if c and c["dispatches_before"] != c["dispatches"]:
        out.append(f"  command passes: {c['dispatches_before']} -> {c['dispatches']} dispatches")
    e = doc.meta.get("estimate")
    if e and out:
        out.append(f"  estimated: {e['us_before'] / 1e3:,.2f} -> {e['us'] / 1e3:,.2f} ms on {e['title']} (roofline)")
    return out


def _write(target: str, text: str) -> None:
    if target == "-":
        sys.stdout.write(text)
    else:
        write_atomically(target, text.encode())


@app.command()
def plan(
    model: Model, dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
    as_json: Annotated[str, typer.Option("--json", metavar="FILE", help="Write the summary as JSON; - is standard output.")] = "",
    as_csv: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write one row a tensor; - is standard output.")] = "",
    redact: Redact = False,
) -> None:
    """Plan a model's memory and print the headline numbers; of a problem file (.csv of id,lower,upper,size), its arena.

    Exit codes: 0 planned; 1 an error, also where no placement of a problem file can fit --set capacity=BYTES; 2 a wrong
    command line; 3 the best arena found is above that capacity, and is printed.
    """
    from rlx_viz.frames import summary_dict, tensors_frame
    from rlx_viz.snapshot import snapshot

    if as_json == as_csv == "-":
        raise UsageError("--json - and --csv - would mix on standard output; give one of them a file")
    if model.lower().endswith(".csv"):
        from rlx_viz.problems import plan_problem

        text, as_json_text, as_csv_text, above = plan_problem(model, _pairs(sets, "--set", "placement=exact"))
        for where, what in ((as_json, as_json_text), (as_csv, as_csv_text)):
            if where:
                _write(where, what)
        if "-" not in (as_json, as_csv):
            typer.echo(text)
        if above:
            raise typer.Exit(ABOVE_CAPACITY)
        return
    compilation = _load(model, dim, shape, sets, target)
    doc = snapshot(
        compilation, name=Path(model).name, command=_command("plan", model, dim, shape, sets, target), redact=redact)
    if as_json:
        _write(as_json, json.dumps(summary_dict(doc), indent=1, ensure_ascii=False) + "\n")
    if as_csv:
        _write(as_csv, tensors_frame(doc).to_csv(index=False, lineterminator="\n"))
    if "-" not in (as_json, as_csv):
        typer.echo(summary_text(doc))


@app.command()
def decisions(
    model: Model, dim: Dims = [], shape: Shapes = [], sets: Sets = [], target: TargetOption = "cpu",  # noqa: B006
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Every rule that looked at this node of the model.")] = "",
    top: Annotated[int, typer.Option("--top", min=0, help="How many refusal reasons to list.")] = 5,
    as_csv: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write one row a decision; - is standard output.")] = "",
) -> None:
    """Say what the fusion rules and the command passes did, what they refused, and why."""
    compilation = _load(model, dim, shape, sets, target)
    if as_csv:
        import pandas as pd

        logs = [log.to_frame() for log in (compilation.fusion_log, compilation.pass_log)]
        _write(as_csv, pd.concat([f for f in logs if len(f)] or logs[:1]).to_csv(index=False, lineterminator="\n"))
    if as_csv == "-":
        return
    if node:
        found = compilation.fusion.at(node)
        typer.echo("\n".join(f"  {d}" for d in found) if found else f"  no rule had a say on {node!r}")
        return
    typer.echo("\n".join(decisions_text(compilation, top)))


def decisions_text(compilation: Any, top: int) -> list[str]:
    """Both stages: what each rule saved, then the commonest refusals with their sentence."""
    from collections import Counter

    out = []
    for stage, log in (("fusion", compilation.fusion_log), ("command passes", compilation.pass_log)):
        out.append(f"{stage}: {_count(log.dispatches_saved, 'dispatch')} and {bytes_text(max(log.bytes_saved, 0))} of "
                   "writes saved" if log.applied() else f"{stage}: nothing applied")
        rules = dict.fromkeys(d.rule for d in log)
        for rule in rules:
            done = log.applied(rule)
            if done:
                calls, nbytes = (sum(getattr(d, k) for d in done) for k in ("dispatches_saved", "bytes_saved"))
                what = [_count(calls, "dispatch") + " fewer"] if calls else []
                what += [f"{bytes_text(abs(nbytes))} {'less' if nbytes > 0 else 'more'} written"] if nbytes else []
                out.append(f"  {rule}: {len(done)} applied" + (": " + ", ".join(what) if what else ""))
        refused = Counter((d.rule, d.reason) for d in log.refused())
        for (rule, reason), count in sorted(refused.items(), key=lambda kv: (-kv[1], kv[0][0]))[:top]:
            out.append(f"  refused {'once' if count == 1 else f'{count} times'}: {rule}, {reason.value.rstrip('.')}")
    return out


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "es")


@app.command()
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
    from rlx_viz.report import write_report
    from rlx_viz.snapshot import snapshot
    from rlx_viz.whatif import with_whatif

    if out == "-":
        raise UsageError("a report is a page with its data: give --out a file name")
    if model.lower().endswith(".csv"):
        from rlx_viz.problems import problem_document

        doc, summary = problem_document(model, _pairs(sets, "--set", "placement=exact"))
        path = write_report(doc, out, title=doc.meta["model"]["name"])
        typer.echo(summary)
        typer.echo(f"report: {path.resolve()} ({bytes_text(path.stat().st_size)})")
        return
    compilation = _load(model, dim, shape, sets, target)
    doc = snapshot(
        compilation, name=Path(model).name, command=_command("report", model, dim, shape, sets, target), redact=redact)
    doc = with_whatif(doc, compilation, whatif)
    second = rlx_viz.compare(compilation, other, redact=redact).document() if other else None
    path = write_report(doc, out, title=doc.meta["model"]["name"], other=second)
    typer.echo(summary_text(doc))
    typer.echo(f"report: {path.resolve()} ({bytes_text(path.stat().st_size)})")


@app.command()
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

    compilation = _load(model, dim, shape, sets, target)
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


@app.command()
def options(target: TargetOption = "cpu") -> None:
    """List every option of every stage with its default for a target, and its meaning."""
    start = CompileOptions.for_target(target, environ={})
    stages: dict[str, tuple[Any, type[Any]]] = {k: (getattr(start, k), cls) for k, cls in GROUPS.items()}
    for stage, (values, cls) in {"compile": (start, CompileOptions), **stages}.items():
        typer.echo(f"# {stage}")
        for o in options_of(cls):
            value = getattr(values, o.name) or PrecisionPolicy.F32 if o.name == "precision" else getattr(values, o.name)
            default = str(getattr(value, "value", value)).lower()
            choices = f" [{', '.join(o.choices)}]" if o.choices else ""
            env = f" (env {o.env})" if o.env else ""
            typer.echo(f"{o.name}={default}{choices}{env}\n    {o.help}")


@app.command()
def demo(
    out: Annotated[str, typer.Option("-o", "--out", help="Where to write the report.")] = "rlx-report.html",
) -> None:
    """The main job on a real model: magika's file-type network, planned, run and reported."""
    from rlx_viz.demo import magika_model
    from rlx_viz.report import write_report
    from rlx_viz.snapshot import snapshot

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


def main() -> None:
    """Run the command line; a known error is one line on standard error and exit code 1. `plan` tells its others."""
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
