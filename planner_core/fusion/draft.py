"""Owns ``Draft``: a graph while rules rewrite it. Rules look at it and answer with a ``Rewrite``; only
``commit`` changes it.

Nodes keep their ids; new ones get the next. Readers are counted, so that a question costs O(1) and a rewrite
what it touches. ``level`` grows along edges: a node can only depend on nodes of its level or below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner_core.fusion.refusal import Refusal
from planner_core.ir import Array, DType, Graph, NodeId, Op, Shape, Source
from planner_core.ir.op import TensorData, check_arity
from planner_core.ir.ops import Cast, Constant, Expand, Input, Narrow, Param, Reduce, Reshape, Result
from planner_core.ir.traits import Trait
from planner_core.ir.views import is_static, views

__all__ = ["Draft", "Refused", "Rewrite"]

_SMALL_PARAM = 1 << 24
"""Elements: params with known data up to here are read as constants when a pattern asks (scales, masks)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A rule's no: the reason, the node that caused it, and what to know about it."""

    reason: Refusal
    at: NodeId
    nodes: tuple[NodeId, ...] = ()
    facts: tuple[tuple[str, Any], ...] = ()


@dataclass(slots=True)
class Rewrite:
    """A rule's yes: new nodes (ids -1, -2, … until committed) and which old values they stand for.

    Whatever is no longer read afterwards goes. ``facts`` are shown with the decision.
    """

    draft: Draft
    anchor: NodeId
    made: list[tuple[Op, tuple[NodeId, ...], Shape, str]] = field(default_factory=list)
    replaced: dict[NodeId, NodeId] = field(default_factory=dict)
    facts: list[tuple[str, Any]] = field(default_factory=list)
    new_weights: dict[str, Array] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    dropped: list[NodeId] = field(default_factory=list)
    frees_params: bool = False
    """Params that are no longer read go too (what is baked into another no longer has to be given)."""

    def add(self, op: Op, *inputs: NodeId, name: str = "") -> NodeId:
        """A new node; its shape is inferred now (``GraphError`` becomes the refusal ``SHAPE``)."""
        check_arity(op, len(inputs))
        shape = op.infer(*[self.shape(i) for i in inputs])
        self.made.append((op, inputs, shape, name))
        return -len(self.made)

    def constant(self, value: Any, dtype: DType) -> NodeId:
        """A new constant."""
        made = Constant(TensorData(np.asarray(value, dtype=dtype.numpy)))
        return self.add(made)

    def param(self, name: str, data: Array, dtype: DType) -> NodeId:
        """A new param that holds ``data``; its name is made unique."""
        unique, k = name, 1
        while unique in self.draft.taken or unique in self.new_weights:
            k += 1
            unique = f"{name}_{k}"
        self.new_weights[unique] = data
        made = Param(Shape.of(data.shape, dtype))
        return self.add(made, name=unique)

    def reshape(self, x: NodeId, dims: Iterable[Any]) -> NodeId:
        """``x`` with other dims; ``x`` itself where it has them already."""
        dims = self.shape(x).with_dims(dims).dims
        if self.shape(x).dims == dims:
            return x
        return self.add(Reshape(dims), x)

    def slice0(self, x: NodeId, index: int) -> NodeId:
        """``x[index]`` with its first axis kept: a view."""
        return self.add(Narrow(0, index, 1), x)

    def shape(self, node: NodeId) -> Shape:
        return self.made[-node - 1][2] if node < 0 else self.draft.shape(node)

    def replace(self, old: NodeId, new: NodeId) -> Rewrite:
        """All reads of ``old`` go to ``new``. Returns the rewrite."""
        self.replaced[old] = new
        return self

    def drop(self, *nodes: NodeId) -> Rewrite:
        """Remove nodes that nothing reads. Returns the rewrite."""
        self.dropped += nodes
        return self

    def note(self, **facts: Any) -> Rewrite:
        """Facts to show with the decision. Returns the rewrite."""
        self.facts += facts.items()
        return self


@dataclass(frozen=True, slots=True)
class Committed:
    """What a rewrite did: ids of nodes gone and made."""

    gone: tuple[NodeId, ...]
    made: tuple[NodeId, ...]


class Draft:
    """A graph under rewriting."""

    def __init__(self, graph: Graph, folded: frozenset[NodeId] = frozenset()) -> None:
        self.source = graph
        self.folded = folded
        """Transposes of the source that the target's memory plan drops: they cost nothing as it is."""
        n = len(graph)
        self._ops: list[Op] = [x.op for x in graph.nodes]
        self._inputs: list[tuple[NodeId, ...]] = [x.inputs for x in graph.nodes]
        self._shapes: list[Shape] = [x.shape for x in graph.nodes]
        self._names: list[str] = [x.name for x in graph.nodes]
        self._sources: list[tuple[Source, ...]] = [x.source for x in graph.nodes]
        self._readers: list[dict[NodeId, int]] = [{} for _ in range(n)]
        self._reads = [0] * n
        self._alive = [True] * n
        self.place: list[int] = list(range(n))
        """Where a node is emitted: its place in the source graph, a new one's that of its anchor."""
        self.level: list[int] = [0] * n
        self.static: list[bool] = [False] * n
        self.origins: list[tuple[NodeId, ...]] = [(i,) for i in range(n)]
        self.outputs: list[NodeId] = list(graph.outputs)
        self._is_output: dict[NodeId, list[int]] = {}
        self.weights: dict[str, Array] = dict(graph.weights)
        self.taken: set[str] = {x.name for x in graph.nodes if x.name}
        self.frozen: set[str] = set()
        """Params whose values were read to decide: setting them later would not be seen."""
        self.by_op: dict[type[Op], list[NodeId]] = {}
        self._scalars: dict[NodeId, Array | None] = {}
        self.changed = False
        for x in graph.nodes:
            i = x.id
            self.by_op.setdefault(type(x.op), []).append(i)
            for r in x.inputs:
                readers = self._readers[r]
                readers[i] = readers.get(i, 0) + 1
                self._reads[r] += 1
            self.static[i] = self._static(x.op, x.inputs)
            self.level[i] = -1 if x.op.has(Trait.BOUNDARY) or self.static[i] else i
        for at, o in enumerate(self.outputs):
            self._is_output.setdefault(o, []).append(at)
            self._reads[o] += 1

    def _static(self, op: Op, inputs: tuple[NodeId, ...]) -> bool:
        return is_static(op, [self.static[i] for i in inputs])

    # --- looking ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ops)

    def alive(self, node: NodeId) -> bool:
        return self._alive[node]

    def op(self, node: NodeId) -> Op:
        return self._ops[node]

    def kind(self, node: NodeId) -> str:
        """The op's name, or its ``kind`` attribute for elementwise ops (``add``, ``gelu``, ``ne``), reductions
        (``reduce_mean``) and pools."""
        op = self._ops[node]
        kind = getattr(op, "kind", None)
        if isinstance(kind, str):
            return f"reduce_{kind}" if isinstance(op, Reduce) else kind
        return op.name

    def inputs(self, node: NodeId) -> tuple[NodeId, ...]:
        return self._inputs[node]

    def shape(self, node: NodeId) -> Shape:
        return self._shapes[node]

    def dims(self, node: NodeId) -> tuple[int, ...]:
        """Extents as ints; -1 where unbound or unknown."""
        return tuple(-1 if d.value is None else d.value for d in self._shapes[node].dims)

    def dtype(self, node: NodeId) -> DType:
        return self._shapes[node].dtype

    def name(self, node: NodeId) -> str:
        return self._names[node]

    def label(self, node: NodeId) -> str:
        return self._names[node] or f"%{node}"

    def is_output(self, node: NodeId) -> bool:
        return node in self._is_output

    def reads(self, node: NodeId) -> int:
        """Times the value is read, graph outputs counted."""
        return self._reads[node]

    def readers(self, node: NodeId) -> list[NodeId]:
        """Distinct readers, in order."""
        return sorted(self._readers[node], key=lambda r: (self.place[r], r))

    def fan_out(self, node: NodeId) -> int:
        """How many nodes read it."""
        return len(self._readers[node])

    def only_reader(self, node: NodeId) -> NodeId | None:
        """The one node that reads it, once or more, when nothing else does and it is no graph output."""
        readers = self._readers[node]
        return next(iter(readers)) if len(readers) == 1 and node not in self._is_output else None

    def shared(self, node: NodeId, by: Iterable[NodeId] = ()) -> Refused | None:
        """The refusal when ``node`` is an output or is read by others than ``by`` (default: one reader)."""
        if node in self._is_output:
            return Refused(Refusal.OUTPUT, node)
        readers, inside = self._readers[node], set(by)
        if len(readers) - sum(r in readers for r in inside) > (0 if inside else 1):
            return Refused(Refusal.SHARED, node, facts=(("readers", len(self._readers[node])),))
        return None

    def nodes(self, *ops: type[Op]) -> list[NodeId]:
        """Ids of live nodes with one of these ops, in order."""
        found = []
        for kind in ops:
            ids = [i for i in self.by_op.get(kind, ()) if self._alive[i] and type(self._ops[i]) is kind]
            self.by_op[kind] = ids
            found += ids
        return sorted(found, key=lambda i: (self.place[i], i))

    def is_view(self, node: NodeId) -> bool:
        """No work and no bytes of its own: a reshape, an axis-0 slice, a cast to the same dtype."""
        ins = self._inputs[node]
        return bool(ins) and views(self._ops[node], self._shapes[ins[0]], self._shapes[node])

    def costs(self, node: NodeId) -> tuple[int, int]:
        """(bytes written, dispatches) of a node in one run: none for boundaries, views, static packs, empty values and
        transposes that the plan drops."""
        op = self._ops[node]
        if op.has(Trait.BOUNDARY) or isinstance(op, Result) or self.is_view(node) or self.static[node] or node in self.folded:
            return 0, 0
        s = self._shapes[node]
        if not s.is_static:
            return 0, 1
        return (s.dtype.nbytes(s.numel), 1) if s.numel else (0, 0)  # nothing to write: no command

    def array(self, node: NodeId, most: int = _SMALL_PARAM) -> Array | None:
        """The value of a constant, or of a param with known data, seen through reshapes and expands;
        None when it isn't known or has more than ``most`` elements. Reading a param freezes it on commit."""
        op = self._ops[node]
        if isinstance(op, Constant):
            data: Array = op.data.array
            return data if data.size <= most else None
        if isinstance(op, Param):
            found = self.weights.get(self._names[node])
            return found if found is not None and found.size <= most else None
        if isinstance(op, (Reshape, Expand, Cast)) and self.static[node] and self._shapes[node].is_static:
            if self._shapes[node].numel > most:
                return None
            inner = self.array(self._inputs[node][0], most)
            return None if inner is None else np.asarray(op.evaluate(inner))
        return None

    def scalar(self, node: NodeId) -> float | None:
        """The number that a constant (or a known param) holds everywhere, else None."""
        if not self.static[node]:
            return None
        if node in self._scalars:
            kept = self._scalars[node]
            return None if kept is None else float(kept)
        found = self.array(node, 1 << 16)
        value = None
        if found is not None and found.size and (self.dtype(node).is_float or found.dtype.kind in "iub") and (
                found.size == 1 or bool((found == found.flat[0]).all())):
            value = np.asarray(found.flat[0])
        self._scalars[node] = value
        return None if value is None else float(value)

    def params_of(self, node: NodeId) -> set[str]:
        """Names of the params that a static node is computed from."""
        out: set[str] = set()
        stack = [node]
        while stack:
            i = stack.pop()
            if isinstance(self._ops[i], Param):
                out.add(self._names[i])
            stack += self._inputs[i]
        return out

    def split(self, node: NodeId) -> tuple[NodeId, NodeId] | None:
        """(value, constant) of a binary with a known scalar on one side; the constant may be either operand."""
        a, b = self._inputs[node]
        if self.scalar(b) is not None:
            return a, b
        return (b, a) if self.scalar(a) is not None else None

    def walk(self) -> Iterator[NodeId]:
        """Live nodes in order."""
        yield from (i for i in sorted(range(len(self._ops)), key=lambda i: (self.place[i], i)) if self._alive[i])

    # --- changing ---------------------------------------------------------------------------------

    def commit(self, r: Rewrite) -> Committed | Refused:
        """Do it, or say why it can't be done. Names, sources and origins of what goes pass to what comes."""
        for old, new in r.replaced.items():
            a, b = self._shapes[old], r.shape(new)
            if a.dtype is not b.dtype or a.rank != b.rank or not all(
                    x.same(y) or x.is_unknown for x, y in zip(a.dims, b.dims, strict=True)):
                return Refused(Refusal.SHAPE, old, facts=(("was", str(a)), ("fused", str(b))))
        base = len(self._ops)
        top = min((self.level[o] for o in r.replaced), default=self.level[r.anchor])
        place = min((self.place[o] for o in r.replaced), default=self.place[r.anchor])
        several = len(r.replaced) > 1
        deepest: list[int] = []
        for _, inputs, _, _ in r.made:
            deepest.append(max([-1, *(deepest[-i - 1] if i < 0 else self.level[i] for i in inputs)]))
            if deepest[-1] > top or (several and deepest[-1] == top >= 0):
                return Refused(Refusal.ORDER, r.anchor)
        made = []
        for op, inputs, shape, name in r.made:
            i = len(self._ops)
            ins = tuple(base - x - 1 if x < 0 else x for x in inputs)
            self._ops.append(op)
            self._inputs.append(ins)
            self._shapes.append(shape)
            self._names.append(name)
            self._sources.append(())
            self._readers.append({})
            self._reads.append(0)
            self._alive.append(True)
            self.static.append(self._static(op, ins))
            self.level.append(-1 if self.static[i] else top)
            self.place.append(place)
            self.origins.append(())
            self.by_op.setdefault(type(op), []).append(i)
            if name:
                self.taken.add(name)
            for x in ins:
                readers = self._readers[x]
                readers[i] = readers.get(i, 0) + 1
                self._reads[x] += 1
            made.append(i)
        self.weights.update(r.new_weights)
        self.frozen |= r.frozen
        real = {old: base - new - 1 if new < 0 else new for old, new in r.replaced.items()}
        for old, new in real.items():
            self._move(old, new)
        gone = self._drop([*real, *r.dropped], r.frees_params)
        self._inherit(gone, made, real)
        self.changed = True
        return Committed(tuple(gone), tuple(made))

    def _move(self, old: NodeId, new: NodeId) -> None:
        for reader, count in list(self._readers[old].items()):
            self._inputs[reader] = tuple(new if x == old else x for x in self._inputs[reader])
            readers = self._readers[new]
            readers[reader] = readers.get(reader, 0) + count
            self._reads[new] += count
            self._reads[old] -= count
        self._readers[old].clear()
        outs = self._is_output.pop(old, [])
        for at in outs:
            self.outputs[at] = new
        if outs:
            self._is_output.setdefault(new, []).extend(outs)
            self._reads[new] += len(outs)
            self._reads[old] -= len(outs)

    def _drop(self, stack: list[NodeId], params: bool) -> list[NodeId]:
        kept = (Input,) if params else (Input, Param)
        gone = []
        while stack:
            i = stack.pop()
            if self._reads[i] or not self._alive[i] or isinstance(self._ops[i], kept):
                continue
            self._alive[i] = False
            gone.append(i)
            for x in self._inputs[i]:
                count = self._readers[x].pop(i, 0)
                self._reads[x] -= count
                if count and not self._reads[x]:
                    stack.append(x)
        return gone

    def _inherit(self, gone: list[NodeId], made: list[NodeId], real: dict[NodeId, NodeId]) -> None:
        """What goes, with what it stood for, is what the made nodes stand for."""
        merged = tuple(sorted({o for i in gone for o in self.origins[i]}))
        sources = tuple(dict.fromkeys(s for i in sorted(gone) for s in self._sources[i]))
        for i in made or sorted(set(real.values())):
            if not self._ops[i].has(Trait.BOUNDARY):
                mine = set() if made else set(self.origins[i])
                self.origins[i] = tuple(sorted(mine.union(merged)))
                self._sources[i] = tuple(dict.fromkeys((*self._sources[i], *sources)))
        for old, new in real.items():
            if self._names[old] and not self._names[new]:
                self._names[new] = self._names[old]

    def to_graph(self) -> Graph:
        """The graph as it stands: the source itself when nothing changed, else a new one with the same boundary."""
        if not self.changed:
            return self.source
        return self.emit()[0]

    def emit(self) -> tuple[Graph, dict[NodeId, NodeId]]:
        """(a graph of the live nodes in a valid order, draft id -> its id)."""
        g = Graph(self.source.name)
        at: dict[NodeId, NodeId] = {}
        for root in self.walk():
            stack = [root]
            while stack:
                i = stack[-1]
                if i in at:
                    stack.pop()
                    continue
                missing = [x for x in self._inputs[i] if x not in at]
                if missing:
                    stack += reversed(missing)
                    continue
                stack.pop()
                at[i] = g._append(self._ops[i], tuple(at[x] for x in self._inputs[i]), self._shapes[i],
                                  self._names[i], self._sources[i])
        g.weights = {n: self.weights[n] for n in (g[p].name for p in g.params) if n in self.weights}
        g.notes = list(self.source.notes)
        g.set_outputs(*(at[o] for o in self.outputs), names=self.source.output_names)
        return g, at
