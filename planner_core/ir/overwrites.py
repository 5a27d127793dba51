"""Owns which reads and which bytes a ``KvAppend`` spoils. Fusion, the plan's elisions, lowering and the audit ask here.

A ``KvAppend`` results in its cache's own buffer: to the graph the old cache is still a value, in memory it is gone. Two
things go wrong: a read of the old value behind the append, be it through views or transposes that nothing makes; and an
append into bytes that outlive a run (a param, a constant, a static pack), whose rows the next run would find.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.ops import KvAppend
from planner_core.ir.traits import Trait
from planner_core.ir.views import is_view, static_mask

__all__ = ["OUTPUT", "Access", "LateRead", "has_appends", "late_reads", "late_reads_of", "overwrite_reasons", "root_of",
           "spoiled_by_appends"]

OUTPUT = -1
"""Stands for the caller as a reader, behind the last step."""


class Access(NamedTuple):
    """A node as memory sees it. ``shows``: the node whose bytes it has, an input or itself. ``runs``: false for views and
    elided transposes, which read nothing themselves: their readers do."""

    node: NodeId
    inputs: tuple[NodeId, ...]
    shows: NodeId
    runs: bool
    appends: bool


class LateRead(NamedTuple):
    """``reader`` (``OUTPUT``: the caller) reads ``value`` after ``append`` wrote rows into its bytes."""

    reader: NodeId
    value: NodeId
    append: NodeId


def late_reads_of(schedule: Iterable[Access], outputs: Iterable[NodeId]) -> list[LateRead]:
    """Reads that come too late, in schedule order, the caller's last. Nodes missing from the schedule own their bytes and
    were there before it. Linear."""
    root: dict[NodeId, NodeId] = {}
    version: dict[NodeId, int] = {}
    latest: dict[NodeId, tuple[int, NodeId]] = {}  # root -> time and node of the last append so far
    found: list[LateRead] = []

    def look(reader: NodeId, value: NodeId) -> None:
        time, append = latest.get(root.get(value, value), (-1, -1))
        if version.get(value, -1) < time:
            found.append(LateRead(reader, value, append))

    for time, a in enumerate(schedule):
        if a.runs:
            for i in dict.fromkeys(a.inputs):
                look(a.node, i)
        root[a.node] = a.node if a.shows == a.node else root.get(a.shows, a.shows)
        if a.appends:
            latest[root[a.node]] = time, a.node
            version[a.node] = time
        elif a.shows != a.node:
            version[a.node] = version.get(a.shows, -1)
    for o in dict.fromkeys(outputs):
        look(OUTPUT, o)
    return found


def has_appends(graph: Graph) -> bool:
    """Whether anything in the graph writes into its operand's bytes."""
    return any(n.op.has(Trait.APPEND) for n in graph.nodes)


def late_reads(graph: Graph, elided: Collection[NodeId] = ()) -> list[LateRead]:
    """Late reads of a graph whose transposes ``elided`` nothing makes: their readers read the source."""
    if not has_appends(graph):
        return []
    gone = frozenset(elided)

    def accesses() -> Iterable[Access]:
        for n in graph.nodes:
            appends, bare = n.op.has(Trait.APPEND), n.id in gone
            shown = bare or is_view(graph, n.id)
            yield Access(n.id, n.inputs, n.inputs[0] if shown else n.id, appends or not shown, appends)

    return late_reads_of(accesses(), graph.outputs)


def spoiled_by_appends(graph: Graph, transposes: Collection[NodeId]) -> set[NodeId]:
    """Those of ``transposes`` that must be made: elided, a reader would find rows that an append wrote meanwhile."""
    candidates = frozenset(transposes)
    return {r.value for r in late_reads(graph, candidates) if r.value in candidates} if candidates else set()


def root_of(node: NodeId, shows: Callable[[NodeId], NodeId]) -> NodeId:
    """The node whose bytes a chain of views and appends ends in."""
    while (at := shows(node)) != node:
        node = at
    return node


def overwrite_reasons(graph: Graph, elided: Collection[NodeId] = ()) -> dict[NodeId, str]:
    """Nodes that can't run as planned, with the reason: late readers, appends over an output, appends into lasting bytes."""
    if not has_appends(graph):
        return {}
    out: dict[NodeId, str] = {}
    for reader, value, append in late_reads(graph, elided):
        last = graph[append]
        if reader == OUTPUT:
            name = graph.output_names[graph.outputs.index(value)]
            out[append] = f"it writes rows into the bytes of the output {name!r}, which would change; make the append the output"
        else:
            out[reader] = (f"it reads {graph[value].label} after {last.label} wrote rows into those bytes; read it before, "
                           f"or read {last.label}")
    static = static_mask(graph)
    for a in graph.of(KvAppend):
        root = root_of(a, lambda i: graph[i].inputs[0] if is_view(graph, i) else i)
        if static[root]:
            n = graph[root]
            out[a] = (f"it writes rows into {n.op.name} {n.label}, whose bytes outlive the run: the next run would find these "
                      "rows there; make the cache an input (a resident handle keeps an input's rows from run to run)")
    return out
