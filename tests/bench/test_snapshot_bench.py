"""A document's size and time at 100,000 nodes; targets asserted with slack for slow machines (``RLX_BENCH_SLACK``,
default 2). Sizes have no slack."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import rlx_viz
from planner_core import zoo
from rlx_viz.columns import ColumnDocument
from runtime.compile import Compilation

pytestmark = pytest.mark.bench

SLACK = float(os.environ.get("RLX_BENCH_SLACK", "2"))
OPEN, AGAIN, BYTES = 1.5, 0.6, 20_000_000
"""Seconds of a graph's first document and of the next after a toggle, packing included; bytes of the packed form."""


@pytest.fixture(scope="module")
def c() -> Compilation:
    made = rlx_viz.compile(zoo.build("decoder-stack", nodes=100_000), target="metal")
    made.source.content_hash  # the model's identity, not the document's work
    return made


def pack(c: Compilation) -> tuple[ColumnDocument, int]:
    doc = rlx_viz.snapshot(c)
    header, buffer = doc.pack()
    return doc, len(header.encode()) + len(buffer)


def test_document_of_100_000(benchmark: BenchmarkFixture, c: Compilation) -> None:
    start = time.perf_counter()
    doc, size = pack(c)
    first = time.perf_counter() - start
    benchmark.pedantic(pack, args=(c,), rounds=5)
    row = sum(x.dtype.itemsize for x in doc.tables["tensors"].values())
    benchmark.extra_info |= {"first_s": round(first, 3), "bytes": size, "bytes_a_tensor": row, "tensors": doc.rows("tensors")}
    assert row <= 64
    assert size < BYTES
    assert first <= OPEN * SLACK
    assert benchmark.stats.stats.median <= AGAIN * SLACK


@pytest.mark.parametrize(("nodes", "kind", "target"), [
    (2_400, "plan", 0.2), (10_000, "plan", 0.8), (2_400, "fusion", 1.0), (10_000, "fusion", 3.0),
])
def test_toggle(benchmark: BenchmarkFixture, nodes: int, kind: str, target: float) -> None:
    """From an option's switch to the packed document, planning included; the page's redraw is measured with the page."""
    e = rlx_viz.explore(zoo.build("decoder-stack", nodes=nodes), target="metal", whatif=False)
    option = "pin_output_ancestors" if kind == "plan" else "elementwise_region"
    values = itertools.cycle((kind == "plan", kind != "plan"))
    benchmark.pedantic(lambda: e.set_option(option, next(values)), rounds=6, warmup_rounds=2)
    benchmark.extra_info |= {"nodes": nodes, "timings": {k: round(v, 4) for k, v in e.compilation.timings.items()}}
    assert benchmark.stats.stats.median <= target * SLACK


def test_open_10_000(benchmark: BenchmarkFixture) -> None:
    """The explorer of a compilation that is there, its page for readers without a kernel included."""

    def fresh() -> tuple[tuple[Compilation], dict[str, object]]:
        return (rlx_viz.compile(zoo.build("decoder-stack", nodes=10_000), target="metal"),), {}

    benchmark.pedantic(lambda c: rlx_viz.explore(c, whatif=False)._repr_mimebundle_(), setup=fresh, rounds=3)
    assert benchmark.stats.stats.median <= 1.0 * SLACK
