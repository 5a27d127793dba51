"""What the numeric tests share: a graph run node by node, its weights as torch tensors."""

from __future__ import annotations

import numpy as np
import torch

from planner_core import zoo
from planner_core.ir import Graph


def run(graph: Graph, seed: int = 1, **inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs from each node's reference evaluation, nothing of planner or runtime in between."""
    zoo.random_weights(graph, seed)
    values: list[np.ndarray] = []
    for n in graph.nodes:
        if n.op.name == "Input":
            values.append(inputs[n.name])
        elif n.op.name == "Param":
            values.append(graph.weights[n.name])
        else:
            values.append(n.op.evaluate(*[values[i] for i in n.inputs]))
        assert values[-1].shape == n.shape.sizes and values[-1].dtype == n.dtype.numpy, n
    return [values[o] for o in graph.outputs]


def tensors(graph: Graph) -> dict[str, torch.Tensor]:
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in graph.weights.items()}


def same(got: np.ndarray, want: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Close relative to the largest value; and not trivially: the values differ among themselves."""
    w = want.numpy()
    assert got.shape == w.shape
    assert np.std(w) > 1e-3 * np.abs(w).max()
    np.testing.assert_allclose(got, w, rtol=0, atol=tolerance * np.abs(w).max())


def noise(*dims: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)
