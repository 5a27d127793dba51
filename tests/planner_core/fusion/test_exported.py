"""Models that PyTorch exports, and the real ones that packages ship: what fusion sees in each, and the same numbers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from planner_core.fusion import FusionTarget, fuse_graph
from planner_core.importers import import_onnx
from planner_core.ir import Array, Graph
from runtime import CompileOptions, compile_graph
from tests.models import NAMES, model
from tests.planner_core.fusion.exported_models import LAYERS, MODELS, export
from tests.planner_core.fusion.harness import boundary, evaluate

Export = Callable[[str], Path]
SEEN = ("Attention", "FusedAttentionBlock", "LayerNorm", "LayerNorm2d", "ResidualLayerNorm", "RmsNorm", "ResidualRmsNorm",
        "Rope", "SwiGLU", "Softmax", "BatchNorm")
"""Ops that are counted; one that a row leaves out is in that model not at all."""
COUNTS: dict[str, dict[str, int]] = {
    "vit": {"FusedAttentionBlock": LAYERS, "LayerNorm": 2 * LAYERS, "ResidualLayerNorm": 1},
    "resnet": {},  # the exporter folds batch norm into the convolutions
    "bert": {"FusedAttentionBlock": LAYERS, "LayerNorm": 1, "ResidualLayerNorm": 2 * LAYERS},
    "gpt2": {"FusedAttentionBlock": LAYERS, "LayerNorm": 2 * LAYERS, "ResidualLayerNorm": 1},
    "llama": {"Attention": LAYERS, "RmsNorm": 2 * LAYERS, "ResidualRmsNorm": 1, "Rope": 2 * LAYERS, "SwiGLU": LAYERS},
    "llama-sdpa": {"Attention": LAYERS, "RmsNorm": 2 * LAYERS, "ResidualRmsNorm": 1, "Rope": 2 * LAYERS, "SwiGLU": LAYERS},
    "encoder": {"Attention": LAYERS, "ResidualLayerNorm": 2 * LAYERS},
    "magika": {"LayerNorm": 1, "LayerNorm2d": 1, "Softmax": 1},
    "det": {"BatchNorm": 1},  # after a transposed convolution
    "cls": {"Softmax": 1},
    "rec": {"FusedAttentionBlock": 2, "LayerNorm": 4, "ResidualLayerNorm": 1, "Softmax": 1},
}
RULES: dict[str, dict[str, int]] = {
    "vit": {"attention": LAYERS, "packed_qkv": LAYERS},
    "bert": {"attention": LAYERS, "recognise_layer_norm": 1 + 2 * LAYERS},
    "gpt2": {"attention": LAYERS, "packed_qkv": LAYERS, "recognise_gelu": LAYERS},
    "llama": {"attention": LAYERS, "recognise_rms_norm": 1 + 2 * LAYERS, "recognise_silu": LAYERS, "rope": 2 * LAYERS},
    "llama-sdpa": {"attention": LAYERS, "recognise_rms_norm": 1 + 2 * LAYERS, "recognise_silu": LAYERS, "rope": 2 * LAYERS},
    "encoder": {"attention": LAYERS},
    "magika": {"recognise_layer_norm": 2, "recognise_gelu": 2, "recognise_softmax": 1},
    "det": {"recognise_hardswish": 24},
    "cls": {"recognise_hardswish": 18},
    "rec": {"attention": 2, "packed_qkv": 2, "recognise_layer_norm": 5, "recognise_silu": 7, "recognise_hardswish": 28},
}
"""How often these rules apply, the same on every target."""
LARGE = frozenset({"det", "cls"})
"""Convolutions over images: too slow to evaluate here; the conv rules' own cases compare numbers."""


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A model's file by name, exported once, when first asked for."""
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def file_of(name: str) -> Path:
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # the exporter warns that torchvision is missing
        try:
            return export(name, folder)
        finally:
            logging.disable(before)

    return file_of


@cache
def loaded(path: Path, shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> Graph:
    return import_onnx(path, shapes=dict(shapes))


def graph_of(name: str, exported: Export) -> Graph:
    if name not in NAMES:
        return loaded(exported(name))
    path, shapes = model(name)
    return loaded(path, tuple(shapes.items()))


def feed(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    out: dict[str, Array] = {}
    for i in graph.inputs:
        n = graph[i]
        out[n.name] = rng.standard_normal(n.shape.sizes) if n.dtype.is_float else rng.integers(0, 2, n.shape.sizes).astype(n.dtype.numpy)
    return out


@pytest.mark.parametrize("target", [FusionTarget.CPU, FusionTarget.METAL])
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_seen(name: str, target: FusionTarget, exported: Export) -> None:
    graph = graph_of(name, exported)
    f = fuse_graph(graph, target)
    ops = Counter(n.op.name for n in f.graph.nodes)
    assert {o: ops[o] for o in SEEN if ops[o]} == COUNTS[name]
    applied = Counter(d.rule for d in f.log.applied())
    assert {r: applied[r] for r in RULES.get(name, {})} == RULES.get(name, {})
    assert boundary(f.graph) == boundary(graph)
    assert all(d.reason is not None for d in f.log if not d.applied)
    assert sum(d.dispatches_saved for d in f.log.applied()) > 0


@pytest.mark.parametrize("name", [n for n in COUNTS if n not in LARGE])
def test_same_numbers(name: str, exported: Export) -> None:
    graph = graph_of(name, exported)
    f = fuse_graph(graph, FusionTarget.CPU)
    data = feed(graph)
    known = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in f.graph.weights.items()}
    before, after = evaluate(graph, data), evaluate(f.graph, known | data)
    for got, want in zip(after, before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize("target", [FusionTarget.CPU, FusionTarget.METAL])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_equals_onnxruntime(name: str, target: FusionTarget, exported: Export) -> None:
    """Fused, lowered and run in f32, against another runtime's own optimiser."""
    graph = graph_of(name, exported)
    data = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in feed(graph).items()}
    want = ort.InferenceSession(exported(name)).run(None, data)
    made = compile_graph(graph, CompileOptions(target=target))
    assert made.fusion_log.applied()
    got = made.run(data, sanitize=True)
    for a, b in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(b).max()))
