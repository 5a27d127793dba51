"""Random small graphs: the planned, audited run equals evaluating each op on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.packed import random_blocks
from planner_core.memory import Target
from planner_core.options import options_of
from runtime import CompileOptions, compile_graph
from runtime.compile import GROUPS
from tests.runtime.torch_reference import by_torch

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
        "arg", "fused", "rms", "attention", "rope", "packed", "gated", "grouped", "topk", "conv3d", "conv_transpose",
        "resize", "scatter", "fma", "cse", "residual_norm", "bias_act", "batch_norm", "chain", "dead", "group_norm"]))
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
    if kind in MORE:
        return MORE[kind](draw, g, x, weight)
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


Weight = Callable[..., int]


def _rows(g: Graph, x: int, width: int) -> int:
    """x as rows of ``width``: through a product with ones, so that it depends on all of x."""
    ones = g.param(f"ones{len(g)}", (g[x].shape.sizes[-1], width),
                   data=np.linspace(-1, 1, g[x].shape.sizes[-1] * width, dtype=np.float32).reshape(-1, width))
    flat = g.reshape(x, dims=(g[x].shape.numel // g[x].shape.sizes[-1], g[x].shape.sizes[-1]))
    return g.mm(flat, ones)


def _attention(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    rows = _rows(g, x, 12)
    q, k, v = (g.reshape(g.narrow(rows, axis=1, start=s, len=4), dims=(1, g[rows].shape.sizes[0], 4)) for s in (0, 4, 8))
    kind = draw(st.sampled_from(["none", "causal", "sliding_window"]))
    window = {"window": 1} if kind == "sliding_window" else {}
    return g.attention(q, k, v, num_heads=2, head_dim=2, mask_kind=kind, softcap=draw(st.sampled_from([0.0, 5.0])), **window)


def _rope(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    rows = _rows(g, x, 8)
    cut = g.narrow(rows, axis=1, start=draw(st.sampled_from([0, 4])), len=4)
    count = g[rows].shape.sizes[0]
    return g.rope(cut, weight(count, 2), weight(count, 2), head_dim=4, n_rot=4, interleaved=draw(st.booleans()))


def _packed(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    scheme = draw(st.sampled_from([QuantScheme.Q4_0, QuantScheme.Q8_0, QuantScheme.Q5_0]))
    data = random_blocks(np.random.default_rng(len(g)), scheme, 3, 32)
    return g.dequant_mat_mul(_rows(g, x, 32), g.param(f"q{len(g)}", data.shape, DType.U8, data), n=3, scheme=scheme)


def _gated(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    rows = _rows(g, x, 6)
    a, b = (g.narrow(rows, axis=1, start=s, len=3) for s in (0, 3))
    if draw(st.booleans()):
        return g.swi_g_l_u(rows, gate_first=draw(st.booleans()))
    return g.mul(g.activation(a, kind=draw(st.sampled_from(["silu", "gelu", "gelu_approx"]))), b)


def _grouped(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    rows = _rows(g, x, 3)
    experts = g.constant(np.arange(g[rows].shape.sizes[0]) % 2, DType.I64)
    bank = weight(2, 3, 4) if draw(st.booleans()) else g.transpose(weight(2, 4, 3), perm=(0, 2, 1))
    return g.grouped_mat_mul(rows, bank, experts)


def _volume(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    v = g.reshape(_rows(g, x, 8), dims=(1, g[x].shape.numel // g[x].shape.sizes[-1], 2, 2, 2))
    c = g.conv3d(v, weight(2, g[v].shape.sizes[1], 1, 2, 1), strides=(1, 1, 1), pads=(0,) * 6, dilations=(1, 1, 1))
    return g.max(c, g.mul(c, g.constant(0.1))) if draw(st.booleans()) else c


def _image(g: Graph, x: int) -> int:
    return g.reshape(_rows(g, x, 4), dims=(1, g[x].shape.numel // g[x].shape.sizes[-1], 2, 2))


def _conv_transpose(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    image = _image(g, x)
    return g.conv_transpose2d(image, weight(g[image].shape.sizes[1], 2, 2, 2), strides=(2, 2), pads=(0, 0, 0, 0),
                              dilations=(1, 1))


def _batch_norm(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    image = _image(g, x)
    c = g.conv(image, weight(3, g[image].shape.sizes[1], 1, 1), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1))
    var = g.param(f"var{len(g)}", (3,), data=np.asarray([0.5, 1, 2], np.float32))
    y = g.batch_norm(c, weight(3), weight(3), weight(3), var)
    return g.relu(g.add(y, c)) if draw(st.booleans()) else g.relu(y)


def _group_norm(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    image = g.reshape(_rows(g, x, 8), dims=(g[x].shape.numel // g[x].shape.sizes[-1], 4, 1, 2))
    return g.group_norm(image, weight(4), weight(4), groups=2, eps=0.1)


def _resize(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    up = g.resize_nearest(_image(g, x), factors=(1, 1, 2, 2))
    return g.relu(g.add(up, weight(1, 1, 4, 4))) if draw(st.booleans()) else up


def _scatter(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    rows = _rows(g, x, 3)
    at = g.constant(np.zeros((1, 3), np.int64), DType.I64)
    return g.scatter_elements(rows, at, weight(1, 3), axis=0, reduction=draw(st.sampled_from(["none", "add"])))


def _residual_norm(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    rows = _rows(g, x, 4)
    total = g.add(rows, g.mm(rows, weight(4, 4)))
    if draw(st.booleans()):
        total = g.add(total, weight(4))
    y = g.rms_norm(total, weight(4), eps=0.1) if draw(st.booleans()) else g.layer_norm(total, weight(4), weight(4), eps=0.1)
    return g.add(y, total) if draw(st.booleans()) else y


def _bias_act(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    y = g.mm(_rows(g, x, 4), weight(4, 5) if draw(st.booleans()) else g.transpose(weight(5, 4), perm=(1, 0)))
    return g.activation(g.add(y, weight(5)), kind=draw(st.sampled_from(["relu", "gelu", "silu"])))


def _chain(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    y = x
    for _ in range(draw(st.integers(2, 5))):
        y = g.activation(y, kind=draw(st.sampled_from(["tanh", "sigmoid", "relu", "abs"]))) if draw(st.booleans()) else (
            g.binary(y, draw(st.sampled_from([x, weight(g[x].shape.sizes[-1])])), kind=draw(st.sampled_from(["add", "mul", "sub"]))))
    return y


def _dead(draw: st.DrawFn, g: Graph, x: int, weight: Weight) -> int:
    g.exp(g.neg(x))
    return g.abs(x)


MORE: dict[str, Callable[[st.DrawFn, Graph, int, Weight], int]] = {
    "rms": lambda draw, g, x, w: g.rms_norm(x, w(g[x].shape.sizes[-1]), eps=0.1),
    "attention": _attention, "rope": _rope, "packed": _packed, "gated": _gated, "grouped": _grouped,
    "topk": lambda draw, g, x, w: g.top_k(x, k=1, largest=draw(st.booleans()), values=True),
    "conv3d": _volume, "conv_transpose": _conv_transpose, "resize": _resize, "scatter": _scatter,
    "fma": lambda draw, g, x, w: g.fma(x, w(g[x].shape.sizes[-1]), x),
    "cse": lambda draw, g, x, w: g.add(g.tanh(g.abs(x)), g.tanh(g.abs(x))),
    "residual_norm": _residual_norm, "bias_act": _bias_act, "batch_norm": _batch_norm, "chain": _chain, "dead": _dead,
    "group_norm": _group_norm,
}
FLAGS = [(o.name, stage) for stage, cls in GROUPS.items() for o in options_of(cls)
         if o.type == "bool" and not o.name.startswith(("allocate_", "print_", "verbose", "verify_"))]


@st.composite
def compile_options(draw: st.DrawFn) -> CompileOptions:
    """A target, and any of its switches flipped."""
    made = CompileOptions.for_target(draw(st.sampled_from(list(Target))), environ={})
    for name in draw(st.lists(st.sampled_from([n for n, _ in FLAGS]), max_size=4, unique=True)):
        stage = dict(FLAGS)[name]
        group = getattr(made, stage)
        made = dataclasses.replace(made, **{stage: dataclasses.replace(group, **{name: not getattr(group, name)})})
    if draw(st.booleans()):  # handing bytes over needs both: two flips that rarely meet by chance
        made = dataclasses.replace(made, plan=made.plan.replace(in_place=True, pin_output_ancestors=False))
    return made


def all_stages_equal_evaluation(g: Graph, options: CompileOptions, seed: int) -> None:
    feed, values = evaluated(g, seed)
    assume(decided(g, values))
    c = compile_graph(g, options)
    assert c.pass_log.dispatches_saved == c.commands_before.dispatches - c.commands.dispatches
    got = c.run(feed, sanitize=True)
    for name, node in zip(g.output_names, g.outputs, strict=True):
        want = values[node]
        np.testing.assert_allclose(got[name], want, rtol=1e-3, atol=2e-4 * max(1.0, float(np.abs(want).max(initial=0))))


def decided(g: Graph, values: list[np.ndarray]) -> bool:
    """True when rounding can't turn the graph's steps: no index, comparison or whole number hangs on a last place.

    An index of the largest needs a runner-up that is 1e-3 of the scale smaller, or equal and of the graph's exact
    values: zero (what ReLU leaves) or a tensor that was fed. Floor, truncation and comparison need the same distance.
    """
    return all(margin(g, n.id, values) > 1e-3 for n in g.nodes)


def margin(g: Graph, node: int, values: list[np.ndarray]) -> float:
    """The least relative distance of a node's operands to the point where its whole-number result changes."""
    op, inputs = g[node].op, g[node].inputs
    if not inputs or all(g[i].op.name in ("Input", "Param") for i in inputs):
        return np.inf
    x = np.asarray(values[inputs[0]], np.float64)
    scale = max(1.0, float(np.abs(x).max(initial=0)))
    if op.name == "ArgReduce":
        first, second = np.moveaxis(np.sort(x, axis=op.axis), op.axis, 0)[::-1][:2] if x.shape[op.axis] > 1 else (x, -np.inf)
        gap = np.where((first == second) & (first == 0), np.inf, np.abs(first - second))
    elif op.name == "Compare":
        gap = np.abs(x - np.asarray(values[inputs[1]], np.float64))
    elif (op.name == "Cast" and not op.to.is_float) or (op.name == "Activation" and op.kind == "floor"):
        gap = np.where(x == np.round(x), np.inf, np.abs(x - np.round(x)))
    else:
        return np.inf
    return float(np.min(gap, initial=np.inf)) / scale


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(graphs(), compile_options(), st.integers(0, 99))
def test_every_stage_with_random_options_equals_evaluation(g: Graph, options: CompileOptions, seed: int) -> None:
    all_stages_equal_evaluation(g, options, seed)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=QUIET)
@given(graphs(), compile_options(), st.integers(0, 999))
def test_every_stage_with_random_options_equals_evaluation_at_length(g: Graph, options: CompileOptions, seed: int) -> None:
    all_stages_equal_evaluation(g, options, seed)


def evaluated(g: Graph, seed: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Random inputs, and every node's value one op after the other: PyTorch's of each op that it has, which plain evaluation
    must agree with; plain evaluation of the others."""
    rng = np.random.default_rng(seed)
    feed = {g[i].name: rng.standard_normal(g[i].shape.sizes).astype(np.float32) for i in g.inputs}
    values: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for n in g.nodes:
            if n.op.name in ("Input", "Param"):
                values.append(feed[n.name] if n.name in feed else g.weights[n.name])
            else:
                operands = [values[i] for i in n.inputs]
                plain, torchs = n.op.evaluate(*operands), by_torch(n.op, operands)
                if torchs is not None:
                    assert torchs.shape == plain.shape and torchs.dtype == plain.dtype, n
                    scale = max(1.0, float(np.abs(torchs).max(initial=0)))
                    np.testing.assert_allclose(plain, torchs, rtol=1e-4, atol=1e-5 * scale, err_msg=str(n))
                values.append(plain if torchs is None else torchs)
    return feed, values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(), st.integers(0, 99), st.booleans())
def test_audited_run_equals_op_by_op_evaluation(g: Graph, seed: int, no_reuse: bool) -> None:
    feed, values = evaluated(g, seed)
    assume(decided(g, values))
    got = compile_graph(g).with_options(arena_no_reuse=no_reuse).run(feed, sanitize=True)
    for name, node in zip(g.output_names, g.outputs, strict=True):
        np.testing.assert_allclose(got[name], values[node], rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(values[node]).max())))
