"""Owns spec §4: which 3-D convs a backend may let absorb their leaky ReLU or read through a concat."""

from __future__ import annotations

from dataclasses import dataclass

from planner_core.ir import Graph, NodeId
from planner_core.ir.ops import Binary, Concat, Constant, Conv3d, Expand, FusedConvBiasAct, Reshape
from planner_core.memory.facts import facts_of

__all__ = ["Conv3dFold", "conv3d_epilogue_folds"]


@dataclass(frozen=True, slots=True)
class Conv3dFold:
    """One conv's candidates. ``leaky`` is ``(max node, product node)`` or None; ``sources`` are the tensors
    that must live to the conv's step because it may read through a concat (and an upsample)."""

    conv: NodeId
    leaky: tuple[NodeId, NodeId] | None
    sources: tuple[NodeId, ...]


def _is_conv(graph: Graph, node: NodeId) -> bool:
    n = graph[node]
    if isinstance(n.op, Conv3d):
        return True
    return (isinstance(n.op, FusedConvBiasAct) and n.shape.rank == 5 and len(n.inputs) == 3
            and not n.op.activation)


def _scalar_constant(graph: Graph, node: NodeId) -> bool:
    n = graph[node]
    return isinstance(n.op, Constant) and n.shape.nbytes == 4


def _leaky(graph: Graph, conv: NodeId) -> tuple[NodeId, NodeId] | None:
    """``max(conv, conv × scalar)``, either operand order on both."""
    reads = graph.uses.of(conv)
    if len(reads) != 2 or conv in graph.outputs:
        return None
    for product, _ in reads:
        p = graph[product]
        if not isinstance(p.op, Binary) or p.op.kind != "mul" or product in graph.outputs:
            continue
        other = [i for i in p.inputs if i != conv]
        used = graph.uses.of(product)
        if len(other) != 1 or not _scalar_constant(graph, other[0]) or len(used) != 1:
            continue
        top = graph[used[0][0]]
        if isinstance(top.op, Binary) and top.op.kind == "max" and set(top.inputs) == {conv, product}:
            return top.id, product
    return None


def _read_through(graph: Graph, conv: NodeId) -> tuple[NodeId, ...]:
    source = graph[graph[conv].inputs[0]]
    if (not isinstance(source.op, Concat) or len(source.inputs) != 2 or source.op.axis != 1
            or len(graph.uses.of(source.id)) != 1 or source.id in graph.outputs):
        return ()
    found = list(source.inputs)
    chain = graph[source.inputs[0]]
    for want in (Reshape, Expand, Reshape):  # nearest upsample as exporters write it
        if not isinstance(chain.op, want):
            return tuple(found)
        chain = graph[chain.inputs[0]]
    return (*found, chain.id)


def conv3d_epilogue_folds(graph: Graph) -> list[Conv3dFold]:
    """Every conv with a candidate, in order. The planner extends for all of them; a backend may fold fewer."""
    out = []
    for i, op in enumerate(facts_of(graph).ops):
        if op in (Conv3d, FusedConvBiasAct) and _is_conv(graph, i):
            fold = Conv3dFold(i, _leaky(graph, i), _read_through(graph, i))
            if fold.leaky or fold.sources:
                out.append(fold)
    return out
