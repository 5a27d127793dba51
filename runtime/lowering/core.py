"""Owns the lowering's frame: operands from slots, one registration per op, the walk over the graph.

The families beside this file register one function per op (``@lowers``); an op without one runs as ``HostOp``
if it has a reference evaluation, or is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from planner_core.errors import UnboundDimError
from planner_core.ir import DType, Graph, Node, NodeId, Op
from planner_core.ir.ops import Constant, Result
from planner_core.ir.overwrites import overwrite_reasons
from planner_core.ir.traits import Trait
from planner_core.memory import (
    NO_SLOT,
    SPACES,
    MemoryPlan,
    is_pure_view,
    is_static_weight_tensor,
    slot_is_exclusive,
)
from planner_core.memory.facts import DTYPES
from runtime.command_list.commands import Binding, CommandList, SlotLife
from runtime.command_list.commands import Constant as StoredConstant
from runtime.command_list.operand import Operand
from runtime.command_list.provenance import Provenance
from runtime.command_list.scratch import scratch_for
from runtime.command_list.thunk import Thunk
from runtime.command_list.thunks.elementwise import NarrowStored
from runtime.command_list.thunks.host import HostOp, Unrunnable
from runtime.command_list.thunks.widened import SCRATCH, Widened
from runtime.errors import LoweringError
from runtime.lowering.options import LowerOptions

__all__ = ["Lowering", "how_lowered", "lower_graph", "lowers", "refuses"]

_HALF = frozenset({DType.F16, DType.BF16})
_NARROW = _HALF | {DType.F8E4M3, DType.F8E5M2}

LowerFn = Callable[["Lowering", Node, Any], Iterable[Thunk]]
Exact = bool | Callable[[Node], bool]
Widths = int | Literal["one", "any", "f32", "moves"]
"""Which float widths an op's kernel takes. ``one``: f16, f32 or f64, one for all. ``any``: halves and f32 in any mixture. A
number: so, but as many leading operands are of the result's width. ``f32``: no halves. ``moves``: no arithmetic, so any types
do. What it doesn't take is widened around it."""


class _Rule(NamedTuple):
    """How an op is lowered. ``exact``: its values are of its type however wide they are stored."""

    fn: LowerFn
    widths: Widths
    exact: Exact


_LOWER: dict[type[Op], _Rule] = {}
_REFUSED: dict[type[Op], str] = {}


def lowers(*ops: type[Op], widths: Widths = "one", exact: Exact = False) -> Callable[[LowerFn], LowerFn]:
    """Register how ops become thunks. ``widths``: the floats that they take. ``exact``: their results (or those of some
    nodes) are values of its dtype as they are; any other that is stored wider is converted."""

    def register(fn: LowerFn) -> LowerFn:
        for kind in ops:
            if kind in _LOWER:
                raise TypeError(f"op {kind.name} is lowered twice")
            _LOWER[kind] = _Rule(fn, widths, exact)
        return fn

    return register


def refuses(op: type[Op], reason: str) -> None:
    """Say why an op can't run here."""
    _REFUSED[op] = reason


def how_lowered(op: type[Op]) -> str:
    """``thunk``, ``host`` (its reference evaluation), ``boundary``, or the reason why it is refused."""
    if op.has(Trait.BOUNDARY):
        return "boundary"
    if op in _LOWER:
        return "thunk"
    return "host" if op.evaluate is not Op.evaluate else _REFUSED.get(op, "")


@dataclass(frozen=True, slots=True)
class Lowering:
    """One graph and its plan, as the family functions see them."""

    graph: Graph
    plan: MemoryPlan
    _storage: list[DType] = field(init=False, repr=False)
    _offset: list[int] = field(init=False, repr=False)
    _space: list[int] = field(init=False, repr=False)
    _made: dict[NodeId, Operand] = field(init=False, repr=False, default_factory=dict)
    """A node is asked for once as a result and once a reader."""

    def __post_init__(self) -> None:
        p = self.plan  # plain lists: one element of an array costs more than all the rest
        object.__setattr__(self, "_storage", [DTYPES[i] for i in p.storage.tolist()])
        object.__setattr__(self, "_offset", p.offset.tolist())
        object.__setattr__(self, "_space", p.space.tolist())

    def dims(self, node: NodeId) -> tuple[int, ...]:
        return self.graph[node].shape.sizes

    def storage(self, node: NodeId) -> DType:
        return self._storage[node]

    def operand(self, node: NodeId, *shape: int) -> Operand:
        """The node's bytes; ``shape`` merges or splits its axes."""
        base = self._made.get(node)
        if base is None:
            base = self._made[node] = self._base(node)
        return base.viewed(*shape) if shape else base

    def _base(self, node: NodeId) -> Operand:
        n, storage, code = self.graph[node], self._storage[node], self._space[node]
        nbytes = storage.nbytes(n.shape.numel)
        if code == NO_SLOT and nbytes:
            raise LoweringError(f"{n.op.name} {n.label} has no slot"
                                + (" (its transpose is elided)" if self.plan.elided[node] else
                                   "; plan it with allocate_params, allocate_inputs and allocate_constants on"))
        if storage.bits % 8 or storage is DType.I4:
            raise LoweringError(f"{n.op.name} {n.label} is stored as {storage}: packed sub-byte elements have no host view")
        space = SPACES[code] if code != NO_SLOT else "arena"
        bucket = next((i for i, d in enumerate(n.shape.dims) if d.symbol is not None), None)
        return Operand(space, self._offset[node], nbytes, storage, bucket, n.shape.sizes)

    def boundary(self, node: NodeId) -> Operand:
        """The operand, or an empty one where the node has no bytes known before the run."""
        try:
            return self.operand(node)
        except (LoweringError, UnboundDimError):
            return Operand("arena", 0, 0, self.storage(node), None, (0,))

    def flat(self, node: NodeId) -> Operand:
        return self.operand(node, self.graph[node].shape.numel)

    def results(self, node: NodeId) -> dict[int, Operand]:
        """Operands of outputs 1, 2, … of a node with several, by index; unread ones are absent."""
        found = [self.graph[r] for r, _ in self.graph.uses.of(node) if isinstance(self.graph[r].op, Result)]
        return {i: self.operand(r) for i, r in sorted((n.op.index, n.id) for n in found)}  # type: ignore[attr-defined]

    def host(self, node: Node) -> HostOp:
        """The op's reference evaluation as a thunk."""
        dtypes = tuple(self.graph[i].dtype for i in node.inputs)
        wider = any(self.storage(i) is not d and not d.is_float for i, d in zip(node.inputs, dtypes, strict=True))
        seen = tuple(self.storage(i) if d.is_float else d for i, d in zip(node.inputs, dtypes, strict=True)) if wider else ()
        return HostOp(node.op, tuple(self.operand(i) for i in node.inputs), self.operand(node.id), node=node.label, dtypes=seen)

    def to_widen(self, node: Node, widths: Widths) -> frozenset[DType]:
        """Storages of its operands and its result that a kernel of these widths reads or writes as f32 copies."""
        floats = {self.storage(i) for i in (*node.inputs, node.id) if self.storage(i).is_float}
        if widths == "moves" or floats.isdisjoint(_NARROW):
            return frozenset()
        if widths == "f32":
            return _HALF if floats & _HALF else frozenset()
        if floats & _NARROW - _HALF:
            return _NARROW
        if widths == "one":
            return _NARROW if len(floats) > 1 or DType.BF16 in floats else frozenset()
        alike = {self.storage(i) for i in (*(node.inputs[:widths] if isinstance(widths, int) else ()), node.id)}
        return _NARROW if len(alike & {*_HALF, DType.F32}) > 1 else frozenset()


@dataclass(frozen=True, slots=True)
class _InF32(Lowering):
    """A node as its kernel sees it where operands of some storages are f32 copies in scratch."""

    whole: Lowering
    storages: frozenset[DType]

    def __post_init__(self) -> None:
        for name, value in (("_storage", self.whole._storage), ("_offset", self.whole._offset), ("_space", self.whole._space)):
            object.__setattr__(self, name, value)

    def storage(self, node: NodeId) -> DType:
        own = self._storage[node]
        return DType.F32 if own in self.storages else own

    def place(self, nodes: Iterable[NodeId]) -> None:
        """Lay out copies of these nodes, one after another."""
        at = 0
        for i in nodes:
            numel = self.graph[i].shape.numel
            self._made[i] = Operand(SCRATCH, at, numel * 4, DType.F32, None, self.graph[i].shape.sizes)
            at += scratch_for((numel, DType.F32.numpy))


def _widened(ctx: Lowering, n: Node, rule: _Rule, storages: frozenset[DType]) -> Thunk:
    """The op's thunks on f32 copies; its reference where it has no thunk for these operands in f32 either."""
    inner = _InF32(ctx.graph, ctx.plan, ctx, storages)
    copied = [i for i in dict.fromkeys(n.inputs) if ctx.storage(i) in storages]
    inner.place([*copied, *([n.id] if ctx.storage(n.id) in storages else ())])
    steps = tuple(rule.fn(inner, n, n.op))
    if any(isinstance(t, HostOp) for t in steps):
        return ctx.host(n)
    dst = ctx.operand(n.id)
    others = {ctx.operand(i).span: ctx.operand(i) for i in n.inputs if i not in copied}
    return Widened(tuple(ctx.operand(i) for i in copied), tuple(others.values()), dst, steps)


def _lower_or_say_why(ctx: Lowering, n: Node) -> tuple[Thunk, ...]:
    try:
        return tuple(_lower_node(ctx, n))
    except (LoweringError, UnboundDimError) as e:
        return (Unrunnable(n.op.name, n.label, str(e)),)


def _lower_node(ctx: Lowering, n: Node) -> Iterable[Thunk]:
    kind = type(n.op)
    if kind.has(Trait.BOUNDARY) or is_pure_view(ctx.graph, n.id) or ctx.plan.elided[n.id]:
        return ()
    if isinstance(n.op, Result):
        of = ctx.graph[n.inputs[0]]
        if not of.op.has(Trait.MANY_RESULTS):
            raise LoweringError(f"Result {n.label} wants output {n.op.index} of {of.op.name} {of.label}, "
                                "which has one output")
        return ()
    if any(not ctx.graph[i].shape.is_static for i in (*n.inputs, n.id)):
        raise LoweringError(f"an extent of it or its operands is unknown before the run ({n.shape}); bind dims on import")
    if n.shape.numel == 0 and not kind.has(Trait.MANY_RESULTS):
        return ()
    rule = _LOWER.get(kind)
    evaluable = kind.evaluate is not Op.evaluate
    if evaluable and rule is None:
        return (ctx.host(n), *_narrowed(ctx, n, False))
    if rule is None:
        reason = _REFUSED.get(kind, "no thunk and no reference evaluation")
        raise LoweringError(reason)
    storages = ctx.to_widen(n, rule.widths)
    made = (_widened(ctx, n, rule, storages),) if storages else rule.fn(ctx, n, n.op)
    return (*made, *_narrowed(ctx, n, rule.exact))


def _narrowed(ctx: Lowering, n: Node, exact: Exact) -> Iterator[Thunk]:
    """What brings results that are stored wider than their dtype to values of it."""
    if exact is True:
        return
    own = [n.id, *(r for r, _ in ctx.graph.uses.of(n.id) if isinstance(ctx.graph[r].op, Result))]
    for i in own:
        to, data = ctx.graph[i].dtype, ctx.flat(i) if ctx.storage(i) is not ctx.graph[i].dtype else None
        if data is not None and data.numel and (exact is False or not exact(n)):
            yield NarrowStored(data, data.numel, to)


def lower_graph(graph: Graph, plan: MemoryPlan, options: LowerOptions | None = None) -> CommandList:
    """The command list of a planned graph: pure views and elided transposes emit nothing.

    What can't run (unknown extents, no slot, no kernel) becomes ``Unrunnable``: the list is whole, a run says why.
    """
    ctx = Lowering(graph, plan)
    thunks: list[Thunk] = []
    node_of: list[int] = []
    overwritten = overwrite_reasons(graph, np.flatnonzero(plan.elided).tolist())
    for n in graph.nodes:
        made = _lower_or_say_why(ctx, n) if n.id not in overwritten else (Unrunnable(n.op.name, n.label, overwritten[n.id]),)
        thunks += made
        node_of += [n.id] * len(made)
    names = graph.output_names
    return CommandList(
        name=graph.name,
        thunks=tuple(thunks),
        node_of=tuple(node_of),
        arena_size=plan.arena_size,
        weights_size=plan.weights_size,
        scratch_bytes=max((t.scratch_bytes for t in thunks), default=0),
        inputs=tuple(Binding(graph[i].name, ctx.boundary(i), graph[i].dtype) for i in graph.inputs),
        outputs=tuple(Binding(name, ctx.boundary(o), graph[o].dtype)
                      for name, o in zip(names, graph.outputs, strict=True)),
        params=tuple(Binding(graph[i].name, ctx.boundary(i), graph[i].dtype) for i in graph.params),
        constants=tuple(StoredConstant(ctx.operand(i), graph[i].op.data)  # type: ignore[attr-defined]
                        for i in graph.of(Constant) if plan.space[i] != NO_SLOT),
        slots=_slot_lives(graph, plan),
        static_nodes=_static_nodes(graph, plan) if (options or LowerOptions()).static_packs_once else frozenset(),
        node_names=tuple(f"%{n.id} {n.op.name}" + (f" {n.name!r}" if n.name else "") for n in graph.nodes),
        provenance=Provenance(graph, plan, tuple(thunks), tuple(node_of)),
    )


def _static_nodes(graph: Graph, plan: MemoryPlan) -> frozenset[int]:
    """Static weight packs whose slots are theirs alone (a pin doesn't prove it, spec §6)."""
    return frozenset(n.id for n in graph.nodes if not n.op.has(Trait.BOUNDARY) and is_static_weight_tensor(graph, n.id)
                     and slot_is_exclusive(plan, n.id))


def _slot_lives(graph: Graph, plan: MemoryPlan) -> tuple[SlotLife, ...]:
    """Every buffer's life, the arena's first; buffers that hand their bytes over in place are one."""
    pairs = [pair for s in (0, 1) for pair in plan.slot_lives(s)]
    ids = np.asarray([i for i, _ in pairs], dtype=np.int64)
    columns = (a[ids].tolist() for a in (plan.space, plan.offset, plan.size, plan.guard, plan.birth))
    return tuple(SlotLife(i, graph[i].label, graph[i].op.name, SPACES[space], offset, size, guard, birth, last)
                 for (i, last), space, offset, size, guard, birth in zip(pairs, *columns, strict=True))
