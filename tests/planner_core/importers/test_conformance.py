"""ONNX's own node tests (every op, every opset's expanded forms): never a crash, never a wrong value or shape."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from planner_core.errors import ImportModelError
from planner_core.importers import import_onnx
from planner_core.importers.onnx_tensors import dtype_of
from planner_core.ir import Array, Graph, validate
from tests.planner_core.importers.evaluator import evaluate


def arrays(values: Any) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def numeric(v: Any) -> bool:
    return isinstance(v, np.ndarray) and v.dtype.kind not in "OSU"


def opaque(graph: Graph) -> bool:
    return bool(graph.of("Custom")) or any(opaque(b) for n in graph.nodes for b in n.op.bodies())


def check_shapes(graph: Graph, wanted: list[Any]) -> None:
    for o, w in zip(graph.outputs, wanted, strict=True):
        shape = graph[o].shape
        if not numeric(w) or (shape.rank == 1 and shape.is_unknown):
            continue
        assert shape.rank == w.ndim
        assert all(d.value in (None, n) for d, n in zip(shape.dims, w.shape, strict=True))


def run(proto: onnx.ModelProto, feeds: dict[str, Any], wanted: list[Any]) -> str:
    """One of ok, opaque, refused."""
    plain = {v.name for v in proto.graph.input if v.type.WhichOneof("value") == "tensor_type"}
    shapes = {k: v.shape for k, v in feeds.items() if k in plain and numeric(v) and all(v.shape)}
    empty = any(numeric(v) and 0 in v.shape for v in [*feeds.values(), *wanted])
    old = proto.opset_import[0].version < 7
    try:
        graph = import_onnx(proto, shapes=shapes)
    except ImportModelError:
        assert empty or old
        return "refused"
    assert validate(graph) == []
    if not empty:
        check_shapes(graph, wanted)
    if opaque(graph):
        return "opaque"
    for got, want in zip(evaluate(graph, feeds), wanted, strict=True):
        compare(np.asarray(got), np.asarray(want))
    return "ok"


def compare(got: Array, want: Array) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    tol = 1e-3 if got.dtype.itemsize > 2 else 1e-2
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tol, atol=tol / 10)


@pytest.mark.filterwarnings("ignore")
def test_node_tests() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)  # type: ignore[arg-type]
        counts: Counter[str] = Counter()
        wrong = []
        for case in cases:
            names = [v.name for v in case.model.graph.input]
            for ins, outs in case.data_sets:
                try:
                    counts[run(case.model, dict(zip(names, arrays(ins), strict=False)), arrays(outs))] += 1
                except Exception as e:
                    wrong.append(f"{case.name}: {type(e).__name__} {str(e)[:200]}")
    assert wrong == []
    assert counts["ok"] >= 0.4 * counts.total(), counts
    assert counts["refused"] <= 0.02 * counts.total(), counts


def test_inexact_types_are_named() -> None:
    assert [dtype_of(e)[1] for e in (1, 10, 16, 17, 22, 18, 23, 24, 15)] == [True] * 5 + [False] * 4
