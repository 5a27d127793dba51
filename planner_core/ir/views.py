"""Owns which nodes are views of their operand, and which ops keep a value static (spec planner §1, §3)."""

from __future__ import annotations

from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Op
from planner_core.ir.shape import Shape

__all__ = ["STATIC_OPS", "is_pure_view", "is_view", "static_mask", "views"]

STATIC_OPS = frozenset({"Cast", "Reshape", "Transpose", "Narrow", "Expand", "Concat", "Activation", "Binary", "Where",
                        "Fma"})
"""Ops of params and constants alone that a backend may run once, before the first run."""


def views(op: Op, parent: Shape, out: Shape) -> bool:
    """An op that needs no work: ``Reshape``, ``Cast`` to the parent's dtype, ``Narrow`` on axis 0."""
    name = op.name
    if name == "Reshape":
        return True
    if name == "Narrow":
        return op.axis == 0  # type: ignore[attr-defined, no-any-return]
    return name == "Cast" and parent.dtype is out.dtype


def is_view(graph: Graph, node: NodeId) -> bool:
    """The node shows bytes of its first input: a ``KvAppend``, or a pure view."""
    return graph[node].op.name == "KvAppend" or is_pure_view(graph, node)


def is_pure_view(graph: Graph, node: NodeId) -> bool:
    """A view that needs no work: ``Reshape``, ``Cast`` to the parent's dtype, ``Narrow`` on axis 0."""
    n = graph[node]
    return bool(n.inputs) and views(n.op, graph[n.inputs[0]].shape, n.shape)


def static_mask(graph: Graph) -> list[bool]:
    """Of every node, whether it is computed from params and constants alone by ``STATIC_OPS``; worked out once a graph."""
    found = graph._cache.get("static")
    if isinstance(found, list):
        return found
    static = [False] * len(graph)
    for n in graph.nodes:
        name = n.op.name
        static[n.id] = name in ("Param", "Constant") or (
            name in STATIC_OPS and bool(n.inputs) and all(static[i] for i in n.inputs))
    graph._cache["static"] = static
    return static
