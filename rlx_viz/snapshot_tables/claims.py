"""Owns ``meta.claims``: what a headline says beside its numbers, each sentence once for text, JSON, page and report.

``optimal``: under which conditions the arena is as small as can be, or how far above. ``order``: what any order of the
same commands needs. ``holders``: each rule or option in force that holds more than 5% of the arena, with the figure
without it. ``bodies``: what runs inside If, Loop and Scan, which the arena doesn't show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner_core.ir import Graph
from planner_core.ir.ops import Custom
from planner_core.memory import BodyPlan, Holder, MemoryPlan, body_plans, largest_step
from planner_core.memory.facts import DTYPES, facts_of
from planner_core.units import bytes_text
from rlx_viz.columns import Column, StringTable, exact_int
from rlx_viz.snapshot_tables.names import Names

__all__ = ["CONDITIONS", "body_tables", "claims_of", "opaque_ops", "optimal_text"]

CONDITIONS = "for these live ranges, in this order, with these options"
"""What a bound is a bound of: said wherever "optimal" is."""


def optimal_text(arena: int, bound: int, proven: bool, unknown: int = 0, conditions: str = CONDITIONS) -> str:
    """One sentence: optimal, and under which conditions, or how far the arena is above its bound."""
    if unknown:
        return f"No bound: {unknown} tensor{'' if unknown == 1 else 's'} of a size unknown before the run."
    if proven:
        return f"Optimal {conditions}: no placement is smaller."
    share = 100 * (arena / bound - 1) if bound else 0.0
    return f"{share:,.0f}% above the bound {conditions}." if share >= 10 else f"{share:.2g}% above the bound {conditions}." if bound else "No bound."


def _order_text(plan: MemoryPlan, graph: Graph, names: Names) -> tuple[int, str]:
    step = largest_step(plan)
    if not step.nbytes:
        return 0, ""
    who = "its outputs together" if step.node is None else names.name(step.node, graph[step.node].label)
    return step.nbytes, f"Any order of these commands needs at least {bytes_text(step.nbytes)}: the largest single step, {who}."


def _holder(h: Holder) -> dict[str, Any]:
    return {"name": h.name, "doc": h.doc, "options": {k: getattr(v, "value", v) for k, v in h.options},
            "held": exact_int(h.held), "arena_without": exact_int(h.arena_without), "text": str(h)}


def _body(b: BodyPlan, names: Names) -> dict[str, Any]:
    peak = b.plan.peak()
    graph = b.graph
    path = names.token("body", b.path) if names.redact else b.path
    at = min(peak.step, len(graph) - 1)
    top = graph[at].label if not names.redact else f"step {peak.step}"
    own = int((facts_of(graph).root == np.arange(len(graph))).sum())
    unknown = int(b.plan.unknown.sum())
    text = (f"Inside {path}: {own} tensors in {bytes_text(b.plan.total_size)} of scratch, {bytes_text(peak.nbytes)} live at the peak "
            f"({top})" + (f", {unknown} of unknown size" if unknown else "") + ".")
    return {"path": path, "owner": b.owner, "nodes": len(graph), "tensors": own, "bytes": exact_int(b.plan.total_size),
            "peak_bytes": exact_int(peak.nbytes), "peak_step": peak.step, "unknown": unknown, "text": text}


def claims_of(plan: MemoryPlan, graph: Graph, names: Names, held: Sequence[Holder]) -> dict[str, Any]:
    """The sentences of a plan's headline, with the numbers in them; ``held``: what holds it up."""
    floor, order = _order_text(plan, graph, names)
    return {
        "optimal": optimal_text(plan.arena_size, plan.lower_bound, plan.is_optimal, int(plan.unknown.sum())),
        "order": order, "order_bytes": exact_int(floor),
        "holders": [_holder(h) for h in held],
        "bodies": [_body(b, names) for b in body_plans(graph, plan.options)],
    }


def opaque_ops(graph: Graph, names: Names) -> dict[str, int]:
    """Opaque ops by name, those within bodies of If, Loop and Scan counted."""
    found: dict[str, int] = {}
    for n in graph.nodes:
        if isinstance(n.op, Custom):
            op = names.op(n.op.detail)
            found[op] = found.get(op, 0) + 1
        for body in n.op.bodies():
            for op, count in opaque_ops(body, names).items():
                found[op] = found.get(op, 0) + count
    return found


def body_tables(plan: MemoryPlan, graph: Graph, names: Names, strings: StringTable) -> dict[str, dict[str, Column]]:
    """Table ``body_tensors``: one row a tensor inside a body. ``body`` points into ``meta.claims.bodies``, ``root`` at a
    row of this table; births and deaths are in the body's own steps, offsets in its scratch."""
    plans = list(body_plans(graph, plan.options))
    if not plans:
        return {}
    columns: dict[str, list[Any]] = {k: [] for k in ("body", "name", "op", "shape", "dtype", "birth", "death", "offset", "size", "root")}
    first = 0
    for k, b in enumerate(plans):
        inner, p = b.graph, b.plan
        for n in inner.nodes:
            has = n.id in p.assignments
            row = (k, names.token("inner", n.label) if names.redact else n.label, names.op(n.op.detail), names.shape(n.shape),
                   DTYPES.index(n.dtype), int(p.birth[n.id]), int(p.death[n.id]), int(p.offset[n.id]) if has else 0,
                   int(p.size[n.id]) if has else 0, first + int(p.root[n.id]))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        first += len(inner)
    table: dict[str, Column] = {k: np.asarray(columns[k], np.uint32) for k in ("body", "birth", "death", "root")}
    table |= {k: strings.intern_all(columns[k]) for k in ("name", "op", "shape")}
    table |= {"dtype": np.asarray(columns["dtype"], np.uint8)} | {k: np.asarray(columns[k], np.float64) for k in ("offset", "size")}
    return {"body_tensors": table}
