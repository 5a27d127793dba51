"""Owns the active extent: which graphs may run on the first rows of a bucket, and the command list that does.

The active list is the same graph with its bucket symbol bound lower, lowered with the full plan's offsets: where the
bucket axis is outermost, a shorter tensor is a prefix of the longer one. Every node that depends on the bucket must
keep its rows apart, or be attention, which then sees the active keys alone; one that doesn't, and the whole run stays at
full extent. ``padding_refusal`` says whether such a run, over zero rows, still has the right first rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner_core.errors import RlxError
from planner_core.ir import Graph, Node
from planner_core.ir.rebind import rebind
from planner_core.memory import MemoryPlan
from runtime.command_list import CommandList, Thunk
from runtime.executors import HostExecutor
from runtime.lowering import lower_graph
from runtime.passes import PassOptions, run_passes

__all__ = ["ActiveList", "FullExtent", "active_commands", "active_refusal", "padding_refusal", "thunk_is_partial"]


class FullExtent(Exception):
    """Why a run stays at full extent; ``always``: at any extent of this graph."""

    def __init__(self, why: str, always: bool = False) -> None:
        super().__init__(why)
        self.always = always


@dataclass(frozen=True, slots=True)
class _Rows:
    """The bucket axis of every node that depends on the bucket. ``whole``: asked for a run over all rows, of which the last
    are padding: they may move and lie anywhere, but no other row may see them."""

    graph: Graph
    symbol: str
    axis: dict[int, int]
    whole: bool = False

    def from_right(self, node: int) -> int:
        """The axis counted from the last, which is 0."""
        return self.graph[node].shape.rank - 1 - self.axis[node]


Rule = Callable[[_Rows, Node, Any], str | None]
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


@_rule("Input", "Param", "Reshape", "Cast")
def _anything(rows: _Rows, n: Node, o: Any) -> str | None:
    return None


@_rule("Binary", "Compare", "Where", "Fma", "Activation", "Expand", "GatedResidual", "ActivationBackward")
def _aligned(rows: _Rows, n: Node, o: Any) -> str | None:
    """Broadcasting: row i of the result reads row i of every operand that has rows."""
    at = rows.from_right(n.id)
    for i in n.inputs:
        s = rows.graph[i].shape
        if i in rows.axis:
            if rows.from_right(i) != at:
                return f"{rows.graph[i].label} has its rows on another axis"
        elif s.rank > at and s.sizes[s.rank - 1 - at] != 1 and not rows.whole:
            return f"{rows.graph[i].label} has an entry a row without saying so"
    return None


@_rule("ElementwiseRegion")
def _region(rows: _Rows, n: Node, o: Any) -> str | None:
    return "its prologue moves rows" if o.prologue else _aligned(rows, n, o)


@_rule("LayerNorm", "RmsNorm", "ResidualLayerNorm", "ResidualRmsNorm", "RmsNormMulSilu", "SwiGLU", "GeGLU", "AdaLayerNorm",
       "TopK", "Cumsum")
def _last_axis(rows: _Rows, n: Node, o: Any) -> str | None:
    if any(i in rows.axis and rows.from_right(i) == 0 for i in n.inputs):
        return "it mixes the rows"
    return _aligned(rows, n, o)


@_rule("Softmax", "Concat", "Narrow")
def _one_axis(rows: _Rows, n: Node, o: Any) -> str | None:
    if rows.graph[n.inputs[0]].shape.axis(o.axis) == rows.axis.get(n.inputs[0], rows.axis[n.id]):
        return "it works along the rows"
    return _aligned(rows, n, o)


@_rule("ArgReduce")
def _arg_reduce(rows: _Rows, n: Node, o: Any) -> str | None:
    return "it reduces the rows" if rows.graph[n.inputs[0]].shape.axis(o.axis) == rows.axis[n.inputs[0]] else None


@_rule("Reduce", "Reverse", "Slice")
def _axes(rows: _Rows, n: Node, o: Any) -> str | None:
    x = rows.graph[n.inputs[0]].shape
    return "it works along the rows" if rows.axis[n.inputs[0]] in {x.axis(a) for a in o.axes} else None


@_rule("Transpose")
def _transpose(rows: _Rows, n: Node, o: Any) -> str | None:
    return None if rows.whole or o.perm[rows.axis[n.id]] == rows.axis[n.inputs[0]] else "it moves the rows"


@_rule("Gather")
def _gather(rows: _Rows, n: Node, o: Any) -> str | None:
    table, indices = n.inputs
    if table in rows.axis or indices not in rows.axis or rows.graph[table].shape.axis(o.axis) != 0:
        return "it looks the rows up"
    return None


@_rule("MatMul", "FusedMatMulBiasAct", "TransposedMatMul", "DequantMatMul", "DequantMatMulBlocked", "DequantMatMulFp8",
       "DequantMatMulNvfp4")
def _product(rows: _Rows, n: Node, o: Any) -> str | None:
    left, *others = n.inputs
    if left not in rows.axis or any(i in rows.axis for i in others):
        return "its right side has the rows"
    transposed = bool(getattr(o, "trans_a", False))
    if rows.graph[left].shape.rank < 2 or rows.from_right(left) == (1 if transposed else 0):
        return "it sums over the rows"
    return "its left side is transposed" if transposed else None


@_rule("GroupedMatMul", "DequantGroupedMatMul")
def _grouped(rows: _Rows, n: Node, o: Any) -> str | None:
    x, w, expert = n.inputs
    return "its rows aren't tokens" if w in rows.axis or rows.axis.get(x) != 0 or rows.axis.get(expert) != 0 else None


@_rule("Conv", "FusedConvBiasAct", "Pool2D", "GlobalPool", "BatchNorm", "GroupNorm", "LayerNorm2d", "DepthwiseConv1dBsc")
def _images(rows: _Rows, n: Node, o: Any) -> str | None:
    x, *others = n.inputs
    kept = {i for i in others if i in rows.axis}
    residual = kept == {n.inputs[-1]} and len(n.inputs) > 3 and n.op.name == "FusedConvBiasAct"
    if kept and not residual:
        return "its weights have the rows"
    return None if rows.axis.get(x) == 0 and all(rows.axis[i] == 0 for i in kept) else "the rows aren't whole images"


@_rule("Rope")
def _rope(rows: _Rows, n: Node, o: Any) -> str | None:
    x, *tables = n.inputs
    if x not in rows.axis or rows.from_right(x) == 0:
        return "its pairs lie along the rows"
    if rows.whole:
        return None
    if any(rows.graph[t].shape.rank != 2 for t in tables):
        return "its tables have a row a token"
    along = rows.from_right(x) == 1  # positions: the kernel reads the tables' first rows
    for t in tables:
        if t in rows.axis and not (along and rows.axis[t] == 0):
            return "its tables have other rows"
        if along and rows.graph[t].shape.sizes[0] < rows.graph[x].shape.sizes[-2]:
            return "its tables have one row for all"
    return None


@_rule("FusedAttentionBlock")
def _packed_attention(rows: _Rows, n: Node, o: Any) -> str | None:
    qkv, *more = n.inputs
    tables, mask = o.split(tuple(more))
    seen = ("causal",) if rows.whole else ("causal", "none")
    if mask or rows.axis.get(qkv) != 1 or o.mask_kind not in seen:
        return "its mask has the rows" if mask else "its queries see the rows behind them"
    return None if rows.whole or all(rows.axis.get(t) == 0 for t in tables) else "its tables have rows of their own"


@_rule("Attention")
def _attention(rows: _Rows, n: Node, o: Any) -> str | None:
    q, k, v, *mask = n.inputs
    at = 2 if o.layout == "bhsd" else 1
    if rows.axis.get(q) == 0 and rows.axis.get(k) == 0 and rows.axis.get(v) == 0 and not mask:
        return None  # rows are batches
    if mask or rows.axis.get(q) != at:
        return "its mask has the rows" if mask else "its keys have the rows, its queries have not"
    if k not in rows.axis and v not in rows.axis:
        return None if o.mask_kind == "none" else "its queries count from the end of the keys"
    seen = ("causal", "sliding_window") if rows.whole else ("causal", "sliding_window", "none")
    if rows.axis.get(k) != at or rows.axis.get(v) != at or o.mask_kind not in seen:
        return "its queries see the rows behind them"
    lengths = {rows.graph[i].shape.sizes[at] for i in (q, k, v)}
    return None if len(lengths) == 1 else "queries and keys differ in length"


_PROVEN = frozenset({"FusedAttn", "BinaryBroadcast", "CompareBroadcast", "WhereBroadcast", "SoftmaxOut", "SliceSteps", "Fma",
                     "ReduceAxes"})
"""Declared ``no``, yet safe in a list lowered anew for the active rows, where their op's rule holds: a test proves each
(``tests/runtime/session/test_active.py``). A kernel that takes the full list's fields may not be."""


def thunk_is_partial(t: Thunk) -> bool:
    """The spec's class of a thunk within an active run: ``scales`` and ``full_ok`` are, ``no`` isn't unless proven, a
    ``Transpose`` is where its outermost axis stays first."""
    if t.partial_extent == "conditional":
        dims, strides = t.out_dims, t.in_strides  # type: ignore[attr-defined]
        return bool(dims) and strides[0] == math.prod(dims[1:])
    return t.partial_extent in ("scales", "full_ok") or t.name in _PROVEN


def _rows_of(graph: Graph, symbol: str, whole: bool = False) -> _Rows:
    """The bucket axis of each node that depends on the symbol; ``FullExtent`` where one has no outermost axis (``whole``:
    not exactly one)."""
    rows = _Rows(graph, symbol, {}, whole)
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
        rule = _RULES.get(n.op.name)
        if n.op.name == "Constant" or rule is None:
            return f"{n.op.name} {n.label}: not known to keep rows apart"
        why = rule(rows, n, n.op)
        if why is not None:
            return f"{n.op.name} {n.label}: {why}"
    return None


def active_commands(graph: Graph, plan: MemoryPlan, symbol: str, actual: int, full: int,
                    passes: PassOptions | None = None) -> CommandList:
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
    commands = lower_graph(short, plan)
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
