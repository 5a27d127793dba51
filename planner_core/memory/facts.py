"""Owns the graph's facts as arrays, made once a graph: views and roots, element counts, boundary kinds.

Spec §1 (views) is here; live ranges, sizes and checks all read these arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner_core.errors import PlanError
from planner_core.ir import DType, Graph, Node, NodeId, Op
from planner_core.ir.ops import Constant, Input, Narrow, Param, Result
from planner_core.ir.views import is_view

__all__ = ["GraphFacts", "collect_view_aliases", "facts_of", "is_view", "resolve_view_root"]

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_ELEMENTS = 1 << 56
"""So that bytes, and their sums over any graph that fits in memory, stay within 64 bits."""
NOT_BOUNDARY, INPUT, PARAM, CONSTANT = 0, 1, 2, 3
_BOUNDARY: dict[type[Op], int] = {Input: INPUT, Param: PARAM, Constant: CONSTANT}
DTYPES = list(DType)
_DTYPE_CODE = {d: i for i, d in enumerate(DTYPES)}


def _elements_before(graph: Graph, n: Node) -> int:
    if not isinstance(n.op, Narrow):
        return 0
    parent = graph[n.inputs[0]].shape
    if parent.is_unknown:
        return 0
    inner = 1
    for size in parent.sizes[1:]:
        inner *= size
    return n.op.start * inner


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """One entry a node. ``elements`` is -1 where an extent is unknowable before the run."""

    boundary: npt.NDArray[np.int8]
    elements: I64
    dtype: npt.NDArray[np.int8]
    parent: I64
    """The node a view shows, -1 for what is no view."""
    root: I64
    """The node whose bytes a view shows; itself for what is no view."""
    view_elements: I64
    """Elements from the root's first to the view's first."""
    ops: list[type[Op]]
    results: I64
    """``Result`` nodes: further outputs, written when their producer runs."""

    def dtype_at(self, node: NodeId) -> DType:
        return DTYPES[int(self.dtype[node])]


def facts_of(graph: Graph) -> GraphFacts:
    """The facts, built on first use and kept with the graph until a node is added."""
    return graph.derived(_facts_of)


def _facts_of(graph: Graph) -> GraphFacts:
    count = len(graph)
    boundary, elements, dtype = [0] * count, [0] * count, [0] * count
    parent, root, before = [-1] * count, list(range(count)), [0] * count
    kinds: list[type[Op]] = []
    results: list[int] = []
    for n in graph.nodes:
        i, kind, shape = n.id, type(n.op), n.shape
        kinds.append(kind)
        boundary[i] = _BOUNDARY.get(kind, 0)
        dtype[i] = _DTYPE_CODE[shape.dtype]
        total = 1
        for d in shape.dims:
            if d.value is None:
                total = -1 if shape.is_unknown else shape.numel  # numel raises and names the unbound dim
                break
            total *= d.value
        if total > MOST_ELEMENTS:
            raise PlanError(f"{n.op.name} {n.label} has shape {shape}: {total} elements are more than a plan can "
                            f"count ({MOST_ELEMENTS}); check its dims")
        elements[i] = total
        if kind is Result:
            results.append(i)
        elif is_view(graph, i):
            p = n.inputs[0]
            parent[i], root[i], before[i] = p, root[p], before[p] + _elements_before(graph, n)
    return GraphFacts(np.asarray(boundary, np.int8), np.asarray(elements, np.int64), np.asarray(dtype, np.int8),
                      np.asarray(parent, np.int64), np.asarray(root, np.int64), np.asarray(before, np.int64), kinds,
                      np.asarray(results, np.int64))


def resolve_view_root(graph: Graph, node: NodeId) -> tuple[NodeId, int]:
    """``(root, byte offset)`` of a node, at the root's native width; ``(node, 0)`` for what is no view."""
    f = facts_of(graph)
    root = int(f.root[node])
    return root, int(f.view_elements[node]) * f.dtype_at(root).bits // 8


def collect_view_aliases(graph: Graph) -> dict[NodeId, tuple[NodeId, int]]:
    """Every view -> ``(root, byte offset)``."""
    f = facts_of(graph)
    return {int(v): resolve_view_root(graph, int(v)) for v in np.flatnonzero(f.parent >= 0)}
