"""Random graphs of elementwise, structural and shape ops, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from planner_core.ir import Array
from tests.planner_core.importers.evaluator import check, model

UNARY = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Floor", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_random_graph(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape).astype(np.float32)
    shapes: dict[str, tuple[int, ...]] = {"x": shape}
    weights: dict[str, Array] = {}
    nodes = []
    for i in range(data.draw(st.integers(1, 9))):
        a = data.draw(st.sampled_from(sorted(shapes)))
        out, dims = f"t{i}", shapes[a]
        kind = data.draw(st.sampled_from(["unary", "binary", "transpose", "concat", "slice", "reduce", "flatten", "scale"]))
        if kind == "unary":
            nodes.append(helper.make_node(data.draw(st.sampled_from(UNARY)), [a], [out]))
        elif kind == "binary":
            b = data.draw(st.sampled_from(sorted(n for n, d in shapes.items() if d == dims)))
            nodes.append(helper.make_node(data.draw(st.sampled_from(BINARY)), [a, b], [out]))
        elif kind == "transpose":
            perm = data.draw(st.permutations(range(len(dims))))
            nodes.append(helper.make_node("Transpose", [a], [out], perm=perm))
            dims = tuple(dims[p] for p in perm)
        elif kind == "concat":
            axis = data.draw(st.integers(-len(dims), len(dims) - 1))
            nodes.append(helper.make_node("Concat", [a, a], [out], axis=axis))
            dims = tuple(2 * d if k == axis % len(dims) else d for k, d in enumerate(dims))
        elif kind == "slice":
            axis = data.draw(st.integers(0, len(dims) - 1))
            start, stop = data.draw(st.integers(-6, 6)), data.draw(st.integers(-6, 6))
            step = data.draw(st.sampled_from([1, 1, 2, -1, -2]))
            n = len(range(dims[axis])[start:stop:step])
            if n == 0:
                continue
            for name, v in (("s", start), ("e", stop), ("a", axis), ("p", step)):
                weights[f"{name}{i}"] = np.array([v])
            nodes.append(helper.make_node("Slice", [a, *(f"{k}{i}" for k in "seap")], [out]))
            dims = tuple(n if k == axis else d for k, d in enumerate(dims))
        elif kind == "reduce":
            axis = data.draw(st.integers(0, len(dims) - 1))
            nodes.append(helper.make_node("ReduceMean", [a], [out], axes=[axis], keepdims=1))
            dims = tuple(1 if k == axis else d for k, d in enumerate(dims))
        elif kind == "flatten":  # reshape by the product of the last two extents, computed from the shape
            weights |= {f"l{i}": np.array([-2, -1]), f"m{i}": np.array([-1])}
            nodes += [helper.make_node("Shape", [a], [f"sh{i}"]),
                      helper.make_node("Gather", [f"sh{i}", f"l{i}"], [f"two{i}"]),
                      helper.make_node("ReduceProd", [f"two{i}"], [f"n{i}"], axes=[0]),
                      helper.make_node("Concat", [f"m{i}", f"n{i}"], [f"to{i}"], axis=0),
                      helper.make_node("Reshape", [a, f"to{i}"], [out])]
            dims = (int(np.prod(dims[:-2])), dims[-2] * dims[-1])
        else:
            weights[f"w{i}"] = np.full(dims[-1:], 0.5, np.float32)
            nodes.append(helper.make_node("Mul", [a, f"w{i}"], [out]))
        shapes[out] = dims
    outputs = [n for n in shapes if n != "x"][-3:] or ["x"]
    if not nodes:
        return
    graph = check(model(nodes, {"x": x}, outputs, weights=weights), {"x": x})
    assert graph.of("Custom") == []
    assert not any(graph[i].dtype.is_int for i in graph.params)
