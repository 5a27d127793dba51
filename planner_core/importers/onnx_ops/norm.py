"""Owns handlers of normalisations and softmax."""

from __future__ import annotations

import numpy as np

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_ops.elementwise import as_dtype, unhalved
from planner_core.importers.onnx_ops.structure import product, reshape
from planner_core.importers.onnx_value import Value
from planner_core.ir import dim, ops


@onnx_op("BatchNormalization")
def batch_norm(c: Call) -> Value:
    if c.attr("training_mode", 0) or any(c.used(i) for i in range(1, len(c.node.output))):
        raise Unsupported("training mode")
    if not c.attr("spatial", 1):
        raise Unsupported("statistics per pixel (spatial=0)")
    return c.emit(ops.BatchNorm(float(c.attr("epsilon", 1e-5))), *(c[i] for i in range(5)))


def _rows(c: Call, x: Value, axis: int) -> Value:
    """The axes from ``axis`` on as one."""
    return x if axis == x.shape.rank - 1 else reshape(c, x, (*x.shape.dims[:axis], product(x.shape.dims[axis:])))


@onnx_op("LayerNormalization")
def layer_norm(c: Call) -> Value:
    x, scale, bias = c[0], c[1], c.get(2)
    if c.used(1) or c.used(2):
        raise Unsupported("its statistics are read")
    axis = c.axis(x, default=-1)
    tail = x.shape.dims[axis:]
    for v in (scale, bias):
        if v is not None and v.shape.dims[-len(tail):] != tail:
            raise Unsupported("a scale or bias that broadcasts")
    wide = product(tail)
    gamma = reshape(c, scale, (wide,))
    beta = reshape(c, bias, (wide,)) if bias is not None else c.const(np.zeros(_extent(wide)), x.shape.dtype)
    y = c.emit(ops.LayerNorm(float(c.attr("epsilon", 1e-5))), _rows(c, x, axis), gamma, beta)
    return reshape(c, y, x.shape.dims)


def _extent(d: object) -> int:
    value = getattr(d, "value", None)
    if not isinstance(value, int):
        raise Unsupported("it normalises over an unknown extent")
    return value


@onnx_op("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(c: Call) -> Value:
    x, scale = c[0], c[1]
    if c.used(1):
        raise Unsupported("its statistics are read")
    axis = c.axis(x, default=-1)
    tail = x.shape.dims[axis:]
    if scale.shape.dims[-len(tail):] != tail:
        raise Unsupported("a scale that broadcasts")
    y = c.emit(ops.RmsNorm(float(c.attr("epsilon", 1e-5))), _rows(c, x, axis), reshape(c, scale, (product(tail),)))
    return reshape(c, y, x.shape.dims)


def _standardise(c: Call, x: Value, axes: tuple[int, ...], eps: float) -> Value:
    """``(x - mean) / sqrt(var + eps)`` over the axes; halves in f32, rounded once."""
    dtype, x = x.shape.dtype, unhalved(c, x)
    d = c.emit(ops.Binary("sub"), x, c.emit(ops.Reduce("mean", axes, True), x))
    var = c.emit(ops.Reduce("mean", axes, True), c.emit(ops.Binary("mul"), d, d))
    root = c.emit(ops.Activation("sqrt"), c.emit(ops.Binary("add"), var, c.like(x, eps)))
    return as_dtype(c, c.emit(ops.Binary("div"), d, root), dtype)


def _affine(c: Call, y: Value, scale: Value, bias: Value) -> Value:
    """``y * scale + bias`` with vectors over axis 1."""
    wide = (scale.shape.dims[0], *(dim(1) for _ in y.shape.dims[2:]))
    y = c.emit(ops.Binary("mul"), y, reshape(c, scale, wide))
    return c.emit(ops.Binary("add"), y, reshape(c, bias, wide))


@onnx_op("InstanceNormalization")
def instance_norm(c: Call) -> Value:
    axes = tuple(range(2, c[0].shape.rank))
    return _affine(c, _standardise(c, c[0], axes, float(c.attr("epsilon", 1e-5))), c[1], c[2])


@onnx_op("GroupNormalization")
def group_norm(c: Call) -> Value:
    """Scale and bias are per group in opset 18, per channel from 21."""
    x, groups = c[0], int(c.attr("num_groups"))
    dims = x.shape.dims
    if c.opset < 21:
        raise Unsupported("scale and bias per group (opset 18)")
    y = reshape(c, x, (dims[0], groups, product(dims[1:]) // groups))
    y = reshape(c, _standardise(c, y, (2,), float(c.attr("epsilon", 1e-5))), dims)
    return _affine(c, y, c[1], c[2])


@onnx_op("LpNormalization")
def lp_norm(c: Call) -> Value:
    dtype, x = c[0].shape.dtype, unhalved(c, c[0])
    axis = c.axis(x, default=-1)
    if int(c.attr("p", 2)) == 1:
        size = c.emit(ops.Reduce("sum", (axis,), True), c.emit(ops.Activation("abs"), x))
    else:
        squares = c.emit(ops.Binary("mul"), x, x)
        size = c.emit(ops.Activation("sqrt"), c.emit(ops.Reduce("sum", (axis,), True), squares))
    tiny = c.like(x, 2e-38)  # a vector of zeros stays one
    return as_dtype(c, c.emit(ops.Binary("div"), x, c.emit(ops.Binary("max"), size, tiny)), dtype)


@onnx_op("Softmax", "LogSoftmax")
def softmax(c: Call) -> Value:
    """One axis from opset 13; before, the axes from ``axis`` (default 1) on as one."""
    x = c[0]
    if c.opset >= 13:
        return _softmax(c, x, c.axis(x, default=-1))
    axis = c.axis(x, default=1)
    return reshape(c, _softmax(c, _rows(c, x, axis), axis), x.shape.dims)


def _softmax(c: Call, x: Value, axis: int) -> Value:
    if c.node.op_type == "Softmax":
        return c.emit(ops.Softmax(axis), x)
    dtype, x = x.shape.dtype, unhalved(c, x)
    d = c.emit(ops.Binary("sub"), x, c.emit(ops.Reduce("max", (axis,), True), x))
    total = c.emit(ops.Reduce("sum", (axis,), True), c.emit(ops.Activation("exp"), d))
    return as_dtype(c, c.emit(ops.Binary("sub"), d, c.emit(ops.Activation("log"), total)), dtype)
