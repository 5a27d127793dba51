"""Owns handlers of pooling."""

from __future__ import annotations

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_ops.convolution import window
from planner_core.importers.onnx_ops.structure import reshape
from planner_core.importers.onnx_value import Value
from planner_core.ir import ops


@onnx_op("MaxPool", "AveragePool")
def pool(c: Call) -> Value:
    """2-D, and 1-D with an extra axis."""
    x, kind = c[0], "max" if c.node.op_type == "MaxPool" else "mean"
    kernel = c.ints("kernel_shape") or ()
    space = len(kernel)
    if space not in (1, 2) or x.shape.rank != space + 2:
        raise Unsupported(f"{space} spatial axes")
    if c.used(1):
        raise Unsupported("its indices are read")
    if not x.shape.dtype.is_float:
        raise Unsupported("it pools ints")
    strides = c.ints("strides", (1,) * space) or ()
    dilations = c.ints("dilations", (1,) * space) or ()
    if any(d != 1 for d in dilations):
        raise Unsupported("dilated windows")
    pads = window(c, x, kernel, dilations, strides)
    ceil, inside = bool(c.attr("ceil_mode", 0)), bool(c.attr("count_include_pad", 0))
    if space == 2:
        return c.emit(ops.Pool2D(kind, kernel, strides, pads, ceil, inside), x)
    wide = reshape(c, x, (*x.shape.dims[:2], 1, x.shape.dims[2]))
    made = ops.Pool2D(kind, (1, *kernel), (1, *strides), (0, pads[0], 0, pads[1]), ceil, inside)
    y = c.emit(made, wide)
    return reshape(c, y, (*y.shape.dims[:2], y.shape.dims[3]))


@onnx_op("GlobalMaxPool", "GlobalAveragePool")
def global_pool(c: Call) -> Value:
    return c.emit(ops.GlobalPool("max" if c.node.op_type == "GlobalMaxPool" else "mean"), c[0])
