"""Owns ``@onnx_op`` and ``Call``: one ONNX node as its handler sees it, attributes and inputs alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.importers.onnx_extents import ELEMENTS, extent, partial
from planner_core.importers.onnx_value import Value, fold
from planner_core.ir import Array, Dim, DType, Op, Shape
from planner_core.ir.op import check_arity

if TYPE_CHECKING:
    import onnx

    from planner_core.importers.onnx_build import Builder

__all__ = ["Call", "Handler", "Unsupported", "find_handler", "handlers", "onnx_op"]


class Unsupported(Exception):
    """Raised by a handler for what the IR can't say; the node is then kept as an opaque ``Custom``."""


_ELEMENTWISE = frozenset(
    ["Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Neg", "Abs", "Erf", "Sin", "Cos", "Floor", "Ceil", "Round", "Softplus", "Reciprocal", "Not", "Sign", "HardSwish", "LeakyRelu", "Elu", "HardSigmoid", "Gelu", "Cast", "Identity", "Dropout", "Clip", "Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less"]
)
Handler = Callable[["Call"], "Value | Sequence[Value]"]
_HANDLERS: dict[tuple[str, str], Handler] = {}


def onnx_op(*names: str, domain: str = "") -> Callable[[Handler], Handler]:
    """Declare the handler of one or more op types; a second declaration fails at import."""

    def declare(handler: Handler) -> Handler:
        for name in names:
            if (domain, name) in _HANDLERS:
                raise TypeError(f"ONNX op {domain or 'ai.onnx'}::{name} has two handlers")
            _HANDLERS[domain, name] = handler
        return handler

    return declare


def handlers() -> dict[tuple[str, str], Handler]:
    """Every declared handler by (domain, op type) (a copy)."""
    return dict(_HANDLERS)


def find_handler(domain: str, op_type: str) -> Handler | None:
    return _HANDLERS.get((domain, op_type))


def _is_weight(v: Value) -> bool:
    """Data of the file that is no shape data: floats, or a table."""
    return v.from_file and v.array is not None and v.array.size > 1 and (v.shape.dtype.is_float or v.array.size > ELEMENTS)


class Call:
    """One ONNX node: operands by index, attributes by name, the opset of its domain, and ``emit``."""

    def __init__(self, builder: Builder, node: onnx.NodeProto, ins: list[Value | None]) -> None:
        from onnx.helper import get_attribute_value

        self.builder = builder
        self.node = node
        self.ins = ins
        self.domain = "" if node.domain == "ai.onnx" else node.domain
        self.opset = builder.model.opset(self.domain)
        self.label = node.name or f"{node.op_type}:{next((o for o in node.output if o), '')}"
        self.source = builder.model.source(self.label, node.op_type, node)
        self.pending: list[Value] = []
        self.constants: list[Value] = []
        self.bound = False
        """Data was read that hangs on an open dim: what is made from here on does too."""
        self._attrs: dict[str, Any] = {}
        for a in node.attribute:
            v = get_attribute_value(a)
            if isinstance(v, bytes):
                v = v.decode(errors="replace")
            self._attrs[a.name] = v

    # --- reading --------------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value, strings decoded."""
        return self._attrs.get(name, default)

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        v = self._attrs.get(name, default)
        return None if v is None else tuple(int(i) for i in v)

    def get(self, i: int) -> Value | None:
        """Operand i, None where it is left out."""
        return self.ins[i] if i < len(self.ins) else None

    def __getitem__(self, i: int) -> Value:
        v = self.get(i)
        if v is None:
            raise GraphError(f"operand {i} is missing")
        return v

    def known(self, i: int, what: str) -> Array | None:
        """Operand i's data, None where it is left out; ``Unsupported`` when it is known only at run time."""
        v = self.get(i)
        if v is not None and v.array is None:
            raise Unsupported(f"{what} computed at run time")
        self.bound |= v is not None and v.bound
        return None if v is None else v.array

    def known_ints(self, i: int, what: str) -> tuple[int, ...] | None:
        a = self.known(i, what)
        return None if a is None else tuple(int(x) for x in a.reshape(-1))

    def extents(self, i: int, what: str) -> list[Dim | int]:
        """A shape operand: ints, symbols, ``UNKNOWN`` for extents that are known only at run time."""
        v = self[i]
        data = v.array if v.array is not None else v.partial
        if data is None:
            raise Unsupported(f"{what} computed at run time")
        self.bound |= v.bound
        return [extent(x) for x in data.reshape(-1)]

    def used(self, i: int) -> bool:
        """Output i is named and something may read it."""
        return i < len(self.node.output) and self.node.output[i] != ""

    def keeps_rank(self) -> bool:
        """Element by element, with nothing but single elements beside the first operand of unknown rank."""
        others = [v for v in self.ins if v is not None and not v.rankless]
        alone = len(others) == len([v for v in self.ins if v is not None]) - 1
        single = all(v.shape.dims in ((), (Dim(1),)) for v in others)
        return self.node.op_type in _ELEMENTWISE and alone and single

    def axis(self, v: Value, name: str = "axis", default: int = 0) -> int:
        return v.shape.axis(int(self.attr(name, default)))

    # --- writing --------------------------------------------------------------------------------------

    def emit(self, op: Op, *ins: Value, folded: bool = True) -> Value:
        """The op's result: computed now when everything is known and small (never with ``folded`` off), else a node."""
        check_arity(op, len(ins))
        shape = op.infer(*[v.shape for v in ins])
        bound = self.bound or any(v.bound for v in ins)
        folded = folded and not (bound and any(map(_is_weight, ins)))  # a weight is one under every binding
        array = fold(op, shape, ins) if folded else None
        some = None if array is not None or not folded else partial(op, shape, ins)
        if some is not None and not any(isinstance(x, Dim) for x in some.reshape(-1)):
            array = some.astype(shape.dtype.numpy)
        if array is not None:
            return self.const(array, bound=bound)
        v = Value(shape, recipe=(op, ins), source=(self.source,), partial=some, owner=self.builder, bound=bound)
        self.pending.append(v)
        return v

    def const(self, data: Any, dtype: DType | None = None, *, bound: bool = False) -> Value:
        """A value known now; ``bound`` as in ``Value``."""
        v = Value.of(np.asarray(data, dtype=None if dtype is None else dtype.numpy))
        v.bound = bound
        v.source = (self.source,)
        self.constants.append(v)
        return v

    def derived(self, data: Any, dtype: DType | None = None) -> Value:
        """A value worked out from this node's operands: it hangs on open dims if one of them does."""
        return self.const(data, dtype, bound=any(v is not None and v.bound for v in self.ins))

    def like(self, x: Value, number: float) -> Value:
        """A scalar of x's dtype."""
        return self.const(np.asarray(number), x.shape.dtype)

    def lazy(self, op: Op, known: Array, *ins: Value) -> Value:
        """A node that is placed only when something reads it at run time; ``known`` as in ``Value.partial``."""
        shape: Shape = op.infer(*[v.shape for v in ins])
        v = Value(shape, recipe=(op, ins), source=(self.source,), partial=known, owner=self.builder,
                  bound=any(i.bound for i in ins))
        self.pending.append(v)
        return v
