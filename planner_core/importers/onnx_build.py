"""Owns ``Builder``: the walk over ONNX nodes, and the placing of values as IR nodes, params and captures.

One builder a graph; a subgraph's builder has a parent and takes everything from outside as ``Input``s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner_core.errors import GraphError, ImportModelError, OpenDimError
from planner_core.importers import onnx_opaque
from planner_core.importers.onnx_call import Call, Unsupported, find_handler
from planner_core.importers.onnx_extents import is_known, is_open
from planner_core.importers.onnx_value import Value
from planner_core.ir import UNKNOWN, Array, Dim, DType, Graph, NodeId, Shape, Source, TensorData, ops
from planner_core.ir.ops import Input

if TYPE_CHECKING:
    import onnx

    from planner_core.importers.onnx_model import Model

__all__ = ["Builder"]


_CHUNK = 1 << 20


class Builder:
    """Turns the nodes of one ONNX graph into nodes of ``graph``."""

    def __init__(self, model: Model, graph: Graph, parent: Builder | None = None) -> None:
        self.model = model
        self.graph = graph
        self.parent = parent
        self.env: dict[str, Value] = {}
        self.captures: dict[int, tuple[Value, NodeId]] = {}
        self._placed: dict[int, tuple[Value, NodeId]] = {}
        self._names: set[str] = set()
        self._pool: dict[tuple[bool, DType, tuple[int, ...], bytes], list[tuple[Array, NodeId]]] = {}
        self.merged = 0

    # --- names and values ---------------------------------------------------------------------------

    @property
    def root(self) -> Builder:
        return self if self.parent is None else self.parent.root

    def unique(self, name: str) -> str:
        """The name, with a suffix when this graph has it already."""
        made, n = name, 1
        while made in self._names:
            n += 1
            made = f"{name}~{n}"
        self._names.add(made)
        return made

    def find(self, name: str) -> Value | None:
        """The value of a tensor name here or further out."""
        here: Builder | None = self
        while here is not None:
            if name in here.env:
                return here.env[name]
            here = here.parent
        return None

    def add_input(self, name: str, shape: Shape, source: Source) -> Value:
        node = self.graph.add(ops.Input(shape), name=self.unique(name), source=(source,))
        return Value(shape, name=name, node=node, owner=self,
                     bound=self.parent is not None or name in self.model.open_inputs)

    def add_initializers(self, graph: onnx.GraphProto) -> None:
        """Initializers as values; they become params where they are read."""
        for t in graph.initializer:
            self.env[t.name] = self.model.tensor_value(t, t.name, "initializer")
        for s in graph.sparse_initializer:
            array = self.model.file.tensors.sparse(s)
            if array is None:
                raise ImportModelError(f"{self.model.file.what}: sparse initializer {s.values.name!r} has an element "
                                       "type that can't be read")
            value = Value.of(array, s.values.name)
            value.from_file, value.source = True, (self.model.source(s.values.name, "initializer"),)
            self.env[s.values.name] = value

    # --- placing --------------------------------------------------------------------------------------

    def place(self, v: Value) -> NodeId:
        """The id of the value's node in this graph, made now if it has none."""
        if v.owner is self and v.node is not None:
            return v.node
        if id(v) in self._placed:
            return self._placed[id(v)][1]
        if v.owner is not self and self.parent is not None:
            return self.capture(v)
        if v.partial is not None and is_known(v.partial):
            v.node = self._measured(v, v.partial)
            return v.node
        if v.recipe is not None:
            op, ins = v.recipe
            made = self.graph.add(op, *[self.place(i) for i in ins], name=self.unique(v.name), source=v.source)
            v.node = made
            return made
        assert v.array is not None, v.name
        node = self._param(v, v.array)
        self._placed[id(v)] = (v, node)
        return node

    def _measured(self, v: Value, data: Array) -> NodeId:
        """Shape data with open extents as nodes: an extent is the sum of as many ones."""
        add, dtype = self.graph.add, v.shape.dtype
        parts = []
        for x in data.reshape(-1):
            flat = np.asarray([1 if isinstance(x, Dim) else x], dtype.numpy)
            made = self.place(Value.of(flat, f"{v.name}.one" if isinstance(x, Dim) else f"{v.name}.{x}"))
            if isinstance(x, Dim):
                made = add(ops.Reduce("sum", (0,), True), add(ops.Expand((x,)), made), source=v.source)
            parts.append(made)
        whole = parts[0] if len(parts) == 1 else add(ops.Concat(0), *parts, source=v.source)
        return add(ops.Reshape(v.shape.dims), whole, name=self.unique(v.name), source=v.source)

    def capture(self, v: Value) -> NodeId:
        """An ``Input`` that stands for a value of an outer graph."""
        if id(v) not in self.captures:
            node = self.graph.add(ops.Input(v.shape), name=self.unique(v.name or "captured"), source=v.source)
            self.captures[id(v)] = (v, node)
        return self.captures[id(v)][1]

    def _param(self, v: Value, array: Array) -> NodeId:
        inline = v.bound or (array.size == 1 and (not v.from_file or v.constant))  # another binding's is no weight
        key = (inline, v.shape.dtype, array.shape, _sample(array))
        for other, node in self._pool.setdefault(key, []):
            if other is array or _same(other, array):
                self.merged += v.from_file and not inline
                return node
        name, source = v.name or "constant", v.source
        if inline:
            made = self.graph.add(ops.Constant(TensorData(array)), name=self.unique(name), source=source)
        else:
            made = self.graph.param(self.unique(name), array.shape, v.shape.dtype, array, source=source)
        self._pool[key].append((array, made))
        return made

    # --- the walk -------------------------------------------------------------------------------------

    def run(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Import the nodes in order; each output name gets a value in ``env``."""
        for node in nodes:
            self._run(node)

    def _run(self, node: onnx.NodeProto) -> None:
        model = self.model
        ins: list[Value | None] = []
        for name in node.input:
            value = self.find(name) if name else None
            if name and value is None:
                raise ImportModelError(
                    f"{model.file.what}: {node.op_type} {node.name or '(unnamed)'} reads {name!r}, which no input, "
                    "initializer or earlier node gives; the file is damaged or its nodes are out of order: check it "
                    "with onnx.checker.check_model"
                )
            ins.append(value)
        call = Call(self, node, ins)
        outs, reason = self._handled(call)
        if model.kept and any(v is not None and is_open(v) for v in ins):
            self._check_open(call, outs, reason)
        if outs is None:
            model.refused(call, reason)
            call.pending.clear()
            outs = onnx_opaque.opaque(call)
        self._bind(call, outs)

    def _handled(self, call: Call) -> tuple[Sequence[Value] | None, str]:
        """(the node's values, "") or (None, why the IR can't say the node)."""
        ins, handler = call.ins, find_handler(call.domain, call.node.op_type)
        if any(v is not None and v.odd for v in ins):
            return None, "an operand has no DType of its own"
        if any(v is not None and v.rankless for v in ins) and not call.keeps_rank():
            return None, "an operand's rank is unknown"
        if handler is None:
            return None, ""
        try:
            made = handler(call)
            return ([made] if isinstance(made, Value) else list(made)), ""
        except Unsupported as e:
            return None, str(e)
        except GraphError as e:
            onnx_opaque.check_consistent(call, e)
            return None, str(e)
        except ImportModelError:
            raise
        except (ValueError, TypeError, IndexError, KeyError, ArithmeticError) as e:
            return None, f"attributes or operands that don't fit the op: {e}"

    def _check_open(self, call: Call, outs: Sequence[Value] | None, reason: str) -> None:
        """``ImportModelError`` where a node can't be said with its operands' dims open."""
        lost = outs is not None and any(d.is_unknown for v in outs for d in v.shape.dims) and not any(
            d.is_unknown for v in call.ins if v is not None for d in v.shape.dims)
        if outs is not None and not lost:
            return
        kept = self.model.kept
        given = ", ".join(f"{s!r}: 128" for s in kept)
        shapes = ", ".join(str(v.shape) for v in call.ins if v is not None)
        raise OpenDimError(
            f"{self.model.file.what}: {call.node.op_type} {call.label!r} of {shapes} can't keep {', '.join(kept)} open: "
            f"{reason or ('an extent of its result is no sum or product of them' if lost else 'no IR op for it')}; bind "
            f"them, dims={{{given}}}, or leave them to rlx_viz.compile(keep=…).at(…), which imports each binding anew")

    def _bind(self, call: Call, outs: Sequence[Value]) -> None:
        if any(v is not None and v.rankless for v in call.ins):
            for v in call.pending:
                v.rankless = v.rankless or v.shape.dims == (UNKNOWN,)
        names = list(call.node.output)
        base = next((n for n in names if n), call.label)
        for name, v in zip(names, outs, strict=False):
            if name:
                if not v.name:
                    v.name = name
                self.env[name] = v
        count = 0
        for v in call.pending:
            if not v.name:
                count += 1
                v.name = f"{base}.{count}"
            if v.partial is None:
                self.place(v)
        for v in call.constants:
            v.name = v.name or f"{base}.constant"

    # --- subgraphs ------------------------------------------------------------------------------------

    def child(self, name: str) -> Builder:
        return Builder(self.model, Graph(name), self)

    def finish(self, outputs: Sequence[Value], names: Sequence[str]) -> Graph:
        """Set the outputs; a body's ``Input``s move to its front, in their order."""
        placed = [self.place(v) for v in outputs]
        if self.parent is None:
            return self.graph.set_outputs(*placed, names=names)
        return inputs_first(self.graph, placed, names)


def inputs_first(graph: Graph, outputs: Sequence[NodeId], names: Sequence[str]) -> Graph:
    """The same graph with its ``Input``s scheduled before everything else."""
    order = sorted(range(len(graph)), key=lambda i: not isinstance(graph[i].op, Input))
    new = {old: i for i, old in enumerate(order)}
    out = Graph(graph.name)
    for old in order:
        n = graph[old]
        out.add(n.op, *[new[i] for i in n.inputs], name=n.name, source=n.source)
    return out.set_outputs(*[new[o] for o in outputs], names=names)


def _sample(a: Array) -> bytes:
    """A few elements from all over: weights that differ are told apart without reading them through."""
    return bytes(a[tuple(slice(None, None, max(1, n // 4)) for n in a.shape)].tobytes())


def _same(a: Array, b: Array) -> bool:
    """Equal bytes."""
    if a.ndim == 2 and a.flags.f_contiguous and b.flags.f_contiguous:
        a, b = a.T, b.T
    x, y = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    return x.size == y.size and all(
        np.array_equal(x[i : i + _CHUNK], y[i : i + _CHUNK]) for i in range(0, x.size, _CHUNK))

