"""Owns handlers of ONNX's 8-bit forms, written out as casts, sums and products that fusion recognises.

``DequantizeLinear`` is ``(Cast(x) - Cast(zero)) · scale``; ``QuantizeLinear`` is ``Cast(clip(round(x / scale) + zero))``.
Integer products go through f32, which is exact while sums stay below 2²⁴; longer rows are left opaque.
"""

from __future__ import annotations

import numpy as np

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_ops.structure import reshape
from planner_core.importers.onnx_value import Value
from planner_core.ir import DType, Shape, ops

_RANGE = {DType.I8: (-128, 127), DType.U8: (0, 255), DType.I16: (-32768, 32767), DType.U16: (0, 65535)}
_EXACT = 1 << 24
_LARGEST = 255 * 255
"""Of one product of two bytes less their zero points."""


def _cast(c: Call, v: Value, to: DType) -> Value:
    return v if v.shape.dtype is to else c.emit(ops.Cast(to), v)


def _spread(c: Call, v: Value, x: Shape, axis: int, block: int) -> Value:
    """A scale or zero point, one a tensor, a slice of ``axis`` or a block of it, with x's rank (a block: one more)."""
    if block:
        dims = list(v.shape.dims)
        return reshape(c, v, (*dims[: axis + 1], 1, *dims[axis + 1 :]))
    if v.shape.rank == 0 or v.shape.dims[0].value == 1:
        return reshape(c, v, ())
    return reshape(c, v, [v.shape.dims[0] if i == axis else 1 for i in range(x.rank)])


def _blocked(c: Call, x: Value, axis: int, block: int) -> Value:
    """x with its axis cut into blocks."""
    n = x.shape.dims[axis].value
    if n is None or n % block:
        raise Unsupported(f"blocks of {block} on an axis of {x.shape.dims[axis]}")
    dims = x.shape.dims
    return reshape(c, x, (*dims[:axis], n // block, block, *dims[axis + 1 :]))


def _how(c: Call, x: Value, scale: Value) -> tuple[int, int]:
    block = int(c.attr("block_size", 0))
    rank = x.shape.rank
    if not rank or (scale.shape.rank == 1 and scale.shape.dims[0].value == 1) or scale.shape.rank == 0:
        return 0, 0
    return c.axis(x, default=1), block


def dequantised(c: Call, x: Value, scale: Value, zero: Value | None, axis: int = 0, block: int = 0) -> Value:
    """``(x - zero) · scale`` in the scale's dtype. A matrix of weights is not folded: it stays packed in memory."""
    dims = x.shape.dims
    to, folded = scale.shape.dtype, x.shape.rank < 2
    y = _blocked(c, x, axis, block) if block else x
    y = c.emit(ops.Cast(to), y, folded=folded)
    if zero is not None:
        y = c.emit(ops.Binary("sub"), y, c.emit(ops.Cast(to), _spread(c, zero, x.shape, axis, block), folded=folded), folded=folded)
    return reshape(c, c.emit(ops.Binary("mul"), y, _spread(c, scale, x.shape, axis, block), folded=folded), dims)


def quantised(c: Call, x: Value, scale: Value, zero: Value | None, to: DType, axis: int = 0, block: int = 0) -> Value:
    """``clip(round(x / scale) + zero)`` as ``to``; halves round to even."""
    if to not in _RANGE:
        raise Unsupported(f"it rounds to {to}")
    dims = x.shape.dims
    y = _blocked(c, x, axis, block) if block else x
    y = c.emit(ops.Activation("round"), c.emit(ops.Binary("div"), y, _spread(c, scale, x.shape, axis, block)))
    if zero is not None:
        y = c.emit(ops.Binary("add"), y, _cast(c, _spread(c, zero, x.shape, axis, block), y.shape.dtype))
    low, high = _RANGE[to]
    return reshape(c, _cast(c, c.emit(ops.Activation("clip", float(low), float(high)), y), to), dims)


@onnx_op("DequantizeLinear")
def dequantize_linear(c: Call) -> Value:
    axis, block = _how(c, c[0], c[1])
    if c[1].shape.dtype is not DType.F32:
        raise Unsupported(f"its scale is {c[1].shape.dtype}")
    return dequantised(c, c[0], c[1], c.get(2), axis, block)


@onnx_op("QuantizeLinear")
def quantize_linear(c: Call) -> Value:
    axis, block = _how(c, c[0], c[1])
    zero = c.get(2)
    wanted = int(c.attr("output_dtype", 0))
    if not c[0].shape.dtype is c[1].shape.dtype is DType.F32:
        raise Unsupported(f"it divides {c[0].shape.dtype} by {c[1].shape.dtype}")
    to = zero.shape.dtype if zero is not None else DType.U8
    if wanted:
        from onnx.helper import tensor_dtype_to_np_dtype

        to = DType.of(np.dtype(tensor_dtype_to_np_dtype(wanted)))
    return quantised(c, c[0], c[1], zero, to, axis, block)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(c: Call) -> list[Value]:
    """u8 over the data's own range, zero included: values, scale, zero point."""
    x = c[0]
    axes = tuple(range(x.shape.rank))
    nothing = c.like(x, 0.0)
    low = c.emit(ops.Binary("min"), c.emit(ops.Reduce("min", axes), x), nothing)
    high = c.emit(ops.Binary("max"), c.emit(ops.Reduce("max", axes), x), nothing)
    range_ = c.emit(ops.Binary("sub"), high, low)
    none = c.emit(ops.Compare("eq"), range_, nothing)  # zeros alone: any scale holds them, as 1 does in ONNX Runtime
    scale = c.emit(ops.Where(), none, c.like(x, 1.0), c.emit(ops.Binary("div"), range_, c.like(x, 255.0)))
    start = c.emit(ops.Activation("neg"), c.emit(ops.Binary("div"), low, scale))
    zero = _cast(c, c.emit(ops.Activation("clip", 0.0, 255.0), c.emit(ops.Activation("round"), start)), DType.U8)
    return [quantised(c, x, scale, zero, DType.U8), scale, zero]


def _less_zero(c: Call, x: Value, zero: Value | None, axis: int) -> Value:
    """x less its zero point, in f32."""
    y = _cast(c, x, DType.F32)
    if zero is None:
        return y
    spread = reshape(c, zero, ()) if zero.shape.rank == 0 or zero.shape.dims[0].value == 1 else reshape(
        c, zero, [zero.shape.dims[0] if i == axis else 1 for i in range(x.shape.rank)])
    return c.emit(ops.Binary("sub"), y, _cast(c, spread, DType.F32))


def _exact(k: int | None) -> None:
    if k is None or k * _LARGEST >= _EXACT:
        raise Unsupported(f"sums of {'unknown length' if k is None else k} products may pass 2^24, beyond f32")


@onnx_op("MatMulInteger")
def matmul_integer(c: Call) -> Value:
    a, b = c[0], c[1]
    _exact(a.shape.dims[-1].value)
    left = _less_zero(c, a, c.get(2), max(a.shape.rank - 2, 0))
    right = _less_zero(c, b, c.get(3), b.shape.rank - 1)
    return _cast(c, c.emit(ops.MatMul(), left, right), DType.I32)


@onnx_op("QLinearMatMul")
def qlinear_matmul(c: Call) -> Value:
    """Both operands dequantised, multiplied, quantised again."""
    a, b = c[0], c[3]
    left = dequantised(c, a, c[1], c.get(2), max(a.shape.rank - 2, 0))
    right = dequantised(c, b, c[4], c.get(5), b.shape.rank - 1)
    return quantised(c, c.emit(ops.MatMul(), left, right), c[6], c.get(7), c[7].shape.dtype)
