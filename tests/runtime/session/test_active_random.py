"""Random graphs with a marked axis: an active run's first rows are the full run's, whatever was refused or fused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from planner_core.fusion import no_fusion
from planner_core.ir import Graph
from planner_core.ir.rebind import rebind
from runtime import CompileOptions
from runtime.marking import BUCKET
from runtime.session import Session
from tests.runtime.test_property import compile_options, graphs

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def of_fewer_rows(g: Graph, actual: int, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the graph built for ``actual`` rows: attention without a mask sees no others."""
    short = rebind(g, {BUCKET: actual})
    short.weights = g.weights
    cut = {short[i].name: feed[short[i].name][tuple(slice(0, d) for d in short[i].shape.sizes)] for i in short.inputs}
    return Session().compile(short, CompileOptions(fusion=no_fusion())).run(cut)


def first_rows_agree(g: Graph, options: CompileOptions, seed: int, data: st.DataObject) -> None:
    inputs = [g[i] for i in g.inputs if g[i].shape.rank and g[i].shape.sizes[0] > 1]
    if not inputs:
        return
    extent = data.draw(st.sampled_from(sorted({n.shape.sizes[0] for n in inputs})))
    names = [n.name for n in inputs if n.shape.sizes[0] == extent]
    marks = dict.fromkeys(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)), 0)
    actual = data.draw(st.integers(1, extent - 1))
    active = Session().compile(g, options, bucket_dim=marks)
    whole = Session().compile(g, options)
    rng = np.random.default_rng(seed)
    old, new = ({g[i].name: rng.standard_normal(g[i].shape.sizes).astype(np.float32) for i in g.inputs} for _ in range(2))
    active.run(old)
    want = whole.run(new)
    unmasked = any(getattr(n.op, "mask_kind", "") == "none" for n in active.graph.nodes)
    active.set_active_extent((actual, extent))
    got = active.run(new)
    if unmasked and not active.extent_reason:
        want = of_fewer_rows(active.graph, actual, new)
    event("whole: " + active.extent_reason.split(" ")[0] if active.extent_reason else "active")
    for name, node in zip(active.graph.output_names, active.graph.outputs, strict=True):
        dims = active.graph[node].shape.dims
        axis = next((i for i, d in enumerate(dims) if BUCKET in d.names()), None)
        if active.extent_reason or axis is None:
            np.testing.assert_array_equal(got[name], want[name])
            continue
        rows = got[name].shape[axis] * actual // extent
        first = (slice(None),) * axis + (slice(0, rows),)
        scale = max(1.0, float(np.abs(want[name]).max(initial=0)))
        np.testing.assert_allclose(got[name][first], want[name][first], rtol=1e-3, atol=2e-4 * scale)


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
@given(graphs(), compile_options(), st.integers(0, 99), st.data())
def test_first_rows_agree(g: Graph, options: CompileOptions, seed: int, data: st.DataObject) -> None:
    first_rows_agree(g, options, seed, data)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=QUIET)
@given(graphs(), compile_options(), st.integers(0, 999), st.data())
def test_first_rows_agree_at_length(g: Graph, options: CompileOptions, seed: int, data: st.DataObject) -> None:
    first_rows_agree(g, options, seed, data)
