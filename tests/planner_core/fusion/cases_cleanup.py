"""Where the tidying rules apply and where they don't."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import Refusal
from planner_core.ir import Graph
from tests.planner_core.fusion.harness import Applied, Refused


def dead() -> Graph:
    g = Graph("dead")
    x = g.input("x", (2, 3))
    g.exp(g.neg(x))
    return g.set_outputs(g.relu(x))


def constants() -> Graph:
    g = Graph("constants")
    x = g.input("x", (2, 3))
    two = g.constant(np.full((3,), 2.0, np.float32))
    return g.set_outputs(g.mul(x, g.sqrt(g.mul(two, two))))


def large_constant() -> Graph:
    g = Graph("large")
    x = g.input("x", (1024, 1024))
    wide = g.expand(g.constant(np.ones((1, 1024), np.float32)), dims=(1024, 1024))
    return g.set_outputs(g.mul(x, g.neg(wide)))


def transposes(back: tuple[int, ...]) -> Graph:
    g = Graph("transposes")
    x = g.input("x", (2, 3, 4))
    return g.set_outputs(g.relu(g.transpose(g.transpose(x, perm=(0, 2, 1)), perm=back)))


APPLIED = [
    Applied("dead_code", dead, gone=("Activation(neg)",), times=1),
    Applied("constant_folding", constants, times=2),
    Applied("layout_pairs", lambda: transposes((0, 2, 1)), gone=("Transpose",), id="cancel"),
    Applied("layout_pairs", lambda: transposes((2, 0, 1)), made=("Transpose",), id="compose"),
]
REFUSED: list[Refused] = [
    Refused("constant_folding", Refusal.TOO_LARGE, large_constant),
]
