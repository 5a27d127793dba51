"""ONNX models with symbolic dims, written as exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

N = helper.make_node


def transformer(layers: int = 1, width: int = 32, heads: int = 4, vocab: int = 50, longest: int = 64) -> onnx.ModelProto:
    """A decoder of ``ids [batch, seq]``: positions from ``Range`` over ``Shape``, a causal mask from ``ConstantOfShape`` and
    ``Trilu``, heads split and joined by ``Concat``ed shapes."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {}

    def w(name: str, *shape: int) -> str:
        weights[name] = (rng.standard_normal(shape) * 0.2).astype(np.float32)
        return name

    def c(name: str, value: Any) -> str:
        weights[name] = np.asarray(value, np.int64)
        return name

    nodes = [
        N("Shape", ["ids"], ["s"]), N("Gather", ["s", c("i0", 0)], ["b"]), N("Gather", ["s", c("i1", 1)], ["n"]),
        N("Range", [c("zero", 0), "n", c("one", 1)], ["Range_output_0"]),
        N("Gather", [w("pos", longest, width), "Range_output_0"], ["p"]), N("Gather", [w("tok", vocab, width), "ids"], ["t"]),
        N("Add", ["t", "p"], ["h"]), N("Unsqueeze", ["b", c("ax", [0])], ["bu"]), N("Unsqueeze", ["n", "ax"], ["nu"]),
        N("Concat", ["bu", "nu", c("heads", [heads]), c("rest", [-1])], ["split"], axis=0),
        N("Concat", ["bu", "nu", "rest"], ["join"], axis=0), N("Concat", ["nu", "nu"], ["square"], axis=0),
        N("ConstantOfShape", ["square"], ["full"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [-1e4])),
        N("Trilu", ["full", c("diagonal", 1)], ["mask"], upper=1)]
    h = "h"
    for k in range(layers):
        nodes.append(N("LayerNormalization", [h, w(f"gamma{k}", width), w(f"beta{k}", width)], [f"ln{k}"], axis=-1))
        for q in "qkv":
            nodes += [N("MatMul", [f"ln{k}", w(f"w{q}{k}", width, width)], [f"{q}{k}"]),
                      N("Reshape", [f"{q}{k}", "split"], [f"{q}s{k}"]),
                      N("Transpose", [f"{q}s{k}"], [f"{q}t{k}"], perm=[0, 2, 3, 1] if q == "k" else [0, 2, 1, 3])]
        nodes += [N("MatMul", [f"qt{k}", f"kt{k}"], [f"scores{k}"]), N("Add", [f"scores{k}", "mask"], [f"masked{k}"]),
                  N("Softmax", [f"masked{k}"], [f"probs{k}"], axis=-1), N("MatMul", [f"probs{k}", f"vt{k}"], [f"av{k}"]),
                  N("Transpose", [f"av{k}"], [f"at{k}"], perm=[0, 2, 1, 3]), N("Reshape", [f"at{k}", "join"], [f"aj{k}"]),
                  N("MatMul", [f"aj{k}", w(f"wo{k}", width, width)], [f"ao{k}"]), N("Add", [h, f"ao{k}"], [f"r{k}"]),
                  N("MatMul", [f"r{k}", w(f"up{k}", width, 4 * width)], [f"u{k}"]), N("Relu", [f"u{k}"], [f"act{k}"]),
                  N("MatMul", [f"act{k}", w(f"down{k}", 4 * width, width)], [f"d{k}"]),
                  N("Add", [f"r{k}", f"d{k}"], [f"x{k}"])]
        h = f"x{k}"
    nodes.append(N("MatMul", [h, w("head", width, vocab)], ["logits"]))
    return model(nodes, {"ids": (TensorProto.INT64, ["batch", "seq"])}, ["logits"], weights)


def table_slice(longest: int = 16) -> onnx.ModelProto:
    """A table cut to the first ``seq`` rows and added: how far it may be cut depends on the binding."""
    weights = {"table": np.arange(longest * 4, dtype=np.float32).reshape(longest, 4), "one": np.array([1]),
               "zero": np.array([0])}
    nodes = [N("Shape", ["x"], ["s"], start=1, end=2), N("Slice", ["table", "zero", "s", "zero"], ["rows"], name="cut"),
             N("Add", ["x", "rows"], ["y"])]
    return model(nodes, {"x": (TensorProto.FLOAT, ["batch", "seq", 4])}, ["y"], weights)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str],
          weights: dict[str, Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "open", [helper.make_tensor_value_info(n, t, dims) for n, (t, dims) in inputs.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs], [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made
