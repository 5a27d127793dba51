"""Owns the check that no value is read after an append wrote into its bytes.

A ``KvAppend`` results in its cache's own buffer. To the graph the old cache is still a value; in memory it is gone.
"""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.memory import facts_of

__all__ = ["overwritten_reads"]


def overwritten_reads(graph: Graph) -> dict[NodeId, str]:
    """Nodes that would compute with overwritten bytes, with the reason: readers of a value (or of a view of it) behind
    an append to it, and appends to a value that is an output itself."""
    appends = [n.id for n in graph.nodes if n.op.name == "KvAppend"]
    if not appends:
        return {}
    root = facts_of(graph).root.tolist()
    latest: dict[int, int] = {}  # root -> the last append so far
    version = list(range(len(graph)))  # the append, or the root itself, that a value's bytes come from
    out: dict[NodeId, str] = {}
    for n in graph.nodes:
        for i in n.inputs:
            last = latest.get(root[i], -1)
            if version[i] < last:
                out[n.id] = (f"it reads {graph[i].label} after {graph[last].label} wrote rows into those bytes; read it before, "
                             f"or read {graph[last].label}")
        if n.op.name == "KvAppend":
            latest[root[n.id]] = n.id
        elif root[n.id] != n.id and n.inputs:
            version[n.id] = version[n.inputs[0]]
    for o, name in zip(graph.outputs, graph.output_names, strict=True):
        last = latest.get(root[o], -1)
        if version[o] < last:
            out[last] = f"it writes rows into the bytes of the output {name!r}, which would change; make the append the output"
    return out
