"""Owns ``rebind``: a bound graph under other values of its symbols."""

from __future__ import annotations

from collections.abc import Mapping

from planner_core.errors import UnboundDimError
from planner_core.ir.graph import Graph, _bind_op

__all__ = ["bound_symbols", "rebind"]


def bound_symbols(graph: Graph) -> dict[str, int]:
    """Symbol -> value, of inputs and params whose dims were bound; symbols that are expressions aren't listed."""
    return {d.symbol: d.value for i in (*graph.inputs, *graph.params) for d in graph[i].shape.dims
            if d.symbol is not None and d.value is not None and d.names() == {d.symbol}}


def rebind(graph: Graph, values: Mapping[str, int]) -> Graph:
    """A copy with symbols that have a value given another, every shape inferred again; nodes keep their ids.

    ``UnboundDimError`` for a symbol that no bound dim has; ``GraphError`` where an attribute doesn't follow (a
    Reshape to plain ints, say).
    """
    stray = values.keys() - bound_symbols(graph).keys()
    if stray:
        raise UnboundDimError(f"no bound dim {sorted(stray)} in {graph.name!r}; it has {sorted(bound_symbols(graph)) or 'none'}")
    out = Graph(graph.name)
    for n in graph.nodes:
        out.add(_bind_op(n.op, values), *n.inputs, name=n.name, source=n.source)
    out.weights = {}
    return out.set_outputs(*graph.outputs, names=graph.output_names)
