"""The four real models that packages ship, found through the packages, and inputs that look like real ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from planner_core.ir import Array
from rlx_viz.demo import magika_model

OCR = {
    "det": ("ch_PP-OCRv4_det_infer.onnx", (1, 3, 640, 640)),
    "cls": ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, 48, 192)),
    "rec": ("ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320)),
}
NAMES = ("magika", *OCR)


def model(name: str) -> tuple[Path, dict[str, tuple[int, ...]]]:
    """Path of the ONNX file, and the input shapes to import it with."""
    if name == "magika":
        return magika_model(), {}
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    assert spec is not None, "the PP-OCR models come with rapidocr-onnxruntime: run `make test`, which installs it"
    assert spec.submodule_search_locations is not None
    file, shape = OCR[name]
    return Path(spec.submodule_search_locations[0]) / "models" / file, {"x": shape}


def page(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Dark text-like strokes on a light, slowly varying ground with a little noise, in [-1, 1]."""
    rng = np.random.default_rng(seed)
    _, channels, h, w = shape
    y, x = np.mgrid[0:h, 0:w] / 64
    image = 0.7 + 0.2 * np.sin(x + 0.3) * np.cos(y)
    for _ in range(h * w // 800):
        top, left = int(rng.integers(0, h - 2)), int(rng.integers(0, w - 2))
        tall, wide = (int(rng.integers(6, 18)), 2) if rng.random() < 0.5 else (2, int(rng.integers(6, 18)))
        image[top : top + tall, left : left + wide] = -0.8
    tint = np.array([0.0, 0.05, -0.05])[:channels, None, None]
    noise = rng.normal(0, 0.02, (channels, h, w))
    return np.clip(image + tint + noise, -1, 1).astype(np.float32)[None]


def file_features(data: bytes) -> Array:
    """Magika's features: the first and last 1024 bytes of the stripped block, padded with 256."""
    head, tail = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    return np.array([[*head, *[256] * (1024 - len(head)), *[256] * (1024 - len(tail)), *tail]], np.int32)


def feed(name: str) -> dict[str, Array]:
    """Realistic input: this file's bytes for magika, a page for the OCR models."""
    if name == "magika":
        return {"bytes": file_features(Path(__file__).read_bytes())}
    return {"x": page(OCR[name][1])}
