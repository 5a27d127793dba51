"""Owns ``marked``: a graph of plain ints whose bucket axis gets a symbol, so that shapes say where it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from planner_core.errors import GraphError
from planner_core.ir import Dim, Graph, Shape
from planner_core.ir.ops import Expand, Input, Param, Reshape

__all__ = ["BUCKET", "BucketDim", "marked"]

BUCKET = "bucket"
"""The symbol that marks the axis."""
BucketDim = str | Mapping[str, int]


def _dims_follow(op: Reshape | Expand, x: Shape) -> Reshape | Expand:
    """A reshape or expand whose dims are plain ints, with the bucket axis of its input ``x`` named among them.

    Row-major, the rows of x stay together in the dim that has as many elements before it: whole, several to a row, or a part of one.
    """
    dims = list(op.dims)
    rows = next((i for i, d in enumerate(x.dims) if BUCKET in d.names()), None)
    if rows is None or any(d.symbol or d.value is None for d in dims) or x.sizes[rows] < 2:
        return op
    extent, sizes = x.sizes[rows], [d.value or 0 for d in dims]
    if isinstance(op, Expand):
        fits = [rows + len(dims) - x.rank]
        fits = fits if sizes[fits[0]] == extent else []
    else:
        before = math.prod(x.sizes[:rows])
        starts = [i for i, s in enumerate(sizes) if s > 1 and math.prod(sizes[:i]) == before]
        fits = [i for i in starts if sizes[i] % extent == 0] or [i for i in starts if extent % sizes[i] == 0]
    for at in fits[:1]:
        d = x.dims[rows]
        dims[at] = d * (sizes[at] // extent) if sizes[at] >= extent else d // (extent // sizes[at])
    return replace(op, dims=tuple(dims))


def marked(graph: Graph, bucket_dim: BucketDim | None) -> tuple[Graph, str]:
    """(the graph, the bucket's symbol). A mapping of input or param to axis marks those dims; they must agree. Reshapes to plain
    ints follow where the rows stay together.

    ``GraphError`` for an unknown name, an axis out of range, or extents that differ.
    """
    if bucket_dim is None or isinstance(bucket_dim, str):
        return graph, bucket_dim or ""
    at: dict[int, int] = {}
    for name, axis in bucket_dim.items():
        n = graph.find(name)
        if not isinstance(n.op, (Input, Param)):
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
        elif isinstance(op, Reshape | Expand):
            op = _dims_follow(op, out[n.inputs[0]].shape)
        out.add(op, *n.inputs, name=n.name, source=n.source)
    out.weights, out.notes = graph.weights, list(graph.notes)
    return out.set_outputs(*graph.outputs, names=graph.output_names), BUCKET
