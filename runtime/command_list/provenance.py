"""Owns ``Provenance``: where a command list came from, carried by the list so that an audit can ask somebody else."""

from __future__ import annotations

from dataclasses import dataclass

from planner_core.decision import DecisionLog
from planner_core.fusion import Fusion
from planner_core.ir import Graph
from planner_core.memory import MemoryPlan
from runtime.command_list.thunk import Thunk

__all__ = ["Provenance"]


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """The planned graph, the thunks as lowered (``node_of`` as in the list) and, where a compilation made the list,
    its fusion and the log of its passes (whose nodes are indices into ``thunks``)."""

    graph: Graph
    plan: MemoryPlan
    thunks: tuple[Thunk, ...]
    node_of: tuple[int, ...]
    fusion: Fusion | None = None
    passes: DecisionLog | None = None
