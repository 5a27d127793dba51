"""The four real models on the planned arena, plain and audited, against ONNX Runtime."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnxruntime
import pytest

from planner_core.importers import import_onnx
from runtime import compile_graph
from tests.models import NAMES, feed, model


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_onnx_runtime(name: str) -> None:
    path, arrays = model(name)[0], feed(name)
    graph = import_onnx(path, shapes={k: v.shape for k, v in arrays.items()})
    compiled = compile_graph(graph)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    want = session.run(None, arrays)
    plain = compiled.run(arrays)
    assert len(plain) == len(want)
    for a, b in zip(plain.values(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    audited = compiled.run(arrays, sanitize=True)
    for key, a in plain.items():
        np.testing.assert_array_equal(audited[key], a)
    assert "host_op" not in compiled.commands.counts()
    assert compiled.commands.scratch_bytes <= 4 << 20


@pytest.mark.parametrize("name", NAMES)
def test_no_hidden_copies_of_activations(name: str) -> None:
    """Beyond the outputs' copies, a run allocates less than NumPy's small change."""
    path, arrays = model(name)[0], feed(name)
    compiled = compile_graph(import_onnx(path, shapes={k: v.shape for k, v in arrays.items()}))
    compiled.run(arrays)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        outputs = compiled.run(arrays)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= sum(v.nbytes for v in outputs.values()) + (32 << 10)
    assert max(s.size for s in compiled.commands.slots if s.space == "arena") > 4 * (32 << 10)
