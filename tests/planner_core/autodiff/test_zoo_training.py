"""Training graphs of the zoo's models at small sizes: against central differences, planned and verified."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner_core import zoo
from planner_core.autodiff import backward, split
from planner_core.ir import DType, Graph, Shape, validate
from planner_core.ir.op import TensorData
from planner_core.ir.ops import Cast, Constant, Input, Param
from planner_core.memory import plan_memory_native, verify_plan

MODELS: dict[str, dict[str, Any]] = {
    "mamba": {"layers": 2, "hidden": 16, "state": 4, "vocab": 30, "seq": 6, "batch": 2},
    "llama-prefill": {"layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocab": 30, "seq": 6},
    "moe": {"layers": 2, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 12, "experts": 4, "top_k": 2, "vocab": 30,
        "seq": 5},
    "dit-block": {"layers": 2, "hidden": 16, "heads": 2, "size": 6, "batch": 2},
    "unet3d": {"size": 8, "depth": 4, "base": 3, "levels": 3, "batch": 2},
    "sam-attention": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 12, "side": 3, "batch": 2},
    "minilm": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 30, "seq": 5, "batch": 2, "positions": 8},
    "resnet50": {"size": 32, "width": 4, "blocks": 2, "classes": 10, "batch": 2},
    "hifigan": {"frames": 2, "channels": 32, "mels": 5},
    "decoder-stack": {"layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "seq": 5, "vocab": 12},
    "albert-onnx": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "embedding": 8, "vocab": 20, "seq": 5, "kernels": True},
    "tts-duration": {"phonemes": 5, "frames": 9, "hidden": 16, "ffn": 24, "layers": 1, "vocab": 20, "mels": 5, "kernel": 3},
}


def widened(g: Graph) -> Graph:
    """The same graph in f64, so that differences have digits to spare."""
    def wide(s: Shape) -> Shape:
        return s.with_dtype(DType.F64) if s.dtype is DType.F32 else s

    out = Graph(g.name)
    for n in g.nodes:
        o = n.op
        if isinstance(o, (Input, Param)):
            o = type(o)(wide(o.shape))
        elif isinstance(o, Constant) and o.data.dtype is DType.F32:
            o = Constant(TensorData(o.data.array.astype(np.float64)))
        elif isinstance(o, Cast) and o.to is DType.F32:
            o = Cast(DType.F64)
        out.add(o, *n.inputs, name=n.name)
    return out.set_outputs(*g.outputs, names=g.output_names)


def evaluate(g: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    done: list[np.ndarray] = []
    for n in g.nodes:
        done.append(values[n.name] if n.op.name in ("Input", "Param") else n.op.evaluate(*[done[i] for i in n.inputs]))
    return {name: done[o] for o, name in zip(g.outputs, g.output_names, strict=True)}


@pytest.mark.parametrize("name", MODELS)
def test_small_zoo_models(name: str) -> None:
    """``Σ d_p · v_p`` is the slope of ``Σ d_y · y`` along a random direction v of all float params at once."""
    g = widened(zoo.build(name, **MODELS[name]))
    training = backward(g)
    assert validate(training) == []
    assert verify_plan(training, plan_memory_native(training)) == []
    assert all(verify_plan(part, plan_memory_native(part)) == [] for part in split(training))

    rng = np.random.default_rng(11)
    values: dict[str, np.ndarray] = {}
    for i in (*training.inputs, *training.params):
        n = training[i]
        draw = rng.integers(0, 2, n.shape.sizes) if not n.dtype.is_float else rng.uniform(0.2, 1, n.shape.sizes)
        signed = n.op.name == "Param" and n.shape.rank > 1
        values[n.name] = (draw * rng.choice((-0.3, 0.3), n.shape.sizes) if signed else draw).astype(n.dtype.numpy)
    moved = [g[p].name for p in g.params if g[p].dtype.is_float]
    along = {p: rng.standard_normal(values[p].shape) for p in moved}
    got = evaluate(training, values)
    seeds = [s for s in values if s not in g._named]

    def loss(h: float) -> float:
        ys = evaluate(g, {**values, **{p: values[p] + h * along[p] for p in moved}})
        return sum(float((ys[s[2:]] * values[s]).sum()) for s in seeds)

    step = 1e-7
    want = (loss(step) - loss(-step)) / (2 * step)
    assert want != 0
    np.testing.assert_allclose(sum(float((got[f"d_{p}"] * along[p]).sum()) for p in moved), want, rtol=2e-4)
