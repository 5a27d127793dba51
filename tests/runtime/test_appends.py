"""Bytes that outlive or outdate a read: what a ``KvAppend`` spoils is made in time, left unfused, or refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.memory import PlanOptions, elided_transposes, plan_graph
from runtime import CompileOptions, RunError, SanitizeError
from runtime.compile import compile_graph
from runtime.lowering import core
from tests.planner_core.memory.checker import complaints

RNG = np.random.default_rng(3)
Q, CACHE, ROWS = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 6), (4, 6), (1, 6)))
APPENDED = np.concatenate([CACHE[:1], ROWS, CACHE[2:]])


def appending(read: Callable[[Graph, int, int], int], late: Callable[[Graph, int, int], int]) -> Graph:
    """``y = late(read(cache))`` with an append to the cache between the two."""
    g = Graph("appending")
    q, c, r = g.input("q", Q.shape), g.input("cache", CACHE.shape), g.input("rows", ROWS.shape)
    seen = read(g, c, q)
    k = g.kv_append(c, r, axis=0, start=1)
    return g.set_outputs(late(g, seen, q), k, names=["y", "k"])


MOVED = {
    "transposed product": (lambda: appending(lambda g, c, q: g.transpose(c, perm=(1, 0)), lambda g, t, q: g.mm(q, t)), Q @ CACHE.T),
    "transposed view": (lambda: appending(lambda g, c, q: g.transpose(g.narrow(c, axis=0, start=0, len=2), perm=(1, 0)),
                                          lambda g, t, q: g.mm(q, t)), Q @ CACHE[:2].T),
    "region": (lambda: appending(lambda g, c, q: g.neg(c), lambda g, t, q: g.exp(t)), np.exp(-CACHE)),
    "region of a view": (lambda: appending(lambda g, c, q: g.neg(g.reshape(c, dims=(2, 12))), lambda g, t, q: g.exp(t)),
                         np.exp(-CACHE.reshape(2, 12))),
    "slice into rope's place": (lambda: appending(lambda g, c, q: g.narrow(c, axis=1, start=2, len=4), lambda g, t, q: g.tanh(t)),
                                np.tanh(CACHE[:, 2:])),
    "copy taken away": (lambda: appending(lambda g, c, q: g.pad(c, before=(0, 0), after=(0, 0)), lambda g, t, q: g.tanh(t)),
                        np.tanh(CACHE)),
}


@pytest.mark.parametrize("target", ["cpu", "metal", "cuda"])
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", MOVED)
def test_a_read_before_the_append_gets_the_old_rows(name: str, fusion: bool, target: str) -> None:
    """Reference: NumPy on the cache as it was given."""
    build, want = MOVED[name]
    c = compile_graph(build(), CompileOptions(target, fusion=None if fusion else no_fusion()))
    for sanitize in (False, False, True):
        out = c.run({"q": Q, "cache": CACHE, "rows": ROWS}, sanitize=sanitize)
        np.testing.assert_allclose(out["y"], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(out["k"], APPENDED)


def grouped(rows: int) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(rows)
    x, bank, new = (rng.standard_normal(s).astype(np.float32) for s in ((rows, 6), (2, 5, 6), (2, 1, 6)))
    expert = (np.arange(rows) % 2).astype(np.int32)
    g = Graph("grouped")
    xi, b, r, i = g.input("x", x.shape), g.input("bank", bank.shape), g.input("rows", new.shape), g.input("i", (rows,), DType.I32)
    t = g.transpose(b, perm=(0, 2, 1))
    k = g.kv_append(b, r, axis=1, start=2)
    g.set_outputs(g.grouped_mat_mul(xi, t, i), k, names=["y", "k"])
    return g, {"x": x, "bank": bank, "rows": new, "i": expert}, np.stack([x[m] @ bank[e].T for m, e in enumerate(expert)])


@pytest.mark.parametrize("target", ["cpu", "metal"])
@pytest.mark.parametrize("rows", [2, 9])
def test_a_bank_transposed_before_the_append_keeps_its_rows(rows: int, target: str) -> None:
    g, feed, want = grouped(rows)
    c = compile_graph(g, CompileOptions(target, fusion=no_fusion()))
    assert not c.plan.elided.any()
    np.testing.assert_allclose(c.run(feed)["y"], want, rtol=1e-5, atol=1e-6)


def test_only_transposes_that_an_append_spoils_are_made() -> None:
    """One rule for the planner's elisions: the product before the append still reads the cache as it is stored."""
    g = Graph("both")
    q, c, r = g.input("q", Q.shape), g.input("cache", CACHE.shape), g.input("rows", ROWS.shape)
    early, late = (g.transpose(c, perm=(1, 0)) for _ in range(2))
    y = g.mm(q, early)
    k = g.kv_append(c, r, axis=0, start=1)
    behind = g.transpose(k, perm=(1, 0))
    g.set_outputs(y, g.mm(q, late), g.mm(q, behind), names=["y", "z", "w"])
    options = PlanOptions(elide_bank_transposes=True, pin_output_ancestors=False)
    assert elided_transposes(g, options) == [early, behind]
    plan = plan_graph(g, options)
    assert [m for m in complaints(plan, g) if "elided" not in m] == []
    c2 = compile_graph(g, CompileOptions("cpu", fusion=no_fusion()))
    out = c2.run({"q": Q, "cache": CACHE, "rows": ROWS}, sanitize=True)
    for name, want in (("y", Q @ CACHE.T), ("z", Q @ CACHE.T), ("w", Q @ APPENDED.T)):
        np.testing.assert_allclose(out[name], want, rtol=1e-5, atol=1e-6)


LASTING: dict[str, Callable[[Graph], int]] = {
    "Constant": lambda g: g.constant(CACHE),
    "Expand": lambda g: g.expand(g.constant(CACHE[:1]), dims=CACHE.shape),
    "Activation": lambda g: g.relu(g.param("w", CACHE.shape, data=CACHE)),
    "Param": lambda g: g.param("w", CACHE.shape, data=CACHE),
    "Param through a view": lambda g: g.reshape(g.param("w", (24,), data=CACHE.reshape(-1)), dims=CACHE.shape),
}


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("name", LASTING)
def test_an_append_into_bytes_that_outlive_the_run_is_refused(name: str, fusion: bool, sanitize: bool) -> None:
    """The second run would find the first one's rows; an audit, which loads constants anew, would not tell."""
    g = Graph("lasting")
    cache = LASTING[name](g)
    k = g.kv_append(cache, g.input("rows", ROWS.shape), g.input("at", (1,), DType.I64), axis=0, name="append")
    g.set_outputs(g.tanh(k), names=["y"])
    c = compile_graph(g, CompileOptions(fusion=None if fusion else no_fusion()))
    with pytest.raises(RunError, match=r"append is planned, not runnable: it writes rows into .* outlive the run.*make the cache an input"):
        c.run({"rows": ROWS, "at": np.asarray([1])}, sanitize=sanitize)


def test_a_cache_that_only_folding_would_make_last_is_computed_in_every_run() -> None:
    g = Graph("folded")
    cache = g.pad(g.constant(CACHE[:2]), before=(0, 0), after=(2, 0))
    k = g.kv_append(cache, g.input("rows", ROWS.shape), g.input("at", (1,), DType.I64), axis=0)
    c = compile_graph(g.set_outputs(g.tanh(k), names=["y"]))
    for at in (1, 3):
        want = np.concatenate([CACHE[:2], np.zeros_like(CACHE[:2])])
        want[at] = ROWS
        np.testing.assert_allclose(c.run({"rows": ROWS, "at": np.asarray([at])})["y"], np.tanh(want), rtol=1e-6)


@pytest.mark.parametrize("name", ["late read", "Constant"])
def test_the_audit_asks_for_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that forgot to ask is told by the audit."""
    g = Graph("asks")
    c = LASTING[name](g) if name in LASTING else g.input("cache", CACHE.shape)
    k = g.kv_append(c, g.input("rows", ROWS.shape), axis=0, start=1)
    g.set_outputs(g.tanh(k), *([] if name in LASTING else [g.exp(c)]))
    monkeypatch.setattr(core, "overwrite_reasons", lambda *_: {})
    made = compile_graph(g, CompileOptions(fusion=no_fusion()))
    feed = {"rows": ROWS} if name in LASTING else {"rows": ROWS, "cache": CACHE}
    with pytest.raises(SanitizeError, match="wrote rows into those bytes" if name not in LASTING else "outlive the run") as e:
        made.run(feed, sanitize=True)
    assert e.value.thunk is not None and "lowering of" in e.value.blame
