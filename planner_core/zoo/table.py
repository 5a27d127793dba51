"""Owns the zoo's tables: what each model weighs and needs, what each scenario comes to, as Markdown.

Run: ``python -m planner_core.zoo``; ``README.md`` beside this file is ``python -m planner_core.zoo --page``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner_core.fusion import RULES, fuse_graph, fusion_for_target
from planner_core.ir import Graph
from planner_core.memory import MemoryPlan, PlanOptions, Target, naive_bytes, plan_graph
from planner_core.memory.facts import facts_of
from planner_core.zoo.registry import graphs_of, names
from planner_core.zoo.scenarios import scenarios
from planner_core.zoo.weights import param_count

__all__ = ["TableRow", "figures_markdown", "fusion_ready", "markdown", "page", "scenario_markdown", "table"]

HEAD: tuple[str, ...] = ("model", "nodes", "tensors", "params", "naive", "conservative", "default", "bound", "fusion-ready")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One graph at default sizes; bytes. ``tensors`` own bytes (views don't); ``naive``, ``conservative``:
    ``PlanOptions.inference()`` without and with reuse; ``default``: fused and planned as compilation for the CPU does;
    ``bound``: of that plan; ``ready``: see ``fusion_ready``."""

    model: str
    nodes: int
    tensors: int
    params: int
    naive: int
    conservative: int
    default: int
    bound: int
    ready: bool


def _row(g: Graph) -> TableRow:
    plan, fused = plan_graph(g, PlanOptions.inference()), fuse_graph(g, Target.CPU).graph
    default = plan_graph(fused, PlanOptions.for_target(Target.CPU, fused))
    own = int((facts_of(g).root == range(len(g))).sum())
    return TableRow(g.name, len(g), own, param_count(g), naive_bytes(plan), plan.arena_size, default.arena_size,
                    default.lower_bound, fusion_ready(g))


def fusion_ready(graph: Graph) -> bool:
    """Some rule that is more than tidying would apply to the graph on Metal, one-row forms included."""
    log = fuse_graph(graph, Target.METAL, fusion_for_target(Target.METAL, decode_forms=True)).log
    return any(d.applied and RULES[d.rule].group != "cleanup" for d in log)


def table(models: Sequence[str] = ()) -> list[TableRow]:
    """A row a graph, for the named models or for all; a training pair has two."""
    return [_row(g) for name in models or names() for g in graphs_of(name)]


def _millions(n: int) -> str:
    return f"{n / 1e6:,.2f} M"


def _bytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table; the first ``left`` columns to the left, the others to the right."""
    cells = [head, *rows]
    widths = [max(len(c[i]) for c in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(
        zip(row, widths, strict=True))) + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 1) + ("-" if i < left else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def markdown(rows: Sequence[TableRow]) -> str:
    """The rows as a Markdown table; bytes in decimal megabytes."""
    return _aligned(HEAD, [(r.model, f"{r.nodes:,}", f"{r.tensors:,}", _millions(r.params), *map(_bytes, (
        r.naive, r.conservative, r.default, r.bound)), "yes" if r.ready else "no") for r in rows], 1)


def scenario_markdown(models: Sequence[str] = ()) -> str:
    """Every scenario with its arena; a training pair's are the forward graph's and the backward's."""
    rows = []
    for s in (s for name in models or names() for s in scenarios(name)):
        arenas = " + ".join(_bytes(p.arena_size) for p in s.plans())
        rows.append((s.model, s.name, s.story, arenas))
    return _aligned(("model", "scenario", "story", "arena"), rows, 3)


def _planned(model: str, name: str) -> MemoryPlan:
    return next(s for s in scenarios(model) if s.name == name).plans()[0]


def _gigabytes(n: float) -> str:
    return f"{n / 1e9:,.2f} GB"


def figures_markdown() -> str:
    """The figures of the planner's contract (spec §11) beside what our graphs come to."""
    rows = []
    for what, figure, model, pinned, reused in FIGURES:
        before, after = _planned(model, pinned), _planned(model, reused)
        rows.append((what, figure, f"`{model}`, {len(before.buffers()):,} buffers", _gigabytes(before.arena_size),
                     _gigabytes(after.arena_size), _gigabytes(after.lower_bound)))
    dead, elided = _planned("moe", "dead-copies"), _planned("moe", "elided")
    copies = int(elided.elided.sum())
    rows.append(("an expert bank's dead copy", "1.88 GB each, three a layer",
                 f"`moe`, {copies} copies of {_gigabytes((dead.arena_size - elided.arena_size) / copies)}",
                 _gigabytes(dead.arena_size), _gigabytes(elided.arena_size), _gigabytes(elided.lower_bound)))
    return _aligned(("original system", "its figure", "here", "pinned or copied", "reused or elided", "bound"), rows, 3)


FIGURES = [
    ("a HiFi-GAN-class vocoder", "~5 GB to ~0.12 GB", "hifigan", "pinned", "reused"),
    ("an 8K-token packed prefill", "~61.9 GB to ~4 GB", "llama-prefill", "packed-8k-pinned", "packed-8k-reused"),
    ("a Mamba training graph", "2,378 buffers, 28 s to plan", "mamba-train", "pinned", "reused"),
]
"""What, its figure, then model and scenarios that illustrate it."""


def page() -> str:
    """The zoo's README."""
    return PAGE.format(table=markdown(table()), scenarios=scenario_markdown(), figures=figures_markdown())


PAGE = """\
# The model zoo

Real architectures at real sizes, built by `zoo.build(name, **params)`; `zoo.describe(name)` lists the
parameters. This page is written by `python -m planner_core.zoo --page`.

## Models at their default sizes

Params are counted as papers do (packed weights as elements). Naive and conservative: `PlanOptions.inference()`
without and with reuse, which pins every ancestor of an output and keeps params in the arena. Default: fused and planned
as `rlx_viz.compile(zoo.build(name))` does, params in a region of their own; the number to allocate has the weights too.
Bound: what no placement of those live ranges can do without. Fusion-ready: some rule would fuse on Metal.

{table}

## Scenarios

`zoo.scenarios(name)`: the options of every stage, and sometimes the sizes, that show what a model is here for.
`rlx_viz.compile(s.build(), **s.settings)` opens one.

{scenarios}

## The original system's figures, on these models

{figures}

- `hifigan` at 900 frames. Reused it needs more than the original's figure because our graph keeps activations,
  sums and convolutions as nodes of their own and the planner places no output on its input: from the second stage
  on a residual branch holds five tensors of 29.5 MB (stage input, running total, branch input, activation,
  convolution), and 55.7 MB are weights.
- `llama-prefill` at Llama-3.2-3B's sizes with q4_k weights. What is left: 1.81 GB of packed weights, 1.98 GB of
  f32 caches and input, 0.91 GB of activations (three SwiGLU tensors of 268 MB and the residual).
- `mamba-train` takes some 0.2 s to plan, provenance included: first fit looks at live neighbours only.
  `make bench` measures it. 28 blocks, where Mamba-130M has 24, to have as many buffers.
- `moe`: 8 × 4096 × 14336 f32 weights a bank.
"""
