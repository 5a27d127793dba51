"""Owns ``backward``: the reverse sweep over a graph. The cut into two graphs is in ``split.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, Node, NodeId
from planner_core.ir.ops import Input, Param
from planner_core.ir.ops.adjoint import filled, zeros

__all__ = ["backward", "copied"]


def backward(graph: Graph, *, loss: NodeId | None = None, wrt: Sequence[str] | None = None) -> Graph:
    """The training graph: the nodes of ``graph``, then those of its gradients (reverse accumulation, Linnainmaa 1970).

    ``loss`` is a float node of one element. None: the gradients are those of ``Σ_o Σ(d_o · o)`` over the float
    outputs that depend on ``wrt``, each ``d_<output>`` an Input of that output's shape (ones give the plain sum).
    ``wrt`` names params or inputs; None: all float params. Outputs: the graph's own, then ``d_<name>`` for each of
    them, zeros (with a note) where the loss doesn't depend on one. Only what they need is built. A backward node
    carries the ``source`` of the node it differentiates; ``x.grad`` is what the loss changes by with ``x``.

    Raises ``GraphError`` for an op on the way that has no gradient, for a loss that is no scalar, and for names
    that are no float params or inputs; ``UnboundDimError`` where a gradient needs an extent that isn't bound.
    """
    targets = _targets(graph, wrt)
    needed = _needed(graph, targets)
    work = copied(graph)
    work.name = f"{graph.name}.training"
    grads = _seeds(work, graph, loss, needed)
    for n in reversed(graph.nodes):
        if n.id in grads and needed[n.id] and n.inputs:
            _differentiate(work, n, grads, needed)
    outputs = []
    for t in targets:
        if t not in grads:
            work.notes.append(f"{graph[t].label}: the loss doesn't depend on it, its gradient is zero")
            grads[t] = zeros(work, graph[t].shape)
        outputs.append(grads[t])
    work.set_outputs(*graph.outputs, *outputs,
                     names=[*graph.output_names, *(f"d_{graph[t].name}" for t in targets)])
    return _pruned(work, len(graph))


def copied(graph: Graph) -> Graph:
    """The same nodes, weights and notes in a new graph without outputs."""
    out = Graph(graph.name)
    out.nodes = list(graph.nodes)
    out._named = dict(graph._named)
    out.weights = dict(graph.weights)
    out.notes = list(graph.notes)
    return out


def _targets(graph: Graph, wrt: Sequence[str] | None) -> list[NodeId]:
    if wrt is None:
        found = [p for p in graph.params if graph[p].dtype.is_float]
        if not found:
            raise GraphError(f"{graph.name!r} has no float params to differentiate by; name inputs in wrt")
        return found
    out = []
    for name in dict.fromkeys(wrt):
        n = graph.find(name)
        if not isinstance(n.op, (Input, Param)) or not n.dtype.is_float:
            raise GraphError(f"wrt {name!r} is {n.op.name} {n.shape} in {graph.name!r}; wanted a float param or input")
        out.append(n.id)
    if not out:
        raise GraphError(f"wrt is empty for {graph.name!r}; name at least one param or input")
    return out


def _needed(graph: Graph, targets: list[NodeId]) -> list[bool]:
    """For each node, whether a gradient passes through it: a float that depends on a target."""
    out = [False] * len(graph)
    for t in targets:
        out[t] = True
    for n in graph.nodes:
        if n.inputs and n.dtype.is_float:
            out[n.id] = any(out[i] for i in n.inputs)
    return out


def _seeds(work: Graph, graph: Graph, loss: NodeId | None, needed: list[bool]) -> dict[NodeId, NodeId]:
    if loss is not None:
        if not 0 <= loss < len(graph):
            raise GraphError(f"loss %{loss} is not a node of {graph.name!r} ({len(graph)} nodes)")
        n = graph[loss]
        if not n.dtype.is_float or any(d.value != 1 for d in n.shape.dims):
            raise GraphError(f"loss {n.op.name} {n.label} in {graph.name!r} is {n.shape}; wanted one float: "
                             "reduce it first, e.g. with reduce_mean")
        return {loss: filled(work, 1, n.shape)}
    out: dict[NodeId, NodeId] = {}
    for o, name in zip(graph.outputs, graph.output_names, strict=True):
        if needed[o] and o not in out:
            out[o] = work.input(f"d_{name}", graph[o].shape.dims, graph[o].dtype, source=graph[o].source)
    if not out:
        raise GraphError(f"no float output of {graph.name!r} depends on what wrt names; give a loss or other names")
    return out


def _differentiate(work: Graph, n: Node, grads: dict[NodeId, NodeId], needed: list[bool]) -> None:
    """Append the gradient of one node and add it to what its operands have so far."""
    first = len(work)
    made = n.op.gradient(work, n.id, n.inputs, grads[n.id])
    if len(made) != len(n.inputs):
        raise GraphError(f"{n.op.name}.gradient gave {len(made)} gradients for {len(n.inputs)} operands")
    for i, d in zip(n.inputs, made, strict=True):
        if d is None or not needed[i]:
            continue
        have, want = work[d].shape, work[i].shape
        if have.rank != want.rank or have.dtype is not want.dtype or any(
                p.value != q.value for p, q in zip(have.dims, want.dims, strict=True)):
            raise GraphError(f"{n.op.name} {n.label}: gradient {have} for the operand {work[i].label}, {want}")
        if i in grads:
            for part in (grads[i], d):
                _rename(work, part, f"{work[i].name}.grad.part")
            grads[i] = work.binary(grads[i], d, kind="add")
        else:
            grads[i] = d
        if work[i].name:
            _rename(work, grads[i], f"{work[i].name}.grad")
    for k in range(first, len(work)):
        if not work[k].name and n.name:
            _rename(work, k, f"{n.name}.grad.{work[k].op.name}")
        work.nodes[k] = replace(work.nodes[k], source=n.source)


def _rename(work: Graph, node: NodeId, name: str) -> None:
    """Name a gradient after what it is of; inputs, and gradients that are several tensors' at once, keep theirs."""
    n = work[node]
    if not isinstance(n.op, (Input, Param)) and (not n.name or (n.name.endswith(".grad") and name.endswith(".part"))):
        work.nodes[node] = replace(n, name=name)


def _pruned(work: Graph, forward: int) -> Graph:
    """Without the backward nodes that no output needs; all ``forward`` nodes stay."""
    live = [i < forward for i in range(len(work))]
    for o in work.outputs:
        live[o] = True
    for n in reversed(work.nodes[forward:]):
        if live[n.id]:
            for i in n.inputs:
                live[i] = True
    if not all(live):
        new: dict[NodeId, NodeId] = {}
        for n in work.nodes:
            if live[n.id]:
                new[n.id] = len(new)
        work.nodes = [replace(n, id=new[n.id], inputs=tuple(new[i] for i in n.inputs)) if n.id >= forward else n
                      for n in work.nodes if live[n.id]]
        work._named = {name: new[i] for name, i in work._named.items() if i in new}
        work.set_outputs(*(new[o] for o in work.outputs), names=work.output_names)
    return work
