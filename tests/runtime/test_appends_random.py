"""Random graphs with appends: what runs as written runs fused, audited or not, with the values of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import Graph
from runtime import CompileOptions
from runtime.command_list.thunks.host import Unrunnable
from runtime.compile import Compilation, compile_graph

Value = tuple[int, np.ndarray]
OPS = ("neg", "tanh", "add", "turn", "turn twice", "product", "append", "append", "slices", "columns", "copy", "softmax", "view", "times one")


def step(g: Graph, op: str, x: Value, z: Value, rows: Value, start: int) -> Value:
    (i, a), (j, b) = x, z
    if op == "append":
        made = a.copy()
        made[start] = rows[1]
        return g.kv_append(i, rows[0], axis=0, start=start), made
    e = np.exp(a - a.max(1, keepdims=True))
    found: dict[str, tuple[object, np.ndarray]] = {
        "neg": (lambda: g.neg(i), -a),
        "tanh": (lambda: g.tanh(i), np.tanh(a)),
        "add": (lambda: g.add(i, j), a + b),
        "turn": (lambda: g.transpose(i, perm=(1, 0)), a.T),
        "turn twice": (lambda: g.transpose(g.transpose(i, perm=(1, 0)), perm=(1, 0)), a),
        "product": (lambda: g.mm(i, j), a @ b),
        "slices": (lambda: g.concat(*(g.narrow(i, axis=0, start=s, len=2) for s in (0, 2)), axis=0), a),
        "columns": (lambda: g.concat(*(g.narrow(i, axis=1, start=s, len=2) for s in (2, 0)), axis=1), np.roll(a, 2, axis=1)),
        "copy": (lambda: g.pad(i, before=(0, 0), after=(0, 0)), a),
        "softmax": (lambda: g.softmax(i), e / e.sum(1, keepdims=True)),
        "view": (lambda: g.reshape(g.reshape(i, dims=(16,)), dims=(4, 4)), a),
        "times one": (lambda: g.mul(i, g.constant(np.float32(1))), a),
    }
    build, want = found[op]
    return build(), want  # type: ignore[operator]


def random_graph(seed: int) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(graph, feed, outputs wanted)."""
    rng, g, feed = np.random.default_rng(seed), Graph(f"random {seed}"), {}

    def given(name: str, *shape: int) -> Value:
        feed[name] = rng.standard_normal(shape).astype(np.float32)
        return g.input(name, shape), feed[name]

    pool = [given("cache", 4, 4), given("x", 4, 4)]
    rows = [given(f"rows{k}", 1, 4) for k in range(3)]
    for _ in range(rng.integers(4, 12)):
        x, z = (pool[rng.integers(len(pool))] for _ in range(2))
        pool.append(step(g, str(rng.choice(OPS)), x, z, rows[rng.integers(3)], int(rng.integers(4))))
    outs = dict(pool[-int(rng.integers(1, 4)) :])
    names = [f"o{i}" for i in outs]
    g.set_outputs(*outs, names=names)
    return g, feed, dict(zip(names, outs.values(), strict=True))


def runs(c: Compilation, feed: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> bool:
    """It runs, with the wanted values, again and again; False where it is refused."""
    if any(isinstance(t, Unrunnable) for t in c.commands.thunks):
        return False
    found = [c.run(feed, sanitize=sanitize) for sanitize in (False, False, True)]
    for got in found:
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-3)
    return True


@pytest.mark.parametrize("target", ["cpu", "metal"])
@pytest.mark.parametrize("seed", range(40))
def test_what_runs_as_written_runs_fused(seed: int, target: str) -> None:
    g, feed, want = random_graph(seed)
    written = runs(compile_graph(g, CompileOptions(target, fusion=no_fusion())), feed, want)
    fused = runs(compile_graph(g, CompileOptions(target)), feed, want)
    assert fused or not written
