"""Speed of mixed precision on the host: a figure a model and policy, at most three times f32's (``RLX_BENCH_SLACK``)."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import rlx_viz
from planner_core import zoo
from planner_core.ir import Graph
from runtime import Compilation

pytestmark = pytest.mark.bench

SLACK = float(os.environ.get("RLX_BENCH_SLACK", "2"))
MOST = 3.0
"""Times f32: NumPy's own half product took 206, a mixed policy with it 348."""


def mlp(rows: int = 32, k: int = 512, n: int = 1024) -> Graph:
    g = Graph("mlp")
    h = g.activation(g.add(g.mm(g.input("x", (rows, k)), g.param("w", (k, n))), g.param("b", (n,))), kind="gelu")
    return g.set_outputs(g.add(g.mm(h, g.param("v", (n, k))), g.param("c", (k,))), names=["y"])


MODELS = {"mlp": mlp,
          "bert": lambda: zoo.build("bert-base", layers=2, hidden=256, heads=4, ffn=1024, vocab=1000, seq=64),
          "llama": lambda: zoo.build("llama-prefill", layers=2, hidden=512, heads=8, ffn=1376, vocab=1000, seq=64)}


def best(c: Compilation, feed: dict[str, np.ndarray], rounds: int = 15) -> float:
    times = []
    for _ in range(rounds + 1):  # the first makes the static packs
        start = time.perf_counter()
        c.run(feed)
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["auto_mixed", "auto_mixed_bf16"])
@pytest.mark.parametrize("target", ["cpu", "mlx"])
def test_mixed_precision_is_within_three_times_f32(benchmark: BenchmarkFixture, model: str, precision: str, target: str) -> None:
    g = zoo.random_weights(MODELS[model]())
    feed = {g[i].name: np.zeros(g[i].shape.sizes, g[i].dtype.numpy) for i in g.inputs}
    plain = best(rlx_viz.compile(g, target=target), feed)
    c = rlx_viz.compile(g, target=target, precision=precision)
    mixed = best(c, feed)
    benchmark.extra_info |= {"f32_ms": plain * 1e3, "mixed_ms": mixed * 1e3, "times": mixed / plain}
    benchmark.pedantic(c.run, (feed,), rounds=3)
    assert mixed <= MOST * SLACK * plain
