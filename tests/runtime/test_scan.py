"""A Scan's axes and directions when it runs, on square operands (where a wrong axis has the right shape), against ONNX Runtime."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from planner_core.errors import GraphError
from planner_core.importers import import_onnx
from planner_core.ir import Graph, Shape
from planner_core.ir.ops import Scan
from runtime import compile_graph
from tests.planner_core.importers.evaluator import model, run_ort

N = 3
RNG = np.random.default_rng(5)
STATE, A, B = (RNG.standard_normal(s).astype(np.float32) for s in ((N,), (N, N), (N, N)))
INFO = helper.make_tensor_value_info


def scan(**how: Any) -> Any:
    """state, a, b -> state', [state' · a_i], [b_i + state]; state' = state + a_i · b_i."""
    nodes = [helper.make_node("Mul", ["ai", "bi"], ["p"]), helper.make_node("Add", ["s", "p"], ["s1"]),
             helper.make_node("Mul", ["s1", "ai"], ["y"]), helper.make_node("Add", ["bi", "s"], ["z"])]
    rows = [N] * 1
    body = helper.make_graph(nodes, "body", [INFO(n, TensorProto.FLOAT, rows) for n in ("s", "ai", "bi")],
                             [INFO(n, TensorProto.FLOAT, rows) for n in ("s1", "y", "z")])
    node = helper.make_node("Scan", ["state", "a", "b"], ["last", "ys", "zs"], body=body, num_scan_inputs=2, **how)
    return model([node], {"state": STATE, "a": A, "b": B}, ["last", "ys", "zs"])


@pytest.mark.parametrize("in_axes", list(product((0, 1), repeat=2)), ids=str)
@pytest.mark.parametrize("back", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("out", [((0, 0), (0, 0)), ((1, 0), (0, 1)), ((1, -1), (1, 1))], ids=str)
def test_axes_and_directions(in_axes: tuple[int, ...], back: tuple[int, ...], out: tuple[tuple[int, ...], ...]) -> None:
    proto = scan(scan_input_axes=list(in_axes), scan_input_directions=list(back), scan_output_axes=list(out[0]),
                 scan_output_directions=list(out[1]))
    feeds = {"state": STATE, "a": A, "b": B}
    got = compile_graph(import_onnx(proto)).run(feeds, sanitize=True)
    for name, want in zip(("last", "ys", "zs"), run_ort(proto, feeds), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-6, atol=1e-6)


def _body() -> Graph:
    b = Graph("body")
    return b.set_outputs(b.relu(b.input("s", (N,))), b.add(b.input("x", (N,)), b.input("y", (N,))))


@pytest.mark.parametrize(("how", "shapes", "text"), [
    ({"input_axes": (0,)}, ((N, N), (N, N)), r"Scan input_axes \(0,\): wanted none, or one of each of 2 sequences"),
    ({"output_reversed": (True, False)}, ((N, N), (N, N)), r"Scan output_reversed .* of each of 1 scan outputs"),
    ({"input_axes": (0, 5)}, ((N, N), (N, N)), r"axis 5 is out of range for f32\[3, 3\]"),
    ({"input_axes": (0, 1)}, ((N, N), (N, 4)), r"Scan sequence 1 f32\[3, 4\] has 4 slices along axis 1; sequence 0 has 3"),
], ids=["axes", "directions", "range", "lengths"])
def test_a_scan_whose_sequences_dont_fit_is_refused(how: dict[str, Any], shapes: tuple[tuple[int, ...], ...], text: str) -> None:
    g = Graph("refused")
    ins = [g.input("s", (N,)), *(g.input(f"x{i}", s) for i, s in enumerate(shapes))]
    with pytest.raises(GraphError, match=text):
        g.add(Scan(Shape.of((N,)), _body(), 1, 2, **how), *ins)
