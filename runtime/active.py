"""Owns the active extent: which graphs may run on the first rows of a bucket, and the command list that does.

The active list is the same graph with its bucket symbol bound lower, lowered with the full plan's offsets: where the
bucket axis is outermost, a shorter tensor is a prefix of the longer one. Every node that depends on the bucket must
keep its rows apart, or be attention, which then sees the active keys alone; one that doesn't, and the whole run stays at
full extent. ``padding_refusal`` says whether such a run, over zero rows, still has the right first rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner_core.errors import RlxError
from planner_core.ir import Graph
from planner_core.ir.rebind import rebind
from planner_core.ir.rows import Rows
from planner_core.memory import MemoryPlan
from runtime.command_list import CommandList, Thunk
from runtime.command_list.thunks.widened import Widened
from runtime.executors import HostExecutor
from runtime.lowering import LowerOptions, lower_graph
from runtime.passes import PassOptions, run_passes

__all__ = ["ActiveList", "FullExtent", "active_commands", "active_refusal", "padding_refusal", "thunk_is_partial"]


class FullExtent(Exception):
    """Why a run stays at full extent; ``always``: at any extent of this graph."""

    def __init__(self, why: str, always: bool = False) -> None:
        super().__init__(why)
        self.always = always


def thunk_is_partial(t: Thunk) -> bool:
    """The spec's class of a thunk within an active run: ``scales`` and ``full_ok`` are, ``no`` isn't unless proven, a
    ``Transpose`` is where its outermost axis stays first, a ``Widened`` where all its steps are."""
    if isinstance(t, Widened):
        return all(map(thunk_is_partial, t.steps))
    if t.partial_extent == "conditional":
        dims, strides = t.out_dims, t.in_strides  # type: ignore[attr-defined]
        return bool(dims) and strides[0] == math.prod(dims[1:])
    return t.partial_extent in ("scales", "full_ok") or t.proven


def _rows_of(graph: Graph, symbol: str, whole: bool = False) -> Rows:
    """The bucket axis of each node that depends on the symbol; ``FullExtent`` where one has no outermost axis (``whole``:
    not exactly one)."""
    rows = Rows(graph, symbol, {}, whole)
    for n in graph.nodes:
        axes = [i for i, d in enumerate(n.shape.dims) if symbol in d.names()]
        if not axes and not any(i in rows.axis for i in n.inputs):
            continue
        if len(axes) != 1 or (not whole and any(d.value != 1 for d in n.shape.dims[: axes[0]])):
            raise FullExtent(f"{n.op.name} {n.label}: {n.shape} has {symbol!r} on "
                             + ("no axis" if not axes else "several axes" if len(axes) > 1 else "an inner axis"))
        rows.axis[n.id] = axes[0]
    return rows


def active_refusal(graph: Graph, symbol: str) -> str | None:
    """Why no run of the graph can be active, or None. Depends on no extent."""
    return _refusal(graph, symbol, whole=False)


def padding_refusal(graph: Graph, symbol: str) -> str | None:
    """Why a run over all rows, the last of them padding, may have other first rows than one without those; or None."""
    return _refusal(graph, symbol, whole=True)


def _refusal(graph: Graph, symbol: str, whole: bool) -> str | None:
    try:
        rows = _rows_of(graph, symbol, whole)
    except FullExtent as e:
        return str(e)
    if not rows.axis:
        return f"nothing in {graph.name!r} depends on {symbol!r}"
    for i in rows.axis:
        n = graph[i]
        why = n.op.rows_seen(rows, n)
        if why is not None:
            return f"{n.op.name} {n.label}: {why}"
    return None


def active_commands(graph: Graph, plan: MemoryPlan, symbol: str, actual: int, full: int,
                    passes: PassOptions | None = None, lower: LowerOptions | None = None) -> CommandList:
    """The list that runs the first ``actual`` of ``full`` rows on the full plan's bytes, after ``passes`` (None: none) as the
    full list; ``FullExtent`` says why not."""
    why = active_refusal(graph, symbol)
    if why is not None:
        raise FullExtent(why, always=True)
    rows = _rows_of(graph, symbol)
    try:
        short = rebind(graph, {symbol: actual})
    except RlxError as e:
        raise FullExtent(f"a shape doesn't follow {symbol!r}: {e}") from e
    for old, new in zip(graph.nodes, short.nodes, strict=True):
        want = list(old.shape.sizes)
        if old.id in rows.axis:
            at = rows.axis[old.id]
            if want[at] * actual % full:
                raise FullExtent(f"{old.op.name} {old.label}: {old.shape} doesn't grow with {symbol!r} in proportion")
            want[at] = want[at] * actual // full
        if list(new.shape.sizes) != want:
            raise FullExtent(f"{old.op.name} {old.label}: {new.shape} at {actual} rows, wanted {want}")
    commands = lower_graph(short, plan, lower)
    for t, node in zip(commands.thunks, commands.node_of, strict=True):
        if node in rows.axis and not thunk_is_partial(t):
            raise FullExtent(f"thunk {t.label} of {graph[node].op.name} {graph[node].label} isn't safe for a partial extent")
    return commands if passes is None else run_passes(commands, passes).commands


@dataclass(frozen=True, slots=True)
class ActiveList:
    """A list for an extent, ready to run. ``tails``: of each output whose rows it cuts, where the rows behind lie; ``spoils``:
    outputs into whose rows behind it writes other tensors."""

    executor: HostExecutor
    tails: Mapping[str, tuple[slice, ...]]
    spoils: frozenset[str]

    @classmethod
    def of(cls, executor: HostExecutor, whole: CommandList) -> ActiveList:
        """The list that ``executor`` runs, as a part of ``whole``."""
        commands = executor.commands
        written = {o.span for o in (*(o for t in commands.thunks for o in t.writes()), *(b.operand for b in commands.inputs))}
        tails: dict[str, tuple[slice, ...]] = {}
        spoils: set[str] = set()
        for short, full in zip(commands.outputs, whole.outputs, strict=True):
            cut = [i for i, (a, b) in enumerate(zip(short.operand.shape, full.operand.shape, strict=True)) if a != b]
            if cut:
                tails[full.name] = (*(slice(None),) * cut[0], slice(short.operand.shape[cut[0]], None))
                space, start, end = full.operand.span
                behind = start + short.operand.nbytes
                if any(s == space and a < end and behind < b for s, a, b in written):
                    spoils.add(full.name)
        return cls(executor, tails, frozenset(spoils))
