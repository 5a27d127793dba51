"""Owns which values a thunk may read and which it writes, derived from the graph and the plan, not from operands.

Node n reads the values of its inputs: of views and elided transposes, which no thunk makes, their parents' too. A thunk
that a pass made stands for all the nodes it was made of.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner_core.errors import UnboundDimError
from planner_core.ir import NodeId
from planner_core.ir.ops import Result
from planner_core.ir.ops.region import ElementwiseRegion, used_inputs
from planner_core.memory import NO_SLOT, SPACES
from planner_core.memory.facts import DTYPES
from runtime.command_list import CommandList, Operand, Thunk
from runtime.command_list.provenance import Provenance

__all__ = ["Read", "Values", "groups"]

Read = tuple[tuple[tuple[str, int, int], NodeId], ...]
"""One value seen through its views, from the narrowest: ((space, start, end), the node that wrote it)."""


def groups(commands: CommandList, known: Provenance) -> dict[NodeId, frozenset[NodeId]]:
    """Node -> the nodes that passes put into one with it, itself included; nodes left alone are absent.

    From the log of the passes; without one, nodes whose thunks changed and that touch in the graph are one group.
    """
    if known.passes is not None:
        sets = [frozenset(known.node_of[i] for i in (d.anchor, *d.nodes)) for d in known.passes.applied()]
    else:
        sets = _changed(commands, known)
    of: dict[NodeId, frozenset[NodeId]] = {}
    for s in sets:
        whole = s.union(*(of[n] for n in s if n in of))
        of.update(dict.fromkeys(whole, whole))
    return of


def thunks_of(thunks: Iterable[Thunk], node_of: Iterable[int]) -> dict[NodeId, list[Thunk]]:
    """Thunks by the node that they run."""
    out: dict[NodeId, list[Thunk]] = {}
    for t, n in zip(thunks, node_of, strict=True):
        out.setdefault(n, []).append(t)
    return out


def _changed(commands: CommandList, known: Provenance) -> list[frozenset[NodeId]]:
    if commands.thunks is known.thunks:
        return []
    before, now = thunks_of(known.thunks, known.node_of), thunks_of(commands.thunks, commands.node_of)
    changed = {n for n, ts in before.items() if ts != now.get(n)}
    graph, out = known.graph, []
    for n in changed:
        todo, seen = [n], {n}
        while todo:
            i = todo.pop()
            near = {*graph[i].inputs, *(r for r, _ in graph.uses.of(i))}
            near |= {r for x in graph[i].inputs for r, _ in graph.uses.of(x)}  # slices of one value are merged too
            for m in near - seen:
                if m in changed or (m not in before and graph[m].inputs):
                    seen.add(m)
                    todo.append(m)
        out.append(frozenset(seen & changed))
    return out


class Values:
    """Answers for one list; ``None`` provenance is the caller's to handle."""

    def __init__(self, commands: CommandList, known: Provenance) -> None:
        self._commands, self._known = commands, known
        self._before = thunks_of(known.thunks, known.node_of)
        self._groups = groups(commands, known)
        self._reads: dict[frozenset[NodeId], tuple[Read, ...]] = {}
        self._runs: dict[frozenset[NodeId], list[int]] = {}
        for i in range(len(commands)):
            self._runs.setdefault(self.group(i), []).append(i)

    def group(self, i: int) -> frozenset[NodeId]:
        """The nodes that thunk i stands for."""
        n = self._commands.node_of[i]
        return self._groups.get(n) or frozenset((n,))

    def span(self, node: NodeId) -> tuple[str, int, int] | None:
        """Where the plan put a node's value; None for one without bytes of its own."""
        plan = self._known.plan
        code = int(plan.space[node])
        if code == NO_SLOT:
            return None
        try:
            nbytes = DTYPES[int(plan.storage[node])].nbytes(self._known.graph[node].shape.numel)
        except UnboundDimError:
            return None
        start = int(plan.offset[node])
        return SPACES[code], start, start + nbytes

    def reads(self, i: int) -> tuple[Read, ...]:
        """Every value that thunk i may read: inputs of its nodes, and what they themselves made so far."""
        members = self.group(i)
        found = self._reads.get(members)
        if found is None:
            graph = self._known.graph
            chains = {c for m in members for x in (m, *graph[m].inputs) for c in self._chains(x)}
            chains |= {c for m in members for r, _ in graph.uses.of(m) if isinstance(graph[r].op, Result) for c in self._chains(r)}
            found = self._reads[members] = tuple(r for c in chains if (r := self._read(c)))
        return found

    def _chains(self, node: NodeId) -> list[tuple[NodeId, ...]]:
        """From a node down through nodes that no thunk makes, to the ones that are made."""
        inputs = self._known.graph[node].inputs
        if node in self._before or not inputs:
            return [(node,)]
        return [(node, *c) for i in inputs for c in self._chains(i)]

    def _read(self, chain: tuple[NodeId, ...]) -> Read:
        spans = ((self.span(n), chain[-1]) for n in chain)
        return tuple((s, n) for s, n in spans if s is not None)

    def writers(self, i: int, o: Operand) -> frozenset[NodeId]:
        """The nodes whose value thunk i may leave in ``o``: one, unless a pass merged several on the same bytes."""
        n, members = self._commands.node_of[i], self.group(i)
        if len(members) == 1:
            return members
        same = frozenset(m for m in members for t in self._before.get(m, ()) if any(w.span == o.span for w in t.writes()))
        return same or frozenset((n,))

    def expected(self, i: int, o: Operand) -> list[NodeId]:
        """The nodes that may have written what thunk i reads in ``o``; empty when the bytes are no value of its own.

        A lowered thunk reads values whole. One that a pass made may read a part (the slice that it swallowed), but a read
        as long as a view is that view, not another part of the view's parent.
        """
        out, parts = [], len(self.group(i)) > 1
        for chain in self.reads(i):
            sized = [(s, n) for s, n in chain if s[2] - s[1] == o.nbytes]
            out += [n for (space, a, b), n in (sized if sized or not parts else chain)
                    if space == o.space and a <= o.offset and o.offset + o.nbytes <= b]
        return out

    def results(self, i: int) -> frozenset[tuple[str, int, int]]:
        """Where the values lie that thunk i may write: its nodes' own, and their further results."""
        graph, members = self._known.graph, self.group(i)
        nodes = {*members, *(r for m in members for r, _ in graph.uses.of(m) if isinstance(graph[r].op, Result))}
        return frozenset(s for n in nodes if (s := self.span(n)) is not None)

    def unread(self, i: int) -> list[tuple[NodeId, tuple[str, int, int]]]:
        """Inputs of the nodes that thunk i stands for, and where they are, which no thunk read up to i, their last one."""
        members, graph = self.group(i), self._known.graph
        runs = self._runs[members]
        if i != runs[-1]:
            return []
        read = [o.span for k in runs for o in self._commands.thunks[k].reads()]
        out = []
        asked = {x for n in members if n in self._before for x in self._needed(n)}
        for m in asked - members:
            if graph[m].shape.is_static and graph[m].shape.numel == 0:
                continue
            chains = self._chains(m)
            spans = {s for c in chains for s, _ in self._read(c) if s[1] < s[2]}
            made_inside = any(not members.isdisjoint(c) for c in chains)
            if spans and not made_inside and not any(_touches(s, r, len(members) == 1) for s in spans for r in read):
                out.append((m, min(spans)))
        return out


    def _needed(self, node: NodeId) -> tuple[NodeId, ...]:
        """Inputs that the node's value depends on: a region may ignore some."""
        n = self._known.graph[node]
        if not isinstance(n.op, ElementwiseRegion):
            return n.inputs
        return tuple(n.inputs[k] for k in sorted(used_inputs(n.op.steps)))

    def makers(self, node: NodeId) -> frozenset[NodeId]:
        """The nodes whose thunks, or whose loading, leave a value (a view's: its parents') where the plan has it."""
        return frozenset(c[-1] for c in self._chains(node))

    def strangers(self) -> tuple[int, str] | None:
        """A thunk that is not the lowered one, missing or there twice, though no pass logged a change to its node."""
        c, known = self._commands, self._known
        if c.thunks is known.thunks:
            return None
        now = thunks_of(c.thunks, c.node_of)
        for n in dict.fromkeys((*self._before, *now)):
            if n in self._groups or [t for t in now.get(n, ()) if t.where != "none"] == [
                    t for t in self._before.get(n, ()) if t.where != "none"]:
                continue
            i = next((k for k, m in enumerate(c.node_of) if m == n), 0)
            return i, f"{c.node_names[n]} has other thunks than its lowering made, and no pass logged a change"
        return None


def _touches(a: tuple[str, int, int], b: tuple[str, int, int], whole: bool) -> bool:
    return a == b if whole else a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
