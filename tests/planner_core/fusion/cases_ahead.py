"""What is computed before the first run, and what isn't. Data are small integers, exact at every width."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph
from tests.planner_core.fusion.harness import Applied, Refused


def static(data: bool = True, view: bool = False) -> Graph:
    g = Graph("static")
    x = g.input("x", (2, 3))
    known = np.arange(12, dtype=np.float32).reshape(4, 3) if data else None
    w = g.add(g.transpose(g.param("w", (4, 3), data=known), perm=(1, 0)), g.constant(np.ones((1,), np.float32)))
    if view:
        w = g.reshape(w, dims=(3, 2, 2))
        return g.set_outputs(g.mm(g.reshape(x, dims=(2, 3)), g.reshape(w, dims=(3, 4))))
    return g.set_outputs(g.mm(x, w))


def few_rows() -> Graph:
    """A bank that Metal's memory plan drops by itself, though its values are known."""
    g = Graph("few rows")
    w = g.param("w", (2, 4, 3), data=np.arange(24, dtype=np.float32).reshape(2, 4, 3))
    y = g.grouped_mat_mul(g.input("x", (4, 3)), g.transpose(w, perm=(0, 2, 1)), g.input("idx", (4,), DType.I64))
    return g.set_outputs(y, w)


def shared_weight() -> Graph:
    g = Graph("shared")
    x, w = g.input("x", (2, 3)), g.param("w", (3, 3), data=np.eye(3, dtype=np.float32))
    return g.set_outputs(g.mm(g.mm(x, w), g.transpose(w, perm=(1, 0))))


def wide() -> Graph:
    g = Graph("wide")
    x, w = g.input("x", (4, 3)), g.param("w", (3,), data=np.ones(3, np.float32))
    return g.set_outputs(g.sub(x, g.expand(g.neg(w), dims=(4, 3))))


APPLIED = [
    Applied("bake_static", static, gone=("Transpose", "Binary(add)")),
    Applied("bake_static", lambda: static(view=True), gone=("Transpose", "Binary(add)"), id="through a view"),
    Applied("bake_static", shared_weight, gone=("Transpose",), id="weight read elsewhere too"),
]
REFUSED = [
    Refused("bake_static", Refusal.NO_DATA, lambda: static(data=False)),
    Refused("bake_static", Refusal.GROWS, wide),
    Refused("bake_static", Refusal.SAVES_NOTHING, few_rows, target=FusionTarget.METAL),
]
