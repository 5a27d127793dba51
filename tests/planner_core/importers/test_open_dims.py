"""Dims that stay symbols through an import: shape arithmetic carried along, what can't be named, per-binding constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from planner_core.errors import ImportModelError, OpenDimError
from planner_core.importers import import_onnx, load_model
from planner_core.importers.onnx_extents import canonical, quotient
from planner_core.ir import UNKNOWN, Dim, Graph, ProblemKind, dim, save_graph, validate
from tests.planner_core.importers.evaluator import evaluate, run_ort
from tests.symbolic_models import N, model, table_slice, transformer

F, I = TensorProto.FLOAT, TensorProto.INT64


def check(proto: onnx.ModelProto, feeds: dict[str, Any], **dims: int) -> Graph:
    """The open graph, bound, computes what onnxruntime does; so does the import with the dims bound."""
    graph = import_onnx(proto, keep=list(dims))
    assert set(graph.symbols) == set(dims)
    assert {p.kind for p in validate(graph)} <= {ProblemKind.UNBOUND}
    assert not any(n.shape.is_unknown or n.op.name == "Custom" for n in graph.nodes)
    want = run_ort(proto, feeds)
    for g in (graph.bind(dims), import_onnx(proto, dims=dims)):
        assert validate(g) == []
        for got, right in zip(evaluate(g, feeds), want, strict=True):
            assert got.shape == right.shape
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)
    return graph


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (1, 7), (3, 12), (2, 64)])
def test_a_transformer(batch: int, seq: int) -> None:
    ids = np.random.default_rng(seq).integers(0, 50, (batch, seq))
    graph = check(transformer(layers=2), {"ids": ids}, batch=batch, seq=seq)
    assert str(graph[graph.outputs[0]].shape) == "f32[batch, seq, 50]"


def test_some_kept_and_some_bound() -> None:
    graph = import_onnx(transformer(), dims={"batch": 2}, keep="seq")
    assert list(graph.symbols) == ["seq"]
    assert str(graph.find("ids").shape) == "i64[batch=2, seq]"
    assert graph.notes == []


def test_folded_shape_tensors_are_no_weights() -> None:
    """Every binding has the same params, so that buckets can stand on one copy."""
    proto = transformer()
    made = [import_onnx(proto, dims={"batch": 1, "seq": n}) for n in (4, 9, 64)]
    weights = {t.name for t in proto.graph.initializer if t.data_type == F}
    for g in made:
        assert {g[i].name for i in g.params} == weights
        assert "Range_output_0" in {g[i].name for i in g.of("Constant")}
        assert g[g.find("mask").id].op.name == "Constant"
    assert [[(g[i].name, g[i].shape) for i in g.params] for g in made[1:]] == 2 * [[(made[0][i].name, made[0][i].shape)
                                                                                     for i in made[0].params]]
    fixed = transformer()
    for d, n in zip(fixed.graph.input[0].type.tensor_type.shape.dim, (1, 9), strict=True):
        d.dim_value = n
    g = import_onnx(fixed)  # nothing is bound: what it folds is as fixed as its weights
    assert {"p", "mask"} <= {g[i].name for i in g.params}


def test_expanded_fills_hang_on_the_shape_they_read() -> None:
    nodes = [N("Shape", ["x"], ["s"], start=1, end=2), N("Expand", ["fill", "s"], ["wide"]), N("Add", ["x", "wide"], ["y"])]
    proto = model(nodes, {"x": (F, ["b", "n"])}, ["y"], {"fill": np.float32([2.5])})
    graph = import_onnx(proto, dims={"b": 2, "n": 5})
    assert (graph.params, [graph[i].name for i in graph.of("Constant")]) == ([], ["wide"])
    check(proto, {"x": np.ones((2, 5), np.float32)}, b=2, n=5)


def test_expressions_and_the_mask_that_exporters_write() -> None:
    """where(shape == -1, 1, shape), past + seq from two inputs, Range from past to total, a length as a number."""
    nodes = [N("Shape", ["k"], ["past"], start=0, end=1), N("Shape", ["x"], ["now"], start=0, end=1),
             N("Add", ["now", "past"], ["total"]), N("Concat", ["k", "x"], ["all"], axis=0),
             N("ConstantOfShape", ["two"], ["ones"], value=onnx.helper.make_tensor("v", I, [1], [1])),
             N("Mul", ["ones", "minus"], ["negative"]), N("Concat", ["total", "four"], ["want"], axis=0),
             N("Equal", ["want", "negative"], ["same"]), N("Where", ["same", "ones", "want"], ["to"]),
             N("Expand", ["row", "to"], ["wide"]), N("Add", ["all", "wide"], ["sum"]),
             N("Squeeze", ["past", "axis"], ["p"]), N("Squeeze", ["total", "axis"], ["t"]), N("Range", ["p", "t", "one"], ["at"]),
             N("Cast", ["at"], ["atf"], to=F), N("Unsqueeze", ["atf", "minus"], ["column"]), N("Add", ["x", "column"], ["y"]),
             N("Cast", ["t"], ["tf"], to=F), N("Div", ["sum", "tf"], ["z"])]
    weights = {"two": np.array([2]), "minus": np.array([-1]), "four": np.array([4]), "axis": np.array([0]), "one": np.array(1),
               "row": np.arange(4, dtype=np.float32)}
    proto = model(nodes, {"k": (F, ["past", 4]), "x": (F, ["seq", 4])}, ["y", "z"], weights)
    rng = np.random.default_rng(0)
    feeds = {"k": rng.standard_normal((5, 4)).astype(np.float32), "x": rng.standard_normal((3, 4)).astype(np.float32)}
    graph = check(proto, feeds, past=5, seq=3)
    assert str(graph.find("z").shape) == "f32[past+seq, 4]"


def test_an_input_dim_that_is_a_sum() -> None:
    proto = model([N("Add", ["x", "m"], ["y"])], {"x": (F, ["past + S", 2]), "m": (F, ["S + past", 2])}, ["y"], {})
    graph = import_onnx(proto, keep=["past", "S"])
    assert str(graph.find("y").shape) == "f32[S+past, 2]"
    half = import_onnx(proto, dims={"past": 3}, keep=["S"])
    assert str(half.find("y").shape) == "f32[S+3, 2]"
    assert half.bind({"S": 4}).find("y").shape.sizes == (7, 2)


# --- what can't stay open ------------------------------------------------------------------------------------


def test_a_node_that_needs_the_extent_is_named() -> None:
    with pytest.raises(OpenDimError) as e:
        import_onnx(table_slice(), dims={"batch": 1}, keep=["seq"])
    text = str(e.value)
    assert text.startswith("open: Slice 'cut' of f32[16, 4], i64[1], i64[1], i64[1] can't keep seq open: ends computed at run")
    assert "dims={'seq': 128}" in text
    graph = import_onnx(table_slice(), dims={"batch": 1, "seq": 3})
    assert [graph[i].name for i in graph.params] == ["table"]  # a weight is a weight under every binding
    np.testing.assert_array_equal(evaluate(graph, {"x": np.zeros((1, 3, 4), np.float32)})[0][0], graph.weights["table"][:3])


@pytest.mark.parametrize(("op", "attrs", "reason"), [
    ("NonZero", {}, "no IR op for it"), ("Split", {"axis": 1}, "it splits an axis of unknown extent evenly"),
    ("Unique", {}, "no IR op for it"),
])
def test_ops_that_depend_on_data_are_named(op: str, attrs: dict[str, Any], reason: str) -> None:
    outs = ["y", "z"] if op == "Split" else ["y"]
    proto = model([N(op, ["x"], outs, name="here", **attrs)], {"x": (F, ["b", "n"])}, outs[:1], {})
    with pytest.raises(OpenDimError, match=f"{op} 'here' of f32\\[b, n\\] can't keep b, n open: {reason}"):
        import_onnx(proto, keep=["b", "n"])


def test_a_reshape_that_comes_out_uneven_is_named() -> None:
    proto = model([N("Reshape", ["x", "to"], ["y"])], {"x": (F, ["n", 3])}, ["y"], {"to": np.array([-1, 2])})
    with pytest.raises(OpenDimError, match="an extent of its result is no sum or product of them"):
        import_onnx(proto, keep=["n"])


def test_names_that_are_wrong() -> None:
    with pytest.raises(ImportModelError, match="keep names 'tokens', which no input has; symbols: batch, seq"):
        import_onnx(transformer(), keep=["tokens"])
    with pytest.raises(ImportModelError, match=r"dim 'seq' is given as 8 and is to stay open \(keep\); do one"):
        import_onnx(transformer(), dims={"seq": 8}, keep=["seq"])
    proto = model([N("Relu", ["x"], ["y"])], {"x": (F, ["a b"])}, ["y"], {})
    with pytest.raises(OpenDimError, match="dim 'a b' can't stay open"):
        import_onnx(proto, keep=["a b"])
    with pytest.raises(ImportModelError, match="some input dims have no size"):
        import_onnx(transformer(), keep=["batch"])


def test_a_graph_file_keeps_what_it_has(tmp_path: Path) -> None:
    save_graph(import_onnx(transformer(), keep=["batch", "seq"]), tmp_path / "g.json")
    graph = load_model(tmp_path / "g.json", dims={"batch": 2}, keep=["seq"])
    assert list(graph.symbols) == ["seq"]
    with pytest.raises(ImportModelError, match="keep names 'n', which no input has open; symbols: batch, seq"):
        load_model(tmp_path / "g.json", keep=["n"])


# --- extents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "want"), [
    ("b+a", "a+b"), ("2*(a+1)", "2*a+2"), ("a-a", "0"), ("(a*b*6)//(2*b)", "3*a"), ("a//2", "a//2"), ("(a//2)*4", "4*(a//2)"),
    ("b-a+1", "b+1-a"), ("p2o.D.0", "p2o.D.0"), ("a*1+0", "a"), ("(a+b)//(b+a)", "1"),
])
def test_canonical(text: str, want: str) -> None:
    made = canonical(Dim(None, text))
    assert (str(made), canonical(made)) == (want, made)
    values = dict.fromkeys(Dim(None, text).names(), 4) | {"b": 3}
    assert made.bind(values).value == Dim(None, text).bind(values).value


@pytest.mark.parametrize(("whole", "parts", "want"), [
    (["b", "s", 768], ["b", "s", 12], dim(64)), (["b*s", 8], ["s"], Dim(None, "8*b")), (["a+b", 4], ["b+a"], dim(4)),
    (["a+b", 4], ["a"], UNKNOWN), (["a"], [2], UNKNOWN), ([UNKNOWN], [UNKNOWN], UNKNOWN), (["2*a+4"], [2], Dim(None, "a+2")),
    ([0, "a"], [0], UNKNOWN),
])
def test_quotient(whole: list[Any], parts: list[Any], want: Dim) -> None:
    assert quotient([canonical(dim(d)) for d in whole], [canonical(dim(d)) for d in parts]) == want
