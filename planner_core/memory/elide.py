"""Owns which transposes a plan drops: those of spec §2 (``planner_core.ir.folds``), where its options say so."""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.ir.folds import folded_transposes
from planner_core.memory.options import PlanOptions

__all__ = ["elided_transposes"]


def elided_transposes(graph: Graph, options: PlanOptions) -> list[NodeId]:
    """What a plan with these options drops (both kinds), in order."""
    return folded_transposes(graph, options.elide_requires_small_m) if options.elide_bank_transposes else []
