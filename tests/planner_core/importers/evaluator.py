"""A node-by-node evaluator for the tests, control flow included: the op's own ``evaluate``, nothing planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from planner_core.importers import import_onnx
from planner_core.ir import Array, Graph, Node, validate

ELEM = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
        "bool": TensorProto.BOOL, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8,
        "int8": TensorProto.INT8, "bfloat16": TensorProto.BFLOAT16}


def evaluate(graph: Graph, feeds: dict[str, Array]) -> list[Array]:
    """The graph's outputs."""
    values: dict[int, Any] = {}
    further: dict[int, list[Array]] = {}
    for n in graph.nodes:
        ins = [values[i] for i in n.inputs]
        if n.op.name == "Input":
            values[n.id] = feeds[n.name]
        elif n.op.name == "Param":
            values[n.id] = graph.weights[n.name]
        elif n.op.name == "Result":
            values[n.id] = further[n.inputs[0]][n.op.index]  # type: ignore[attr-defined]
        elif n.op.bodies():
            further[n.id] = control(n, ins)
            values[n.id] = further[n.id][0]
        else:
            with np.errstate(all="ignore"):
                values[n.id] = n.op.evaluate(*ins)
    return [values[o] for o in graph.outputs]


def call_body(body: Graph, ins: list[Array]) -> list[Array]:
    return evaluate(body, {body[i].name: v for i, v in zip(body.inputs, ins, strict=True)})


def control(n: Node, ins: list[Array]) -> list[Array]:
    op: Any = n.op
    if op.name == "If":
        return call_body(op.then_body if ins[0].reshape(-1)[0] else op.else_body, ins[1:])
    if op.name == "Loop":
        trip, go, states = int(ins[0].reshape(-1)[0]), ins[1], ins[2 : 2 + op.carried]
        stacks: list[list[Array]] = []
        turn = 0
        while turn < trip and bool(np.asarray(go).reshape(-1)[0]):
            out = call_body(op.body, [np.asarray(turn), go, *states, *ins[2 + op.carried :]])
            go, states = out[0], out[1 : 1 + op.carried]
            stacks = stacks or [[] for _ in out[1 + op.carried :]]
            for s, v in zip(stacks, out[1 + op.carried :], strict=True):
                s.append(v)
            turn += 1
        return [*states, *(np.stack(s) for s in stacks)]
    assert op.name == "Scan"
    states, seqs = ins[: op.carried], ins[op.carried : op.carried + op.scanned]
    axes = op.input_axes or (0,) * op.scanned
    back = op.input_reversed or (False,) * op.scanned
    seqs = [np.moveaxis(s, a, 0)[:: -1 if r else 1] for s, a, r in zip(seqs, axes, back, strict=True)]
    rows: list[list[Array]] = []
    for step in zip(*seqs, strict=True):
        out = call_body(op.body, [*states, *step, *ins[op.carried + op.scanned :]])
        states = out[: op.carried]
        rows.append(out[op.carried :])
    stacked = [np.stack(col) for col in zip(*rows, strict=True)]
    back_out = op.output_reversed or (False,) * len(stacked)
    out_axes = op.output_axes or (0,) * len(stacked)
    return [*states, *(np.moveaxis(s[:: -1 if r else 1], 0, a)
                       for s, r, a in zip(stacked, back_out, out_axes, strict=True))]


def model(nodes: list[onnx.NodeProto], inputs: dict[str, Array | tuple[str, list[Any]]], outputs: list[str], *,
          opset: int = 17, weights: dict[str, Array] | None = None,
          domains: dict[str, int] | None = None) -> onnx.ModelProto:
    """A model of these nodes; an input is an array (its shape is fixed) or (dtype, dims)."""
    infos = []
    for name, v in inputs.items():
        dtype, dims = (v.dtype.name, list(v.shape)) if isinstance(v, np.ndarray) else v
        infos.append(helper.make_tensor_value_info(name, ELEM[dtype], dims))
    outs = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph(nodes, "test", infos, outs,
                              [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=10 if opset > 20 else 8)


def run_ort(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """ONNX Runtime's outputs, its own rewrites off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return list(ort.InferenceSession(proto.SerializeToString(), options,
                                     providers=["CPUExecutionProvider"]).run(None, feeds))


def check(proto: onnx.ModelProto, feeds: dict[str, Array], *, rtol: float = 1e-4, atol: float = 1e-5,
          **kw: Any) -> Graph:
    """Import, validate, evaluate, compare with ONNX Runtime: shapes, dtypes, values. Returns the graph."""
    graph = import_onnx(proto, **kw)
    assert validate(graph) == []
    wanted = run_ort(proto, feeds)
    got = evaluate(graph, feeds)
    assert len(got) == len(wanted)
    for o, g, w in zip(graph.outputs, got, wanted, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape, (g.dtype, g.shape, w.dtype, w.shape)
        assert graph[o].dtype.numpy == w.dtype
        assert all(d.value in (None, n) for d, n in zip(graph[o].shape.dims, w.shape, strict=True)), graph[o].shape
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=atol)
    return graph
