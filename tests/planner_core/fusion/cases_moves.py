"""Rewrites that an append in between makes impossible: the pipeline refuses them for whatever rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph
from tests.planner_core.fusion.harness import Applied, Refused


def region(through: str = "", early: bool = False) -> Graph:
    """``exp(neg(cache))``, with the append between the two ops or behind both."""
    g = Graph("region")
    c, r = g.input("cache", (4, 6)), g.input("rows", (1, 6))
    seen = {"view": lambda: g.reshape(c, dims=(2, 12)), "slice": lambda: g.narrow(c, axis=0, start=0, len=2)}.get(through, lambda: c)()
    a = g.neg(seen)
    y = g.exp(a) if early else -1
    k = g.kv_append(c, r, axis=0, start=1)
    return g.set_outputs(k, y if early else g.exp(a))


def product(bank: bool = False) -> Graph:
    """The cache is transposed before the append, the product comes behind it."""
    g = Graph("product")
    lead = (2,) if bank else ()
    q, c, r = g.input("q", (3, 6)), g.input("cache", (*lead, 4, 6)), g.input("rows", (*lead, 1, 6))
    kt = g.transpose(c, perm=(0, 2, 1) if bank else (1, 0))
    k = g.kv_append(c, r, axis=len(lead), start=1)
    y = g.grouped_mat_mul(q, kt, g.input("i", (3,), DType.I32)) if bank else g.mm(q, kt)
    return g.set_outputs(k, y)


def removed(build: Callable[[Graph, int], int], shape: tuple[int, ...] = (4, 6)) -> Graph:
    """Something that copies the cache, and that a rule takes away: its reader would read the cache behind the append."""
    g = Graph("removed")
    c, r = g.input("cache", shape), g.input("rows", (1, *shape[1:]))
    copy = build(g, c)
    return g.set_outputs(g.kv_append(c, r, axis=0, start=1), g.softmax(copy))


def twins() -> Graph:
    """Two equal copies, an append into each: merged, the second would find the first one's rows."""
    g = Graph("twins")
    x, a, b = g.input("x", (4, 6)), g.input("a", (1, 6)), g.input("b", (1, 6))
    first = g.kv_append(g.exp(x), a, axis=0, start=0)
    return g.set_outputs(first, g.kv_append(g.exp(x), b, axis=0, start=2))


def folded() -> Graph:
    """A cache computed from a constant in every run: folded, it would be a constant that the run writes into."""
    g = Graph("folded")
    cache = g.pad(g.constant(np.ones((2, 6), np.float32)), before=(0, 0), after=(2, 0))
    return g.set_outputs(g.softmax(g.kv_append(cache, g.input("rows", (1, 6)), axis=0, start=1)))


APPLIED: list[Applied] = [
    Applied("elementwise_region", lambda: region(early=True), made=("ElementwiseRegion", "KvAppend"), id="before the append"),
]
REFUSED: list[Refused] = [
    *(Refused("elementwise_region", Refusal.OVERWRITTEN, lambda t=t: region(t), id=t or "cache") for t in ("", "view", "slice")),
    *(Refused("transpose_into_matmul", Refusal.OVERWRITTEN, product, target=t, id=t.value) for t in (FusionTarget.CPU, FusionTarget.CUDA)),
    Refused("bank_transposes", Refusal.OVERWRITTEN, lambda: product(bank=True)),
    Refused("layout_pairs", Refusal.OVERWRITTEN,
            lambda: removed(lambda g, c: g.transpose(g.transpose(c, perm=(1, 0)), perm=(1, 0)))),
    Refused("reshape_chains", Refusal.OVERWRITTEN, lambda: removed(lambda g, c: g.pad(c, before=(0, 0), after=(0, 0)))),
    Refused("common_subexpressions", Refusal.OVERWRITTEN, twins),
    Refused("constant_folding", Refusal.LASTING, folded),
]
