"""Owns what a run needs and the user did not give: inputs, weights, and the check that it fits in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from planner_core.errors import RlxError
from planner_core.ir import Array, Graph
from rlx_viz.units import bytes_text
from runtime.compile import Compilation
from runtime.executors import HostExecutor

__all__ = ["fill_params", "filled_inputs", "random_inputs", "require_memory"]


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


def fill_params(executor: HostExecutor, seed: int = 0) -> int:
    """Small random values (zeros for integers and packed weights) for every param without data; how many they were.

    Enough to time and audit a plan, whose bytes do not depend on values.
    """
    rng = np.random.default_rng(seed)
    missing = list(executor.weight_buffer.missing)
    params = {p.name: p for p in executor.commands.params}
    for name in missing:
        p = params[name]
        shape, dtype = p.operand.shape, p.dtype.numpy
        floats = p.dtype.is_float and np.dtype(dtype).itemsize > 1
        executor.set_param(name, (rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)).astype(dtype) if floats
                           else np.zeros(shape, dtype=dtype))
    return len(missing)


def require_memory(c: Compilation) -> None:
    """``RlxError`` when a run would take more than the machine has free; silent where that can't be told."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    if c.allocate_bytes > free:
        raise RlxError(f"a run takes {bytes_text(c.allocate_bytes)}, and {bytes_text(free)} are free here; run a smaller model "
                       "(fewer layers, a shorter sequence), or run on a larger machine with `rlx-viz run`")
