"""Owns handlers of reductions, scans and order."""

from __future__ import annotations

import math

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_ops.elementwise import as_dtype, unhalved
from planner_core.importers.onnx_ops.structure import axes_of, transpose
from planner_core.importers.onnx_value import Value
from planner_core.ir import ops

PLAIN = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


@onnx_op(*PLAIN, "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduce(c: Call) -> Value:
    """Axes: an attribute before opset 18 (13 for ReduceSum), operand 1 from then on."""
    x, kind = c[0], c.node.op_type
    axes = axes_of(c, 13 if kind == "ReduceSum" else 18)
    if not axes:
        if c.attr("noop_with_empty_axes", 0):
            if kind in PLAIN:
                return x
            raise Unsupported("no axes with noop_with_empty_axes")
        axes = tuple(range(x.shape.rank))
    axes = tuple(sorted(x.shape.axis(a) for a in axes))
    keep = bool(c.attr("keepdims", 1))

    def total(v: Value, what: str = "sum", keepdims: bool = keep) -> Value:
        return c.emit(ops.Reduce(what, axes, keepdims), v) if axes else v

    def act(what: str, v: Value) -> Value:
        return c.emit(ops.Activation(what), v)

    if kind in PLAIN:
        if x.shape.dtype.text == "bool":
            raise Unsupported("it reduces bools")
        return total(x, PLAIN[kind])
    dtype, x = x.shape.dtype, unhalved(c, x)

    def result() -> Value:
        if kind == "ReduceL1":
            return total(act("abs", x))
        if kind in ("ReduceL2", "ReduceSumSquare"):
            squares = total(c.emit(ops.Binary("mul"), x, x))
            return act("sqrt", squares) if kind == "ReduceL2" else squares
        return act("log", total(x)) if kind == "ReduceLogSum" else log_sum_exp()

    def finite(top: Value) -> Value:
        """0 in place of ±inf, from which nothing is taken: ∓inf less itself is NaN."""
        infinite = c.emit(ops.Compare("eq"), act("abs", top), c.like(x, math.inf))
        return c.emit(ops.Where(), infinite, c.like(x, 0), top)

    def log_sum_exp() -> Value:
        """log Σ exp(x) = max + log Σ exp(x - max)."""
        top = finite(total(x, "max", True))
        inner = act("log", total(act("exp", c.emit(ops.Binary("sub"), x, top))))
        return c.emit(ops.Binary("add"), inner, top if keep else finite(total(x, "max")))

    return as_dtype(c, result(), dtype)


@onnx_op("ArgMax", "ArgMin")
def arg_reduce(c: Call) -> Value:
    if c.attr("select_last_index", 0):
        raise Unsupported("it wants the last of equal elements")
    kind = "max" if c.node.op_type == "ArgMax" else "min"
    return c.emit(ops.ArgReduce(kind, c.axis(c[0]), bool(c.attr("keepdims", 1))), c[0])


def _to_last(rank: int, axis: int) -> list[int]:
    return [*(i for i in range(rank) if i != axis), axis]


def _from_last(rank: int, axis: int) -> list[int]:
    perm = _to_last(rank, axis)
    return [perm.index(i) for i in range(rank)]


@onnx_op("CumSum")
def cumsum(c: Call) -> Value:
    where = c.known_ints(1, "axis")
    if not where:
        raise Unsupported("its axis is missing")
    x, axis = c[0], c[0].shape.axis(where[0])
    rank, last = x.shape.rank, x.shape.rank - 1
    x = transpose(c, x, _to_last(rank, axis))
    if c.attr("reverse", 0):
        x = c.emit(ops.Reverse((last,)), x)
    x = c.emit(ops.Cumsum(bool(c.attr("exclusive", 0))), x)
    if c.attr("reverse", 0):
        x = c.emit(ops.Reverse((last,)), x)
    return transpose(c, x, _from_last(rank, axis))


@onnx_op("TopK")
def top_k(c: Call) -> list[Value]:
    """k: an attribute before opset 10, then operand 1. Values and indices are a node each."""
    x, axis = c[0], c.axis(c[0], default=-1)
    given = c.known_ints(1, "k") if c.opset >= 10 else (int(c.attr("k")),)
    if not given:
        raise Unsupported("its k is missing")
    if not c.attr("sorted", 1):
        raise Unsupported("it asks for no order")
    if x.shape.dtype.text[0] == "u":
        raise Unsupported("it orders unsigned ints")
    rank, largest = x.shape.rank, bool(c.attr("largest", 1))
    last = transpose(c, x, _to_last(rank, axis))
    out = []
    for i, values in enumerate((True, False)):
        made = c.emit(ops.TopK(given[0], largest, values), last) if c.used(i) else x
        out.append(transpose(c, made, _from_last(rank, axis)) if c.used(i) else x)
    return out
