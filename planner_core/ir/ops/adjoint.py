"""Owns what the ops' ``gradient`` methods share: constants, undoing of broadcasts, refusals.

``planner_core.autodiff`` calls the methods; ops of their own for the backward pass are in ``backward.py``,
``conv_backward.py``, ``attention_backward.py`` and ``losses.py``.
"""

from __future__ import annotations

from typing import NoReturn

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.shape import Shape, dim

Grads = tuple[NodeId | None, ...]
"""One gradient an operand; None where the derivative is zero or doesn't exist (ints, masks)."""


def refuse(g: Graph, node: NodeId, why: str) -> NoReturn:
    """Raise ``GraphError``: the op has a gradient, this use of it doesn't."""
    n = g[node]
    raise GraphError(f"{n.op.name} {n.label} in {g.name!r} has no gradient here: {why}")


def scalar(g: Graph, value: float, like: NodeId) -> NodeId:
    """A constant of rank 0 with ``like``'s dtype."""
    return g.constant(value, g[like].dtype)


def zeros(g: Graph, shape: Shape) -> NodeId:
    """Zeros of that shape, from one constant."""
    return filled(g, 0, shape)


def filled(g: Graph, value: float, shape: Shape) -> NodeId:
    """``value`` everywhere, from one constant."""
    node = g.constant(value, shape.dtype)
    return g.expand(node, dims=shape.dims) if shape.rank else node


def reshaped(g: Graph, x: NodeId, shape: Shape) -> NodeId:
    """``x`` under the dims of ``shape``; ``x`` itself when it has them."""
    return x if g[x].shape.dims == shape.dims else g.reshape(x, dims=shape.dims)


def unbroadcast(g: Graph, dy: NodeId, to: Shape) -> NodeId:
    """Sum ``dy`` over the axes along which ``to`` was broadcast to it: a Reduce sum, then a Reshape."""
    have = g[dy].shape
    lead = have.rank - to.rank
    axes = (*range(lead), *(lead + i for i, d in enumerate(to.dims) if d.value == 1 and have.dims[lead + i].value != 1))
    return reshaped(g, g.reduce_sum(dy, axes=axes) if axes else dy, to)


def spread(g: Graph, dy: NodeId, x: Shape, axes: tuple[int, ...]) -> NodeId:
    """A reduction's ``dy`` repeated over the reduced ``axes`` of ``x``."""
    reduced = {x.axis(a) for a in axes}
    kept = x.with_dims(dim(1) if i in reduced else d for i, d in enumerate(x.dims))
    return g.expand(reshaped(g, dy, kept), dims=x.dims)


def swapped(g: Graph, x: NodeId) -> NodeId:
    """The last two axes exchanged; the operand of ``x`` where ``x`` is just that exchange, so no copy is made."""
    rank, n = g[x].shape.rank, g[x]
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return n.inputs[0] if getattr(n.op, "perm", None) == perm else g.transpose(x, perm=perm)


def channel_last(g: Graph, x: NodeId, back: bool = False) -> NodeId:
    """Axis 1 moved to the end, or from the end ``back``."""
    rank = g[x].shape.rank
    return g.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)) if back else (0, *range(2, rank), 1))


def per_channel(g: Graph, vector: NodeId, rank: int) -> NodeId:
    """``[C]`` as ``[C, 1, …]``, to broadcast along axis 1 of a tensor of that rank."""
    return g.reshape(vector, dims=(*g[vector].shape.dims, *(dim(1) for _ in range(rank - 2))))


def channel_sum(g: Graph, dy: NodeId) -> NodeId:
    """``dy`` summed over everything but axis 1."""
    return g.reduce_sum(dy, axes=tuple(i for i in range(g[dy].shape.rank) if i != 1))
