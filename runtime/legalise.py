"""Owns legalisation: the graph as the target stores and runs it. Here: the casts of a precision policy."""

from __future__ import annotations

from planner_core.ir import DType, Graph, NodeId
from planner_core.ir.traits import Trait
from runtime.precision import PrecisionPolicy

__all__ = ["apply_precision"]



def apply_precision(graph: Graph, policy: PrecisionPolicy) -> Graph:
    """The graph with casts around f32 products and convolutions; itself where there are none, or for ``F32``.

    Inputs, params and outputs keep their types; a half result that another product reads isn't widened in between.
    """
    half = policy.half
    if half is None or not any(n.op.has(Trait.PRODUCT) and n.dtype is DType.F32 for n in graph.nodes):
        return graph
    out = Graph(graph.name)
    wide: dict[NodeId, NodeId] = {}
    narrow: dict[NodeId, NodeId] = {}

    def in_f32(i: NodeId) -> NodeId:
        if i not in wide:
            n = graph[i]
            wide[i] = out.cast(narrow[i], to=DType.F32, name=f"{n.name}.f32" if n.name else "", source=n.source)
        return wide[i]

    def in_half(i: NodeId) -> NodeId:
        if graph[i].dtype is not DType.F32:
            return wide[i]
        if i not in narrow:
            n = graph[i]
            narrow[i] = out.cast(wide[i], to=half, name=f"{n.name}.{half}" if n.name else "", source=n.source)
        return narrow[i]

    for n in graph.nodes:
        if n.op.has(Trait.PRODUCT) and n.dtype is DType.F32:
            narrow[n.id] = out.add(n.op, *[in_half(i) for i in n.inputs], name=n.name, source=n.source)
        else:
            wide[n.id] = out.add(n.op, *[in_f32(i) for i in n.inputs], name=n.name, source=n.source)
    out.weights, out.notes = graph.weights, list(graph.notes)
    return out.set_outputs(*[in_f32(o) for o in graph.outputs], names=graph.output_names)
