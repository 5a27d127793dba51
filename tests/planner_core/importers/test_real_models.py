"""The four models that come with packages: no opaque node, values equal to ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from planner_core.importers import import_onnx, load_model
from planner_core.ir import Array, Dim, validate
from tests.models import OCR, feed, file_features, model
from tests.planner_core.importers.evaluator import evaluate


def compare(path: Path, name: str, array: Array, shapes: dict[str, tuple[int, ...]]) -> None:
    graph = import_onnx(path, shapes=shapes)
    assert validate(graph) == []
    assert graph.of("Custom") == []
    assert all(n.source and n.source[0].file == path.name for n in graph.nodes)
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {name: array})
    for got, want in zip(evaluate(graph, {name: array}), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OCR)
def test_ocr(name: str) -> None:
    path, shapes = model(name)
    compare(path, "x", feed(name)["x"], shapes)


@pytest.mark.parametrize("what", ["source", "model"])
def test_magika(what: str) -> None:
    path = model("magika")[0]
    data = Path(__file__).read_bytes() if what == "source" else path.read_bytes()
    compare(path, "bytes", file_features(data), {})


def test_magika_default_batch_is_noted_and_dims_bind_it() -> None:
    path = model("magika")[0]
    graph = load_model(path)
    assert any("'bytes'" in n and "unk__214" in n and "taken as 1" in n for n in graph.notes)
    wide = load_model(path, dims={"unk__214": 3})
    assert wide.find("bytes").shape.dims == (Dim(3, "unk__214"), Dim(2048))
    assert wide[wide.outputs[0]].shape.sizes == (3, 214)
    assert not any("taken as 1" in n for n in wide.notes)


def test_ocr_batch_follows_every_reshape() -> None:
    graph = import_onnx(model("rec")[0], shapes={"x": (2, 3, 48, 320)})
    assert graph[graph.outputs[0]].shape.sizes == (2, 40, 6625)
