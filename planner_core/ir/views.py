"""Owns which nodes are views of their operand, and which ops keep a value static (spec planner §1, §3)."""

from __future__ import annotations

from collections.abc import Collection

from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Op
from planner_core.ir.ops import Cast, Narrow, Reshape
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait

__all__ = ["is_pure_view", "is_static", "is_view", "static_mask", "views"]



def views(op: Op, parent: Shape, out: Shape) -> bool:
    """An op that needs no work: ``Reshape``, ``Cast`` to the parent's dtype, ``Narrow`` on axis 0."""
    if isinstance(op, Narrow):
        return op.axis == 0
    return isinstance(op, Reshape) or (isinstance(op, Cast) and parent.dtype is out.dtype)


def is_view(graph: Graph, node: NodeId) -> bool:
    """The node shows bytes of its first input: a ``KvAppend``, or a pure view."""
    return graph[node].op.has(Trait.APPEND) or is_pure_view(graph, node)


def is_pure_view(graph: Graph, node: NodeId) -> bool:
    """A view that needs no work: ``Reshape``, ``Cast`` to the parent's dtype, ``Narrow`` on axis 0."""
    n = graph[node]
    return bool(n.inputs) and views(n.op, graph[n.inputs[0]].shape, n.shape)


def is_static(op: Op, operands: Collection[bool]) -> bool:
    """A value known before any run: a param, a constant, or what a static op makes of ``operands``, all of them static."""
    return op.has(Trait.STORED) or (op.has(Trait.STATIC) and bool(operands) and all(operands))


def static_mask(graph: Graph) -> list[bool]:
    """Of every node, whether it is static: computed from params and constants alone; worked out once a graph."""
    return graph.derived(_static_mask)


def _static_mask(graph: Graph) -> list[bool]:
    static = [False] * len(graph)
    for n in graph.nodes:
        static[n.id] = is_static(n.op, [static[i] for i in n.inputs])
    return static
