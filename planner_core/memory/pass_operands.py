"""Owns which operands a command pass may read later than the graph does (command-list.md, passes 3, 4 and 8).

A fused decode command stands where its *last* part stood: the one-row MLP at the product and at the residual add,
a rotary embedding that reads its slice's parent at its own place. The planner leaves room for every candidate; the
passes may fuse fewer, never more.
"""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.ir.ops import Activation, Binary, Cast, Concat, DequantMatMul, GeGLU, Narrow, Rope, SwiGLU

__all__ = ["late_reads"]

_GATES = frozenset({"silu", "gelu_approx"})
_GATED = (SwiGLU, GeGLU)
"""Activation and product in one."""


def _one_row(graph: Graph, node: NodeId) -> bool:
    return all(d.value == 1 for d in graph[node].shape.dims[:-1])


def _packed(graph: Graph, node: NodeId) -> NodeId | None:
    """The one-row packed product that a node is, or is a last-axis slice of."""
    n = graph[node]
    if isinstance(n.op, Narrow) and n.op.axis == n.shape.rank - 1:
        n = graph[n.inputs[0]]
    return n.id if isinstance(n.op, DequantMatMul) and _one_row(graph, n.id) else None


def _gate(graph: Graph, node: NodeId) -> NodeId | None:
    """The packed product behind an activated gate."""
    n = graph[node]
    if not isinstance(n.op, Activation) or n.op.kind not in _GATES:
        return None
    source = graph[n.inputs[0]]
    if isinstance(source.op, Cast):
        source = graph[source.inputs[0]]
    return _packed(graph, source.id)


def _gated_row(graph: Graph, node: NodeId) -> list[NodeId]:
    """The packed products behind a gated row: one for both halves, or one each, put side by side."""
    parts = graph[node].inputs if isinstance(graph[node].op, Concat) else (node,)
    found = [p for p in (_packed(graph, i) for i in parts) if p is not None]
    return found if len(found) == len(parts) else []


def late_reads(graph: Graph) -> list[tuple[NodeId, NodeId]]:
    """(operand, node at whose step a fused command may still read it), in schedule order."""
    out: list[tuple[NodeId, NodeId]] = []
    for n in graph.nodes:
        if isinstance(n.op, Binary):
            kind = n.op.kind
            if kind == "mul" and _one_row(graph, n.id):
                for gate, up in (n.inputs, n.inputs[::-1]):
                    found, other = _gate(graph, gate), _packed(graph, up)
                    if found is not None and other is not None:
                        out += [(graph[p].inputs[0], n.id) for p in dict.fromkeys((found, other))]
                        break
            elif kind == "add" and _one_row(graph, n.id):
                downs = (p for p in n.inputs if isinstance(graph[p].op, DequantMatMul) and _one_row(graph, p))
                out += [(graph[p].inputs[0], n.id) for p in downs]
        elif isinstance(n.op, _GATED) and _one_row(graph, n.id):
            out += [(graph[p].inputs[0], n.id) for p in dict.fromkeys(_gated_row(graph, n.inputs[0]))]
        elif isinstance(n.op, Rope):
            cut = graph[n.inputs[0]]
            if isinstance(cut.op, Narrow) and cut.op.axis == cut.shape.rank - 1 and cut.shape.rank > 1:
                out.append((cut.inputs[0], n.id))
    return out
