"""Owns a document's ``meta``: model, headline, option rows, presets, name lists, footer."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from planner_core.ir import Graph
from planner_core.memory import RULES, SPACES, headline
from planner_core.memory.facts import DTYPES
from planner_core.options import options_of
from rlx_viz.columns import exact_int
from rlx_viz.snapshot_tables.claims import claims_of, opaque_ops
from rlx_viz.snapshot_tables.names import Names
from rlx_viz.snapshot_tables.tensors import KINDS, classes_of
from rlx_viz.version import VERSION
from runtime.compile import GROUPS, Compilation

__all__ = ["PRESETS", "head_of", "meta_of"]

READ_RULE = {"name": "read", "doc": "The last read of the tensor or of a view of it."}

PRESETS: tuple[dict[str, Any], ...] = (
    {"name": "defaults", "doc": "As the target starts: every change taken back.", "options": {}},
    {"name": "nothing reused", "doc": "Every buffer gets its own bytes: the naive arena.",
     "options": {"arena_no_reuse": True}},
    {"name": "as written", "doc": "No fusion: the graph as the model file has it.", "options": {"fusion": False}},
    {"name": "all off", "doc": "No fusion, no reuse, no command pass: what everything together saves.",
     "options": {"fusion": False, "arena_no_reuse": True,
                 **{o.name: False for o in options_of(GROUPS["passes"]) if o.group == "passes" and o.default}}},
    {"name": "cautious", "doc": "Every rule that keeps tensors alive longer than their reads is on.",
     "options": {o.name: True for o in options_of(GROUPS["plan"]) if o.group == "liveness"}},
)
"""Option changes over the target's defaults, by name; choosing one takes every other change back."""


def head_of(c: Compilation, names: Names) -> dict[str, Any]:
    """The headline numbers, exact; see ``planner_core.memory.Headline``."""
    graph, plan = c.legal, c.plan
    h = headline(plan, c.commands.scratch_bytes)
    numbers = {f.name: getattr(h, f.name) for f in dataclasses.fields(h) if f.name not in ("unknown", "held")}
    unknown = np.flatnonzero(plan.unknown).tolist()
    head: dict[str, Any] = {k: exact_int(v) for k, v in numbers.items()}
    return head | {"unknown": len(unknown), "unknown_names": [names.name(i, graph[i].label) for i in unknown[:100]],
                   "optimal": plan.is_optimal}


def option_list(c: Compilation) -> list[dict[str, Any]]:
    """Every stage's options with value and default, for controls."""
    return [
        {"name": o.name, "group": o.group, "stage": row.stage, "type": o.type, "value": _plain(row.value),
         "default": _plain(row.default), "choices": list(o.choices), "help": o.help, "changed": row.changed}
        for row in c.option_rows() for o in (row.info,)
    ]


def meta_of(c: Compilation, name: str, command: str, names: Names, families: list[str]) -> dict[str, Any]:
    graph, plan, redact = c.legal, c.plan, names.redact
    model_hash = c.source.content_hash
    options = option_list(c)
    changed = [f"{o['name']}={str(o['value']).lower()}" for o in options if o["changed"]]
    read = [f"{k}={v}" for k, v in plan.options.env]
    return {
        "model": {"name": "model" if redact else name or _default_name(graph), "hash": model_hash, "nodes": len(graph),
                  "inputs": _tensor_rows(graph, graph.inputs, [graph[i].name for i in graph.inputs], names),
                  "outputs": _tensor_rows(graph, graph.outputs, graph.output_names, names)},
        "headline": head_of(c, names),
        "claims": claims_of(plan, graph, names, c.holders()),
        "target": c.options.target.value,
        "classes": classes_of(c),
        "kinds": list(KINDS),
        "spaces": list(SPACES),
        "dtypes": [d.text for d in DTYPES],
        "rules": [READ_RULE, *({"name": r.name, "doc": r.doc} for r in RULES)],
        "families": families,
        "options": options,
        "presets": [dict(p) for p in PRESETS],
        "unsupported": dict(sorted(opaque_ops(graph, names).items())),
        "notes": [f"Importer's notes withheld (they name tensors and dims): {len(c.source.notes)}"]
        if redact and c.source.notes else list(c.source.notes),
        "footer": {"model_hash": model_hash, "version": VERSION,
                   "options": ", ".join([f"target={c.options.target.value}", *changed, *read]),
                   "command": "" if redact else command},
    }


def _tensor_rows(graph: Graph, nodes: list[int], labels: list[str], names: Names) -> list[dict[str, Any]]:
    return [{"name": names.name(i, label), "shape": f"[{names.dims(graph[i].shape)}]",
             "dtype": str(graph[i].dtype)} for i, label in zip(nodes, labels, strict=True)]


def _default_name(graph: Graph) -> str:
    """The file a graph came from, or its own name."""
    files = (s.file for n in graph.nodes for s in n.source if s.file)
    return next(files, graph.name)


def _plain(v: Any) -> Any:
    return getattr(v, "value", v)
