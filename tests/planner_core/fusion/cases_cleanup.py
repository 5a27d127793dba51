"""Where the tidying rules apply and where they don't."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import Refusal
from planner_core.fusion.rules.cleanup import MOST_TWINS
from planner_core.ir import DType, Graph
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


def between(shared: bool = False, output: bool = False) -> Graph:
    """transpose, elementwise ops, the inverse transpose."""
    g = Graph("between")
    x = g.input("x", (2, 3, 4))
    y = g.mul(g.constant(np.float32(2)), g.silu(g.transpose(x, perm=(2, 0, 1))))
    z = g.relu(g.transpose(y, perm=(1, 2, 0)))
    more = [g.sigmoid(y)] if shared else [y] if output else []
    return g.set_outputs(z, *more)


def twice() -> Graph:
    g = Graph("twice")
    x, w = g.input("x", (2, 3)), g.param("w", (3, 4))
    return g.set_outputs(g.add(g.relu(g.mm(x, w)), g.sigmoid(g.mm(x, w))), g.relu(g.mm(x, w)))


def popular() -> Graph:
    g = Graph("popular")
    x = g.input("x", (2, 3))
    ys = [g.leaky_relu(x, alpha=0.5 / (i + 1)) for i in range(MOST_TWINS + 1)]
    return g.set_outputs(g.concat(*ys, axis=0))


def casts(*to: DType, dtype: DType = DType.F32) -> Graph:
    g = Graph("casts")
    x = g.input("x", (2, 3), dtype)
    for t in to:
        x = g.cast(x, to=t)
    return g.set_outputs(g.reshape(x, dims=(6,)))


def reshapes(*dims: tuple[int, ...]) -> Graph:
    g = Graph("reshapes")
    x = g.relu(g.input("x", (2, 3, 4)))
    for d in dims:
        x = g.reshape(x, dims=d)
    return g.set_outputs(g.neg(x))


def nothing_to_do() -> Graph:
    g = Graph("nothing")
    x = g.input("x", (2, 3))
    y = g.narrow(g.concat(g.expand(x, dims=(2, 3)), axis=1), axis=1, start=0, len=3)
    y = g.slice(g.pad(y, before=(0, 0), after=(0, 0)), axes=(1,), starts=(0,), stops=(3,), steps=(1,))
    return g.set_outputs(g.relu(y))


APPLIED = [
    Applied("dead_code", dead, gone=("Activation(neg)",), times=1),
    Applied("constant_folding", constants, times=2),
    Applied("common_subexpressions", twice, times=3),
    Applied("layout_pairs", lambda: transposes((0, 2, 1)), gone=("Transpose",), id="cancel"),
    Applied("layout_pairs", lambda: transposes((2, 0, 1)), made=("Transpose",), id="compose"),
    Applied("layout_pairs", between, gone=("Transpose",), id="through elementwise"),
    Applied("cast_chains", lambda: casts(DType.F32), gone=("Cast",), id="own dtype"),
    Applied("cast_chains", lambda: casts(DType.F64, DType.I32), made=("Cast",), id="through a wider float"),
    Applied("cast_chains", lambda: casts(DType.F32, DType.I8, dtype=DType.I8), gone=("Cast",), id="there and back"),
    Applied("cast_chains", lambda: casts(DType.I64, DType.F32, dtype=DType.BOOL), id="bool"),
    Applied("reshape_chains", lambda: reshapes((6, 4), (24,)), made=("Reshape",), id="two"),
    Applied("reshape_chains", lambda: reshapes((6, 4), (2, 3, 4)), gone=("Reshape",), id="there and back"),
    Applied("reshape_chains", lambda: reshapes((2, 3, 4)), gone=("Reshape",), id="own shape"),
    Applied("reshape_chains", nothing_to_do, gone=("Expand", "Concat", "Narrow", "Pad", "Slice"), times=5, id="no-ops"),
]
REFUSED: list[Refused] = [
    Refused("constant_folding", Refusal.TOO_LARGE, large_constant),
    Refused("common_subexpressions", Refusal.LIMIT, popular),
    Refused("layout_pairs", Refusal.SHARED, lambda: between(shared=True)),
    Refused("layout_pairs", Refusal.OUTPUT, lambda: between(output=True)),
]
