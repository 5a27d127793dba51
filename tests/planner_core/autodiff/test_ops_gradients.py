"""Every op's gradient against PyTorch's autograd, in float64 on odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from planner_core.autodiff import backward
from planner_core.errors import GraphError
from planner_core.ir import Dim, DType, Graph, registry, validate
from planner_core.ir.op import Op

F64 = DType.F64
Build = Callable[..., int]
Torch = Callable[..., torch.Tensor]


def evaluate(g: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name, each node by its reference; every value is checked against its node's shape."""
    done: list[np.ndarray] = []
    for n in g.nodes:
        v = values[n.name] if n.op.name in ("Input", "Param") else n.op.evaluate(*[done[i] for i in n.inputs])
        assert v.shape == n.shape.sizes and v.dtype == n.dtype.numpy, (n, v.shape, v.dtype)
        done.append(v)
    return {name: done[o] for o, name in zip(g.outputs, g.output_names, strict=True)}


def check(shapes: dict[str, tuple[int, ...]], build: Build, fn: Torch, low: float = -1.5, seed: int = 0) -> Graph:
    """Gradients of ``build`` wrt all operands equal PyTorch's of ``fn``; returns the training graph."""
    g = Graph("case")
    y = build(g, *[g.input(name, dims, F64) for name, dims in shapes.items()])
    g.set_outputs(y, names=["y"])
    training = backward(g, wrt=list(shapes))
    assert validate(training) == []
    rng = np.random.default_rng(seed)
    values = {name: rng.uniform(low, 1.5, dims) for name, dims in shapes.items()}
    values["d_y"] = rng.standard_normal(g[y].shape.sizes)
    got = evaluate(training, values)
    leaves = {name: torch.tensor(values[name], requires_grad=True) for name in shapes}
    out = fn(*leaves.values())
    np.testing.assert_allclose(got["y"], out.detach().numpy(), rtol=1e-9, atol=1e-9)
    out.backward(torch.tensor(values["d_y"]))
    for name, leaf in leaves.items():
        want = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(got[f"d_{name}"], want, rtol=1e-8, atol=1e-9, err_msg=name)
    return training


def ab(a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"a": a, "b": b}


def x_(*dims: int) -> dict[str, tuple[int, ...]]:
    return {"x": dims}


ACTIVATIONS: dict[str, tuple[dict[str, float], Torch]] = {
    "gelu": ({}, F.gelu), "gelu_approx": ({}, lambda x: F.gelu(x, approximate="tanh")), "silu": ({}, F.silu),
    "relu": ({}, F.relu), "sigmoid": ({}, torch.sigmoid), "tanh": ({}, torch.tanh), "exp": ({}, torch.exp),
    "neg": ({}, torch.neg), "abs": ({}, torch.abs), "leaky_relu": ({"alpha": 0.1}, lambda x: F.leaky_relu(x, 0.1)),
    "elu": ({"alpha": 0.7}, lambda x: F.elu(x, 0.7)), "erf": ({}, torch.erf), "sin": ({}, torch.sin),
    "cos": ({}, torch.cos), "softplus": ({}, F.softplus), "reciprocal": ({}, torch.reciprocal),
    "hardsigmoid": ({"alpha": 1 / 6, "beta": 0.5}, lambda x: F.relu6(x + 3) / 6), "hardswish": ({}, F.hardswish),
    "clip": ({"alpha": -0.5, "beta": 0.75}, lambda x: torch.clamp(x, -0.5, 0.75)),
    "floor": ({}, torch.floor), "ceil": ({}, torch.ceil), "round": ({}, torch.round), "sign": ({}, torch.sign),
    "log": ({}, torch.log), "sqrt": ({}, torch.sqrt), "rsqrt": ({}, torch.rsqrt),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind: str) -> None:
    attrs, fn = ACTIVATIONS[kind]
    check(x_(3, 5), lambda g, x: g.activation(g.mul(x, g.constant(3.0, F64)), kind=kind, **attrs),
          lambda x: fn(3 * x), low=0.1 if kind in ("log", "sqrt", "rsqrt") else -1.5)


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "abs", "hardswish", "clip"])
def test_slopes_at_kinks_are_pytorchs(kind: str) -> None:
    attrs, fn = ACTIVATIONS[kind]
    points = {"hardswish": [-3.0, 3.0], "clip": [-0.5, 0.75]}.get(kind, [0.0])
    g = Graph("g")
    g.set_outputs(g.activation(g.input("x", (len(points),), F64), kind=kind, **attrs), names=["y"])
    got = evaluate(backward(g, wrt=["x"]), {"x": np.array(points), "d_y": np.ones(len(points))})["d_x"]
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    fn(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(got, x.grad.numpy())


BINARIES: dict[str, Torch] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum, "min": torch.minimum,
    "pow": torch.pow, "mod": torch.remainder,
}


@pytest.mark.parametrize("dims", [((3, 5), (3, 5)), ((2, 1, 5), (3, 1)), ((5,), (2, 3, 5)), ((), (3,)), ((1, 1), (1,
    1))], ids=str)
@pytest.mark.parametrize("kind", BINARIES)
def test_binaries_with_broadcasting(kind: str, dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(ab(*dims), lambda g, a, b: g.binary(a, b, kind=kind), BINARIES[kind], low=0.2)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_ties_are_shared_evenly(kind: str) -> None:
    g = Graph("g")
    g.set_outputs(g.binary(*[g.input(n, (3,), F64) for n in "ab"], kind=kind), names=["y"])
    a, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([1.0, 2, 3], [1.0, 3, 2]))
    got = evaluate(backward(g, wrt=["a", "b"]), {"a": a.detach().numpy(), "b": b.detach().numpy(), "d_y": np.ones(3)})
    BINARIES[kind](a, b).sum().backward()
    for name, leaf in (("a", a), ("b", b)):
        assert leaf.grad is not None
        np.testing.assert_array_equal(got[f"d_{name}"], leaf.grad.numpy())


def test_pow_of_and_by_zero() -> None:
    base, exponent = np.array([0.0, 2, 0, 3]), np.array([2.0, 0, 0, -1])
    g = Graph("g")
    g.set_outputs(g.pow(g.input("a", (4,), F64), g.input("b", (4,), F64)), names=["y"])
    a, b = (torch.tensor(v, requires_grad=True) for v in (base, exponent))
    with np.errstate(divide="ignore", invalid="ignore"):
        got = evaluate(backward(g, wrt=["a", "b"]), {"a": base, "b": exponent, "d_y": np.ones(4)})
    torch.pow(a, b).sum().backward()
    assert a.grad is not None and b.grad is not None
    np.testing.assert_allclose(got["d_a"], a.grad.numpy())
    np.testing.assert_allclose(got["d_b"], b.grad.numpy())


MATMULS = [((3, 5), (5, 2)), ((2, 3, 5), (5, 4)), ((2, 1, 3, 5), (4, 5, 2)), ((3, 5), (2, 5, 4)), ((5,), (5,)), ((5,),
    (5, 3)),
           ((3, 5), (5,)), ((2, 3, 5), (5,)), ((5,), (2, 5, 3)), ((1, 2, 3), (4, 3, 1))]


@pytest.mark.parametrize("dims", MATMULS, ids=str)
def test_matmul(dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(ab(*dims), lambda g, a, b: g.mm(a, b), torch.matmul)


def test_a_shared_right_side_is_one_product() -> None:
    training = check(ab((2, 3, 5), (5, 4)), lambda g, a, b: g.mm(a, b), torch.matmul)
    assert training[training.outputs[-1]].op.name == "MatMul"


def test_a_transposed_operand_is_not_transposed_back() -> None:
    g = Graph("g")
    g.set_outputs(g.mm(g.input("a", (3, 5)), g.transpose(g.param("b", (4, 5)), perm=(1, 0))), names=["y"])
    assert len(backward(g, wrt=["a"]).of("Transpose")) == 1


def _conv(space: int, groups: int, stride: int, dilation: int, before: int, after: int) -> dict[str, Any]:
    return {"strides": (stride,) * space, "pads": (before,) * space + (after,) * space,
        "dilations": (dilation,) * space,
            "groups": groups}


def _torch_conv(x: torch.Tensor, w: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    space = x.ndim - 2
    pads = [p for i in reversed(range(space)) for p in (how["pads"][i], how["pads"][i + space])]
    fn = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[space]
    return fn(F.pad(x, pads), w, stride=how["strides"], dilation=how["dilations"], groups=how["groups"])


CONVS = [
    ((2, 3, 9), (4, 3, 3), _conv(1, 1, 1, 1, 1, 1)),
    ((1, 4, 11), (6, 2, 3), _conv(1, 2, 2, 2, 2, 1)),
    ((2, 3, 7, 6), (4, 3, 3, 2), _conv(2, 1, 2, 1, 1, 0)),
    ((1, 4, 8, 9), (4, 1, 3, 3), _conv(2, 4, 3, 2, 0, 2)),
    ((1, 2, 5, 4, 6), (4, 1, 2, 3, 2), _conv(3, 2, 2, 1, 1, 1)),
]


@pytest.mark.parametrize(("x", "w", "how"), CONVS, ids=lambda v: str(v) if isinstance(v, tuple) else "")
def test_convolution(x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any]) -> None:
    check({"x": x, "w": w}, lambda g, x, w: (g.conv3d if g[x].shape.rank == 5 else g.conv)(x, w, **how),
          lambda x, w: _torch_conv(x, w, how))


@pytest.mark.parametrize("act", ["", "relu", "leaky_relu", "silu", "tanh", "elu"])
def test_fused_convolution(act: str) -> None:
    how, attrs = CONVS[2][2], {"alpha": 0.2} if act in ("leaky_relu", "elu") else {}
    fns: dict[str, Torch] = {"": lambda y: y, "leaky_relu": lambda y: F.leaky_relu(y, 0.2), "elu": lambda y: F.elu(y,
        0.2),
                             "relu": F.relu, "silu": F.silu, "tanh": torch.tanh}
    check({"x": (2, 3, 7, 6), "w": (4, 3, 3, 2), "b": (4,), "r": (2, 4, 3, 3)},
          lambda g, *ins: g.fused_conv_bias_act(*ins, activation=act, **attrs, **how),
          lambda x, w, b, r: fns[act](_torch_conv(x, w, how) + b[:, None, None] + r))


def test_transposed_convolution() -> None:
    check({"x": (2, 4, 3, 5), "w": (4, 3, 3, 2)}, lambda g, x, w: g.conv_transpose2d(
        x, w, strides=(2, 3), pads=(1, 0, 1, 0), dilations=(1, 2), output_padding=(1, 0), groups=2),
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), padding=(1, 0), dilation=(1, 2), output_padding=(1, 0),
            groups=2))


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("kernel", [2, 3])
def test_pooling(kernel: int, ceil: bool) -> None:
    how = {"kernel": (kernel, kernel), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": ceil}
    check(x_(2, 3, 8, 7), lambda g, x: g.pool2d(x, kind="max", **how),
        lambda x: F.max_pool2d(x, kernel, 2, 1, ceil_mode=ceil))
    for inside in (False, True):
        check(x_(2, 3, 8, 7), lambda g, x, inside=inside: g.pool2d(x, kind="mean", **how, count_include_pad=inside),
              lambda x, inside=inside: F.avg_pool2d(x, kernel, 2, 1, ceil_mode=ceil, count_include_pad=inside))


def test_max_pool_of_ties_goes_to_the_first() -> None:
    check(x_(1, 1, 5, 5), lambda g, x: g.pool2d(g.relu(x), kind="max", kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1,
        1)),
          lambda x: F.max_pool2d(F.relu(x), 3, 1, 1))


def _heads(x: torch.Tensor, heads: int, rep: int) -> torch.Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2).repeat_interleave(rep, 1)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None = None, *, heads: int, kv: int,
               keep: torch.Tensor | None = None, scale: float = 0.0, cap: float = 0.0) -> torch.Tensor:
    rep = heads // kv
    qh, kh, vh = _heads(q, heads, 1), _heads(k, kv, rep), _heads(v, kv, rep)
    s = qh @ kh.mT * (scale or qh.shape[-1] ** -0.5)
    s = cap * torch.tanh(s / cap) if cap else s
    s = s if m is None else s + m
    s = s if keep is None else s.masked_fill(~keep, -torch.inf)
    return (torch.softmax(s, -1) @ vh).transpose(1, 2).reshape(q.shape)


QKV = {"q": (2, 3, 12), "k": (2, 5, 6), "v": (2, 5, 6)}
GQA: dict[str, Any] = {"num_heads": 4, "head_dim": 3, "kv_heads": 2}
POS, KEY = torch.arange(3)[:, None] + 2, torch.arange(5)[None]


@pytest.mark.parametrize(("how", "keep"), [
    ({}, None), ({"mask_kind": "causal"}, KEY <= POS), ({"mask_kind": "causal", "softcap": 0.7, "score_scale": 1.3},
     KEY <= POS),
    ({"mask_kind": "sliding_window", "window": 1}, (KEY <= POS) & (KEY >= POS - 1)),
], ids=["none", "causal", "softcap", "sliding"])
def test_attention(how: dict[str, Any], keep: torch.Tensor | None) -> None:
    check(QKV, lambda g, *ins: g.attention(*ins, **GQA, **how), lambda q, k, v: _attention(
        q, k, v, heads=4, kv=2, keep=keep, scale=how.get("score_scale", 0.0), cap=how.get("softcap", 0.0)))


@pytest.mark.parametrize("dims", [(2, 4, 3, 5), (4, 1, 5), (1, 1, 3, 5)], ids=str)
def test_attention_bias(dims: tuple[int, ...]) -> None:
    check({**QKV, "m": dims}, lambda g, *ins: g.attention(*ins, **GQA, mask_kind="bias", softcap=2.0),
          lambda q, k, v, m: _attention(q, k, v, m, heads=4, kv=2, cap=2.0))


def test_attention_custom_mask_and_head_major_layout() -> None:
    mask = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=bool)
    check(QKV, lambda g, *ins: g.attention(*ins, g.constant(mask), **GQA, mask_kind="custom"),
          lambda q, k, v: _attention(q, k, v, heads=4, kv=2, keep=torch.tensor(mask)))
    check({"q": (2, 4, 3, 3), "k": (2, 2, 5, 3), "v": (2, 2, 5, 3)},
          lambda g, *ins: g.attention(*ins, **GQA, layout="bhsd"),
          lambda q, k, v: F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))


@pytest.mark.parametrize("rows", [4, 1])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved: bool, rows: int) -> None:
    def rope(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        h = x.reshape(2, 4, 2, 7)
        i = slice(0, 6, 2) if interleaved else slice(0, 3)
        j = slice(1, 6, 2) if interleaved else slice(3, 6)
        a, b, c, s = h[..., i], h[..., j], c[:, None], s[:, None]
        y = (a * c - b * s, b * c + a * s)
        turned = torch.stack(y, -1).flatten(-2) if interleaved else torch.cat(y, -1)
        return torch.cat((turned, h[..., 6:]), -1).reshape(x.shape)

    check({"x": (2, 4, 14), "c": (rows, 3), "s": (rows, 3)},
          lambda g, *ins: g.rope(*ins, head_dim=7, n_rot=6, interleaved=interleaved), rope)


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def _scan(x: torch.Tensor, d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    h, out = torch.zeros(x.shape[0], *a.shape, dtype=x.dtype), []
    for t in range(x.shape[1]):
        step = d[:, t, :, None]
        h = torch.exp(step * a) * h + step * x[:, t, :, None] * b[:, t, None]
        out.append((h * c[:, t, None]).sum(-1))
    return torch.stack(out, 1)


IDX, NEG = [[0, 3], [2, 2]], [[1, -1, 0]]
INDEX = torch.tensor
OTHERS: list[tuple[str, dict[str, tuple[int, ...]], Build, Torch]] = [
    ("where", {"a": (2, 3), "t": (3,), "f": (2, 1)}, lambda g, a, t, f: g.where(g.gt(a, t), t, f),
     lambda a, t, f: torch.where(a > t, t, f)),
    ("fma", {"a": (2, 3), "b": (3,), "c": (2, 1)}, lambda g, *i: g.fma(*i), lambda a, b, c: a * b + c),
    ("reshape", x_(2, 3, 5), lambda g, x: g.reshape(x, dims=(5, 6)), lambda x: x.reshape(5, 6)),
    ("transpose", x_(2, 3, 5), lambda g, x: g.transpose(x, perm=(2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    ("narrow", x_(4, 7), lambda g, x: g.narrow(x, axis=1, start=2, len=3), lambda x: x[:, 2:5]),
    ("slice", x_(7, 5), lambda g, x: g.slice(x, axes=(0, 1), starts=(1, 4), stops=(7, -1), steps=(3, -2)),
     lambda x: x[1:7:3].flip(1)[:, ::2]),
    ("concat", {"a": (2, 3), "b": (2, 1), "c": (2, 5)}, lambda g, *i: g.concat(*i, axis=-1),
     lambda *i: torch.cat(i, -1)),
    ("concat same twice", ab((2, 3), (1, 3)), lambda g, a, b: g.concat(a, b, a, axis=0),
     lambda a, b: torch.cat((a, b, a))),
    ("expand", x_(3, 1), lambda g, x: g.expand(x, dims=(2, 3, 4)), lambda x: x.expand(2, 3, 4)),
    ("cast", x_(3, 2), lambda g, x: g.cast(g.cast(x, to=DType.F32), to=F64), lambda x: x.float().double()),
    ("cast to int stops", x_(3, 2), lambda g, x: g.mul(g.cast(g.cast(x, to=DType.I32), to=F64), x),
     lambda x: x.int().double() * x),
    ("reverse", x_(2, 3, 4), lambda g, x: g.reverse(x, axes=(0, 2)), lambda x: x.flip(0, 2)),
    ("pad", x_(4, 5), lambda g, x: g.pad(x, before=(1, -1), after=(-2, 3), value=7.0),
     lambda x: F.pad(x, (-1, 3, 1, -2), value=7)),
    ("resize", x_(1, 2, 3, 2), lambda g, x: g.resize_nearest(x, factors=(1, 1, 2, 3)),
     lambda x: x.repeat_interleave(2, 2).repeat_interleave(3, 3)),
    ("sum", x_(2, 3, 4), lambda g, x: g.reduce_sum(x, axes=(0, -1)), lambda x: x.sum((0, 2))),
    ("sum to a scalar", x_(2, 3), lambda g, x: g.reduce_sum(x, axes=(0, 1)), lambda x: x.sum()),
    ("mean", x_(2, 3, 5), lambda g, x: g.reduce_mean(x, axes=(1, 2), keepdims=True),
     lambda x: x.mean((1, 2), keepdim=True)),
    ("max", x_(2, 3, 5), lambda g, x: g.reduce_max(x, axes=(1,)), lambda x: x.amax(1)),
    ("min with ties", x_(2, 9), lambda g, x: g.reduce_min(g.relu(x), axes=(1,)), lambda x: F.relu(x).amin(1)),
    ("global mean", x_(2, 3, 4, 5), lambda g, x: g.global_pool(x, kind="mean"), lambda x: x.mean((2, 3), keepdim=True)),
    ("global max", x_(2, 3, 4, 5), lambda g, x: g.global_pool(x, kind="max"), lambda x: x.amax((2, 3), keepdim=True)),
    ("cumsum", x_(2, 5), lambda g, x: g.cumsum(x), lambda x: x.cumsum(-1)),
    ("cumsum exclusive", x_(2, 5), lambda g, x: g.cumsum(x, exclusive=True), lambda x: x.cumsum(-1) - x),
    ("top k", x_(3, 7), lambda g, x: g.top_k(x, k=3, values=True), lambda x: x.topk(3).values),
    ("softmax", x_(3, 4, 2), lambda g, x: g.softmax(x, axis=1), lambda x: x.softmax(1)),
    ("swiglu", x_(3, 10), lambda g, x: g.swi_g_l_u(x), lambda x: F.silu(x[:, :5]) * x[:, 5:]),
    ("swiglu gate second", x_(3, 10), lambda g, x: g.swi_g_l_u(x, gate_first=False),
     lambda x: F.silu(x[:, 5:]) * x[:, :5]),
    ("layer norm", {"x": (2, 3, 5), "w": (5,), "b": (5,)}, lambda g, *i: g.layer_norm(*i),
     lambda x, w, b: F.layer_norm(x, (5,), w, b)),
    ("layer norm 2d", {"x": (2, 5, 3, 2), "w": (5,), "b": (5,)}, lambda g, *i: g.layer_norm2d(*i),
     lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (5,), w, b, 1e-6).permute(0, 3, 1, 2)),
    ("rms norm", {"x": (2, 3, 5), "w": (5,)}, lambda g, *i: g.rms_norm(*i), lambda x, w: _rms(x) * w),
    ("rms norm with beta", {"x": (3, 5), "w": (5,), "b": (5,)}, lambda g, *i: g.rms_norm(*i),
     lambda x, w, b: _rms(x) * w + b),
    ("batch norm", {"x": (2, 3, 4, 5), "w": (3,), "b": (3,), "m": (3,), "v": (3,)},
     lambda g, x, w, b, m, v: g.batch_norm(x, w, b, m, g.exp(v)),
     lambda x, w, b, m, v: (x - m[:, None, None]) / torch.sqrt(
         torch.exp(v) + 1e-5)[:, None, None] * w[:, None, None] + b[:, None, None]),
    ("adaln", {"x": (2, 3, 5), "s": (2, 5), "t": (2, 5)}, lambda g, *i: g.ada_layer_norm(*i),
     lambda x, s, t: F.layer_norm(x, (5,), eps=1e-6) * (1 + s[:, None]) + t[:, None]),
    ("adaln rms", {"x": (2, 3, 5), "s": (2, 5), "t": (2, 5)}, lambda g, *i: g.ada_layer_norm(*i, layer_norm=False),
     lambda x, s, t: _rms(x) * (1 + s[:, None]) + t[:, None]),
    ("gated residual", {"x": (2, 3, 5), "y": (2, 3, 5), "z": (2, 5)}, lambda g, *i: g.gated_residual(*i),
     lambda x, y, z: x + z[:, None] * y),
    ("selective scan", {"x": (2, 4, 3), "d": (2, 4, 3), "a": (3, 5), "b": (2, 4, 5), "c": (2, 4, 5)},
     lambda g, *i: g.selective_scan(*i), _scan),
    ("gather rows", x_(4, 3), lambda g, x: g.gather(x, g.constant([[0, 3], [-1, 2]])),
     lambda x: x[INDEX([[0, 3], [3, 2]])]),
    ("gather axis 1", x_(2, 4, 3), lambda g, x: g.gather(x, g.constant(IDX), axis=1), lambda x: x[:, INDEX(IDX)]),
    ("gather one", x_(4, 3), lambda g, x: g.gather(x, g.constant(2)), lambda x: x[2]),
    ("gather elements", x_(4, 3), lambda g, x: g.gather_elements(x, g.constant(NEG), axis=0),
     lambda x: x.gather(0, INDEX([[1, 3, 0]]))),
    ("scatter elements", {"x": (4, 3), "u": (2, 2)},
     lambda g, x, u: g.scatter_elements(x, g.constant([[1, 2], [3, 0]]), u, axis=0),
     lambda x, u: x.scatter(0, INDEX([[1, 2], [3, 0]]), u)),
    ("scatter elements add", {"x": (4, 3), "u": (2, 2)},
     lambda g, x, u: g.scatter_elements(x, g.constant([[1, 2], [1, 0]]), u, axis=0, reduction="add"),
     lambda x, u: x.scatter_add(0, INDEX([[1, 2], [1, 0]]), u)),
    ("scatter nd", {"x": (4, 3), "u": (2, 3)}, lambda g, x, u: g.scatter_nd(x, g.constant([[2], [0]]), u),
     lambda x, u: x.index_copy(0, INDEX([2, 0]), u)),
    ("scatter add", {"u": (4, 3)}, lambda g, u: g.scatter_add(u, g.constant([0, 2, 2, 1]), out_dim=5),
     lambda u: torch.zeros(5, 3, dtype=u.dtype).index_add(0, INDEX([0, 2, 2, 1]), u)),
    ("grouped matmul", {"x": (4, 5), "w": (3, 5, 2)}, lambda g, x, w: g.grouped_mat_mul(x, w, g.constant([0, 2, 2, 0])),
     lambda x, w: torch.einsum("mk,mkn->mn", x, w[INDEX([0, 2, 2, 0])])),
    ("cross entropy", x_(3, 5), lambda g, x: g.softmax_cross_entropy(x, g.constant([4, 0, 2])),
     lambda x: F.cross_entropy(x, INDEX([4, 0, 2]), reduction="none")),
    ("cross entropy, dense", ab((3, 5), (3, 5)), lambda g, a, b: g.softmax_cross_entropy(a, b),
     lambda a, b: F.cross_entropy(a, b, reduction="none")),
    ("cache append", {"c": (2, 5, 3), "r": (2, 2, 3)}, lambda g, c, r: g.exp(g.kv_append(c, r, axis=1, start=2)),
     lambda c, r: torch.exp(torch.cat((c[:, :2], r, c[:, 4:]), 1))),
    ("matmul by a transpose", ab((3, 5), (4, 5)), lambda g, a, b: g.mm(a, g.transpose(b, perm=(1, 0))),
     lambda a, b: a @ b.T),
    ("product of transposes", ab((2, 5, 3), (4, 5)), lambda g, a, b: g.transposed_mat_mul(a, b, trans_a=True, trans_b=True),
     lambda a, b: a.mT @ b.mT),
    ("product by a transpose", ab((2, 3, 5), (2, 4, 5)), lambda g, a, b: g.transposed_mat_mul(a, b, trans_b=True),
     lambda a, b: a @ b.mT),
    ("transposed bank", {"x": (4, 5), "w": (3, 2, 5)},
     lambda g, x, w: g.transposed_grouped_mat_mul(x, w, g.constant([0, 2, 2, 1])),
     lambda x, w: torch.einsum("mk,mnk->mn", x, w[[0, 2, 2, 1]])),
    ("used twice", x_(3, 3), lambda g, x: g.add(g.mm(x, x), g.mul(x, g.exp(x))), lambda x: x @ x + x * torch.exp(x)),
]


@pytest.mark.parametrize(("shapes", "build", "fn"), [o[1:] for o in OTHERS], ids=[o[0] for o in OTHERS])
def test_other_ops(shapes: dict[str, tuple[int, ...]], build: Build, fn: Torch) -> None:
    check(shapes, build, fn)


REFUSED = {"BatchElementwiseRegion", "Constant", "Custom", "DequantGroupedMatMul", "DequantMatMul", "DequantMatMulBlocked", "DequantMatMulFp8",
           "DequantMatMulNvfp4", "Dequantize",
           "ElementwiseRegion", "FusedAttentionBlock", "GatherNd", "If", "Im2Col", "Input", "Loop", "Param", "Result",
           "RngNormal", "RngUniform", "Sample", "Scan"}
"""Ops without a gradient: leaves need none; the rest are named when one is asked for."""


def test_forward_ops_have_a_gradient_or_are_listed() -> None:
    """Backward ops are not differentiated again."""
    ops = {n: c for n, c in registry().items() if c.__module__.startswith("planner_core.") and "Backward" not in n}
    assert {n for n, c in ops.items() if c.gradient is Op.gradient} == REFUSED


CONV: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
POOL: dict[str, Any] = {"kernel": (2, 2), "strides": (2, 2), "pads": (0,) * 4}
MISFITS: list[tuple[str, Callable[[Graph, Callable[..., int]], int], str]] = [
    ("activation", lambda g, i: g.activation_backward(i(3), i(4), kind="relu"),
     r"f32\[3\] and f32\[4\] must have the same shape"),
    ("flat", lambda g, i: g.activation_backward(i(3), i(3), kind="floor"),
     "ActivationBackward 'floor': wanted one of gelu,"),
    ("softmax", lambda g, i: g.softmax_backward(i(3), i(3), axis=1), r"axis 1 is out of range for f32\[3\]"),
    ("swiglu", lambda g, i: g.swiglu_backward(i(2, 6), i(2, 6)), r"f32\[2, 6\] and f32\[2, 3\] must have"),
    ("gain", lambda g, i: g.layer_norm_backward_input(i(2, 6), i(5), i(2, 6)),
     r"gamma f32\[5\] doesn't fit the last axis"),
    ("wrt", lambda g, i: g.ada_layer_norm_backward(i(2, 3, 4), i(2, 4), i(2, 3, 4), wrt="shift"),
     "AdaLayerNormBackward wrt 'shift': wanted one of input, scale"),
    ("gate", lambda g, i: g.gated_residual_backward(i(2, 3), i(2, 3, 4), wrt="y"), r"f32\[2, 3\] and f32\[2, 4\] must"),
    ("gather", lambda g, i: g.gather_backward(i(2), g.constant([[0, 1]]), axis=0, extent=Dim(3)), "has no such axis"),
    ("slice", lambda g, i: g.slice_backward(i(2), axes=(), starts=(), stops=(), steps=(), dims=(2, 2)),
     "is no slice of"),
    ("grouped", lambda g, i: g.grouped_mat_mul_backward_weight(i(4, 5), i(3, 6), g.constant([0]), experts=2),
     r"wanted \[m, k\] and \[m, n\]"),
    ("conv input", lambda g, i: g.conv_backward_input(i(2, 1, 3, 3), i(1, 2, 3, 4), dims=(1, 1, 5, 5), **CONV),
     r"dy f32\[1, 2, 3, 4\], but a convolution of f32\[1, 1, 5, 5\] by .* gives f32\[1, 2, 3, 3\]"),
    ("conv weight", lambda g, i: g.conv_backward_weight(i(1, 2, 5, 5), i(1, 2, 3, 3), dims=(2, 1, 3, 3), **CONV),
     "has 2 channels, .* wants 1 × groups 1"),
    ("max pool", lambda g, i: g.max_pool2d_backward(i(1, 1, 4, 4), i(1, 1, 3, 2), **POOL), r"gives f32\[1, 1, 2, 2\]"),
    ("mean pool", lambda g, i: g.mean_pool2d_backward(i(1, 1, 3, 2), **POOL, ceil_mode=False, count_include_pad=False,
                                                      dims=(1, 1, 4, 4)), r"gives f32\[1, 1, 2, 2\]"),
    ("attention", lambda g, i: g.attention_backward(*[i(1, 2, 4) for _ in "qkvd"], wrt="mask", num_heads=2, head_dim=2),
     "AttentionBackward wrt 'mask': wanted one of q, k, v"),
    ("labels", lambda g, i: g.softmax_cross_entropy(i(2, 5), g.constant([0, 1, 2])),
     r"labels i64\[3\] don't fit logits f32\[2, 5\]: wanted ints \['2'\] or f32\[2, 5\]"),
    ("loss dy", lambda g, i: g.softmax_cross_entropy_backward(i(2, 5), i(2, 5), i(2, 5)),
     r"dy f32\[2, 5\], wanted f32\[2\]"),
    ("rope table", lambda g, i: g.rope_table_backward(i(3, 4), i(3, 4), wrt="x", head_dim=4, n_rot=4),
     "one of cos, sin"),
    ("scan", lambda g, i: g.selective_scan_backward(i(1, 2, 3), i(1, 2, 3), i(3, 4), i(1, 2, 4), i(1, 2, 4), i(1, 2,
     4), wrt="x"),
     r"f32\[1, 2, 3\] and f32\[1, 2, 4\] must"),
]


@pytest.mark.parametrize(("make", "text"), [m[1:] for m in MISFITS], ids=[m[0] for m in MISFITS])
def test_backward_ops_refuse_what_does_not_fit(make: Callable[[Graph, Callable[..., int]], int], text: str) -> None:
    g = Graph("g")
    with pytest.raises(GraphError, match=text):
        make(g, lambda *dims: g.input(f"i{len(g)}", dims))
