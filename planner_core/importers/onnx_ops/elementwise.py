"""Owns handlers of elementwise ONNX ops."""

from __future__ import annotations

import math
from functools import reduce

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_value import Value
from planner_core.ir import DType, ops

UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Neg": "neg",
    "Abs": "abs", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Floor": "floor", "Ceil": "ceil", "Round": "round",
    "Softplus": "softplus", "Reciprocal": "reciprocal", "Not": "not", "Sign": "sign", "HardSwish": "hardswish",
}
WITH_ALPHA = {
    "LeakyRelu": ("leaky_relu", 0.01, 0.0), "Elu": ("elu", 1.0, 0.0), "HardSigmoid": ("hardsigmoid", 0.2, 0.5),
}
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor"}
COMPARE = {"Equal": "eq", "Greater": "gt", "Less": "lt", "GreaterOrEqual": "ge", "LessOrEqual": "le"}
FP8_MAX = {DType.F8E4M3: 448.0, DType.F8E5M2: 57344.0}
VARIADIC = {"Min": "min", "Max": "max", "Sum": "add", "Mean": "add"}


def act(c: Call, kind: str, x: Value, alpha: float = 0.0, beta: float = 0.0) -> Value:
    return c.emit(ops.Activation(kind, alpha, beta), x)


def binary(c: Call, kind: str, a: Value, b: Value) -> Value:
    return c.emit(ops.Binary(kind), a, b)


def as_dtype(c: Call, x: Value, to: DType) -> Value:
    """x cast, where it isn't of that type already."""
    return x if x.shape.dtype is to else c.emit(ops.Cast(to), x)


def unhalved(c: Call, x: Value) -> Value:
    """x in f32 where it is half: sums and squares of halves overflow or stall long before their result does."""
    return as_dtype(c, x, DType.F32) if x.shape.dtype.is_half else x


@onnx_op(*UNARY)
def unary(c: Call) -> Value:
    return act(c, UNARY[c.node.op_type], c[0])


@onnx_op(*WITH_ALPHA)
def with_alpha(c: Call) -> Value:
    kind, alpha, beta = WITH_ALPHA[c.node.op_type]
    return act(c, kind, c[0], float(c.attr("alpha", alpha)), float(c.attr("beta", beta)))


@onnx_op(*BINARY)
def two_operands(c: Call) -> Value:
    return binary(c, BINARY[c.node.op_type], c[0], c[1])


@onnx_op(*COMPARE)
def compare(c: Call) -> Value:
    return c.emit(ops.Compare(COMPARE[c.node.op_type]), c[0], c[1])


@onnx_op(*VARIADIC)
def variadic(c: Call) -> Value:
    kind, given = VARIADIC[c.node.op_type], [c[i] for i in range(len(c.ins))]
    if c.node.op_type != "Mean" or len(given) == 1:
        return reduce(lambda a, b: binary(c, kind, a, b), given)
    out = reduce(lambda a, b: binary(c, kind, a, b), [unhalved(c, x) for x in given])
    return as_dtype(c, binary(c, "div", out, c.like(out, len(given))), given[0].shape.dtype)


@onnx_op("Pow")
def power(c: Call) -> Value:
    y = c[1]
    if y.shape.dtype is not c[0].shape.dtype:  # from opset 12 the exponent may have another type
        if c[0].shape.dtype.is_int and y.shape.dtype.is_float:
            raise Unsupported("an int base has a float exponent")
        y = c.emit(ops.Cast(c[0].shape.dtype), y)
    return binary(c, "pow", c[0], y)


@onnx_op("Mod")
def modulo(c: Call) -> Value:
    return binary(c, "fmod" if c.attr("fmod", 0) else "mod", c[0], c[1])


@onnx_op("Clip")
def clip(c: Call) -> Value:
    """Bounds are attributes before opset 11, operands after."""
    x = c[0]
    if c.opset < 11:
        return act(c, "clip", x, float(c.attr("min", -math.inf)), float(c.attr("max", math.inf)))
    low, high = c.get(1), c.get(2)
    plain = all(v is None or v.array is not None for v in (low, high))
    if plain and x.shape.dtype.is_float:
        a = -math.inf if low is None or low.array is None else float(low.array.reshape(-1)[0])
        b = math.inf if high is None or high.array is None else float(high.array.reshape(-1)[0])
        return x if math.isinf(a) and math.isinf(b) and a < b else act(c, "clip", x, a, b)
    if low is not None:
        x = binary(c, "max", x, low)
    return x if high is None else binary(c, "min", x, high)


@onnx_op("PRelu")
def prelu(c: Call) -> Value:
    x = c[0]
    positive = c.emit(ops.Compare("ge"), x, c.like(x, 0))
    return c.emit(ops.Where(), positive, x, binary(c, "mul", x, c[1]))


@onnx_op("Where")
def where(c: Call) -> Value:
    return c.emit(ops.Where(), c[0], c[1], c[2])


@onnx_op("Gelu")
def gelu(c: Call) -> Value:
    return act(c, "gelu_approx" if c.attr("approximate", "none") == "tanh" else "gelu", c[0])


@onnx_op("Gelu", "BiasGelu", "FastGelu", domain="com.microsoft")
def microsoft_gelu(c: Call) -> Value:
    bias = c.get(1)
    x = c[0] if bias is None else binary(c, "add", c[0], bias)
    return act(c, "gelu_approx" if c.node.op_type == "FastGelu" else "gelu", x)


@onnx_op("QuickGelu", domain="com.microsoft")
def quick_gelu(c: Call) -> Value:
    scaled = binary(c, "mul", c[0], c.like(c[0], float(c.attr("alpha", 1.702))))
    return binary(c, "mul", c[0], act(c, "sigmoid", scaled))


@onnx_op("Swish")
def swish(c: Call) -> Value:
    alpha = float(c.attr("alpha", 1.0))
    if alpha == 1.0:
        return act(c, "silu", c[0])
    return binary(c, "mul", c[0], act(c, "sigmoid", binary(c, "mul", c[0], c.like(c[0], alpha))))


@onnx_op("Mish")
def mish(c: Call) -> Value:
    return binary(c, "mul", c[0], act(c, "tanh", act(c, "softplus", c[0])))


@onnx_op("Selu")
def selu(c: Call) -> Value:
    y = act(c, "elu", c[0], float(c.attr("alpha", 1.67326319217681884765625)))
    return binary(c, "mul", y, c.like(y, float(c.attr("gamma", 1.05070102214813232421875))))


@onnx_op("Celu")
def celu(c: Call) -> Value:
    alpha = c.like(c[0], float(c.attr("alpha", 1.0)))
    return binary(c, "mul", act(c, "elu", binary(c, "div", c[0], alpha), 1.0), alpha)


@onnx_op("Softsign")
def softsign(c: Call) -> Value:
    return binary(c, "div", c[0], binary(c, "add", act(c, "abs", c[0]), c.like(c[0], 1)))


@onnx_op("ThresholdedRelu")
def thresholded_relu(c: Call) -> Value:
    above = c.emit(ops.Compare("gt"), c[0], c.like(c[0], float(c.attr("alpha", 1.0))))
    return c.emit(ops.Where(), above, c[0], c.like(c[0], 0))


@onnx_op("Tan")
def tangent(c: Call) -> Value:
    return binary(c, "div", act(c, "sin", c[0]), act(c, "cos", c[0]))


@onnx_op("IsNaN")
def is_nan(c: Call) -> Value:
    return c.emit(ops.Compare("ne"), c[0], c[0])


@onnx_op("IsInf")
def is_inf(c: Call) -> Value:
    if not (c.attr("detect_positive", 1) and c.attr("detect_negative", 1)):
        raise Unsupported("only one sign of infinity is asked for")
    return c.emit(ops.Compare("eq"), act(c, "abs", c[0]), c.like(c[0], math.inf))


@onnx_op("Identity")
def identity(c: Call) -> Value:
    return c[0]


@onnx_op("Dropout")
def dropout(c: Call) -> Value:
    """Nothing at inference; opset 12 made training mode an operand."""
    if c.used(1):
        raise Unsupported("its mask is read")
    training = c.known(2, "training mode") if c.opset >= 12 else None
    if training is not None and bool(training.reshape(-1)[0]):
        raise Unsupported("training mode")
    return c[0]


@onnx_op("Cast", "CastLike")
def cast(c: Call) -> Value:
    from planner_core.importers.onnx_tensors import dtype_of

    if c.node.op_type == "CastLike":
        to, exact = c[1].shape.dtype, True
    else:
        to, exact = dtype_of(int(c.attr("to", 1)))
    if not exact:
        raise Unsupported("it casts to a type without a DType")
    if to is c[0].shape.dtype:
        return c[0]
    if to is DType.BOOL and c[0].shape.dtype.is_float and c[0].shape.dtype.bits < 16:
        raise Unsupported("it casts fp8 to bool")
    x = c[0]
    top = FP8_MAX.get(to)
    if top is not None and x.shape.dtype.is_float and x.shape.dtype.bits > 8 and c.attr("saturate", 1):
        x = act(c, "clip", x, -top, top)
    return c.emit(ops.Cast(to), x)
