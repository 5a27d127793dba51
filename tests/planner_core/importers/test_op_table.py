"""Small models of one ONNX op each, at the opsets where its meaning changed, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner_core.importers.onnx_call import handlers
from planner_core.ir import Array
from tests.planner_core.importers.evaluator import check, model

R = np.random.default_rng(7)


def f(*shape: int) -> Array:
    return R.normal(size=shape).astype(np.float32)


def pos(*shape: int) -> Array:
    return (R.random(shape) + 0.25).astype(np.float32)


def i8(*shape: int) -> Array:
    return R.integers(-128, 128, shape).astype(np.int8)


def u8(*shape: int) -> Array:
    return R.integers(0, 256, shape).astype(np.uint8)


def i64(*v: Any) -> Array:
    return np.array(v[0] if len(v) == 1 and isinstance(v[0], list) else list(v), np.int64)


def s(v: Any, dtype: Any = np.float32) -> Array:
    return np.asarray(v, dtype)


@dataclass
class Case:
    op: str
    feeds: list[Any]
    weights: list[Any] = field(default_factory=list)
    """Operands after the feeds that the file fixes; None leaves one out."""
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    opaque: bool = False
    domain: str = ""
    tag: str = ""

    def id(self) -> str:
        return f"{self.op}-{self.opset}" + (f"-{self.tag}" if self.tag else "")


X, IMG = f(2, 3, 4), f(1, 4, 8, 8)
ZERO = numpy_helper.from_array(s([2.5]), "v")
CASES = [
    *(Case(op, [X]) for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Erf", "Sin", "Cos", "Floor", "Ceil",
                               "Round", "Softplus", "Sign", "HardSwish", "LeakyRelu", "Elu", "HardSigmoid", "Selu",
                               "Celu", "Softsign", "ThresholdedRelu", "IsNaN", "Identity", "Tan")),
    *(Case(op, [pos(2, 3)]) for op in ("Log", "Sqrt", "Reciprocal")),
    Case("Mish", [X], opset=18),
    Case("Not", [X > 0]),
    *(Case(op, [X, f(3, 1)]) for op in ("Add", "Sub", "Mul", "Div", "Greater", "Less", "GreaterOrEqual")),
    Case("Equal", [i64([1, 2]), i64([1, 3])]), Case("LessOrEqual", [X, f(4)]),
    Case("Div", [i64([7, -7, 9]), i64([2, 2, -4])], tag="ints"),
    *(Case(op, [X > 0, f(4) > 0]) for op in ("And", "Or", "Xor")),
    *(Case(op, [X, f(4), f(3, 1)], opset=o) for op in ("Min", "Max", "Sum", "Mean") for o in (8, 13)),
    Case("Pow", [pos(2, 3), f(3)]), Case("Pow", [X], [s(2, np.int64)], tag="int-exponent"),
    Case("Mod", [i64([7, -7, 9]), i64([4, 4, -4])]), Case("Mod", [X, pos(4)], attrs={"fmod": 1}, tag="fmod"),
    Case("Clip", [X], attrs={"min": -0.5, "max": 0.5}, opset=7), Case("Clip", [X], attrs={"max": 0.5}, opset=10),
    Case("Clip", [X], [s(-0.5), s(0.5)], opset=11), Case("Clip", [X], [None, s(0.5)], opset=13),
    Case("Clip", [X], opset=13, tag="open"), Case("Clip", [X, s(-0.1), s(0.2)], tag="runtime"),
    Case("Clip", [i64([1, 5, 9])], [s(2, np.int64), s(7, np.int64)], tag="ints"),
    Case("PRelu", [X], [f(3, 1)]), Case("Where", [X > 0, X, f(4)]),
    Case("Gelu", [X], opset=20), Case("Gelu", [X], attrs={"approximate": "tanh"}, opset=20, tag="tanh"),
    Case("Gelu", [X], domain="com.microsoft"), Case("FastGelu", [X], [f(4)], domain="com.microsoft"),
    Case("BiasGelu", [X], [f(4)], domain="com.microsoft"), Case("QuickGelu", [X], domain="com.microsoft"),
    Case("IsInf", [s([1, np.inf, -np.inf])]),
    Case("IsInf", [s([1, np.inf, -np.inf])], attrs={"detect_negative": 0}, opaque=True, tag="one-sign"),
    Case("Dropout", [X], opset=7), Case("Dropout", [X], [s(0.3)], opset=13),
    Case("Cast", [X], attrs={"to": TensorProto.INT32}), Case("Cast", [X], attrs={"to": TensorProto.FLOAT}, tag="same"),
    Case("Cast", [X], attrs={"to": TensorProto.FLOAT16}, tag="half"), Case("CastLike", [X, i64([1])], opset=15),
    Case("Cast", [X], attrs={"to": TensorProto.STRING}, opaque=True, tag="string"),
    # structure
    Case("Reshape", [X], [i64([0, -1])], tag="zero"), Case("Reshape", [X], [i64([4, -1, 2])]),
    Case("Flatten", [IMG]), Case("Flatten", [IMG], attrs={"axis": 0}, tag="0"),
    Case("Flatten", [IMG], attrs={"axis": -1}, opset=11, tag="-1"),
    Case("Squeeze", [f(1, 3, 1)], attrs={"axes": [0]}, opset=11), Case("Squeeze", [f(1, 3, 1)], [i64([-1])], opset=13),
    Case("Squeeze", [f(1, 3, 1)], tag="all"),
    Case("Unsqueeze", [X], attrs={"axes": [0, 3]}, opset=11), Case("Unsqueeze", [X], [i64([-1, 1])], opset=13),
    Case("Transpose", [X]), Case("Transpose", [X], attrs={"perm": [1, 0, 2]}, tag="perm"),
    Case("Concat", [X, f(2, 1, 4)], attrs={"axis": 1}), Case("Concat", [X], attrs={"axis": -1}, tag="one"),
    Case("Split", [X], attrs={"split": [1, 2], "axis": 1}, opset=11, outputs=2),
    Case("Split", [X], [i64([1, 2])], {"axis": 1}, opset=13, outputs=2),
    Case("Split", [X], attrs={"axis": -1}, opset=13, outputs=2, tag="even"),
    Case("Split", [f(7, 2)], attrs={"num_outputs": 3}, opset=18, outputs=3, tag="uneven"),
    Case("Slice", [X], attrs={"starts": [0, -3], "ends": [1, 100], "axes": [0, 2]}, opset=9),
    Case("Slice", [X], [i64([-1]), i64([-100]), i64([2]), i64([-2])], opset=13, tag="back"),
    Case("Slice", [X], [i64([1]), i64([2**63 - 1]), i64([-1])], opset=10),
    Case("Slice", [X], [i64([5]), i64([9]), i64([1])], opset=13, tag="empty"),
    Case("Slice", [X], [i64([2, 0]), i64([0, 4]), i64([1, 2]), i64([-1, 2])], opset=13, tag="two"),
    Case("Expand", [f(3, 1)], [i64([2, 1, 4])]), Case("Expand", [X], [i64([1])], tag="same"),
    Case("Tile", [X], [i64([1, 2, 3])]), Case("Tile", [f(1, 3)], [i64([4, 1])], tag="expand"),
    Case("Pad", [X], attrs={"pads": [0, 1, 0, 0, 0, 2], "value": 1.5}, opset=10),
    Case("Pad", [X], [i64([0, 1, 0, 0, 0, 2]), s(1.5)], opset=13), Case("Pad", [X], [i64([0, 0, -1, 0, 1, 0])], tag="cut"),
    Case("Pad", [X], [i64([0, 1, 2, 0, 1, 1])], {"mode": "reflect"}, tag="reflect"),
    Case("Pad", [X], [i64([0, 1, 2, 0, 1, 1])], {"mode": "edge"}, tag="edge"),
    Case("Pad", [X], [i64([1, 1]), s(0.0), i64([-1])], opset=18, tag="axes"),
    Case("Pad", [X], [i64([0, 1, 0, 0, 1, 0])], {"mode": "wrap"}, opset=19, opaque=True, tag="wrap"),
    Case("DepthToSpace", [IMG], attrs={"blocksize": 2}), Case("SpaceToDepth", [IMG], attrs={"blocksize": 2}),
    Case("DepthToSpace", [IMG], attrs={"blocksize": 2, "mode": "CRD"}, tag="CRD"),
    # shapes
    Case("Shape", [X]), Case("Shape", [X], attrs={"start": 1, "end": -1}, opset=15), Case("Size", [X]),
    Case("Range", [], [s(1, np.int64), s(9, np.int64), s(3, np.int64)]), Case("Range", [], [s(3.0), s(0.0), s(-0.5)], tag="float"),
    Case("ConstantOfShape", [], [i64([2, 3])], {"value": ZERO}), Case("EyeLike", [f(3, 4)], attrs={"k": 1}),
    Case("Trilu", [f(2, 4, 4)]), Case("Trilu", [f(4, 5)], [s(-1, np.int64)], {"upper": 0}, tag="lower"),
    Case("Trilu", [], [f(4, 4)], tag="known"),
    Case("OneHot", [i64([0, 2, -1, 7])], [s(4, np.int64), s([0.5, 2.0])]),
    Case("OneHot", [i64([[0, 2], [1, 1]])], [s(3, np.int64), s([0.0, 1.0])], {"axis": 1}, tag="axis"),
    # convolution and pooling
    Case("Conv", [f(1, 4, 9)], [f(6, 2, 3)], {"group": 2, "pads": [1, 1]}, tag="1d"),
    Case("Conv", [IMG], [f(6, 4, 3, 3), f(6)], {"strides": [2, 2], "dilations": [2, 1], "pads": [1, 0, 2, 1]}, tag="bias"),
    Case("Conv", [IMG], [f(6, 4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, tag="same-upper"),
    Case("Conv", [IMG], [f(6, 4, 2, 2)], {"auto_pad": "SAME_LOWER"}, tag="same-lower"),
    Case("Conv", [IMG], [f(6, 4, 3, 3)], {"auto_pad": "VALID"}, tag="valid"),
    Case("Conv", [f(1, 2, 4, 5, 6)], [f(3, 2, 2, 3, 3), f(3)], tag="3d-bias"), Case("Conv", [f(1, 2, 4, 5, 6)], [f(3, 2, 2, 3, 3)], tag="3d"),
    Case("ConvTranspose", [IMG], [f(4, 3, 3, 3), f(3)], {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 1, 0, 1]}),
    Case("ConvTranspose", [IMG], [f(4, 2, 2, 2)], {"strides": [2, 2], "group": 2}, tag="group"),
    Case("ConvTranspose", [IMG], [f(4, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, tag="same"),
    Case("ConvTranspose", [IMG], [f(4, 3, 3, 3)], {"strides": [2, 2], "output_shape": [16, 16]}, tag="output-shape"),
    Case("ConvTranspose", [f(1, 4, 9)], [f(4, 3, 3), f(3)], {"strides": [2]}, tag="1d"),
    Case("MaxPool", [IMG], attrs={"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    Case("MaxPool", [f(1, 4, 9)], attrs={"kernel_shape": [3], "strides": [2], "ceil_mode": 1}, tag="1d-ceil"),
    Case("MaxPool", [IMG], attrs={"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, tag="same"),
    Case("MaxPool", [f(1, 1, 4, 4, 4)], attrs={"kernel_shape": [2, 2, 2]}, opaque=True, tag="3d"),
    Case("MaxPool", [IMG], attrs={"kernel_shape": [2, 2]}, outputs=2, opaque=True, tag="indices"),
    Case("AveragePool", [IMG], attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    Case("AveragePool", [IMG], attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, tag="count"),
    Case("GlobalMaxPool", [IMG]), Case("GlobalAveragePool", [IMG]),
    # resize
    Case("Upsample", [IMG], attrs={"scales": [1.0, 1.0, 2.0, 3.0]}, opset=7),
    Case("Upsample", [IMG], [s([1, 1, 2, 2])], opset=9), Case("Resize", [IMG], [s([1, 1, 2, 2])], opset=10),
    Case("Resize", [IMG], [s([]), s([1, 1, 2, 2])], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, opset=11),
    Case("Resize", [IMG], [None, None, i64([1, 4, 24, 16])], opset=13, tag="sizes"),
    Case("Resize", [IMG], [None, s([2, 2])], {"axes": [2, 3]}, opset=18, tag="axes"),
    Case("Resize", [IMG], [None, s([1, 1, 2, 2])], {"mode": "cubic"}, opset=13, opaque=True, tag="cubic"),
    Case("Resize", [IMG], [None, s([1, 1, 0.5, 0.5])], opset=13, opaque=True, tag="down"),
    # matmul
    Case("MatMul", [X], [f(4, 5)]), Case("MatMul", [X, f(2, 4, 3)], tag="batch"), Case("MatMul", [f(4)], [f(4, 5)], tag="vector"),
    Case("Gemm", [f(2, 4)], [f(5, 4), f(5)], {"transB": 1}), Case("Gemm", [f(2, 4)], [f(4, 5)], {"alpha": 0.5}, opset=11),
    Case("Gemm", [f(4, 2)], [f(4, 5), f(2, 1)], {"transA": 1, "beta": 2.0}, tag="beta"),
    *(Case("Einsum", ins, attrs={"equation": eq}, tag=eq) for eq, ins in (
        ("bhid,bhjd->bhij", [f(1, 2, 3, 4), f(1, 2, 5, 4)]), ("ij,jk->ik", [f(2, 3), f(3, 4)]), ("ij->ji", [f(2, 3)]),
        ("i,j->ij", [f(2), f(3)]), ("ijk,kj->i", [f(2, 3, 4), f(4, 3)]), ("ij->i", [f(2, 3)]))),
    Case("Einsum", [f(3, 3)], attrs={"equation": "ii->i"}, opaque=True, tag="diagonal"),
    # 8-bit
    Case("DequantizeLinear", [i8(3, 4)], [s(0.5), s(3, np.int8)], opset=13),
    Case("DequantizeLinear", [u8(3, 4)], [s([0.5, 2, 1, 3]), s([3, 0, 9, 200], np.uint8)], {"axis": 1}, opset=13, tag="axis"),
    Case("DequantizeLinear", [i8(3, 4)], [s([0.5, 2, 1])], {"axis": 0}, opset=13, tag="no zero"),
    Case("DequantizeLinear", [i8(3, 4)], [f(3, 2), i8(3, 2)], {"axis": 1, "block_size": 2}, opset=21, tag="blocks"),
    Case("QuantizeLinear", [8 * X], [s(0.5), s(3, np.int8)], opset=13),
    Case("QuantizeLinear", [s([0.5, 1.5, 2.5, -300, 300])], [s(1.0), s(0, np.uint8)], opset=13, tag="halves and ends"),
    Case("QuantizeLinear", [8 * X], [s([0.5, 2, 1]), s([3, 0, 9], np.int8)], {"axis": 1}, opset=13, tag="axis"),
    Case("DynamicQuantizeLinear", [X], opset=13, outputs=3),
    Case("MatMulInteger", [u8(3, 4), i8(4, 5)], [s(9, np.uint8), s(2, np.int8)], opset=13),
    Case("MatMulInteger", [u8(3, 4), u8(4, 5)], opset=13, tag="no zeros"),
    Case("MatMulInteger", [u8(1, 300), i8(300, 2)], opset=13, opaque=True, tag="too long for f32"),
    Case("QLinearMatMul", [u8(3, 4), s(0.02), s(7, np.uint8), u8(4, 5), s(0.03), s(9, np.uint8), s(0.2), s(100, np.uint8)],
         opset=13),
    # norm
    Case("BatchNormalization", [IMG], [f(4), f(4), f(4), pos(4)], {"epsilon": 1e-3}, opset=9),
    Case("BatchNormalization", [IMG], [f(4), f(4), f(4), pos(4)], opset=15),
    Case("LayerNormalization", [X], [f(4), f(4)]), Case("LayerNormalization", [X], [f(3, 4)], {"axis": 1}, tag="axis"),
    Case("RMSNormalization", [X], [f(4)], opset=23), Case("InstanceNormalization", [IMG], [f(4), f(4)]),
    Case("GroupNormalization", [IMG], [f(4), f(4)], {"num_groups": 2}, opset=21),
    Case("LpNormalization", [X]), Case("LpNormalization", [X], attrs={"p": 1, "axis": 1}, tag="1"),
    *(Case(op, [X], attrs=a, opset=o, tag=t) for op in ("Softmax", "LogSoftmax")
      for a, o, t in (({}, 11, "flat"), ({"axis": 2}, 11, "last"), ({"axis": 1}, 13, "axis"), ({}, 13, "default"))),
    # reduction
    *(Case(f"Reduce{k}", [pos(2, 3, 4)], attrs={"axes": [1], "keepdims": 0}, opset=11)
      for k in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")),
    *(Case(f"Reduce{k}", [pos(2, 3, 4)], [i64([-1, 0])], opset=18)
      for k in ("Sum", "Mean", "Max", "L2", "SumSquare", "LogSumExp")),
    Case("ReduceSum", [X], [i64([1])], opset=13, tag="operand"), Case("ReduceSum", [X], opset=13, tag="all"),
    Case("ReduceSum", [X], [i64([])], {"noop_with_empty_axes": 1}, opset=13, tag="noop"),
    Case("ArgMax", [X]), Case("ArgMin", [X], attrs={"axis": 2, "keepdims": 0}),
    Case("ArgMax", [X], attrs={"select_last_index": 1}, opaque=True, tag="last"),
    Case("CumSum", [X], [s(2, np.int64)]), Case("CumSum", [X], [s(0, np.int64)], {"reverse": 1, "exclusive": 1}, tag="reverse"),
    Case("TopK", [X], attrs={"k": 2}, opset=9, outputs=2), Case("TopK", [X], [i64([2])], {"axis": 1, "largest": 0}, opset=11, outputs=2),
    # indexing
    Case("Gather", [X], [i64([[0, -1]])], {"axis": 1}), Case("Gather", [X], [s(1, np.int64)], tag="scalar"),
    Case("GatherElements", [f(3, 3)], [i64([[0, 1, 2], [2, 0, -1], [1, 1, 1]])], {"axis": 1}),
    Case("GatherElements", [f(3, 3)], [i64([[0, 1], [2, 0]])], {"axis": 1}, opaque=True, tag="part"),
    Case("GatherND", [X], [i64([[0, 1], [1, -1]])]),
    Case("GatherND", [X], [i64([[0], [1]])], {"batch_dims": 1}, opaque=True, tag="batch"),
    Case("ScatterElements", [f(3, 3)], [i64([[0, 2], [1, 1]]), f(2, 2)], {"axis": 1}, opset=11),
    Case("ScatterElements", [f(3, 3)], [i64([[0, 0], [1, 1]]), f(2, 2)], {"axis": 0, "reduction": "add"}, opset=16),
    Case("ScatterND", [X], [i64([[0, 1], [1, 2]]), f(2, 4)]),
    Case("ScatterND", [X], [i64([[0, 1]]), f(1, 4)], {"reduction": "add"}, opset=16, opaque=True, tag="add"),
    # no IR op
    Case("Sinh", [X], opaque=True), Case("Hardmax", [X], opset=13, opaque=True), Case("NonZero", [X], opaque=True),
    Case("QuantizeLinear", [X.astype(np.float16)], [s(0.1, np.float16), s(3, np.uint8)], opset=19, opaque=True, tag="half"),
]


@pytest.mark.parametrize("case", CASES, ids=Case.id)
def test_op(case: Case) -> None:
    feeds = {f"in{i}": v for i, v in enumerate(case.feeds)}
    weights = {f"w{i}": v for i, v in enumerate(case.weights) if v is not None}
    operands = [*feeds, *("" if v is None else f"w{i}" for i, v in enumerate(case.weights))]
    outputs = [f"out{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, operands, outputs, domain=case.domain, **case.attrs)
    proto = model([node], feeds, outputs, opset=case.opset, weights=weights,
                  domains={case.domain: 1} if case.domain else None)
    if case.opaque:
        from planner_core.importers import import_onnx
        from planner_core.ir import validate

        graph = import_onnx(proto)
        assert validate(graph) == []
        assert [graph[i].op.detail for i in graph.of("Custom")] == [f"onnx.{case.op}"]
        assert len(graph.of("Result")) == case.outputs - 1
        assert any(f"onnx.{case.op}" in n for n in graph.notes)
        return
    graph = check(proto, feeds)
    assert graph.of("Custom") == []


def test_handlers_have_a_case() -> None:
    """Every handler is in the table, or in the file named here."""
    elsewhere = {"If", "Loop", "Scan", "Constant", "Scatter", "Swish", "SimplifiedLayerNormalization"}
    covered = {(c.domain, c.op) for c in CASES}
    assert {op for domain, op in handlers() if (domain, op) not in covered} == elsewhere
