"""Owns handlers of gathers and scatters."""

from __future__ import annotations

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_value import Value
from planner_core.ir import ops


@onnx_op("Gather")
def gather(c: Call) -> Value:
    return c.emit(ops.Gather(c.axis(c[0])), c[0], c[1])


def _check_sides(c: Call, axis: int) -> None:
    for i, (a, b) in enumerate(zip(c[0].shape.dims, c[1].shape.dims, strict=True)):
        if i != axis and not a.same(b):
            raise Unsupported("indices that cover only part of the other axes")


@onnx_op("GatherElements")
def gather_elements(c: Call) -> Value:
    axis = c.axis(c[0])
    _check_sides(c, axis)
    return c.emit(ops.GatherElements(axis), c[0], c[1])


@onnx_op("GatherND")
def gather_nd(c: Call) -> Value:
    if c.attr("batch_dims", 0):
        raise Unsupported("batch_dims")
    return c.emit(ops.GatherNd(), c[0], c[1])


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(c: Call) -> Value:
    return c.emit(ops.ScatterElements(c.axis(c[0]), str(c.attr("reduction", "none"))), c[0], c[1], c[2])


@onnx_op("ScatterND")
def scatter_nd(c: Call) -> Value:
    if str(c.attr("reduction", "none")) != "none":
        raise Unsupported(f"reduction {c.attr('reduction')}")
    return c.emit(ops.ScatterNd(), c[0], c[1], c[2])
