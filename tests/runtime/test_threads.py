"""One compilation, several threads: every run has an arena of its own, and one at a time none is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from planner_core.ir import DType, Graph, Shape
from planner_core.memory import PlanOptions
from runtime import CompileOptions, RunError, register_kernel
from runtime.compile import Compilation, compile_graph
from runtime.executors.pool import MOST_IDLE
from runtime.session import Session

RUNS, THREADS, WIDTH = 1000, 8, 48
RNG = np.random.default_rng(11)
WEIGHTS = {n: (RNG.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32) for n in "wv"}


@pytest.fixture(autouse=True)
def _eager_switches() -> Iterator[None]:
    """Threads take turns often, so that a shared byte shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def mlp() -> Graph:
    g = Graph("mlp")
    x = g.input("x", (32, WIDTH))
    h = g.tanh(g.mm(x, g.param("w", (WIDTH, WIDTH), data=WEIGHTS["w"])))
    return g.set_outputs(g.softmax(g.mm(h, g.param("v", (WIDTH, WIDTH), data=WEIGHTS["v"]))), names=["y"])


def mlp_of(x: np.ndarray) -> np.ndarray:
    z = np.tanh(x @ WEIGHTS["w"]) @ WEIGHTS["v"]
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def fed(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((32, WIDTH)).astype(np.float32) * (1 + seed % 7)


def wrong(run: Callable[[int], np.ndarray], want: Callable[[int], np.ndarray], runs: int = RUNS) -> int:
    """How many of the runs, spread over threads, give something else; errors are raised."""
    with ThreadPoolExecutor(THREADS) as threads:
        got = list(threads.map(run, range(runs)))
    return sum(not np.allclose(g, want(i), rtol=1e-4, atol=1e-5) for i, g in enumerate(got))


@pytest.mark.parametrize("plan", [None, PlanOptions()], ids=["weights apart", "weights in the arena"])
def test_a_thousand_runs_of_one_compilation(plan: PlanOptions | None) -> None:
    c = compile_graph(mlp(), CompileOptions(plan=plan))
    assert wrong(lambda i: c.run({"x": fed(i)})["y"], lambda i: mlp_of(fed(i))) == 0


def test_audits_in_threads_blame_nobody() -> None:
    c = compile_graph(mlp())
    assert wrong(lambda i: c.run({"x": fed(i)}, sanitize=bool(i % 2))["y"], lambda i: mlp_of(fed(i)), 100) == 0


def looping(scale: float) -> Graph:
    """``steps`` times ``s = tanh(s) * scale + x``; the body's graph is made anew with the graph."""
    b = Graph("body")
    b.input("i", (), DType.I64)
    keep = b.input("keep", (), DType.BOOL)
    s, x = b.input("s", (16,)), b.input("captured", (16,))
    b.set_outputs(b.reshape(keep, dims=()), b.add(b.mul(b.tanh(s), b.constant(np.float32(scale))), x))
    g = Graph("looping")
    x = g.input("x", (16,))
    trip, go = g.constant(np.asarray(4, np.int64)), g.constant(np.asarray(True))
    return g.set_outputs(g.loop(trip, go, x, x, shape=Shape.of((16,)), body=b, carried=1), names=["y"])


def looped(x: np.ndarray, scale: float) -> np.ndarray:
    s = x
    for _ in range(4):
        s = np.tanh(s) * np.float32(scale) + x
    return s


@pytest.mark.parametrize("compilations", [1, 3])
def test_a_thousand_runs_over_one_body(compilations: int) -> None:
    """A body is compiled once a process: compilations of one graph share it."""
    g = looping(0.5)
    made = [compile_graph(g) for _ in range(compilations)]
    x = np.random.default_rng(0).standard_normal((RUNS, 16)).astype(np.float32)
    assert wrong(lambda i: made[i % compilations].run({"x": x[i]})["y"], lambda i: looped(x[i], 0.5)) == 0


def test_runs_that_take_turns_make_no_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    c = compile_graph(mlp())
    first = c.executor
    monkeypatch.setattr(type(first), "twin", lambda self: pytest.fail("an arena for a run that nothing ran beside"))
    for i in range(5):
        np.testing.assert_allclose(c.run({"x": fed(i)}, sanitize=i == 3, timed=i == 4)["y"], mlp_of(fed(i)), rtol=1e-4, atol=1e-5)
    assert c.executor is first
    assert (first.seconds > 0).any()
    with pytest.raises(RunError):
        c.run({})
    c.run({"x": fed(0)})  # the error gave it back


def test_a_pool_lets_go_of_what_a_crowd_needed() -> None:
    pool = compile_graph(mlp()).executors
    lent = [pool.take() for _ in range(MOST_IDLE + 3)]
    assert len(set(map(id, lent))) == MOST_IDLE + 3
    assert all(not np.shares_memory(e.arena, pool.first.arena) for e in lent[1:])
    assert all(e.weight_buffer is pool.first.weight_buffer for e in lent)
    for e in lent:
        pool.give(e)
    assert len(pool._idle) == MOST_IDLE
    assert pool.take() is pool.first


@pytest.mark.parametrize("plan", [None, PlanOptions()], ids=["weights apart", "weights in the arena"])
def test_a_weight_set_later_reaches_every_arena(plan: PlanOptions | None) -> None:
    c = compile_graph(mlp(), CompileOptions(plan=plan, fusion=None))
    with c.executors.lent(), c.executors.lent() as twin:
        np.testing.assert_allclose(twin.run({"x": fed(1)})["y"], mlp_of(fed(1)), rtol=1e-4, atol=1e-5)
        c.executor.set_param("v", np.zeros((WIDTH, WIDTH), np.float32))
        np.testing.assert_allclose(twin.run({"x": fed(1)})["y"], np.full((32, WIDTH), 1 / WIDTH), rtol=1e-6)


def nesting(name: str) -> Graph:
    """``y = kernel(x) + x``."""
    g = Graph(name)
    x = g.input("x", (8,))
    return g.set_outputs(g.add(g.custom(x, op_name=name, shape=g[x].shape), x), names=["y"])


def runs_itself(run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable[..., None]:
    """A kernel ``x -> the graph at x - 1`` down to negative x: the sum of x, x - 1, … in the end."""
    def kernel(inputs: object, outputs: object, attrs: object) -> None:
        x = np.array(inputs[0])  # type: ignore[index]
        outputs[0][...] = run({"x": x - 1})["y"] if x[0] > 0 else 0  # type: ignore[index]

    return kernel


def test_a_kernel_may_run_the_compilation_that_calls_it() -> None:
    c: Compilation = compile_graph(nesting("test.compilation.nests"))
    register_kernel("test.compilation.nests", runs_itself(c.run))
    for depth in (3, 7, 3):
        np.testing.assert_array_equal(c.run({"x": np.full(8, depth, np.float32)})["y"], np.full(8, depth * (depth + 1) / 2))
    assert wrong(lambda i: c.run({"x": np.full(8, i % 5, np.float32)})["y"], lambda i: np.full(8, i % 5 * (i % 5 + 1) / 2), 100) == 0


def test_a_kernel_may_run_the_compiled_graph_that_calls_it() -> None:
    """Unless rows are resident in the arena that is in use: that is refused, not overwritten."""
    c = Session().compile(nesting("test.graph.nests"))
    register_kernel("test.graph.nests", runs_itself(c.run))
    for depth in (3, 3):
        np.testing.assert_array_equal(c.run({"x": np.full(8, depth, np.float32)})["y"], np.full(8, depth * (depth + 1) / 2))
    c.set_active_extent((4, 8))
    with pytest.raises(RunError, match="run from within its own run"):
        c.run({"x": np.ones(8, np.float32)})


def test_times_are_of_the_runs_that_were_asked_for() -> None:
    c = compile_graph(mlp())
    with ThreadPoolExecutor(2) as threads:
        beside = threads.submit(lambda: [c.run({"x": fed(i)}) for i in range(200)])
        p = c.profile({"x": fed(0)}, repeat=5)
        beside.result()
    assert (p.seconds > 0).sum() == sum(t.where != "none" for t in c.commands.thunks)
