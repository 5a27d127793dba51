"""ONNX's own node tests: every model that imports without an opaque op runs audited and gives ONNX's numbers."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from planner_core.errors import ImportModelError
from planner_core.importers import import_onnx
from runtime import RunError, compile_graph

AT_LEAST = 700
"""Models that must run and agree; more may, as the importer learns ops."""


@pytest.mark.slow
def test_node_tests_agree(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators overflow on purpose
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)  # type: ignore[arg-type]
    count: Counter[str] = Counter()
    wrong = []
    for case in cases:
        verdict = run_case(case, tmp_path / "model.onnx")
        count[verdict] += 1
        if verdict == "wrong":
            wrong.append(case.name)
    assert wrong == []
    assert count["equal"] >= AT_LEAST, count


def run_case(case, path: Path) -> str:  # type: ignore[no-untyped-def]
    ins, outs = case.data_sets[0] if case.data_sets else ((), ())
    if not all(isinstance(v, np.ndarray | np.generic) and v.dtype.kind != "O" for v in (*ins, *outs)):
        return "no tensors"
    feed = {v.name: np.asarray(x) for v, x in zip(case.model.graph.input, ins, strict=False)}
    onnx.save(case.model, path)
    try:
        graph = import_onnx(path, shapes={k: v.shape for k, v in feed.items()})
    except ImportModelError:
        return "not imported"
    if graph.of("Custom"):
        return "opaque"
    compiled = compile_graph(graph)
    try:
        got = compiled.run({b.name: feed[b.name] for b in compiled.commands.inputs}, sanitize=True)
    except RunError as e:
        return "unknown extent" if "unknown before the run" in str(e) or "has no value" in str(e) else "wrong"
    for a, b in zip(got.values(), outs, strict=True):
        want = np.asarray(b)
        tolerance = 1e-2 if want.dtype.itemsize <= 2 and want.dtype.kind not in "iub" else 1e-3
        if a.shape != want.shape or not np.allclose(a.astype(np.float64), want.astype(np.float64), rtol=tolerance,
                                                    atol=tolerance / 100, equal_nan=True):
            return "wrong"
    return "equal"
