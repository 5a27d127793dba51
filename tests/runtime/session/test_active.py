"""``caches.md``, "Active extent": what is skipped, what stays, and what refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.zoo import random_weights
from runtime import CompileOptions, RunError
from runtime.command_list.thunk import registry
from runtime.session import CompiledGraph, Session
from tests.runtime.active_cases import CASES, FULL, REFUSED, RNG, bucketed, feed_of

NOT_REACHED = {
    "ActivationInPlace", "Softmax",  # in place, which takes a plan that puts source and result together
    "CastTruncF32",  # what a float or a bool is stored wider for on other targets only
    "GeluApproxHost",  # arenas above 4 GiB
    "FusedBinaryActivation", "FusedTernaryActivation", "FusedMlpDownResidual", "FusedMlpGateUpGelu", "FusedMlpGateUpSwiGLU",
    "SplitLastAxis",  # made by command passes, which other lists than these cases' go through
    "DequantMatMulFp8", "DequantMatMulInt4", "DequantMatMulInt8", "DequantMatMulNvfp4", "DequantGroupedMatMulGguf",
    "BatchElementwiseRegion", "FusedDepthwiseConv1dBsc", "GatherAxis", "Sample", "ScatterAdd", "SelectiveScan",
    "SoftmaxCrossEntropyDense", "Nop",  # without a rule that keeps their rows apart: such graphs run whole
}
"""Safe thunks that no case comes to, and why."""
PLAIN = CompileOptions(fusion=no_fusion())


def compiled(g: Graph, bucket_dim: dict[str, int] | str | None = None, options: CompileOptions | None = None) -> CompiledGraph:
    return Session("cpu").compile(g, options, bucket_dim=bucket_dim)


# --- skipping -----------------------------------------------------------------------------------------


def test_relu_of_5_of_15_rows() -> None:
    """"after a full run that left ones everywhere, an active run of 5 of 15 rows on negative input through ReLU gives 5
    zeros and 10 ones left over"."""
    g = Graph("relu")
    g.set_outputs(g.relu(g.input("x", (15,))), names=["y"])
    c = compiled(g, {"x": 0})
    one = np.ones(15, np.float32)
    np.testing.assert_array_equal(c.run({"x": one})["y"], one)
    c.set_active_extent((5, 15))
    np.testing.assert_array_equal(c.run({"x": -one})["y"], [0] * 5 + [1] * 10)
    assert c.extent_reason == ""
    np.testing.assert_array_equal(c.run({"x": -one[:5] * 0 + 3})["y"], [3] * 5 + [1] * 10)
    c.set_active_extent(None)
    np.testing.assert_array_equal(c.run({"x": -one})["y"], np.zeros(15))


@pytest.mark.parametrize("build", [
    lambda g, x: g.relu(g.reshape(x, dims=(8, 4, 4))), lambda g, x: g.relu(g.reshape(x, dims=(1, 8, 16))),
    lambda g, x: g.reshape(g.relu(g.reshape(x, dims=(32, 4))), dims=(8, 16)),
    lambda g, x: g.relu(g.expand(g.reshape(x, dims=(1, 8, 16)), dims=(1, 8, 16))),
], ids=["split", "more axes", "merged", "expanded"])
def test_reshapes_to_plain_ints_keep_the_rows(build: Callable[[Graph, int], int]) -> None:
    """"plain-int builders name it with `bucket_dim=`": 3 of 8 rows are computed, the others stay."""
    g = Graph("reshaped")
    g.set_outputs(build(g, g.input("x", (8, 16))), names=["y"])
    x, y = (np.random.default_rng(s).standard_normal((8, 16)).astype(np.float32) for s in (0, 1))
    c = compiled(g, {"x": 0}, PLAIN)
    left, want = c.run({"x": x})["y"], compiled(g).run({"x": y})["y"]
    c.set_active_extent((3, 8))
    got = c.run({"x": y})["y"]
    assert c.extent_reason == ""
    np.testing.assert_array_equal(got.reshape(8, -1)[:3], want.reshape(8, -1)[:3])
    np.testing.assert_array_equal(got.reshape(8, -1)[3:], left.reshape(8, -1)[3:])


@pytest.mark.parametrize("kind", ["add", "mul", "sub", "div"])
def test_binary_of_2_of_4_rows(kind: str) -> None:
    """"Binary ops the same way (2 of 4)"."""
    g = Graph("binary")
    a, b = (g.input(n, (4, 3)) for n in "ab")
    g.set_outputs(getattr(g, kind)(a, b), names=["y"])
    c = compiled(g, {"a": 0, "b": 0})
    first = {n: RNG().uniform(1, 2, (4, 3)).astype(np.float32) for n in "ab"}
    then = {n: RNG(1).uniform(1, 2, (4, 3)).astype(np.float32) for n in "ab"}
    full = c.run(first)["y"].copy()
    want = compiled(g).run(then)["y"]
    c.set_active_extent((2, 4))
    got = c.run(then)["y"]
    np.testing.assert_array_equal(got[:2], want[:2])
    np.testing.assert_array_equal(got[2:], full[2:])


@pytest.mark.parametrize("mask", ["causal", "sliding_window"])
def test_attention_of_2_of_4_positions(mask: str) -> None:
    """"and attention (2 of 4 positions of `[1,4,8]`: the last two rows stay)"."""
    g = Graph("attention")
    q, k, v = (g.input(n, (1, 4, 8)) for n in "qkv")
    g.set_outputs(g.attention(q, k, v, num_heads=2, head_dim=4, mask_kind=mask, window=1), names=["y"])
    c = compiled(g, dict.fromkeys("qkv", 1), PLAIN)
    first, then = ({n: RNG(s).standard_normal((1, 4, 8)).astype(np.float32) for n in "qkv"} for s in (0, 1))
    full = c.run(first)["y"].copy()
    want = compiled(g, None, PLAIN).run(then)["y"]
    c.set_active_extent((2, 4))
    got = c.run(then)["y"]
    assert c.extent_reason == ""
    np.testing.assert_allclose(got[:, :2], want[:, :2], rtol=1e-6)
    np.testing.assert_array_equal(got[:, 2:], full[:, 2:])


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int) -> np.ndarray:
    """softmax(q kᵀ / √d) v a head, over ``[rows, heads * d]``."""
    d = q.shape[1] // heads
    out = []
    for h in (slice(i * d, (i + 1) * d) for i in range(heads)):
        e = np.exp(q[:, h] @ k[:, h].T / np.sqrt(d))
        out.append(e / e.sum(1, keepdims=True) @ v[:, h])
    return np.concatenate(out, axis=1)


@pytest.mark.parametrize("packed", [False, True])
def test_attention_without_a_mask_sees_the_active_keys_alone(packed: bool) -> None:
    """2 of 4 positions, exact: as if there were 2; "the last two rows stay"."""
    g = Graph("attention")
    if packed:
        g.set_outputs(g.fused_attention_block(g.input("x", (1, 4, 24)), num_heads=2, head_dim=4), names=["y"])
    else:
        g.set_outputs(g.attention(*(g.input(n, (1, 4, 8)) for n in "qkv"), num_heads=2, head_dim=4), names=["y"])
    c = compiled(g, {"x": 1} if packed else dict.fromkeys("qkv", 1), PLAIN)
    first, then = ({n: RNG(s).standard_normal((1, 4, 24 if packed else 8)).astype(np.float32) for n in ("x" if packed else "qkv")}
                   for s in (0, 1))
    full = c.run(first)["y"]
    c.set_active_extent((2, 4))
    got = c.run(then)["y"]
    assert c.extent_reason == ""
    q, k, v = np.split(then["x"][0], 3, axis=1) if packed else (then[n][0] for n in "qkv")
    np.testing.assert_allclose(got[0, :2], attended(q[:2], k[:2], v[:2], 2), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[0, 2:], full[0, 2:])


def test_rows_behind_the_active_ones_are_never_another_tensors() -> None:
    """The output lies where a wide tensor was: its last rows are zero then, or those of the last whole run."""
    rng = RNG()
    w = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("a", (8, 64)), ("b", (64, 64)), ("c", (64, 4)), ("d", (4, 8)))}
    g = Graph("wide")
    h = g.input("x", (8, 8))
    for n, data in w.items():
        h = g.tanh(g.mm(h, g.param(n, data.shape, data=data)))
    c = compiled(g.set_outputs(h, names=["y"]), {"x": 0}, PLAIN)

    def want(x: np.ndarray) -> np.ndarray:
        for data in w.values():
            x = np.tanh(x @ data)
        return x

    old, new = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    for extent in (3, 8, 3, 5):
        c.set_active_extent((extent, 8))
        got = c.run({"x": old if extent == 8 else new})["y"]
        assert c.extent_reason == ""
        np.testing.assert_allclose(got[:extent], want(old if extent == 8 else new)[:extent], rtol=1e-3, atol=1e-4)
        assert (got[extent:] == 0).all()
    (shared,) = {e.spoils for e in c._active.values()}
    assert shared == {"y"}, "the plan reuses the bytes, or the test shows nothing"


def test_active_lists_go_through_the_passes_of_the_full_one() -> None:
    g = Graph("passes")
    x, z = g.input("x", (8, 4)), g.input("z", (8, 4))
    y = g.tanh(g.add(g.softmax(x), z))
    g.set_outputs(g.mm(y, g.param("w", (4, 4), data=np.eye(4, dtype=np.float32))), names=["y"])
    c = compiled(g, {"x": 0, "z": 0}, CompileOptions("metal"))
    assert "FusedBinaryActivation" in {t.name for t in c.commands.thunks}
    c.set_active_extent((3, 8))
    feed = {n: RNG(i).standard_normal((8, 4)).astype(np.float32) for i, n in enumerate("xz")}
    got = c.run(feed)["y"]
    assert c.extent_reason == ""
    e = np.exp(feed["x"])
    np.testing.assert_allclose(got[:3], np.tanh(e / e.sum(1, keepdims=True) + feed["z"])[:3], rtol=1e-5, atol=1e-6)
    assert [t.name for t in c._active[3, 8].executor.commands.thunks] == [t.name for t in c.commands.thunks]


# --- every safe thunk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("actual", [1, 3, 5])
@pytest.mark.parametrize("name", CASES)
def test_first_rows_equal_the_full_run_and_the_rest_stay(name: str, actual: int) -> None:
    """"A thunk is `scales` (runs on the first `actual` of `full` rows, tail bytes left as they were), `full_ok` …":
    active extent equal to the full run on the first rows."""
    g = bucketed(CASES[name]).bind({"S": FULL})
    random_weights(g)
    active, whole = compiled(g, "S", PLAIN), compiled(g, None, PLAIN)
    old, new = feed_of(g, 1), feed_of(g, 2)
    before = {k: v.copy() for k, v in active.run(old).items()}
    active.set_active_extent((actual, FULL))
    got, want = active.run(new), whole.run(new)
    assert active.extent_reason == ""
    for o, out in zip(active.graph.outputs, active.graph.output_names, strict=True):
        axis = next(i for i, d in enumerate(active.graph[o].shape.dims) if d.symbol)
        rows = want[out].shape[axis] * actual // FULL
        first = (slice(None),) * axis + (slice(0, rows),)
        rest = (slice(None),) * axis + (slice(rows, None),)
        np.testing.assert_allclose(got[out][first].astype(np.float64), want[out][first].astype(np.float64), rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(got[out][rest], before[out][rest])


def test_the_cases_run_most_safe_thunks() -> None:
    """What no case reaches is listed, so that a new safe thunk needs one."""
    seen = set()
    for case in CASES.values():
        g = bucketed(case).bind({"S": FULL})
        random_weights(g)
        seen |= {t.name for t in compiled(g, "S", PLAIN).commands.thunks}
    safe = {n for n, t in registry().items() if t.partial_extent != "no" and not t.pending}
    backward = {n for n in safe if "Backward" in n}
    assert safe - seen - backward == NOT_REACHED


def test_every_proven_thunk_has_a_case() -> None:
    """"more may become `scales` where a test proves it" (command-list.md): those whose declaration says ``no``."""
    seen = set()
    for case in CASES.values():
        g = bucketed(case).bind({"S": FULL})
        random_weights(g)
        seen |= {t.name for t in compiled(g, "S", PLAIN).commands.thunks if t.partial_extent == "no"}
    assert seen == {t.name for t in registry().values() if t.proven}


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_unsafe_graphs_run_whole(name: str) -> None:
    """"otherwise the whole run is at full extent — never a wrong mixture"; "Transposes are safe only if the bucket axis
    stays first"."""
    build, reason = REFUSED[name]
    g = bucketed(build).bind({"S": FULL})
    random_weights(g)
    c, whole = compiled(g, "S", PLAIN), compiled(g, None, PLAIN)
    c.run(feed_of(g, 1))
    c.set_active_extent((5, FULL))
    got, want = c.run(feed_of(g, 2)), whole.run(feed_of(g, 2))
    assert reason in c.extent_reason
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_a_graph_without_the_extent_runs_whole() -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", ("S", 8))), names=["y"])
    c = compiled(g.bind({"S": 8}))
    c.set_active_extent((2, 16))
    assert (c.run({"x": -np.ones((8, 8), np.float32)})["y"] == 0).all()
    assert "no dim has extent 16" in c.extent_reason
    two = Graph("two")
    two.set_outputs(two.relu(two.input("x", ("S", 8))), two.relu(two.input("z", ("T", 8))), names=["y", "w"])
    bound = two.bind({"S": 8, "T": 8})
    c = compiled(bound)
    c.set_active_extent((2, 8))
    c.run({n: np.ones((8, 8), np.float32) for n in "xz"})
    assert "name the bucket's with bucket_dim" in c.extent_reason
    named = compiled(bound, "T")
    named.set_active_extent((2, 8))
    named.run({n: np.ones((8, 8), np.float32) for n in "xz"})
    out = named.run({n: -np.ones((8, 8), np.float32) for n in "xz"})
    assert named.extent_reason == ""
    assert (out["y"] == 0).all(), "the other dim isn't cut"
    assert out["w"].sum() == 0


@pytest.mark.parametrize(("actual", "why"), [(3, "doesn't follow"), (4, "")])
def test_a_reshape_that_joins_rows_runs_whole_unless_they_come_out_even(actual: int, why: str) -> None:
    g = Graph("joined")
    g.set_outputs(g.relu(g.reshape(g.input("x", (8, 16)), dims=(4, 32))), names=["y"])
    c = compiled(g, {"x": 0})
    c.set_active_extent((actual, 8))
    c.run({"x": np.ones((8, 16), np.float32)})
    assert why in c.extent_reason
    assert bool(why) == bool(c.extent_reason)


def test_a_table_of_plain_rows_runs_whole() -> None:
    g = Graph("g")
    x = g.input("x", (6, 4))
    g.set_outputs(g.add(x, g.param("p", (6, 4), data=np.ones((6, 4), np.float32))), names=["y"])
    c = compiled(g, {"x": 0}, PLAIN)
    c.set_active_extent((2, 6))
    assert (c.run({"x": np.ones((6, 4), np.float32)})["y"] == 2).all()
    assert "an entry a row" in c.extent_reason
    both = compiled(g, {"x": 0, "p": 0}, PLAIN)
    both.run({"x": np.ones((6, 4), np.float32)})
    both.set_active_extent((2, 6))
    assert both.run({"x": -np.ones((6, 4), np.float32)})["y"][:, 0].tolist() == [0, 0, 2, 2, 2, 2]


@pytest.mark.parametrize("pair", [(0, 4), (5, 4), (-1, 4)])
def test_impossible_extents_are_refused(pair: tuple[int, int]) -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", (4,))))
    with pytest.raises(RunError, match="active extent"):
        compiled(g, {"x": 0}).set_active_extent(pair)


def test_lists_are_made_once_an_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    import runtime.session as session

    made: list[int] = []
    real: Callable[..., object] = session.active_commands
    monkeypatch.setattr(session, "active_commands", lambda *a: made.append(a[3]) or real(*a))
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", (20,))), names=["y"])
    c = compiled(g, {"x": 0})
    for actual in (3, 4, 3, *range(5, 14), 13, 3):
        c.set_active_extent((actual, 20))
        c.run({"x": np.ones(20, np.float32)})
    assert made == [3, 4, *range(5, 14), 3], "the least recently used of eight is forgotten"


def test_a_graph_that_never_can_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import runtime.session as session

    made: list[int] = []
    real = session.active_commands
    monkeypatch.setattr(session, "active_commands", lambda *a: made.append(a[3]) or real(*a))
    g = Graph("g")
    g.set_outputs(g.softmax(g.input("x", (20, 2)), axis=0), names=["y"])
    c = compiled(g, {"x": 0})
    for actual in (3, 4, 5, 3):
        c.set_active_extent((actual, 20))
        c.run({"x": np.ones((20, 2), np.float32)})
        assert "along the rows" in c.extent_reason
    assert made == [3]


def test_what_one_dim_refuses_another_may_allow() -> None:
    g = Graph("g")
    a, b = g.input("a", ("S", 2)), g.input("b", ("T", 2))
    g.set_outputs(g.softmax(a, axis=0), g.relu(b), names=["y", "z"])
    c = compiled(g.bind({"S": 5, "T": 7}), None, PLAIN)
    feed = {"a": np.ones((5, 2), np.float32), "b": np.ones((7, 2), np.float32)}
    c.run(feed)
    c.set_active_extent((2, 5))
    c.run(feed)
    assert "along the rows" in c.extent_reason
    c.set_active_extent((2, 7))
    out = c.run({"a": feed["a"], "b": -feed["b"]})
    assert c.extent_reason == ""
    assert out["z"][:, 0].tolist() == [0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("actual", [1, 3])
def test_a_shape_that_does_not_follow_runs_whole(actual: int) -> None:
    """An Expand to plain ints, of one row: nothing says that the six are the bucket's."""
    g = Graph("g")
    x = g.input("x", (6, 2))
    g.set_outputs(g.relu(g.mul(g.exp(x), g.expand(g.exp(g.input("z", (1, 2))), dims=(6, 2)))), names=["y"])
    c, whole = (compiled(g, {"x": 0}, PLAIN) for _ in range(2))
    feed = {"x": np.arange(12, dtype=np.float32).reshape(6, 2) / 12, "z": np.ones((1, 2), np.float32)}
    c.set_active_extent((actual, 6))
    np.testing.assert_array_equal(c.run(feed)["y"], whole.run(feed)["y"])
    assert "an entry a row without saying so" in c.extent_reason


def test_audited_runs_are_whole() -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", (4,))), names=["y"])
    c = compiled(g, {"x": 0})
    c.set_active_extent((2, 4))
    assert c.run({"x": np.full(4, 2, np.float32)}, sanitize=True)["y"].tolist() == [2] * 4
    assert c.extent_reason == "audited runs are whole"


def test_static_packs_and_shared_weights_in_active_runs() -> None:
    """A weight set between runs reaches the active list too."""
    g = Graph("g")
    x = g.input("x", ("S", 4))
    w = g.param("w", (4, 4), DType.F16)
    g.set_outputs(g.mm(x, g.cast(w, to=DType.F32)), names=["y"])
    c = compiled(g.bind({"S": 6}), "S", PLAIN)
    one = np.ones((6, 4), np.float32)
    c.set_param("w", np.ones((4, 4), np.float16))
    c.run({"x": one})
    c.set_active_extent((2, 6))
    assert c.run({"x": one})["y"][0, 0] == 4
    c.set_param("w", np.full((4, 4), 2, np.float16))
    got = c.run({"x": one})["y"]
    assert c.extent_reason == ""
    assert got[:, 0].tolist() == [8, 8, 4, 4, 4, 4]
