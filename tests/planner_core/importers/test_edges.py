"""Edges of files that people have: extents of 0, initializers that are inputs, names written twice. Against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx_viz
from planner_core.errors import ImportModelError
from planner_core.ir import Array
from runtime.errors import RunError
from tests.planner_core.importers.evaluator import run_ort

N, F = helper.make_node, TensorProto.FLOAT


def proto(nodes: list[Any], ins: dict[str, list[Any]], outs: dict[str, list[Any]], weights: dict[str, Array] | None = None,
          opset: int = 19) -> onnx.ModelProto:
    def infos(shapes: dict[str, list[Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(n, F, s) for n, s in shapes.items()]

    graph = helper.make_graph(nodes, "g", infos(ins), infos(outs), [numpy_helper.from_array(w, n) for n, w in (weights or {}).items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def same(made: onnx.ModelProto, feed: dict[str, Array], **kw: Any) -> None:
    got = rlx_viz.compile(made, **kw).run(feed, sanitize=True)
    for a, b in zip(got.values(), run_ort(made, feed), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.shape == b.shape


PAST = [N("Concat", ["past", "new"], ["y"], axis=1)]


@pytest.mark.parametrize(("declared", "kw"), [
    ("past_len", {"dims": {"past_len": 0}}), ("past_len", {"shapes": {"past": (1, 0, 4)}}), (0, {})], ids=["dims", "shapes", "file"])
def test_an_extent_of_0_is_one(declared: int | str, kw: dict[str, Any]) -> None:
    """The first step of a decoder has no past."""
    made = proto(PAST, {"past": [1, declared, 4], "new": [1, 1, 4]}, {"y": [1, "n", 4]})
    same(made, {"past": np.zeros((1, 0, 4), np.float32), "new": np.arange(4, dtype=np.float32).reshape(1, 1, 4)}, **kw)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize(("shape", "pads"), [((5,), [1, 2]), ((5,), [0, 4]), ((4, 3), [1, 0, 2, 2]), ((2, 3, 4), [0, 1, 3, 1, 0, 2])], ids=str)
def test_padding_of_any_rank(mode: str, shape: tuple[int, ...], pads: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    made = proto([N("Pad", ["x", "p"], ["y"], mode=mode)], {"x": list(shape)}, {"y": [None] * len(shape)}, {"p": np.asarray(pads)})
    same(made, {"x": x})


def test_vectors_joined_and_reshaped_are_no_rotation() -> None:
    """A concat of two vectors, reshaped: a fusion rule looked for axes that they don't have."""
    made = proto([N("Concat", ["a", "b"], ["c"], axis=0), N("Reshape", ["c", "s"], ["y"])], {"a": [1], "b": [1]}, {"y": [2, 1]},
                 {"s": np.asarray([2, 1])})
    same(made, {"a": np.asarray([1.5], np.float32), "b": np.asarray([-2.0], np.float32)})


def branches(then: list[Any]) -> onnx.ModelProto:
    other = helper.make_graph([N("Neg", ["x"], ["o"])], "other", [], [helper.make_tensor_value_info("o", F, [4])])
    body = helper.make_graph(then, "then", [], [helper.make_tensor_value_info("t", F, [4])])
    graph = helper.make_graph([N("If", ["c"], ["y"], name="pick", then_branch=body, else_branch=other)], "g",
                              [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", F, [4])],
                              [helper.make_tensor_value_info("y", F, [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("made", "words"), [
    (proto([N("Neg", ["x"], ["x"]), N("Abs", ["x"], ["y"])], {"x": [4]}, {"y": [4]}), "tensor 'x' is written twice, by the graph's inputs"),
    (proto([N("Neg", ["x"], ["w"]), N("Abs", ["w"], ["y"])], {"x": [4]}, {"y": [4]}, {"w": np.ones(4, np.float32)}),
     "tensor 'w' is written twice, by the graph's inputs or initializers and by Neg"),
    (branches([N("Neg", ["x"], ["t"]), N("Abs", ["x"], ["t"])]), "tensor 't' in then_branch of If 'pick' is written twice, by Neg"),
], ids=["input", "initializer", "branch"])
def test_a_name_is_written_once(made: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ImportModelError, match=words):
        rlx_viz.compile(made)


def test_an_initializer_that_is_an_input_can_be_fed() -> None:
    """Its value is a default: given another one a run takes that, and the next run the default again."""
    w = np.asarray([1.0, 2.0, 3.0, 4.0], np.float32)
    made = proto([N("Mul", ["x", "w"], ["m"]), N("Neg", ["m"], ["y"])], {"x": [4], "w": [4]}, {"y": [4]}, {"w": w})
    c, x = rlx_viz.compile(made), np.full(4, 2, np.float32)
    for feed in ({"x": x}, {"x": x, "w": np.full(4, 5, np.float32)}, {"x": x}):
        for sanitize in (False, True):
            np.testing.assert_array_equal(c.run(feed, sanitize=sanitize)["y"], run_ort(made, feed)[0])
    with pytest.raises(RunError, match=r"param 'w' is float32\[3\], wanted f32\[4\]"):
        c.run({"x": x, "w": np.ones(3, np.float32)})


def test_a_param_that_fusion_computed_with_is_refused_by_name() -> None:
    """A large transposed weight is transposed ahead: another value for one run would not be seen."""
    w = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    made = proto([N("Transpose", ["w"], ["t"], perm=[1, 0]), N("Exp", ["t"], ["e"]), N("Add", ["x", "e"], ["y"])],
                 {"x": [300, 300], "w": [300, 300]}, {"y": [300, 300]}, {"w": w})
    c, x = rlx_viz.compile(made), np.ones((300, 300), np.float32)
    if "w" not in c.fusion.frozen:
        pytest.fail("the case needs a weight that is computed with ahead")
    with pytest.raises(RunError, match="compile with fusion=False to set it at any time"):
        c.run({"x": x, "w": w})
    np.testing.assert_allclose(c.with_options(fusion=False).run({"x": x, "w": 2 * w})["y"], run_ort(made, {"x": x, "w": 2 * w})[0], rtol=1e-5)
