"""Owns ``Graph``: an append-only list of nodes in a valid order, its outputs, its weights' data.

Builder methods (``g.mm(a, b)``, ``g.relu(x)``, ``g.narrow(x, axis=0, start=8, len=16)``) come from the op
registry. Text and JSON forms: ``text.py``, ``files.py``; checks: ``validate.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from planner_core.derived import Derived
from planner_core.errors import GraphError, UnboundDimError
from planner_core.ir import op as op_module
from planner_core.ir.boundary import Constant, Input, Param
from planner_core.ir.dtype import DType
from planner_core.ir.op import Array, Op, TensorData, check_arity
from planner_core.ir.shape import Dim, DimBinding, DimLike, Shape, dim
from planner_core.ir.traits import Trait
from planner_core.show import Facts, Shown

__all__ = ["Graph", "Node", "NodeId", "Source", "Uses"]

NodeId = int
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a node came from: file, the node's name there, its module path, its op there."""

    file: str = ""
    node: str = ""
    scope: str = ""
    op: str = ""

    def __str__(self) -> str:
        return " ".join(p for p in (self.file, self.scope, self.node, f"({self.op})" if self.op else "") if p)


@dataclass(frozen=True, slots=True)
class Node:
    """One op application. ``shape`` carries the dtype; ``source`` has several entries after a fusion."""

    id: NodeId
    op: Op
    inputs: tuple[NodeId, ...]
    shape: Shape
    name: str = ""
    source: tuple[Source, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.shape.dtype

    @property
    def label(self) -> str:
        """The name, or ``%id``."""
        return self.name or f"%{self.id}"


@dataclass(frozen=True, slots=True)
class Uses:
    """Every read, grouped by the node that is read (CSR): reads of node i are ``ptr[i]:ptr[i+1]``."""

    ptr: IntArray
    reader: IntArray
    operand: IntArray

    def of(self, node: NodeId) -> list[tuple[NodeId, int]]:
        """(reader, operand index) pairs in schedule order."""
        a, b = int(self.ptr[node]), int(self.ptr[node + 1])
        return list(zip(self.reader[a:b].tolist(), self.operand[a:b].tolist(), strict=True))


class Graph(Derived, Shown):
    """A model as nodes in schedule order.

    ``outputs`` are node ids (repeats allowed); ``weights`` maps a param's name to its data where known.
    """

    def _facts(self) -> Facts:
        return (f"Graph {self.name!r}", (("nodes", f"{len(self.nodes):,}"), ("inputs", len(self.inputs)), ("params", len(self.params)),
                                         ("outputs", len(self.outputs))), "rlx_viz.compile(graph) plans it; print(planner_core.ir.to_text(graph))")

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.outputs: list[NodeId] = []
        self.output_names: list[str] = []
        self.weights: dict[str, Array] = {}
        self.notes: list[str] = []
        """What an importer had to assume, one sentence each; not part of the content hash."""
        self._named: dict[str, NodeId] = {}
        self._cache: dict[Hashable, Any] = {}

    # --- building ---------------------------------------------------------------------------------

    def add(self, op: Op | NodeId, *inputs: NodeId, name: str = "", source: Sequence[Source] = ()) -> NodeId:
        """Append a node and return its id; ``GraphError`` names the op, the place and the operands.

        ``g.add(a, b)`` with two nodes is the builder of their sum, like ``g.mul(a, b)``.
        """
        if isinstance(op, (int, np.integer)):
            return self._build(*op_module.builders()["add"], op, *inputs, name=name, source=source)
        count = len(self.nodes)
        try:
            check_arity(op, len(inputs))
            for i in inputs:
                if not 0 <= i < count:
                    raise GraphError(f"operand %{i} is not a node of this graph ({count} nodes so far)")
            shape = op.infer(*[self.nodes[i].shape for i in inputs])
        except UnboundDimError:
            raise
        except GraphError as e:
            raise GraphError(f"{op.name} {name or f'%{count}'} in {self.name!r}: {e}") from e
        except IndexError as e:  # a shape rule asked for an axis that an operand doesn't have
            shapes = ", ".join(str(self.nodes[i].shape) for i in inputs)
            raise GraphError(f"{op.name} {name or f'%{count}'} in {self.name!r}: operands of {shapes} have too few axes for it; "
                             "give it operands of higher rank (g.reshape)") from e
        return self._append(op, inputs, shape, name, tuple(source))

    def _append(self, op: Op, inputs: tuple[NodeId, ...], shape: Shape, name: str,
                source: tuple[Source, ...]) -> NodeId:
        node = Node(len(self.nodes), op, inputs, shape, name, source)
        if op.has(Trait.NAMED):
            if not name:
                raise GraphError(f"{op.name} %{node.id} in {self.name!r} needs a name")
            if name in self._named:
                raise GraphError(f"{op.name} {name!r} in {self.name!r}: the name is taken by %{self._named[name]}")
            self._named[name] = node.id
        self.nodes.append(node)
        if self._cache:
            self._cache.clear()
        return node.id

    def input(self, name: str, dims: Iterable[DimLike], dtype: DType = DType.F32, **kw: Any) -> NodeId:
        return self.add(Input(Shape.of(dims, dtype)), name=name, **kw)

    def param(self, name: str, dims: Iterable[DimLike], dtype: DType = DType.F32,
              data: Array | None = None, **kw: Any) -> NodeId:
        """A weight; ``data`` (same shape and dtype) may come now or later through ``weights``."""
        node = self.add(Param(Shape.of(dims, dtype)), name=name, **kw)
        if data is not None:
            if data.shape != self.nodes[node].shape.sizes or data.dtype != dtype.numpy:
                raise GraphError(f"param {name!r}: data is {data.dtype}{list(data.shape)}, wanted {self.nodes[node].shape}")
            self.weights[name] = data
        return node

    def constant(self, value: Any, dtype: DType | None = None, **kw: Any) -> NodeId:
        array = np.asarray(value, dtype=None if dtype is None else dtype.numpy)
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)  # a literal 0.5 means f32, as everywhere else
        return self.add(Constant(TensorData(array)), **kw)

    def __getattr__(self, method: str) -> Callable[..., NodeId]:
        found = op_module.builders().get(method) if not method.startswith("_") else None
        if found is None:
            raise AttributeError(f"Graph has no builder {method!r}; see dir(graph) or planner_core.ir.registry()")
        return partial(self._build, *found)

    def _build(self, cls: type[Op], fixed: dict[str, Any], *inputs: NodeId, name: str = "",
               source: Sequence[Source] = (), **attrs: Any) -> NodeId:
        for k, v in attrs.items():
            if isinstance(v, list):
                v = attrs[k] = tuple(v)
            if isinstance(v, tuple) and k == "dims":
                attrs[k] = tuple(dim(d) for d in v)
        try:
            made = cls(**fixed, **attrs)
        except TypeError as e:
            raise GraphError(f"{cls.name} in {self.name!r}: {e}") from e
        return self.add(made, *inputs, name=name, source=source)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *op_module.builders()})

    def set_outputs(self, *outputs: NodeId, names: Sequence[str] = ()) -> Graph:
        """Declare the outputs (repeats allowed); names default to the nodes' labels, to ``label.1``, … where nodes share one.

        Returns the graph. ``GraphError`` for a name that is given to two nodes: results are by name.
        """
        for o in outputs:
            if not 0 <= o < len(self.nodes):
                raise GraphError(f"output %{o} is not a node of {self.name!r} ({len(self.nodes)} nodes)")
        if names and len(names) != len(outputs):
            raise GraphError(f"{len(outputs)} outputs but {len(names)} names")
        named: dict[str, NodeId] = {}
        for o, name in zip(outputs, names, strict=bool(names)):
            if named.setdefault(name, o) != o:
                raise GraphError(f"two outputs of {self.name!r} are named {name!r} (%{named[name]} and %{o}), and results are by "
                                 "name: give each its own")
        self.outputs = list(outputs)
        self.output_names = list(names) or self._labels_apart(outputs)
        self._cache.clear()
        return self

    def _labels_apart(self, nodes: Sequence[NodeId]) -> list[str]:
        """Labels of the nodes, with a number behind one that another node has."""
        taken: dict[str, NodeId] = {}
        out = []
        for o in nodes:
            label = name = self.nodes[o].label
            k = 0
            while taken.setdefault(name, o) != o:
                k += 1
                name = f"{label}.{k}"
            out.append(name)
        return out

    # --- looking ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, node: NodeId) -> Node:
        return self.nodes[node]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.content_hash == other.content_hash

    __hash__ = None  # type: ignore[assignment]

    def of(self, *ops: type[Op] | str) -> list[NodeId]:
        """Ids of the nodes with one of these ops, in order: ``g.of(MatMul)``, or by name ``g.of("MatMul")``.
        ``GraphError`` offers near names for one that no op has."""
        wanted = tuple(op_module.named(o) if isinstance(o, str) else o for o in ops)
        return [n.id for n in self.nodes if isinstance(n.op, wanted)]

    @property
    def inputs(self) -> list[NodeId]:
        return self.of(Input)

    @property
    def params(self) -> list[NodeId]:
        return self.of(Param)

    def find(self, name: str) -> Node:
        """The input, param or first node of that name; ``GraphError`` offers near names."""
        if name in self._named:
            return self.nodes[self._named[name]]
        for n in self.nodes:
            if n.name == name:
                return n
        import difflib

        near = difflib.get_close_matches(name, [n.name for n in self.nodes if n.name], 3)
        raise GraphError(f"no node named {name!r} in {self.name!r}" + (f"; near: {', '.join(near)}" if near else ""))

    @property
    def edges(self) -> tuple[IntArray, IntArray]:
        """CSR of operands: node i reads ``flat[ptr[i]:ptr[i+1]]``. Built once."""
        if "edges" not in self._cache:
            counts = [len(n.inputs) for n in self.nodes]
            flat = [i for n in self.nodes for i in n.inputs]
            ptr = np.zeros(len(counts) + 1, dtype=np.int64)
            np.cumsum(counts, out=ptr[1:])
            self._cache["edges"] = (ptr, np.asarray(flat, dtype=np.int64))
        found: tuple[IntArray, IntArray] = self._cache["edges"]
        return found

    @property
    def uses(self) -> Uses:
        """Who reads what, indexed once."""
        if "uses" not in self._cache:
            ptr, flat = self.edges
            count = len(self.nodes)
            reader = np.repeat(np.arange(count, dtype=np.int64), np.diff(ptr))
            operand = np.arange(len(flat), dtype=np.int64) - ptr[reader]
            order = np.argsort(flat, kind="stable")
            uptr = np.zeros(count + 1, dtype=np.int64)
            np.cumsum(np.bincount(flat, minlength=count), out=uptr[1:])
            self._cache["uses"] = Uses(uptr, reader[order], operand[order])
        found: Uses = self._cache["uses"]
        return found

    @property
    def symbols(self) -> dict[str, list[str]]:
        """Unbound symbol name -> inputs and params whose dims use it."""
        out: dict[str, list[str]] = {}
        for n in self.nodes:
            if n.op.has(Trait.NAMED):
                for d in n.shape.dims:
                    if d.value is None and not d.is_unknown:
                        for s in sorted(d.names()):
                            if n.name not in out.setdefault(s, []):
                                out[s].append(n.name)
        return out

    @property
    def content_hash(self) -> str:
        """SHA-256 over the text form and the weights' bytes: equal graphs, equal hashes, whatever file they came from.

        File names and paths are kept in the nodes' ``source``, beside it: two copies of one file have one hash.
        Kept until a node is added, outputs change or a weight is replaced (not: written into in place).
        """
        from planner_core.ir.text import to_text

        arrays = tuple((name, id(w)) for name, w in sorted(self.weights.items()))
        kept = self._cache.get("hash")
        if kept is not None and kept[0] == (self.name, arrays):
            return str(kept[1])
        h = hashlib.sha256(to_text(self, files=False).encode())
        for name in sorted(self.weights):
            w = self.weights[name]
            h.update(f"{name}\0{w.dtype}{w.shape}\0".encode())
            h.update(np.ascontiguousarray(w).reshape(-1).view(np.uint8).data)
        self._cache["hash"] = ((self.name, arrays), h.hexdigest())
        return h.hexdigest()

    # --- rewriting --------------------------------------------------------------------------------

    def bind(self, binding: DimBinding | Mapping[str, int]) -> Graph:
        """A copy with symbols bound and every shape inferred again; symbols are kept beside the values.

        Raises ``UnboundDimError`` for a name no dim has.
        """
        values = binding.as_dict() if isinstance(binding, DimBinding) else dict(binding)
        known = self.symbols
        stray = values.keys() - known.keys()
        if stray:
            raise UnboundDimError(f"no dim named {sorted(stray)} in {self.name!r}; it has {sorted(known) or 'none'}")
        out = Graph(self.name)
        for n in self.nodes:
            out.add(_bind_op(n.op, values), *n.inputs, name=n.name, source=n.source)
        out.weights = dict(self.weights)
        out.notes = list(self.notes)
        out.set_outputs(*self.outputs, names=self.output_names)
        return out

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form (weights apart; see ``files.py``)."""
        from planner_core.ir.files import graph_to_dict

        return graph_to_dict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Graph:
        from planner_core.ir.files import graph_from_dict

        return graph_from_dict(value)


def _bind_op(o: Op, values: Mapping[str, int]) -> Op:
    changed: dict[str, Any] = {}
    for k, v in op_module.attributes(o):
        if isinstance(v, Shape):
            changed[k] = v.bind(values)
        elif isinstance(v, tuple) and v and isinstance(v[0], Dim):
            changed[k] = tuple(d.bind(values) for d in v)
        elif isinstance(v, Graph):
            changed[k] = v.bind({s: x for s, x in values.items() if s in v.symbols})
    return replace(o, **changed) if changed else o  # type: ignore[type-var]
