"""Every rule over graphs of ranks 0 to 6: what a rule looks for may not be there, and that is no error."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner_core.errors import GraphError
from planner_core.fusion import FusionTarget, fusion_for_target
from planner_core.ir import Graph
from tests.planner_core.fusion.harness import only, same

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
UNARY = ("neg", "abs", "exp", "relu", "sigmoid", "tanh", "sqrt")


@st.composite
def any_rank(draw: st.DrawFn) -> Graph:
    """A few inputs of ranks 0 to 6, then ops on what is there: structure ops that rules look through among them."""
    g = Graph("ranks")
    pool = []
    for k in range(draw(st.integers(1, 3))):
        dims = tuple(draw(st.lists(st.integers(1, 3), max_size=6)))
        if math.prod(dims) > 64:
            dims = dims[:3]
        pool.append((g.input if k % 2 == 0 else g.param)(f"v{k}", dims))
    for _ in range(draw(st.integers(1, 12))):
        x = draw(st.sampled_from(pool))
        shape = g[x].shape.sizes
        kind = draw(st.sampled_from(("unary", "binary", "scalar", "reshape", "transpose", "concat", "narrow", "expand", "reduce",
                                     "softmax", "mm", "norm", "stack")))
        if kind == "unary":
            pool.append(g.activation(x, kind=draw(st.sampled_from(UNARY))))
        elif kind == "binary":
            same_shape = [p for p in pool if g[p].shape.sizes == shape]
            pool.append(draw(st.sampled_from((g.add, g.mul, g.sub)))(x, draw(st.sampled_from(same_shape))))
        elif kind == "scalar":
            pool.append(g.mul(x, g.constant(draw(st.sampled_from((2.0, 0.5, 1.0))))))
        elif kind == "reshape":
            dims = [d for d in shape if d != 1]
            for _ in range(draw(st.integers(0, 6 - len(dims)))):
                dims.insert(draw(st.integers(0, len(dims))), 1)
            flat = draw(st.booleans()) and len(dims) > 1
            pool.append(g.reshape(x, dims=(dims[0] * dims[1], *dims[2:]) if flat else tuple(dims)))
        elif kind == "transpose":
            pool.append(g.transpose(x, perm=tuple(draw(st.permutations(range(len(shape)))))))
        elif kind in ("concat", "stack") and shape and math.prod(shape) <= 64:
            axis = draw(st.integers(0, len(shape) - 1)) if kind == "concat" else len(shape) - 1
            pool.append(g.concat(x, x, axis=axis))
        elif kind == "narrow" and shape:
            axis = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[axis] - 1))
            pool.append(g.narrow(x, axis=axis, start=start, len=draw(st.integers(1, shape[axis] - start))))
        elif kind == "expand":
            pool.append(g.expand(x, dims=tuple(3 if d == 1 and math.prod(shape) <= 16 else d for d in shape)))
        elif kind == "reduce" and shape:
            pool.append(g.reduce_mean(x, axes=(draw(st.integers(0, len(shape) - 1)),), keepdims=draw(st.booleans())))
        elif kind == "softmax" and shape:
            pool.append(g.softmax(x, axis=draw(st.integers(0, len(shape) - 1))))
        elif kind == "mm" and len(shape) >= 2:
            pool.append(g.mm(x, g.transpose(x, perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))))
        elif kind == "norm" and shape:
            pool.append(g.layer_norm(x, g.param(f"g{len(g)}", shape[-1:]), g.param(f"b{len(g)}", shape[-1:])))
    return g.set_outputs(*dict.fromkeys([pool[-1], *draw(st.lists(st.sampled_from(pool), max_size=2))]))


def check(g: Graph, target: FusionTarget) -> None:
    same(g, target=target, rtol=1e-5, options=fusion_for_target(target))
    same(g, target=target, rtol=1e-5, options=only())


@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(any_rank(), st.sampled_from(FusionTarget))
def test_every_rule_takes_every_rank(g: Graph, target: FusionTarget) -> None:
    check(g, target)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=SLOW)
@given(any_rank(), st.sampled_from(FusionTarget))
def test_every_rule_takes_every_rank_at_length(g: Graph, target: FusionTarget) -> None:
    check(g, target)


@pytest.mark.parametrize("build", [
    lambda g, x: g.concat(x, x, axis=0), lambda g, x: g.narrow(x, axis=0, start=0, len=1),
    lambda g, x: g.layer_norm(x, g.param("a", ()), g.param("b", ())), lambda g, x: g.rms_norm(x, g.param("a", ())),
    lambda g, x: g.mm(x, x), lambda g, x: g.cumsum(x, axis=0)], ids=["concat", "narrow", "layer_norm", "rms_norm", "mm", "cumsum"])
def test_a_scalar_where_an_axis_is_wanted_is_told(build) -> None:  # type: ignore[no-untyped-def]
    g = Graph("scalar")
    with pytest.raises(GraphError, match="in 'scalar'"):
        build(g, g.input("x", ()))
