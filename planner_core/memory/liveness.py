"""Owns live ranges: the base pass over reads, and the record of what each rule extended (rules: ``rules.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from planner_core.ir import Graph, NodeId
from planner_core.memory.facts import I64, GraphFacts, Mask, facts_of
from planner_core.memory.options import PlanOptions

__all__ = ["Extension", "ExtensionTable", "LiveRanges", "LiveState", "Rule"]


@dataclass(frozen=True, slots=True)
class Extension:
    """``rule`` moved the death of ``node`` from step ``old`` to ``new`` because of node ``cause``.

    ``birth`` extensions moved the birth (earlier) instead.
    """

    node: NodeId
    rule: str
    cause: NodeId
    old: int
    new: int
    birth: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to keep tensors alive. ``doc`` is the tooltip; ``apply`` extends through the state."""

    name: str
    doc: str
    option: str
    """The option that switches it, "" when it always applies."""
    apply: Callable[[LiveState], None]


@dataclass(slots=True)
class ExtensionTable:
    """Extensions as columns, one row a (node, rule)."""

    node: I64
    rule: I64
    cause: I64
    old: I64
    new: I64
    birth: Mask

    def __len__(self) -> int:
        return len(self.node)


@dataclass(slots=True)
class LiveRanges:
    """Inclusive ``[birth, death]`` a node, in steps; ``last_read`` is the death before any rule."""

    birth: I64
    death: I64
    last_read: I64
    extensions: ExtensionTable


@dataclass(slots=True)
class LiveState:
    """What rules see and change: the ranges so far, and who extended what."""

    graph: Graph
    options: PlanOptions
    facts: GraphFacts
    elided: Mask
    birth: I64
    death: I64
    last_step: int
    no_reuse: bool = False
    """Set by a rule that forbids reuse altogether."""
    rule: int = 0
    rows: list[tuple[I64, int, I64, I64, int | I64, bool]] = field(default_factory=list)

    def outputs(self) -> I64:
        return np.asarray(self.graph.outputs, dtype=np.int64)

    def extend(self, nodes: Iterable[int] | I64, to: int, cause: I64 | int | None = None) -> None:
        """Nodes and their roots live at least to step ``to``. ``cause`` defaults to each node itself."""
        ids = np.asarray(nodes if isinstance(nodes, np.ndarray) else list(nodes), dtype=np.int64)
        if not len(ids):
            return
        why = ids if cause is None else np.broadcast_to(np.asarray(cause, dtype=np.int64), ids.shape)
        roots = self.facts.root[ids]
        ids, first = np.unique(np.concatenate([ids, roots]), return_index=True)
        why = np.concatenate([why, why])[first]
        moved = self.death[ids] < to
        ids, why = ids[moved], why[moved]
        if len(ids):
            self.rows.append((ids, self.rule, why, self.death[ids], to, False))
            self.death[ids] = to

    def born_by(self, nodes: Iterable[int] | I64, step: int, cause: I64 | int | None = None) -> None:
        """Nodes and their roots are born at ``step`` or earlier."""
        ids = np.asarray(nodes if isinstance(nodes, np.ndarray) else list(nodes), dtype=np.int64)
        if not len(ids):
            return
        why = ids if cause is None else np.broadcast_to(np.asarray(cause, dtype=np.int64), ids.shape)
        roots = self.facts.root[ids]
        ids, first = np.unique(np.concatenate([ids, roots]), return_index=True)
        why = np.concatenate([why, why])[first]
        moved = self.birth[ids] > step
        ids, why = ids[moved], why[moved]
        if len(ids):
            self.rows.append((ids, self.rule, why, self.birth[ids], step, True))
            self.birth[ids] = step

    def ancestors(self, seeds: Iterable[int] | I64) -> tuple[I64, I64]:
        """Every node that a seed was computed from (seeds included), and the seed it was reached from."""
        ptr, flat = self.graph.edges
        starts, edges = ptr.tolist(), flat.tolist()
        reached = [-1] * len(self.graph)
        todo = [int(s) for s in seeds]
        for s in todo:
            if reached[s] < 0:
                reached[s] = s
        while todo:
            n = todo.pop()
            seed = reached[n]
            for k in edges[starts[n] : starts[n + 1]]:
                if reached[k] < 0:
                    reached[k] = seed
                    todo.append(k)
        cause = np.asarray(reached, dtype=np.int64)
        found = np.flatnonzero(cause >= 0)
        return found, cause[found]

    def extend_ancestors(self, seeds: Iterable[int] | I64) -> None:
        """Seeds and all their ancestors live to the end."""
        found, cause = self.ancestors(seeds)
        self.extend(found, self.last_step, cause)

    def table(self) -> ExtensionTable:
        rows = self.rows
        empty = np.zeros(0, dtype=np.int64)

        def column(pick: Callable[[tuple[I64, int, I64, I64, int | I64, bool]], I64]) -> I64:
            return np.concatenate([pick(r) for r in rows]) if rows else empty

        return ExtensionTable(
            column(lambda r: r[0]),
            column(lambda r: np.full(len(r[0]), r[1], dtype=np.int64)),
            column(lambda r: r[2]),
            column(lambda r: r[3]),
            column(lambda r: np.broadcast_to(np.asarray(r[4], dtype=np.int64), r[0].shape)),
            column(lambda r: np.full(len(r[0]), r[5], dtype=np.int64)).astype(bool),
        )


def base_ranges(graph: Graph, elided: Mask) -> tuple[I64, I64]:
    """Births and deaths from reads alone: a node is born at its step (a further result at its producer's);
    a read moves the node's and its root's death to the reader's step. The reader of an elided transpose
    also reads the transpose's source."""
    f = facts_of(graph)
    count = len(graph)
    birth = np.arange(count, dtype=np.int64)
    ptr, flat = graph.edges
    for i in f.results.tolist():
        birth[i] = birth[flat[ptr[i]]]
    death = np.maximum(birth, np.arange(count, dtype=np.int64))
    reader = np.repeat(np.arange(count, dtype=np.int64), np.diff(ptr))
    np.maximum.at(death, flat, reader)
    np.maximum.at(death, f.root[flat], reader)
    if elided.any():
        through = elided[flat]
        source = flat[ptr[flat[through]]]
        np.maximum.at(death, source, reader[through])
        np.maximum.at(death, f.root[source], reader[through])
    views = f.parent >= 0
    np.maximum.at(death, f.root[views], death[views])  # an unread view's own step keeps its root
    return birth, death
