"""If, Loop and Scan: bodies, captures, results, shapes; values against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from planner_core.importers import import_onnx
from planner_core.ir import UNKNOWN, Graph, ops, validate
from tests.planner_core.importers.evaluator import check, model

R = np.random.default_rng(3)
X = R.normal(size=(2, 3)).astype(np.float32)
W = R.normal(size=(3, 3)).astype(np.float32)
INFO = helper.make_tensor_value_info


def body(name: str, nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any],
         weights: dict[str, Any] | None = None) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, inputs, outputs,
                             [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()])


def one_if(cond: Any = None) -> onnx.ModelProto:
    """then: x @ w + 1 (w and 1 in the body); else: relu(x) * y; the condition is an input or known."""
    then = body("then", [helper.make_node("MatMul", ["x", "w"], ["a0"]), helper.make_node("Add", ["a0", "one"], ["a1"])],
                [], [INFO("a1", 1, [2, 3])], {"w": W, "one": np.float32(1)})
    other = body("else", [helper.make_node("Relu", ["x"], ["b0"]), helper.make_node("Mul", ["b0", "y"], ["b1"])],
                 [], [INFO("b1", 1, [2, 3])])
    node = helper.make_node("If", ["c"], ["out"], then_branch=then, else_branch=other)
    feeds: dict[str, Any] = {"x": X, "y": X}
    if cond is None:
        feeds["c"] = np.array(True)
    return model([node], feeds, ["out"], weights=None if cond is None else {"c": np.array(cond)})


def bodies(graph: Graph) -> list[Graph]:
    return [b for n in graph.nodes for b in n.op.bodies()]


def hoisted(graph: Graph) -> bool:
    """No body keeps data of its own."""
    return all(not b.params and not b.of("Constant") and validate(b) == [] and hoisted(b) for b in bodies(graph))


def test_if_both_branches() -> None:
    for c in (True, False):
        graph = check(one_if(), {"x": X, "y": X, "c": np.array(c)})
    node = graph[graph.of("If")[0]]
    assert isinstance(node.op, ops.If)
    assert [graph[i].name for i in node.inputs] == ["c", "x", "w", "one", "y"]
    for b in node.op.bodies():
        assert [n.op.name for n in b.nodes[:4]] == ["Input"] * 4
        assert [b[i].shape for i in b.inputs] == [graph[i].shape for i in node.inputs[1:]]
    assert hoisted(graph)
    assert node.shape.sizes == (2, 3)


def test_if_with_known_condition_keeps_one_branch() -> None:
    for cond, op in ((True, "MatMul"), (False, "Activation")):
        graph = check(one_if(cond), {"x": X, "y": X})
        assert not graph.of("If")
        assert graph.of(op)
        assert len(graph.of("MatMul")) + len(graph.of("Activation")) == 1


def test_if_with_several_outputs_and_other_shapes() -> None:
    then = body("t", [helper.make_node("Identity", ["x"], ["t0"]), helper.make_node("Neg", ["x"], ["t1"])], [],
                [INFO("t0", 1, None), INFO("t1", 1, None)])
    other = body("e", [helper.make_node("Concat", ["x", "x"], ["e0"], axis=0), helper.make_node("Abs", ["x"], ["e1"])],
                 [], [INFO("e0", 1, None), INFO("e1", 1, None)])
    proto = model([helper.make_node("If", ["c"], ["p", "q"], then_branch=then, else_branch=other)],
                  {"x": X, "c": np.array(True)}, ["p", "q"])
    graph = check(proto, {"x": X, "c": np.array(False)})
    node, result = graph[graph.of("If")[0]], graph[graph.of("Result")[0]]
    assert node.shape.dims[0] == UNKNOWN
    assert node.shape.dims[1].value == 3
    assert result.id == node.id + 1
    assert result.op.index == 1  # type: ignore[attr-defined]
    assert result.shape.sizes == (2, 3)


def one_loop(trip: Any, keep: str = "go") -> onnx.ModelProto:
    """state = state @ w + i; a scan output of the state's row sums."""
    nodes = [helper.make_node("MatMul", ["state", "w"], ["s0"]), helper.make_node("Cast", ["i"], ["fi"], to=1),
             helper.make_node("Add", ["s0", "fi"], ["s1"]),
             helper.make_node("ReduceMean", ["s1"], ["row"], axes=[1], keepdims=0),
             helper.make_node("ReduceMax", ["s1"], ["top"], keepdims=0),
             helper.make_node("Less", ["top", "limit"], ["small"]), helper.make_node("Identity", ["go"], ["on"])]
    b = body("step", nodes, [INFO("i", 7, []), INFO("go", 9, []), INFO("state", 1, [2, 3])],
             [INFO("on" if keep == "go" else "small", 9, []), INFO("s1", 1, [2, 3]), INFO("row", 1, [2])],
             {"limit": np.float32(40)})
    feeds: dict[str, Any] = {"x": X}
    weights: dict[str, Any] = {"w": W}
    if trip is None:
        feeds["n"] = np.array(4)
    else:
        weights["n"] = np.array(trip)
    return model([helper.make_node("Loop", ["n", "", "x"], ["final", "rows"], body=b)], feeds, ["final", "rows"],
                 weights=weights)


def test_loop_with_known_trip_count() -> None:
    graph = check(one_loop(5), {"x": X})
    node = graph[graph.of("Loop")[0]]
    assert isinstance(node.op, ops.Loop)
    assert node.op.carried == 1
    assert [graph[i].name for i in node.inputs[2:]] == ["x", "w", "limit"]
    assert [node.op.body[i].name for i in node.op.body.inputs] == ["i", "go", "state", "w", "limit"]
    assert len(node.op.body.outputs) == 3
    result = graph[graph.of("Result")[0]]
    assert result.id == node.id + 1
    assert result.shape.sizes == (5, 2)
    assert hoisted(graph)


def test_loop_with_unknown_trip_count() -> None:
    for proto, feeds in ((one_loop(None), {"x": X, "n": np.array(3)}), (one_loop(9, "small"), {"x": X})):
        graph = check(proto, feeds)
        result = graph[graph.of("Result")[0]]
        assert result.shape.dims[0] == UNKNOWN
        assert result.shape.dims[1].value == 2


def test_loop_whose_state_grows() -> None:
    b = body("grow", [helper.make_node("Concat", ["s", "x"], ["t"], axis=0), helper.make_node("Identity", ["go"], ["on"])],
             [INFO("i", 7, []), INFO("go", 9, []), INFO("s", 1, None)], [INFO("on", 9, []), INFO("t", 1, None)])
    proto = model([helper.make_node("Loop", ["n", "", "x"], ["final"], body=b)], {"x": X}, ["final"],
                  weights={"n": np.array(3)})
    graph = check(proto, {"x": X})
    node = graph[graph.of("Loop")[0]]
    assert node.shape.dims[0] == UNKNOWN
    assert node.op.body[node.op.body.inputs[2]].shape.dims[0] == UNKNOWN  # type: ignore[attr-defined]


def test_scan() -> None:
    nodes = [helper.make_node("Mul", ["row", "scale"], ["scaled"]), helper.make_node("Add", ["acc", "scaled"], ["acc2"]),
             helper.make_node("Neg", ["acc2"], ["seen"])]
    b = body("sum", nodes, [INFO("acc", 1, [2]), INFO("row", 1, [2])], [INFO("acc2", 1, [2]), INFO("seen", 1, [2])],
             {"scale": np.array([2.0, 0.5], np.float32)})
    node = helper.make_node("Scan", ["start", "x"], ["last", "all"], body=b, num_scan_inputs=1, scan_input_axes=[1],
                            scan_input_directions=[1], scan_output_axes=[1])
    start = np.zeros(2, np.float32)
    graph = check(model([node], {"start": start, "x": X}, ["last", "all"]), {"start": start, "x": X})
    scan = graph[graph.of("Scan")[0]]
    assert isinstance(scan.op, ops.Scan)
    assert (scan.op.carried, scan.op.scanned, scan.op.input_axes, scan.op.output_axes) == (1, 1, (1,), (1,))
    assert scan.op.input_reversed == (True,)
    assert [graph[i].name for i in scan.inputs] == ["start", "x", "scale"]
    assert graph[graph.of("Result")[0]].shape.sizes == (2, 3)
    assert Graph.from_dict(graph.to_dict()).nodes == graph.nodes


def test_nested_subgraphs_capture_through_both_levels() -> None:
    then = body("t", [helper.make_node("MatMul", ["s", "w"], ["t0"])], [], [INFO("t0", 1, [2, 3])])
    other = body("e", [helper.make_node("Add", ["s", "x"], ["e0"])], [], [INFO("e0", 1, [2, 3])])
    nodes = [helper.make_node("If", ["c"], ["s1"], then_branch=then, else_branch=other),
             helper.make_node("Identity", ["go"], ["on"])]
    b = body("outer", nodes, [INFO("i", 7, []), INFO("go", 9, []), INFO("s", 1, [2, 3])],
             [INFO("on", 9, []), INFO("s1", 1, [2, 3])])
    proto = model([helper.make_node("Loop", ["n", "", "x"], ["out"], body=b)], {"x": X, "c": np.array(True)}, ["out"],
                  weights={"w": W, "n": np.array(3)})
    for c in (True, False):
        graph = check(proto, {"x": X, "c": np.array(c)})
    assert {graph[i].name for i in graph[graph.of("Loop")[0]].inputs} >= {"x", "w", "c"}
    assert hoisted(graph)


def test_shape_arithmetic_in_a_body_folds() -> None:
    then = body("t", [helper.make_node("Shape", ["x"], ["sh"]), helper.make_node("Gather", ["sh", "zero"], ["n"], axis=0),
                      helper.make_node("Concat", ["n", "rest"], ["to"], axis=0), helper.make_node("Reshape", ["x", "to"], ["r"])],
                [], [INFO("r", TensorProto.FLOAT, None)], {"zero": np.array([0]), "rest": np.array([3, 1])})
    other = body("e", [helper.make_node("Unsqueeze", ["x", "last"], ["u"])], [], [INFO("u", TensorProto.FLOAT, None)],
                 {"last": np.array([2])})
    graph = import_onnx(model([helper.make_node("If", ["c"], ["o"], then_branch=then, else_branch=other)],
                              {"x": X, "c": np.array(True)}, ["o"]))
    assert validate(graph) == []
    assert [n.op.name for n in bodies(graph)[0].nodes] == ["Input", "Reshape"]
    assert graph.params == []
    assert graph[graph.outputs[0]].shape.sizes == (2, 3, 1)
