"""The four real models on the planned arena, plain and audited, against ONNX Runtime."""

from __future__ import annotations

import importlib.resources
import importlib.util
import tracemalloc
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from planner_core.importers import import_onnx
from runtime import compile_graph


def magika_model() -> Path:
    found = importlib.resources.files("magika") / "models" / "standard_v3_3" / "model.onnx"
    return Path(str(found))


def ppocr_model(name: str) -> Path:
    """Found without importing the package, which would pull in OpenCV."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "models" / name


def file_bytes() -> np.ndarray:
    """magika's features of a real file: its first and last 1,024 bytes."""
    data = Path(__file__).read_bytes()
    return np.asarray([[*data[:1024], *data[-1024:]]], dtype=np.int32)


def page(h: int, w: int) -> np.ndarray:
    """An image like a photographed page: soft light, dark strokes in lines, sensor noise; scaled to [-1, 1]."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:h, 0:w]
    light = 0.75 + 0.2 * np.cos(x / w * 2 - y / h)
    stroke = (rng.random((h // 4 + 1, w // 3 + 1)) > 0.55).repeat(4, 0).repeat(3, 1)[:h, :w] & (y % 24 < 12)
    image = np.where(stroke, 0.1, light) + rng.normal(0, 0.02, (3, h, w))
    return np.clip(image * 2 - 1, -1, 1)[None].astype(np.float32)


MODELS = {
    "magika": lambda: (magika_model(), {"bytes": file_bytes()}),
    "det": lambda: (ppocr_model("ch_PP-OCRv4_det_infer.onnx"), {"x": page(640, 640)}),
    "cls": lambda: (ppocr_model("ch_ppocr_mobile_v2.0_cls_infer.onnx"), {"x": page(48, 192)}),
    "rec": lambda: (ppocr_model("ch_PP-OCRv4_rec_infer.onnx"), {"x": page(48, 320)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_onnx_runtime(name: str) -> None:
    path, feed = MODELS[name]()
    graph = import_onnx(path, shapes={k: v.shape for k, v in feed.items()})
    compiled = compile_graph(graph)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    want = session.run(None, feed)
    plain = compiled.run(feed)
    assert len(plain) == len(want)
    for a, b in zip(plain.values(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    audited = compiled.run(feed, sanitize=True)
    for key, a in plain.items():
        np.testing.assert_array_equal(audited[key], a)
    assert "host_op" not in compiled.commands.counts()
    assert compiled.commands.scratch_bytes <= 4 << 20


@pytest.mark.parametrize("name", MODELS)
def test_no_hidden_copies_of_activations(name: str) -> None:
    """Beyond the outputs' copies, a run allocates less than NumPy's small change."""
    path, feed = MODELS[name]()
    compiled = compile_graph(import_onnx(path, shapes={k: v.shape for k, v in feed.items()}))
    compiled.run(feed)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        outputs = compiled.run(feed)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= sum(v.nbytes for v in outputs.values()) + (32 << 10)
    assert max(s.size for s in compiled.commands.slots if s.space == "arena") > 4 * (32 << 10)
