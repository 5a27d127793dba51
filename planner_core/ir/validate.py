"""Owns ``validate``: typed problems of a graph, an empty list when it is sound."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import check_arity
from planner_core.ir.ops import Param

__all__ = ["Problem", "ProblemKind", "validate"]


class ProblemKind(Enum):
    NO_OUTPUTS = "the graph declares no output"
    ORDER = "a node reads one that comes later"
    ARITY = "wrong number of operands"
    SHAPE = "the stored shape is not what the op gives"
    UNBOUND = "a dim has no value"
    WEIGHT = "weight data does not fit its param"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: ProblemKind
    node: NodeId | None
    message: str


def validate(graph: Graph) -> list[Problem]:
    """Check order, arity, every shape rule again, outputs and weights. Unbound dims are reported once
    a symbol; unknowable extents (``?``) are allowed."""
    out: list[Problem] = []
    if not graph.outputs:
        out.append(Problem(ProblemKind.NO_OUTPUTS, None, f"{graph.name!r} has no outputs; call set_outputs"))
    for n in graph.nodes:
        if any(i >= n.id for i in n.inputs):
            out.append(Problem(ProblemKind.ORDER, n.id, f"{n.op.name} {n.label} reads {n.inputs}"))
            continue
        try:
            check_arity(n.op, len(n.inputs))
            shape = n.op.infer(*[graph[i].shape for i in n.inputs])
            if shape != n.shape:
                out.append(Problem(ProblemKind.SHAPE, n.id, f"{n.op.name} {n.label}: {n.shape}, op gives {shape}"))
        except GraphError as e:
            out.append(Problem(ProblemKind.ARITY, n.id, f"{n.op.name} {n.label}: {e}"))
    for symbol, users in graph.symbols.items():
        out.append(Problem(ProblemKind.UNBOUND, None, f"dim {symbol!r} of {', '.join(users)} has no value"))
    for name, data in graph.weights.items():
        node = graph._named.get(name)
        if node is None or not isinstance(graph[node].op, Param):
            out.append(Problem(ProblemKind.WEIGHT, None, f"weight {name!r} belongs to no param"))
        elif graph[node].shape.is_static and (
            data.shape != graph[node].shape.sizes or np.dtype(data.dtype) != graph[node].dtype.numpy
        ):
            out.append(Problem(ProblemKind.WEIGHT, node, f"{name!r} is {data.dtype}{list(data.shape)}, "
                                                         f"wanted {graph[node].shape}"))
    return out
