"""Owns ``marked``: a graph of plain ints whose bucket axis gets a symbol, so that shapes say where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner_core.errors import GraphError
from planner_core.ir import Dim, Graph, Shape

__all__ = ["BUCKET", "BucketDim", "marked"]

BUCKET = "bucket"
"""The symbol that marks the axis."""
BucketDim = str | Mapping[str, int]


def marked(graph: Graph, bucket_dim: BucketDim | None) -> tuple[Graph, str]:
    """(the graph, the bucket's symbol). A mapping of input or param to axis marks those dims; they must agree.

    ``GraphError`` for an unknown name, an axis out of range, or extents that differ.
    """
    if bucket_dim is None or isinstance(bucket_dim, str):
        return graph, bucket_dim or ""
    at: dict[int, int] = {}
    for name, axis in bucket_dim.items():
        n = graph.find(name)
        if n.op.name not in ("Input", "Param"):
            raise GraphError(f"bucket_dim names {name!r}, which is a {n.op.name}; wanted inputs or params")
        at[n.id] = n.shape.axis(axis)
    extents = {graph[i].shape.sizes[a] for i, a in at.items()}
    if len(extents) > 1:
        raise GraphError(f"bucket_dim {dict(bucket_dim)}: extents {sorted(extents)} differ")
    out = Graph(graph.name)
    for n in graph.nodes:
        op = n.op
        if n.id in at:
            dims = list(n.shape.dims)
            dims[at[n.id]] = Dim(dims[at[n.id]].value, BUCKET)
            op = replace(op, shape=Shape(tuple(dims), n.dtype))  # type: ignore[type-var]
        out.add(op, *n.inputs, name=n.name, source=n.source)
    out.weights, out.notes = graph.weights, list(graph.notes)
    return out.set_outputs(*graph.outputs, names=graph.output_names), BUCKET
