"""Fusion speed on ``decoder-stack`` through the METAL rules, and its growth. Targets have the slack of the planner's
bench (``RLX_BENCH_SLACK``)."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from planner_core import zoo
from planner_core.fusion import Fusion, FusionTarget, fuse_graph
from planner_core.ir import DType, Graph

pytestmark = pytest.mark.bench

TARGET = {10_000: 2.0, 100_000: 25.0}
EXPONENT = 1.15
SLACK = float(os.environ.get("RLX_BENCH_SLACK", "2"))


def fresh(nodes: int) -> Graph:
    """A graph with nothing cached yet."""
    return zoo.build("decoder-stack", nodes=nodes, hidden=64, heads=4, seq=16)


def chain(length: int) -> Graph:
    """One elementwise chain: regions are cut from it one after the other."""
    g = Graph("chain")
    x, b = g.input("x", (4, 8)), g.param("b", (8,), DType.F32)
    for i in range(length):
        x = g.add(x, b) if i % 2 else g.tanh(x)
    return g.set_outputs(x)


def fused(graph: Graph, target: FusionTarget = FusionTarget.METAL) -> Fusion:
    return fuse_graph(graph, target)


def best(graph: Graph, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fused(graph)
        times.append(time.perf_counter() - start)
    return min(times)


def note(benchmark: BenchmarkFixture, **figures: Any) -> None:
    benchmark.extra_info.update(figures)


@pytest.mark.parametrize("nodes", TARGET)
def test_decoder_through_metal(benchmark: BenchmarkFixture, nodes: int) -> None:
    graph = fresh(nodes)
    f = benchmark.pedantic(fused, args=(graph,), rounds=3 if nodes <= 10_000 else 1)
    note(benchmark, nodes=len(graph), fused_nodes=len(f.graph), rounds=f.rounds, applied=len(f.log.applied()),
         refused=len(f.log.refused()))
    assert benchmark.stats.stats.min <= TARGET[nodes] * SLACK


@pytest.mark.parametrize("make", [fresh, chain], ids=["decoder", "chain"])
def test_growth(benchmark: BenchmarkFixture, make: Any) -> None:
    """Exponent of time over nodes between 10,000 and 100,000 (best of five and of three)."""
    small, large = make(10_000), make(100_000)
    times = benchmark.pedantic(lambda: (best(small, 5), best(large, 3)), rounds=1)
    exponent = math.log(times[1] / times[0]) / math.log(len(large) / len(small))
    note(benchmark, seconds_small=round(times[0], 3), seconds_large=round(times[1], 3), exponent=round(exponent, 3))
    assert exponent <= EXPONENT * (1 + (SLACK - 1) / 10)
