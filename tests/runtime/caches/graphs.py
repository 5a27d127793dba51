"""Small graphs for the caches' tests: an MLP over rows, its params, a counting builder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner_core.ir import DType, Graph
from planner_core.ir.hir import HirModule

WIDTH = 4


def mlp(rows: int, hidden: int = 6) -> Graph:
    """``y = relu(x w + b) v`` over ``[rows, 4]``; no data for its params."""
    g = Graph("mlp")
    x = g.input("x", (rows, WIDTH))
    h = g.relu(g.add(g.mm(x, g.param("w", (WIDTH, hidden))), g.param("b", (hidden,))))
    return g.set_outputs(g.mm(h, g.param("v", (hidden, WIDTH))), names=["y"])


def params(seed: int = 0, hidden: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"w": rng.standard_normal((WIDTH, hidden), dtype=np.float32),
            "b": rng.standard_normal(hidden, dtype=np.float32),
            "v": rng.standard_normal((hidden, WIDTH), dtype=np.float32)}


def expected(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    return np.maximum(x @ p["w"] + p["b"], 0) @ p["v"]


def weight_free(rows: int = 3) -> Graph:
    g = Graph("relu")
    return g.set_outputs(g.relu(g.input("x", (rows,))), names=["y"])


def module(width: int = WIDTH) -> HirModule:
    """Symbols ``batch`` and ``seq``; a linear layer with SiLU."""
    m = HirModule("module")
    m.outputs(m.silu(m.linear(m.input_batch_seq("x", width), "up", 5)), names=["y"])
    return m


def packed_graph(rows: int, n: int = 3) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A product with Q8_0 blocks (34 bytes for 32 weights), a float bias beside it."""
    from planner_core.ir import QuantScheme
    from planner_core.ir.packed import random_blocks

    g = Graph("packed")
    x = g.input("x", (rows, 32))
    w = g.param("w", (n * QuantScheme.Q8_0.row_bytes(32),), DType.U8)
    g.set_outputs(g.add(g.dequant_mat_mul(x, w, scheme=QuantScheme.Q8_0, n=n), g.param("b", (n,))), names=["y"])
    rng = np.random.default_rng(7)
    blocks = np.asarray(random_blocks(rng, QuantScheme.Q8_0, n, 32, 0.2)).reshape(-1)
    return g, {"b": rng.standard_normal(n, dtype=np.float32)}, {"w": blocks}


class Counted:
    """A builder that counts its calls and the arguments they came with."""

    def __init__(self, build: Callable[..., object]) -> None:
        self.build, self.calls = build, []

    def __call__(self, *args: object) -> object:
        self.calls.append(args)
        return self.build(*args)
