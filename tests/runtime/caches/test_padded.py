"""``caches.md``: "`run_padded(key, actual_rows, build, inputs, output_inners)`" and "`run_padded_mixed`"."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import Graph
from runtime import CompileOptions, RunError
from runtime.caches import BucketedCompileCache
from runtime.session import CompiledGraph
from tests.runtime.caches.graphs import Counted


def relu(upper: int) -> Graph:
    g = Graph("relu")
    return g.set_outputs(g.relu(g.input("x", (upper, 3))), names=["y"])


def two(upper: int) -> Graph:
    """Rows scaled by an input that isn't rows, and a copy of them under other axes."""
    g = Graph("two")
    x, s = g.input("x", (1, upper, 4)), g.input("s", (4,))
    y = g.add(x, s)
    return g.set_outputs(y, g.relu(g.reshape(y, dims=(upper, 2, 2))), names=["y", "z"])


def cache(bucket_dim: object = None) -> BucketedCompileCache:
    return BucketedCompileCache("cpu", [(1, 5), (5, 9)], bucket_dim=bucket_dim, options=CompileOptions(fusion=no_fusion()))


def test_pads_runs_cuts() -> None:
    """"pads each input's rows with zeros to the bucket's extent … runs, cuts each output back to `actual_rows`"."""
    c = cache()
    x = np.arange(-4, 5, dtype=np.float32).reshape(3, 3)
    build = Counted(relu)
    upper, out = c.run_padded(3, 3, build, [("x", x, 3)], {"y": 3})
    assert upper == 4
    assert build.calls == [(4,)]
    np.testing.assert_array_equal(out["y"], np.maximum(x, 0))
    upper, out = c.run_padded(6, 5, relu, [("x", np.ones(15, np.float32), 3)], [3])
    assert (upper, out["y"].shape) == (8, (5, 3))


def test_the_extent_is_hinted_for_that_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """"hints the active extent `(actual, upper)` to the executable for that run only"."""
    c = cache({"x": 0})
    seen: list[object] = []
    real = CompiledGraph.run
    monkeypatch.setattr(CompiledGraph, "run", lambda self, *a, **k: (seen.append(self.active_extent), real(self, *a, **k))[1])
    c.run_padded(4, 2, relu, [("x", np.ones((2, 3), np.float32), 3)], {"y": 3})
    compiled = c.compiled_for_key(4)
    assert seen == [(2, 4)]
    assert compiled.extent_reason == ""
    assert compiled.active_extent is None
    compiled.set_active_extent((3, 4))
    c.run_padded(4, 2, relu, [("x", np.ones((2, 3), np.float32), 3)], {"y": 3})
    assert compiled.active_extent == (3, 4), "as it was before"


@pytest.mark.parametrize("inners", [{"y": 0}, {}, [0], []])
def test_an_uncut_output_forces_the_full_extent(inners: object) -> None:
    """"`inner = 0` (or a missing entry) returns an output uncut — and any uncut output forces the full extent for that
    run, so that no stale tail is ever returned"."""
    c = cache({"x": 0})
    c.run_padded(4, 4, relu, [("x", np.ones((4, 3), np.float32), 3)], {"y": 3})
    c.compiled_for_key(4).set_active_extent((1, 4))
    _, out = c.run_padded(4, 2, relu, [("x", np.ones((2, 3), np.float32), 3)], inners)
    np.testing.assert_array_equal(out["y"], [[1] * 3] * 2 + [[0] * 3] * 2)


def test_one_uncut_output_among_cut_ones() -> None:
    c = cache({"x": 1})
    feed = [("x", np.ones((2, 4), np.float32), 4, True), ("s", np.ones(4, np.float32), 0, False)]
    _, out = c.run_padded_mixed(4, 2, two, feed, {"y": 4})
    assert out["y"].shape == (1, 2, 4)
    assert out["z"].shape == (4, 2, 2)
    np.testing.assert_array_equal(out["z"][2:], np.ones((2, 2, 2)), "padding rows were computed")


def test_an_input_may_opt_out_of_padding() -> None:
    """"`run_padded_mixed` lets an input opt out of padding"."""
    c = cache()
    s = np.arange(4, dtype=np.float32)
    _, out = c.run_padded_mixed(3, 3, two, [("x", np.ones((3, 4), np.float32), 4, True), ("s", s, 0, False)], {"y": 4, "z": 4})
    np.testing.assert_array_equal(out["y"], np.broadcast_to(1 + s, (1, 3, 4)))
    np.testing.assert_array_equal(out["z"], np.broadcast_to((1 + s).reshape(2, 2), (3, 2, 2)))


@pytest.mark.parametrize(("rows", "inputs", "text"), [
    (5, [("x", np.ones((5, 3), np.float32), 3)], "5 rows asked of a bucket of 4"),
    (0, [("x", np.ones((0, 3), np.float32), 3)], "0 rows asked"),
    (2, [("x", np.ones((3, 3), np.float32), 3)], "has 3 rows of 3, the run has 2"),
    (2, [("x", np.ones((2, 4), np.float32), 4)], "takes 12 elements, not 4 rows of 4"),
    (2, [("x", np.ones((2, 3), np.float32), 0)], "inner is 0"),
    (2, [("q", np.ones((2, 3), np.float32), 3)], "no input 'q'"),
])
def test_rows_that_do_not_fit_are_explained(rows: int, inputs: list, text: str) -> None:
    with pytest.raises((ValueError, RunError), match=text):
        cache().run_padded(4, rows, relu, inputs, {"y": 3})


def test_padding_waste_is_data() -> None:
    c = cache()
    for rows in (1, 2, 4):
        c.run_padded(rows, rows, relu, [("x", np.ones((rows, 3), np.float32), 3)], {"y": 3})
    first = c.entry_stats()[0]
    assert (first.rows, first.padding_rows) == (12, 5)
    assert c.totals().padding_waste == 5 / 12
    assert [e.padding_rows for e in c.timeline() if e.kind == "run"] == [3, 2, 0]
