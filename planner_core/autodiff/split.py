"""Owns ``split``: a training graph as a forward and a backward graph that share params by name."""

from __future__ import annotations

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, NodeId

__all__ = ["split"]


def split(training: Graph) -> tuple[Graph, Graph]:
    """(forward, backward) of a graph that ``backward`` made, for plans that keep them apart.

    Forward outputs the original outputs, then ``saved_<id>`` for each activation the backward graph reads; backward
    takes those as inputs of the same names, beside the inputs, params and constants it reads, and outputs the
    ``d_<name>``. A loss that is no output of the forward graph is computed in the backward graph.
    Raises ``GraphError`` when no output is named ``d_`` and a param or input.
    """
    count = _gradients_from(training)
    own = training.outputs[:count]
    ahead = [False] * len(training)
    for o in own:
        ahead[o] = True
    for n in reversed(training.nodes):
        if ahead[n.id]:
            for i in n.inputs:
                ahead[i] = True

    forward, back = Graph(f"{training.name}.forward"), Graph(f"{training.name}.backward")
    f_id: dict[NodeId, NodeId] = {}
    b_id: dict[NodeId, NodeId] = {}
    for n in training.nodes:
        if ahead[n.id]:
            f_id[n.id] = forward.add(n.op, *(f_id[i] for i in n.inputs), name=n.name, source=n.source)
    saved: list[NodeId] = []

    def behind(i: NodeId) -> NodeId:
        """The backward graph's node of a value: its own, a copy of a leaf, or a saved activation."""
        if i not in b_id:
            n = training[i]
            if not n.inputs:
                b_id[i] = back.add(n.op, name=n.name, source=n.source)
            else:
                saved.append(i)
                b_id[i] = back.input(f"saved_{i}", n.shape.dims, n.dtype, source=n.source)
        return b_id[i]

    for n in training.nodes:
        if not ahead[n.id] and n.inputs:
            b_id[n.id] = back.add(n.op, *[behind(i) for i in n.inputs], name=n.name, source=n.source)
    gradients = [behind(o) for o in training.outputs[count:]]
    back.set_outputs(*gradients, names=training.output_names[count:])
    forward.set_outputs(*(f_id[o] for o in own), *(f_id[i] for i in saved),
                        names=[*training.output_names[:count], *(f"saved_{i}" for i in saved)])
    for part in (forward, back):
        part.weights = {k: v for k, v in training.weights.items() if k in part._named}
    return forward, back


def _gradients_from(training: Graph) -> int:
    """Index of the first gradient among the outputs."""
    count = len(training.outputs)
    while count and training.output_names[count - 1].removeprefix("d_") in training._named and \
            training.output_names[count - 1].startswith("d_"):
        count -= 1
    if count == len(training.outputs) or count == 0:
        raise GraphError(f"{training.name!r} is no training graph: wanted outputs, then gradients named d_<param>; "
                         "make one with planner_core.autodiff.backward")
    return count
