"""Weights, names, sources, notes, folding, dims, opaque nodes: what the graph says about the file."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner_core.fusion import fuse_graph
from planner_core.importers import import_onnx, load_model, onnx_ops
from planner_core.importers.onnx_call import onnx_op
from planner_core.ir import UNKNOWN, Dim, DType, Graph, ops, validate
from tests.planner_core.importers.evaluator import check, evaluate, model, run_ort

N = helper.make_node
W = np.arange(300, dtype=np.float32).reshape(3, 100)


def sound(proto: Any, **kw: Any) -> Graph:
    graph = import_onnx(proto, **kw)
    assert validate(graph) == []
    return graph


# --- weights ----------------------------------------------------------------------------------------------


def test_shared_weights_count_once() -> None:
    nodes = [N("Constant", [], ["w3"], value=numpy_helper.from_array(W)), N("Add", ["x", "w1"], ["a"]),
             N("Mul", ["a", "w2"], ["b"]), N("Sub", ["b", "w3"], ["c"]), N("Div", ["c", "w4"], ["y"])]
    proto = model(nodes, {"x": W}, ["y"], weights={"w1": W, "w2": W.copy(), "w4": W + 1})
    graph = check(proto, {"x": W})
    assert sorted(graph.weights) == ["w1", "w4"]
    assert "2 weights have the same data as another and count once." in graph.notes


def test_equal_bytes_of_other_shape_or_type_stay_apart() -> None:
    ints = W.view(np.int32)
    nodes = [N("Add", ["x", "w1"], ["y"]), N("Reshape", ["x", "to"], ["r"]), N("Add", ["r", "w2"], ["z"]),
             N("Add", ["i", "w3"], ["k"])]
    proto = model(nodes, {"x": W, "i": ints}, ["y", "z", "k"],
                  weights={"w1": W, "w2": W.reshape(100, 3), "w3": ints, "to": np.array([100, 3])})
    assert sorted(sound(proto).weights) == ["w1", "w2", "w3"]


def test_constant_nodes() -> None:
    nodes = [N("Constant", [], ["many"], value=numpy_helper.from_array(W)), N("Constant", [], ["one"], value_float=2.0),
             N("Constant", [], ["list"], value_floats=[1.0] * 100), N("Add", ["x", "many"], ["a"]),
             N("Mul", ["a", "one"], ["b"]), N("Add", ["b", "list"], ["y"])]
    graph = check(model(nodes, {"x": W}, ["y"]), {"x": W})
    assert sorted(graph.weights) == ["list", "many"]
    assert [graph[i].name for i in graph.of("Constant")] == ["one"]
    assert graph.find("many").source[0].op == "Constant"


def test_initializers_that_are_also_inputs_are_params() -> None:
    proto = model([N("Add", ["x", "w"], ["y"])], {"x": W, "w": W}, ["y"], weights={"w": W})
    graph = sound(proto)
    assert [graph[i].name for i in graph.inputs] == ["x"]
    assert [graph[i].name for i in graph.params] == ["w"]


def test_gemm_weight_is_stored_transposed_only_when_nobody_else_reads_it() -> None:
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    gemm = N("Gemm", ["x", "w"], ["y"], transB=1)
    graph = check(model([gemm], {"x": np.ones((2, 4), np.float32)}, ["y"], weights={"w": w}),
                  {"x": np.ones((2, 4), np.float32)})
    assert graph.of("Transpose") == []
    assert graph.find("w").shape.sizes == (4, 3)
    assert any("stored transposed" in n for n in graph.notes)
    big = np.ones((3, 40000), np.float32)
    tied = [N("Gemm", ["x", "w"], ["y"], transB=1), N("Gather", ["w", "i"], ["z"])]
    graph = sound(model(tied, {"x": np.ones((2, 40000), np.float32), "i": np.array([0])}, ["y", "z"], weights={"w": big}))
    assert len(graph.params) == 1
    assert graph.find("w").shape.sizes == (3, 40000)


def test_external_data_is_mapped_not_copied(tmp_path: Path) -> None:
    big = np.zeros((1024, 4096), np.float32)
    big[:, 0] = 1
    proto = model([N("MatMul", ["x", "w"], ["y"])], {"x": np.ones((1, 1024), np.float32)}, ["y"], weights={"w": big})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=16)
    tracemalloc.start()
    graph = load_model(tmp_path / "m.onnx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert validate(graph) == []
    assert peak < big.nbytes / 4
    np.testing.assert_array_equal(graph.weights["w"], big)
    assert graph.find("w").source[0].file == "m.onnx"


@pytest.mark.parametrize(("dtype", "want"), [
    (np.float16, DType.F16), (ml_dtypes.bfloat16, DType.BF16), (np.float64, DType.F64), (np.int8, DType.I8),
    (np.uint16, DType.U16), (np.bool_, DType.BOOL), (ml_dtypes.float8_e4m3fn, DType.F8E4M3),
    (ml_dtypes.float8_e5m2, DType.F8E5M2), (ml_dtypes.int4, DType.I4), (ml_dtypes.uint4, DType.U4)], ids=str)
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_element_types(tmp_path: Path, dtype: Any, want: DType, external: bool) -> None:
    data = np.array([0, 1, 1, 0, 1, 1, 0], np.int64).astype(dtype)
    if want is DType.I4:
        data[1] = -3
    proto = model([N("Reshape", ["w", "to"], ["y"])], {}, ["y"], weights={"to": np.array([7, 1])}, opset=21)
    proto.graph.initializer.append(numpy_helper.from_array(data, "w"))
    if external:
        onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
        graph = import_onnx(tmp_path / "m.onnx")
    else:
        graph = import_onnx(proto)
    assert validate(graph) == []
    assert graph[graph.outputs[0]].dtype is want
    np.testing.assert_array_equal(evaluate(graph, {})[0].reshape(-1).astype(np.float32), data.astype(np.float32))


# --- folding and dims ---------------------------------------------------------------------------------------


def shape_chain(x_dims: list[Any]) -> onnx.ModelProto:
    """reshape(x, [shape(x)[0], -1, shape(x)[2] * 2]) as exporters write it."""
    nodes = [N("Shape", ["x"], ["s"]), N("Gather", ["s", "i0"], ["b"], axis=0), N("Gather", ["s", "i2"], ["c"], axis=0),
             N("Mul", ["c", "two"], ["c2"]), N("Unsqueeze", ["b", "ax"], ["bu"]), N("Unsqueeze", ["c2", "ax"], ["cu"]),
             N("Concat", ["bu", "minus", "cu"], ["to"], axis=0), N("Reshape", ["x", "to"], ["y"])]
    return model(nodes, {"x": ("float32", x_dims)}, ["y"],
                 weights={"i0": np.array(0), "i2": np.array(2), "two": np.array(2), "ax": np.array([0]),
                          "minus": np.array([-1])})


def test_shape_arithmetic_disappears() -> None:
    graph = check(shape_chain(["b", 6, "c"]), {"x": np.ones((2, 6, 5), np.float32)}, dims={"b": 2, "c": 5})
    assert [n.op.name for n in graph.nodes] == ["Input", "Reshape"]
    assert graph.params == []
    assert graph.find("x").shape.dims == (Dim(2, "b"), Dim(6), Dim(5, "c"))


def test_masks_of_shapes_fold_but_expanded_weights_do_not() -> None:
    nodes = [N("Equal", ["s", "m1"], ["eq"]), N("Where", ["eq", "ones", "s"], ["to"]), N("Expand", ["x", "to"], ["y"]),
             N("Expand", ["w", "wide"], ["z"])]
    proto = model(nodes, {"x": ("float32", [1, 3])}, ["y", "z"], weights={
        "s": np.array([4, -1]), "m1": np.array(-1), "ones": np.array([1, 1]), "w": np.ones((1, 4096), np.float32),
        "wide": np.array([64, 4096])})
    graph = sound(proto)
    assert [n.op.name for n in graph.nodes if n.op.name not in ("Input", "Param")] == ["Expand", "Expand"]
    assert graph.find("w").shape.numel == 4096


def test_unknown_extents_flow_through_shape_arithmetic() -> None:
    """After NonZero an extent is unknown; the other extents and the rank stay known."""
    nodes = [N("NonZero", ["x"], ["nz"]), N("Transpose", ["nz"], ["rows"]), N("Shape", ["rows"], ["s"]),
             N("Gather", ["s", "i1"], ["k"], axis=0), N("Concat", ["m1", "k", "one"], ["to"], axis=0),
             N("Reshape", ["rows", "to"], ["y"])]
    proto = model(nodes, {"x": ("float32", [3, 4])}, ["y"],
                  weights={"i1": np.array([1]), "m1": np.array([-1]), "one": np.array([1])})
    graph = sound(proto)
    assert graph.find("nz").shape.dims == (Dim(2), UNKNOWN)
    assert graph[graph.outputs[0]].shape.dims == (UNKNOWN, Dim(2), Dim(1))
    assert [graph[i].op.detail for i in graph.of("Custom")] == ["onnx.NonZero"]


def test_dims_notes_and_expressions() -> None:
    proto = model([N("Relu", ["x"], ["y"]), N("Relu", ["m"], ["n"]), N("Relu", ["a"], ["b"])],
                  {"x": ("float32", ["B", "S"]), "m": ("float32", ["B", "past + S"]), "a": ("float32", ["?", 2])},
                  ["y", "n", "b"])
    graph = sound(proto, dims={"S": 4, "past": 3})
    assert [str(graph.find(n).shape) for n in ("x", "m", "a")] == ["f32[B=1, S=4]", "f32[B=1, past + S=7]", "f32[1, 2]"]
    assert graph.notes == [
        "Axis 0 of input 'x' (symbol 'B') has no size in the file; taken as 1.",
        "Axis 0 of input 'a' (no symbol) has no size in the file; taken as 1."]
    assert not sound(proto, dims={"S": 4, "past": 3, "B": 2}, shapes={"a": (5, 2)}).notes


def test_inputs_without_rank_and_two_anonymous_dims() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph([N("Relu", ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert sound(proto, shapes={"x": (2, 5)})[0].shape.sizes == (2, 5)
    with pytest.raises(ValueError, match=r"no rank(.|\n)*--shape x="):
        import_onnx(proto)
    two = model([N("Relu", ["x"], ["y"])], {"x": ("float32", ["?", "?", "?"])}, ["y"])
    assert sound(two, shapes={"x": (2, 3, 4)})[0].shape.sizes == (2, 3, 4)


# --- names, sources, outputs ------------------------------------------------------------------------------------


def test_sources_and_names() -> None:
    named = N("Relu", ["x"], ["a"], name="/encoder/layer.0/act/Relu")
    torch = N("Neg", ["a"], ["b"], name="node_neg")
    torch.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'head', 'head.out', 'neg']")
    bare = N("Gelu", ["b"], ["c d/é"])
    same = N("Abs", ["c d/é"], ["y"], name="node_neg")
    graph = sound(model([named, torch, bare, same], {"x": W}, ["y"], opset=20))
    got = [(n.name, n.source[0].node, n.source[0].scope, n.source[0].op) for n in graph.nodes]
    assert got == [("x", "x", "", "input"), ("a", "/encoder/layer.0/act/Relu", "encoder.layer.0.act", "Relu"),
                   ("b", "node_neg", "head.out", "Neg"), ("c d/é", "Gelu:c d/é", "", "Gelu"),
                   ("y", "node_neg", "", "Abs")]


def test_outputs_that_are_inputs_weights_aliases_or_twice() -> None:
    nodes = [N("Identity", ["x"], ["alias"]), N("Relu", ["x"], ["y"]), N("Dropout", ["y"], ["z"])]
    proto = model(nodes, {"x": W}, ["x", "w", "alias", "y", "z", "y"], weights={"w": W + 1})
    graph = sound(proto)
    x, w, y = graph.find("x").id, graph.find("w").id, graph.find("y").id
    assert graph.outputs == [x, w, x, y, y, y]
    assert graph.output_names == ["x", "w", "alias", "y", "z", "y"]


def test_no_declared_outputs() -> None:
    graph = sound(model([N("Relu", ["x"], ["a"]), N("Neg", ["a"], ["b"])], {"x": W}, []))
    assert graph.output_names == ["b"]
    assert any("declares no outputs" in n for n in graph.notes)


def test_local_functions_are_inlined() -> None:
    fn = helper.make_function("my", "Twice", ["a"], ["b"], [N("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)])
    proto = model([N("Twice", ["x"], ["y"], domain="my")], {"x": W}, ["y"], domains={"my": 1})
    proto.functions.append(fn)
    graph = check(proto, {"x": W})
    assert [n.op.name for n in graph.nodes] == ["Input", "Binary"]


def test_conv_forms() -> None:
    x, w = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    proto = model([N("Conv", ["x", "w", "b"], ["y"]), N("Conv", ["x", "w"], ["z"])], {"x": x}, ["y", "z"],
                  weights={"w": w, "b": np.ones(3, np.float32)})
    graph = check(proto, {"x": x})
    fused = graph[graph.of("FusedConvBiasAct")[0]]
    assert isinstance(fused.op, ops.FusedConvBiasAct)
    assert (fused.op.activation, len(fused.inputs)) == ("", 3)
    assert len(graph.of("Conv")) == 1


# --- opaque ------------------------------------------------------------------------------------------------------


def test_opaque_ops_keep_operands_attributes_results_and_shapes() -> None:
    lstm = N("LSTM", ["x", "w", "r", "", "", "h"], ["", "state", "cell"], hidden_size=4, direction="forward", name="rnn")
    x = np.ones((5, 2, 3), np.float32)
    proto = model([lstm, N("Add", ["state", "cell"], ["y"])], {"x": x}, ["y"], weights={
        "w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32), "h": np.ones((1, 2, 4), np.float32)})
    graph = sound(proto)
    node = graph[graph.of("Custom")[0]]
    assert isinstance(node.op, ops.Custom)
    assert (node.op.op_name, node.op.num_inputs, node.op.num_outputs) == ("onnx.LSTM", 4, 3)
    assert json.loads(node.op.attrs) == {"hidden_size": 4, "direction": "forward", "absent_inputs": [3, 4]}
    assert [graph[i].name for i in node.inputs] == ["x", "w", "r", "h"]
    results = [graph[i] for i in graph.of("Result")]
    assert [(r.id - node.id, r.name, r.shape.sizes) for r in results] == [(1, "state", (1, 2, 4)), (2, "cell", (1, 2, 4))]
    assert node.source[0].node == "rnn"
    assert "1 × onnx.LSTM kept as opaque Custom nodes (no IR op for it)." in graph.notes


def test_opaque_domain_op_takes_its_shape_from_the_file() -> None:
    proto = model([N("Secret", ["x"], ["h"], domain="acme.ops", level=3), N("Relu", ["h"], ["y"]),
                   N("Riddle", ["x"], ["r"], domain="acme.ops")], {"x": ("float32", ["B", 4])}, ["y", "r"],
                  domains={"acme.ops": 1})
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT16, ["B", 7]))
    graph = sound(proto, dims={"B": 3})
    secret, riddle = (graph[i] for i in graph.of("Custom"))
    assert secret.op.detail == "onnx.acme.ops.Secret"
    assert (secret.shape.sizes, secret.dtype) == ((3, 7), DType.F16)
    assert graph[graph.outputs[0]].shape.sizes == (3, 7)
    assert (riddle.shape.dims, riddle.dtype) == ((UNKNOWN,), DType.F32)


def test_strings_and_sequences_are_of_unknown_size() -> None:
    nodes = [N("SplitToSequence", ["x"], ["seq"], axis=0), N("ConcatFromSequence", ["seq"], ["y"], axis=0),
             N("Equal", ["name", "word"], ["same"])]
    proto = model(nodes, {"x": W}, ["y", "same"], opset=19)
    proto.graph.input.append(helper.make_tensor_value_info("name", TensorProto.STRING, [2]))
    proto.graph.initializer.append(helper.make_tensor("word", TensorProto.STRING, [1], [b"hi"]))
    graph = sound(proto)
    assert graph.find("seq").shape.is_unknown
    assert graph.find("name").shape.is_unknown
    assert {graph[i].op.detail for i in graph.of("Custom")} >= {"onnx.SplitToSequence", "onnx.ConcatFromSequence"}
    assert any("'name' is no numeric tensor" in n for n in graph.notes)


def test_quantisation_is_written_out_as_arithmetic() -> None:
    """So that a weight's dequantisation is seen by the rule that reads it packed."""
    x = np.ones((2, 128), np.float32)
    w = np.random.default_rng(0).integers(-128, 128, (128, 96)).astype(np.int8)  # too large to be folded on import
    nodes = [N("DequantizeLinear", ["w", "s", "z"], ["f"]), N("MatMul", ["x", "f"], ["y"])]
    graph = sound(model(nodes, {"x": x}, ["y"], weights={"w": w, "s": np.float32(0.1), "z": np.int8(3)}))
    assert graph.of("Custom") == []
    fused = fuse_graph(graph).graph
    assert [n.op.name for n in fused.nodes if n.op.family == "matmul"] == ["DequantMatMulBlocked"]
    half = model([N("QuantizeLinear", ["x", "s", "z"], ["q"])], {"x": x}, ["q"], weights={
        "s": np.float32(0.1), "z": np.zeros((), ml_dtypes.float8_e4m3fn)}, opset=19)
    assert [n.op.detail for n in sound(half).nodes if n.op.name == "Custom"] == ["onnx.QuantizeLinear"]


def test_a_handler_declared_twice_fails() -> None:
    assert onnx_ops.__name__  # the real handlers are declared first, whichever test comes first
    with pytest.raises(TypeError, match="Relu has two handlers"):
        onnx_op("Relu")(lambda c: c[0])


def test_import_does_not_change_the_model_and_repeats_equal() -> None:
    proto = shape_chain(["b", 6, "c"])
    before = proto.SerializeToString()
    first, second = (import_onnx(proto, dims={"b": 2, "c": 5}) for _ in range(2))
    assert proto.SerializeToString() == before
    assert first == second
    assert run_ort(proto, {"x": np.ones((2, 6, 5), np.float32)})[0].shape == first[first.outputs[0]].shape.sizes


def test_two_copies_of_a_file_are_one_model(tmp_path: Path) -> None:
    """The content hash ignores file names and paths, in bodies too; sources keep them."""
    branch = [helper.make_graph([helper.make_node(op, ["x"], ["y"])], op, [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])
              for op in ("Neg", "Abs")]
    node = helper.make_node("If", ["c"], ["z"], name="choice", then_branch=branch[0], else_branch=branch[1])
    graph = helper.make_graph([node], "", [helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                                           helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "sub").mkdir()
    paths = [tmp_path / "a.onnx", tmp_path / "sub" / "b.onnx"]
    for path in paths:
        onnx.save(made, path)
    one, two = (load_model(path) for path in paths)
    assert one.content_hash == two.content_hash
    assert {s.file for n in one.nodes for s in n.source} != {s.file for n in two.nodes for s in n.source}
    assert one == two
