"""Owns the zoo's table: what each model weighs and needs, as Markdown. Run: ``python -m planner_core.zoo``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner_core.ir import Graph
from planner_core.memory import PlanOptions, naive_bytes, plan_graph, plan_memory_native_in_order
from planner_core.memory.facts import facts_of
from planner_core.zoo.registry import graphs_of, names
from planner_core.zoo.weights import param_count

__all__ = ["TableRow", "markdown", "table"]

HEAD = ("model", "nodes", "tensors", "params", "naive", "conservative", "in-order", "bound")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One graph at default sizes; bytes. ``tensors`` own bytes (views don't); ``naive``, ``conservative``:
    ``PlanOptions.inference()`` without and with reuse; ``bound``: of the in-order plan."""

    model: str
    nodes: int
    tensors: int
    params: int
    naive: int
    conservative: int
    in_order: int
    bound: int


def _row(g: Graph) -> TableRow:
    plan, in_order = plan_graph(g, PlanOptions.inference()), plan_memory_native_in_order(g)
    own = int((facts_of(g).root == range(len(g))).sum())
    return TableRow(g.name, len(g), own, param_count(g), naive_bytes(plan), plan.arena_size, in_order.arena_size,
                    in_order.lower_bound)


def table(models: Sequence[str] = ()) -> list[TableRow]:
    """A row a graph, for the named models or for all; a training pair has two."""
    return [_row(g) for name in models or names() for g in graphs_of(name)]


def _millions(n: int) -> str:
    return f"{n / 1e6:,.2f} M"


def markdown(rows: Sequence[TableRow]) -> str:
    """The rows as a Markdown table; bytes in decimal megabytes."""
    cells = [HEAD, *((r.model, f"{r.nodes:,}", f"{r.tensors:,}", _millions(r.params), *(
        f"{b / 1e6:,.1f} MB" for b in (r.naive, r.conservative, r.in_order, r.bound))) for r in rows)]
    widths = [max(len(c[i]) for c in cells) for i in range(len(HEAD))]
    lines = ["| " + " | ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
             + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
