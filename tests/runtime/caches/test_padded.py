"""``caches.md``: "`run_padded(key, actual_rows, build, inputs, output_inners)`" and "`run_padded_mixed`"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import Graph
from runtime import CompileOptions, PaddingWarning, RunError
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


# --- rows that see each other ---------------------------------------------------------------------------

X5 = np.random.default_rng(5).standard_normal((5, 8)).astype(np.float32)


def softmaxed(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def encoder(upper: int) -> Graph:
    """Attention of every row to every row, without a mask, and a norm."""
    g = Graph("encoder")
    x = g.input("x", (1, upper, 8))
    return g.set_outputs(g.tanh(g.add(g.attention(x, x, x, num_heads=1, head_dim=8), x)), names=["y"])


def encoded(x: np.ndarray) -> np.ndarray:
    return np.tanh(softmaxed(x @ x.T / np.sqrt(8), 1) @ x + x)


def test_an_encoder_without_a_mask_is_exact() -> None:
    """5 rows in a bucket of 8: as a graph of 5 rows, whichever rows the bucket held before."""
    c = BucketedCompileCache("cpu", [(1, 9)], bucket_dim={"x": 1})
    c.run_padded(8, 8, encoder, [("x", np.full((8, 8), 3, np.float32), 8)], {"y": 8})
    _, out = c.run_padded(5, 5, encoder, [("x", X5, 8)], {"y": 8})
    assert c.compiled_for_key(5).extent_reason == ""
    np.testing.assert_allclose(out["y"][0], encoded(X5), rtol=1e-5, atol=1e-6)


def pooled(g: Graph, x: int) -> int:
    return g.reduce(x, kind="mean", axes=(0,))


MIXING: dict[str, tuple[Callable[[Graph, int], int], dict[str, int], int, str]] = {
    "attention whose rows have no name": (
        lambda g, x: g.reshape(g.attention(*(g.reshape(x, dims=(1, 8, 8)),) * 3, num_heads=1, head_dim=8), dims=(8, 8)),
        {}, 8, "see the rows behind them.*no dim has extent 8.*bucket_dim"),
    "softmax over rows": (lambda g, x: g.softmax(x, axis=0), {"x": 0}, 8, "works along the rows"),
    "mean over rows": (pooled, {"x": 0}, 0, "no axis.*output 'y' is returned uncut"),
    "scores of rows": (lambda g, x: g.mm(x, g.transpose(x, perm=(1, 0))), {"x": 0}, 8, "several axes"),
    "cumulative sum": (lambda g, x: g.transpose(g.cumsum(g.transpose(x, perm=(1, 0))), perm=(1, 0)), {"x": 0}, 8, "mixes the rows"),
}


@pytest.mark.parametrize("name", MIXING)
def test_padding_that_rows_may_see_is_said(name: str) -> None:
    """"what can't be exact is refused or warned with `extent_reason`"."""
    build, axes, inner, reason = MIXING[name]

    def make(upper: int) -> Graph:
        g = Graph("mixing")
        return g.set_outputs(build(g, g.input("x", (upper, 8))), names=["y"])

    c = BucketedCompileCache("cpu", [(1, 9)], bucket_dim=axes or None, options=CompileOptions(fusion=no_fusion()))
    with pytest.warns(PaddingWarning, match=f"5 rows ran with 3 zero rows behind them.*{reason}"):
        c.run_padded(5, 5, make, [("x", X5, 8)], {"y": inner})
    assert c.compiled_for_key(5).extent_reason
    c.run_padded(8, 8, make, [("x", np.ones((8, 8), np.float32), 8)], {"y": inner})  # nothing is padded


APART: dict[str, tuple[Callable[[Graph, int], int], Callable[[np.ndarray], np.ndarray]]] = {
    "a table of plain rows": (lambda g, x: g.add(x, g.constant(np.arange(64, dtype=np.float32).reshape(8, 8))),
                              lambda x: x + np.arange(40).reshape(5, 8)),
    "there and back": (lambda g, x: g.transpose(g.tanh(g.transpose(x, perm=(1, 0))), perm=(1, 0)), np.tanh),
    "causal": (lambda g, x: g.reshape(g.attention(*(g.reshape(x, dims=(1, 8, 8)),) * 3, num_heads=1, head_dim=8, mask_kind="causal"),
                                      dims=(8, 8)),
               lambda x: softmaxed(np.where(np.tri(5, dtype=bool), x @ x.T / np.sqrt(8), -np.inf), 1) @ x),
}


@pytest.mark.parametrize("name", APART)
def test_whole_runs_whose_rows_keep_apart_are_exact_and_silent(name: str) -> None:
    """Reference: NumPy on the five rows; warnings are errors."""
    build, want = APART[name]

    def make(upper: int) -> Graph:
        g = Graph("apart")
        return g.set_outputs(build(g, g.input("x", (upper, 8))), names=["y"])

    c = BucketedCompileCache("cpu", [(1, 9)], options=CompileOptions(fusion=no_fusion()))
    _, out = c.run_padded(5, 5, make, [("x", X5, 8)], {"y": 8})
    assert c.compiled_for_key(5).extent_reason
    np.testing.assert_allclose(out["y"], want(X5), rtol=1e-5, atol=1e-6)
