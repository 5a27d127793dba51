"""The four models that come with packages: no opaque node, values equal to ONNX Runtime's."""

from __future__ import annotations

import importlib.resources
import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from planner_core.importers import import_onnx, load_model
from planner_core.ir import Array, Dim, validate
from tests.planner_core.importers.evaluator import evaluate


def magika_path() -> Path:
    pytest.importorskip("magika")
    folder = importlib.resources.files("magika") / "models" / "standard_v3_3"
    return next(Path(str(p)) for p in folder.iterdir() if p.name.endswith(".onnx"))


def ocr_path(name: str) -> Path:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("rapidocr_onnxruntime is not installed")
    return Path(spec.submodule_search_locations[0]) / "models" / f"{name}.onnx"


def page(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Dark text-like strokes on a light, slowly varying ground, in [-1, 1]."""
    rng = np.random.default_rng(seed)
    _, channels, h, w = shape
    y, x = np.mgrid[0:h, 0:w] / 64
    image = 0.7 + 0.2 * np.sin(x + 0.3) * np.cos(y)
    for _ in range(h * w // 800):
        top, left = int(rng.integers(0, h - 2)), int(rng.integers(0, w - 2))
        tall, wide = (int(rng.integers(6, 18)), 2) if rng.random() < 0.5 else (2, int(rng.integers(6, 18)))
        image[top : top + tall, left : left + wide] = -0.8
    tint = np.array([0.0, 0.05, -0.05])[:channels, None, None]
    return np.clip(image + tint, -1, 1).astype(np.float32)[None]


def file_features(data: bytes) -> Array:
    """Magika's features: the first and last 1024 bytes of the stripped block, padded with 256."""
    head, tail = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    return np.array([[*head, *[256] * (1024 - len(head)), *[256] * (1024 - len(tail)), *tail]], np.int32)


OCR = [("ch_PP-OCRv4_det_infer", (1, 3, 640, 640)), ("ch_ppocr_mobile_v2.0_cls_infer", (1, 3, 48, 192)),
       ("ch_PP-OCRv4_rec_infer", (1, 3, 48, 320))]


def compare(path: Path, name: str, feed: Array, shapes: dict[str, tuple[int, ...]]) -> None:
    graph = import_onnx(path, shapes=shapes)
    assert validate(graph) == []
    assert graph.of("Custom") == []
    assert all(n.source and n.source[0].file == path.name for n in graph.nodes)
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {name: feed})
    for got, want in zip(evaluate(graph, {name: feed}), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), OCR, ids=[n for n, _ in OCR])
def test_ocr(name: str, shape: tuple[int, ...]) -> None:
    compare(ocr_path(name), "x", page(shape), {"x": shape})


@pytest.mark.parametrize("what", ["source", "model"])
def test_magika(what: str) -> None:
    path = magika_path()
    data = Path(__file__).read_bytes() if what == "source" else path.read_bytes()
    compare(path, "bytes", file_features(data), {})


def test_magika_default_batch_is_noted_and_dims_bind_it() -> None:
    path = magika_path()
    graph = load_model(path)
    assert any("'bytes'" in n and "unk__214" in n and "taken as 1" in n for n in graph.notes)
    wide = load_model(path, dims={"unk__214": 3})
    assert wide.find("bytes").shape.dims == (Dim(3, "unk__214"), Dim(2048))
    assert wide[wide.outputs[0]].shape.sizes == (3, 214)
    assert not any("taken as 1" in n for n in wide.notes)


def test_ocr_batch_follows_every_reshape() -> None:
    graph = import_onnx(ocr_path(OCR[2][0]), shapes={"x": (2, 3, 48, 320)})
    assert graph[graph.outputs[0]].shape.sizes == (2, 40, 6625)
