"""Owns inputs for a run when the user gives none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner_core.ir import Array, Graph

__all__ = ["filled_inputs", "random_inputs"]


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Normal floats and integers 0 or 1 (any index is then in range) for every input."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for i in graph.inputs:
        n = graph[i]
        if n.dtype.is_float:
            out[n.name] = rng.standard_normal(n.shape.sizes).astype(n.dtype.numpy)
        else:
            out[n.name] = rng.integers(0, 2, n.shape.sizes).astype(n.dtype.numpy)
    return out


def filled_inputs(graph: Graph, given: Mapping[str, Array] | None, seed: int = 0) -> dict[str, Array]:
    """The given arrays, random ones for the inputs without."""
    return {**random_inputs(graph, seed), **(given or {})}
