"""Owns elementwise ops. Operands broadcast as in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, scalar, unbroadcast
from planner_core.ir.shape import Shape, broadcast_dims
from planner_core.ir.traits import Trait


def _int_div(a: Array, b: Array) -> Array:
    """Integers toward zero, exactly; by zero gives 0, as NumPy's floor division."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    floor, rest = np.floor_divide(a, b), np.remainder(a, b)
    return np.asarray(floor + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype), dtype=a.dtype)


def power(a: Array, b: Array) -> Array:
    """``a ** b``; integers go toward zero, as their division does (a negative power of anything but ±1 is 0).

    ``GraphError`` for the integer 0 to a negative power.
    """
    a, b = np.asarray(a), np.asarray(b)
    negative = b < 0
    if np.result_type(a, b).kind != "i" or not negative.any():
        return np.asarray(np.power(a, b))
    if (negative & (a == 0)).any():
        raise GraphError("pow of integers: 0 to a negative power has no value; got a base of 0 with an exponent below 0: mask "
                         "those elements, or cast to a float first")
    return np.asarray(np.power(np.where(negative & (np.abs(a) > 1), 0, a), np.where(negative, 2 - (b & 1), b)), dtype=a.dtype)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _int_div, "max": np.maximum,
    "min": np.minimum, "pow": power, "mod": np.mod, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "fmod": np.fmod,
}
"""Binary kinds with their formula; the first seven are the command list's sub-ops 0–6 in order."""

IN_PLACE_BINARIES = frozenset({"add", "sub", "mul", "div", "max", "min"})
"""Kinds that every backend computes element by element, each read before it is written."""
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}


def _erf(x: Array) -> Array:
    table = np.frompyfunc(math.erf, 1, 1)
    return np.asarray(table(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)), dtype=x.dtype)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))


ACTIVATION: dict[str, Callable[[Array, float, float], Array]] = {
    "gelu": lambda x, a, b: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_approx": lambda x, a, b: _gelu_tanh(x),
    "silu": lambda x, a, b: x * _sigmoid(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "exp": lambda x, a, b: np.exp(x),
    "log": lambda x, a, b: np.log(x),
    "sqrt": lambda x, a, b: np.sqrt(x),
    "rsqrt": lambda x, a, b: 1 / np.sqrt(x),
    "neg": lambda x, a, b: -x,
    "abs": lambda x, a, b: np.abs(x),
    "leaky_relu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "erf": lambda x, a, b: _erf(x),
    "sin": lambda x, a, b: np.sin(x),
    "cos": lambda x, a, b: np.cos(x),
    "floor": lambda x, a, b: np.floor(x),
    "ceil": lambda x, a, b: np.ceil(x),
    "round": lambda x, a, b: np.rint(x),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "hardswish": lambda x, a, b: x * np.clip(x / 6 + 0.5, 0, 1),
    "clip": lambda x, a, b: np.clip(x, a, b),
    "reciprocal": lambda x, a, b: 1 / x,
    "not": lambda x, a, b: np.logical_not(x),
    "sign": lambda x, a, b: np.sign(x),
}
"""Activation kinds with their formula over (x, alpha, beta); the first twelve are sub-ops 0–11 in order."""

FLAT = {"floor", "ceil", "round", "sign", "not"}
"""Activation kinds whose derivative is zero wherever it exists."""

_WITH_ALPHA = {"leaky_relu", "elu", "hardsigmoid", "clip"}


@op(family="elementwise", operands="a b", builders={k if k not in ("and", "or", "xor") else f"logical_{k}":
                                                    {"kind": k} for k in BINARY}, traits=(Trait.STATIC,), rows=rows.aligned)
class Binary(Op):
    """``a kind b`` with broadcasting; both operands have one dtype."""

    kind: str

    @property
    def by_element(self) -> bool:
        return self.kind in IN_PLACE_BINARIES

    def infer(self, a: Shape, b: Shape, *_: Shape) -> Shape:
        if self.kind not in BINARY:
            raise GraphError(f"binary kind {self.kind!r}: wanted one of {', '.join(BINARY)}")
        if a.dtype is not b.dtype:
            raise GraphError(f"{self.kind} of {a} and {b}: dtypes differ, cast one of them")
        return Shape(broadcast_dims(a, b), a.dtype)

    def evaluate(self, a: Array, b: Array, *_: Array) -> Array:
        return BINARY[self.kind](a, b)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        a, b = inputs
        da: NodeId | None
        db: NodeId | None
        match self.kind:
            case "add":
                da, db = dy, dy
            case "sub":
                da, db = dy, g.neg(dy)
            case "mul":
                da, db = g.mul(dy, b), g.mul(dy, a)
            case "div":
                da = g.div(dy, b)
                db = g.neg(g.mul(da, node))
            case "max" | "min":  # a tie is shared evenly, as PyTorch does
                half = g.where(g.eq(a, b), g.mul(dy, scalar(g, 0.5, dy)), scalar(g, 0, dy))
                above, below = g.where(g.gt(a, b), dy, half), g.where(g.lt(a, b), dy, half)
                da, db = (above, below) if self.kind == "max" else (below, above)
            case "pow":
                one = scalar(g, 1, dy)
                slope = g.mul(b, g.pow(a, g.sub(b, one)))
                da = g.mul(dy, g.where(g.eq(b, scalar(g, 0, dy)), scalar(g, 0, dy), slope))
                safe = g.where(g.eq(a, scalar(g, 0, dy)), one, a)  # 0^b · log 0 is taken as 0
                db = g.mul(g.mul(dy, node), g.log(safe))
            case "mod":
                da, db = dy, g.neg(g.mul(dy, g.floor(g.div(a, b))))
            case "fmod":  # (a - a fmod b) / b is the whole quotient, toward zero
                da, db = dy, g.neg(g.mul(dy, g.round(g.div(g.sub(a, node), b))))
            case _:
                return None, None
        return unbroadcast(g, da, g[a].shape), unbroadcast(g, db, g[b].shape)


@op(family="elementwise", operands="a b", builders={k: {"kind": k} for k in COMPARE}, rows=rows.aligned)
class Compare(Op):
    """``a kind b`` as bool, with broadcasting."""

    kind: str

    def infer(self, a: Shape, b: Shape, *_: Shape) -> Shape:
        if self.kind not in COMPARE:
            raise GraphError(f"compare kind {self.kind!r}: wanted one of {', '.join(COMPARE)}")
        if a.dtype is not b.dtype:
            raise GraphError(f"{self.kind} of {a} and {b}: dtypes differ, cast one of them")
        return Shape(broadcast_dims(a, b), DType.BOOL)

    def evaluate(self, a: Array, b: Array, *_: Array) -> Array:
        return COMPARE[self.kind](a, b)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return None, None


@op(family="elementwise", operands="cond on_true on_false", traits=(Trait.STATIC,), rows=rows.aligned)
class Where(Op):
    """``on_true`` where ``cond`` holds, else ``on_false``."""

    def infer(self, cond: Shape, t: Shape, f: Shape, *_: Shape) -> Shape:
        if t.dtype is not f.dtype:
            raise GraphError(f"Where of {t} and {f}: dtypes differ, cast one of them")
        return Shape(broadcast_dims(cond, t, f), t.dtype)

    def evaluate(self, cond: Array, t: Array, f: Array, *_: Array) -> Array:
        return np.where(cond != 0, t, f)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        cond, t, f = inputs
        zero = scalar(g, 0, dy)
        return (None, unbroadcast(g, g.where(cond, dy, zero), g[t].shape),
                unbroadcast(g, g.where(cond, zero, dy), g[f].shape))


@op(family="elementwise", operands="a b c", traits=(Trait.STATIC,), rows=rows.aligned)
class Fma(Op):
    """``a * b + c`` with broadcasting."""

    def infer(self, a: Shape, b: Shape, c: Shape, *_: Shape) -> Shape:
        return Shape(broadcast_dims(a, b, c), a.dtype)

    def evaluate(self, a: Array, b: Array, c: Array, *_: Array) -> Array:
        return a * b + c

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 2 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        a, b, c = inputs
        return (unbroadcast(g, g.mul(dy, b), g[a].shape), unbroadcast(g, g.mul(dy, a), g[b].shape),
                unbroadcast(g, dy, g[c].shape))


@op(family="elementwise", operands="x", builders={k if k != "not" else "logical_not": {"kind": k}
                                                  for k in ACTIVATION}, traits=(Trait.STATIC,), rows=rows.aligned)
class Activation(Op):
    """``kind(x)`` per element. ``alpha``, ``beta``: slope of leaky_relu and elu, line of hardsigmoid,
    bounds of clip."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def by_element(self) -> bool:
        return True

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if self.kind not in ACTIVATION:
            raise GraphError(f"activation {self.kind!r}: wanted one of {', '.join(ACTIVATION)}")
        if self.kind not in _WITH_ALPHA and (self.alpha or self.beta):
            raise GraphError(f"activation {self.kind} takes no alpha or beta")
        return x

    def evaluate(self, x: Array, *_: Array) -> Array:
        return np.asarray(ACTIVATION[self.kind](x, self.alpha, self.beta), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        if self.kind in FLAT:
            return (None,)
        if self.kind == "neg":
            return (g.neg(dy),)
        if self.kind == "exp":
            return (g.mul(dy, node),)
        return (g.activation_backward(inputs[0], dy, kind=self.kind, alpha=self.alpha, beta=self.beta),)
