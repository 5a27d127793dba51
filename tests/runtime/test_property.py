"""Random small graphs: the planned, audited run equals evaluating each op on its own."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner_core.ir import DType, Graph
from runtime import compile_graph

UNARY = ["relu", "sigmoid", "tanh", "gelu", "silu", "neg", "abs", "hardswish", "sin", "softplus", "floor"]
DIMS = st.sampled_from([1, 2, 3, 5])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    g = Graph("random")
    pool = [g.input("x", tuple(draw(st.lists(DIMS, min_size=2, max_size=4)))),
            g.input("y", tuple(draw(st.lists(DIMS, min_size=2, max_size=4))))]
    for k in range(draw(st.integers(1, 12))):
        node = step(draw, g, pool, k)
        if node is not None:
            pool.append(node)
    count = draw(st.integers(1, min(3, len(pool))))
    return g.set_outputs(*pool[-count:], names=[f"out{i}" for i in range(count)])


def step(draw: st.DrawFn, g: Graph, pool: list[int], k: int) -> int | None:
    x = draw(st.sampled_from(pool))
    dims = g[x].shape.sizes
    axis = draw(st.integers(0, len(dims) - 1))
    rng = np.random.default_rng(k)

    def weight(*shape: int) -> int:
        return g.param(f"w{k}.{len(g)}", shape, data=rng.standard_normal(shape).astype(np.float32))

    kind = draw(st.sampled_from([
        "unary", "binary", "compare", "matmul", "reshape", "transpose", "narrow", "concat", "reduce", "softmax",
        "norm", "conv", "depthwise", "pool", "expand", "gather", "pad", "reverse", "where", "cumsum", "slice", "cast",
        "arg", "fused"]))
    if kind == "unary":
        return g.activation(x, kind=draw(st.sampled_from(UNARY)))
    if kind == "binary":
        other = draw(st.sampled_from([p for p in pool if g[p].shape.sizes == dims] + [weight(*dims[axis:]), weight()]))
        pair = (x, other) if draw(st.booleans()) else (other, x)
        return g.binary(*pair, kind=draw(st.sampled_from(["add", "sub", "mul", "max", "min"])))
    if kind == "compare":
        return g.cast(g.compare(x, weight(dims[-1]), kind=draw(st.sampled_from(["lt", "ge", "ne"]))), to=DType.F32)
    if kind == "where":
        return g.where(g.compare(x, weight(1), kind="gt"), x, weight(dims[-1]))
    if kind == "matmul":
        return g.mm(x, weight(dims[-1], draw(DIMS)))
    if kind == "reshape":
        return g.reshape(x, dims=draw(st.sampled_from([(g[x].shape.numel, 1), (1, *dims)])) if len(dims) < 4
                         else (dims[0] * dims[1], *dims[2:]))
    if kind == "transpose":
        return g.transpose(x, perm=tuple(draw(st.permutations(range(len(dims))))))
    if kind == "narrow":
        start = draw(st.integers(0, dims[axis] - 1))
        return g.narrow(x, axis=axis, start=start, len=draw(st.integers(1, dims[axis] - start)))
    if kind == "slice":
        return g.slice(x, axes=(axis,), starts=(dims[axis] - 1,), stops=(-1,), steps=(-draw(st.integers(1, 2)),))
    if kind == "concat":
        return g.concat(x, weight(*dims), x, axis=axis)
    if kind == "reduce":
        return g.reduce(x, kind=draw(st.sampled_from(["sum", "mean", "max"])), axes=(axis,), keepdims=True)
    if kind == "softmax":
        return g.softmax(x, axis=axis)
    if kind == "norm":
        return g.layer_norm(x, weight(dims[-1]), weight(dims[-1]), eps=0.1)
    if kind == "expand":
        return g.expand(g.reduce(x, kind="max", axes=(axis,), keepdims=True), dims=dims)
    if kind == "gather":
        picked = g.constant(np.asarray([0, -1, 0]), DType.I64)
        return g.gather(x, picked, axis=axis)
    if kind == "pad":
        return g.pad(x, before=(1,) * len(dims), after=(0,) * len(dims), value=0.5)
    if kind == "reverse":
        return g.reverse(x, axes=(axis,))
    if kind == "cumsum":
        return g.cumsum(x, exclusive=draw(st.booleans()))
    if kind == "cast":
        return g.cast(g.cast(g.tanh(x), to=DType.I32), to=DType.F32)
    if kind == "arg":
        return g.cast(g.arg_reduce(x, kind="max", axis=axis, keepdims=True), to=DType.F32)
    if len(dims) != 4:
        return None
    if kind == "conv":
        return g.conv(x, weight(2, dims[1], 3, 1), strides=(1, 2), pads=(1, 0, 1, 0), dilations=(1, 1))
    if kind == "fused":
        return g.fused_conv_bias_act(x, weight(2, dims[1], 1, 1), weight(2), strides=(1, 1), pads=(0,) * 4,
                                     dilations=(1, 1), activation="relu")
    if kind == "depthwise":
        return g.conv(x, weight(dims[1], 1, 3, 3), strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), groups=dims[1])
    return g.pool2d(x, kind=draw(st.sampled_from(["max", "mean"])), kernel=(2, 2), strides=(1, 1), pads=(1, 1, 1, 1))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(), st.integers(0, 99), st.booleans())
def test_audited_run_equals_op_by_op_evaluation(g: Graph, seed: int, no_reuse: bool) -> None:
    rng = np.random.default_rng(seed)
    feed = {g[i].name: rng.standard_normal(g[i].shape.sizes).astype(np.float32) for i in g.inputs}
    values: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for n in g.nodes:
            if n.op.name in ("Input", "Param"):
                values.append(feed[n.name] if n.name in feed else g.weights[n.name])
            else:
                values.append(n.op.evaluate(*[values[i] for i in n.inputs]))
    got = compile_graph(g).with_options(arena_no_reuse=no_reuse).run(feed, sanitize=True)
    for name, node in zip(g.output_names, g.outputs, strict=True):
        np.testing.assert_allclose(got[name], values[node], rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(values[node]).max())))
