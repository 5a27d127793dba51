"""Owns ``counters`` and ``estimate``: dispatches and intermediate traffic before and after, and a roofline time."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.fusion import Fusion, estimate
from planner_core.ir import Graph
from planner_core.memory import facts_of
from planner_core.memory.facts import NOT_BOUNDARY
from planner_core.memory.rules import static_mask
from rlx_viz.columns import exact_int
from rlx_viz.snapshot_tables.graphs import node_bytes
from runtime.compile import Compilation

__all__ = ["counters", "estimates", "working_nodes"]

MOST_ESTIMATED = 20_000
"""Source nodes above which no time is estimated: it would take longer than the rest of the document."""


def counters(c: Compilation) -> dict[str, Any]:
    """Dispatches of the source, the list before passes and the list that runs; intermediate bytes written in a run."""
    source, fused = working_nodes(c.source), working_nodes(c.legal)
    return {
        "dispatches_source": c.commands_before.dispatches + c.fusion_log.dispatches_saved,
        "dispatches_before": c.commands_before.dispatches,
        "dispatches": c.commands.dispatches,
        "traffic_source": exact_int(int(node_bytes(c.source)[source].sum())),
        "traffic": exact_int(int(node_bytes(c.legal)[fused].sum())),
    }


def working_nodes(graph: Graph) -> np.ndarray[Any, Any]:
    """Nodes that are computed in every run: no view, no boundary, nothing made of params and constants alone."""
    facts = facts_of(graph)
    static = np.asarray(static_mask(graph), dtype=bool)
    return np.asarray((facts.parent < 0) & (facts.boundary == NOT_BOUNDARY) & ~static)


def estimates(c: Compilation) -> dict[str, Any] | None:
    """Estimated µs of a run before and after fusion on a device of the target's kind; None for a large graph."""
    if len(c.source) > MOST_ESTIMATED:
        return None
    device = c.options.target.profile.cost_model
    found = _kept(c.fusion, device)
    return {"device": device, "title": found[0], "us_before": found[1], "us": found[2]}


def _kept(fusion: Fusion, device: str) -> tuple[str, float, float]:
    kept, key = fusion.graph.derived(_estimates), (device, id(fusion.source))
    if key not in kept:
        view = estimate(fusion, device)
        kept[key] = (view.device.title, round(view.us_before, 3), round(view.us, 3))
    return kept[key]


def _estimates(graph: Graph) -> dict[tuple[str, int], tuple[str, float, float]]:
    """Filled by ``_kept``: what was estimated for a graph, by device and by the source that it was fused from."""
    return {}
