"""Whole training graphs: against PyTorch end to end, random graphs, structure, plans, splits and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.autodiff import backward, split
from planner_core.errors import GraphError, UnboundDimError
from planner_core.ir import DType, Graph, Source, validate
from planner_core.ir.ops import Custom
from planner_core.memory import plan_memory_native, verify_plan
from runtime import compile_graph

F64, I64 = DType.F64, DType.I64
Values = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]


def evaluate(g: Graph, values: Values) -> Values:
    done: list[np.ndarray] = []
    for n in g.nodes:
        done.append(values[n.name] if n.op.name in ("Input", "Param") else n.op.evaluate(*[done[i] for i in n.inputs]))
        assert done[-1].shape == n.shape.sizes
    return {name: done[o] for o, name in zip(g.outputs, g.output_names, strict=True)}


def randoms(g: Graph, classes: int = 3) -> Values:
    rng = np.random.default_rng(5)
    return {g[i].name: rng.integers(0, classes, g[i].shape.sizes) if g[i].dtype.is_int
            else rng.uniform(-0.9, 0.9, g[i].shape.sizes).astype(g[i].dtype.numpy) for i in (*g.inputs, *g.params)}


def mlp(dtype: DType = F64) -> Graph:
    g = Graph("mlp")
    x, t = g.input("x", (7, 5), dtype), g.input("t", (7,), I64)
    h = g.gelu(g.add(g.mm(x, g.param("w1", (5, 6), dtype)), g.param("b1", (6,), dtype)))
    y = g.add(g.mm(h, g.param("w2", (6, 3), dtype)), g.param("b2", (3,), dtype))
    loss = g.reduce_mean(g.softmax_cross_entropy(y, t), axes=(0,), name="loss")
    return g.set_outputs(loss, y, names=["loss", "y"])


def torch_mlp(p: Tensors) -> torch.Tensor:
    h = F.gelu(p["x"] @ p["w1"] + p["b1"])
    return F.cross_entropy(h @ p["w2"] + p["b2"], p["t"])


def transformer(dtype: DType = F64) -> Graph:
    """Embedding, pre-norm attention with rotary positions and shared key heads, SwiGLU, tied output."""
    g = Graph("block")
    t, want = g.input("t", (2, 4), I64), g.input("want", (2, 4), I64)
    emb = g.param("emb", (3, 8), dtype)
    cos, sin = g.input("cos", (4, 1), dtype), g.input("sin", (4, 1), dtype)
    x = g.gather(emb, t)
    h = g.rms_norm(x, g.param("n1", (8,), dtype))
    qkv = g.mm(h, g.param("qkv", (8, 16), dtype))
    q, k, v = (g.narrow(qkv, axis=2, start=s, len=n) for s, n in ((0, 8), (8, 4), (12, 4)))
    q, k = (g.rope(i, cos, sin, head_dim=2, n_rot=2) for i in (q, k))
    a = g.attention(q, k, v, num_heads=4, head_dim=2, kv_heads=2, mask_kind="causal")
    x = g.add(x, g.mm(a, g.param("wo", (8, 8), dtype)))
    h = g.layer_norm(x, g.param("n2", (8,), dtype), g.param("b2", (8,), dtype))
    x = g.add(x, g.mm(g.swi_g_l_u(g.mm(h, g.param("up", (8, 12), dtype))), g.param("down", (6, 8), dtype)))
    y = g.mm(x, g.transpose(emb, perm=(1, 0)))
    loss = g.reduce_mean(g.softmax_cross_entropy(y, want), axes=(0, 1), name="loss")
    return g.set_outputs(loss, names=["loss"])


def torch_transformer(p: Tensors) -> torch.Tensor:
    def rope(i: torch.Tensor) -> torch.Tensor:
        a, b = i.reshape(2, 4, -1, 2).unbind(-1)
        c, s = p["cos"], p["sin"]
        return torch.stack((a * c - b * s, b * c + a * s), -1).transpose(1, 2)

    x = p["emb"][p["t"]]
    q, k, v = (F.rms_norm(x, (8,), p["n1"], 1e-6) @ p["qkv"]).split((8, 4, 4), -1)
    qh, kh, vh = rope(q), rope(k), v.reshape(2, 4, 2, 2).transpose(1, 2)
    a = F.scaled_dot_product_attention(qh, kh, vh, is_causal=True, enable_gqa=True)
    x = x + a.transpose(1, 2).reshape(2, 4, 8) @ p["wo"]
    gate, up = (F.layer_norm(x, (8,), p["n2"], p["b2"]) @ p["up"]).chunk(2, -1)
    x = x + (F.silu(gate) * up) @ p["down"]
    return F.cross_entropy((x @ p["emb"].T).reshape(8, 3), p["want"].reshape(8))


def conv_net(dtype: DType = F64) -> Graph:
    g = Graph("convnet")
    one: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    x, t = g.input("x", (2, 3, 9, 8), dtype), g.input("t", (2,), I64)
    h = g.fused_conv_bias_act(x, g.param("w1", (4, 3, 3, 3), dtype), g.param("b1", (4,), dtype), activation="relu",
        **one)
    h = g.pool2d(h, kind="max", kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    r = g.conv(h, g.param("w2", (4, 2, 3, 3), dtype), groups=2, **one)
    h = g.leaky_relu(g.add(h, r), alpha=0.1)
    h = g.resize_nearest(g.pool2d(h, kind="mean", kernel=(2, 2), strides=(2, 2), pads=(0,) * 4), factors=(1, 1, 2, 2))
    y = g.mm(g.reshape(g.global_pool(h, kind="mean"), dims=(2, 4)), g.param("w3", (4, 3), dtype))
    loss = g.reduce_mean(g.softmax_cross_entropy(y, t), axes=(0,), name="loss")
    return g.set_outputs(loss, names=["loss"])


def torch_conv_net(p: Tensors) -> torch.Tensor:
    h = F.max_pool2d(F.relu(F.conv2d(p["x"], p["w1"], p["b1"], padding=1)), 3, 2, 1)
    h = F.leaky_relu(h + F.conv2d(h, p["w2"], padding=1, groups=2), 0.1)
    h = F.interpolate(F.avg_pool2d(h, 2), scale_factor=2)
    return F.cross_entropy(h.mean((2, 3)) @ p["w3"], p["t"])


MODELS: dict[str, tuple[Callable[[DType], Graph], Callable[[Tensors], torch.Tensor]]] = {
    "mlp": (mlp, torch_mlp), "transformer": (transformer, torch_transformer), "conv net": (conv_net, torch_conv_net),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_end_to_end(name: str) -> None:
    """Loss and every param's gradient equal PyTorch's; so do those of the two halves that ``split`` makes."""
    make, fn = MODELS[name]
    g = make(F64)
    values = randoms(g)
    training = backward(g, loss=g.find("loss").id)
    assert validate(training) == []
    got = evaluate(training, values)
    leaves = {k: torch.tensor(v, requires_grad=v.dtype.kind == "f") for k, v in values.items()}
    loss = fn(leaves)
    np.testing.assert_allclose(got["loss"], loss.detach().numpy(), rtol=1e-10)
    loss.backward()
    for p in g.params:
        grad = leaves[g[p].name].grad
        assert grad is not None
        np.testing.assert_allclose(got[f"d_{g[p].name}"], grad.numpy(), rtol=1e-7, atol=1e-11, err_msg=g[p].name)

    forward, back = split(training)
    assert validate(forward) == [] and validate(back) == []
    assert back.output_names == [f"d_{g[p].name}" for p in g.params]
    ahead = evaluate(forward, values)
    behind = evaluate(back, {**values, **ahead})
    for k in got:
        np.testing.assert_array_equal(got[k], behind[k] if k.startswith("d_") else ahead[k])


@pytest.mark.parametrize("name", MODELS)
def test_training_graphs_plan_verify_and_run(name: str) -> None:
    """In f32, on the planned arena, with every byte a thunk touches checked: equal to the references node by node."""
    g = MODELS[name][0](DType.F32)
    training = backward(g, loss=g.find("loss").id)
    plan = plan_memory_native(training)
    assert verify_plan(training, plan) == []
    values = randoms(training)
    want = evaluate(training, values)
    training.weights = {training[p].name: values[training[p].name] for p in training.params}
    got = compile_graph(training).run({training[i].name: values[training[i].name] for i in training.inputs},
        sanitize=True)
    assert set(got) == set(want)
    for k in want:
        np.testing.assert_allclose(got[k], want[k], rtol=2e-4, atol=1e-5, err_msg=k)


# --- random graphs ------------------------------------------------------------------------------------

UNARY = {"tanh": torch.tanh, "silu": F.silu, "sin": torch.sin, "softplus": F.softplus, "neg": torch.neg}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    """Elementwise ops with broadcasting, products, reductions and moves over shared operands, against PyTorch."""
    g, rng = Graph("random"), np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    ids: list[int] = []
    values: list[torch.Tensor] = []
    for k in range(data.draw(st.integers(1, 3))):
        dims = data.draw(st.sampled_from([(3, 3), (1, 3), (3, 1), (2, 3, 3)]))
        ids.append(g.param(f"p{k}", dims, F64))
        values.append(torch.tensor(rng.uniform(-1, 1, dims), requires_grad=True))
    leaves = list(values)
    for _ in range(data.draw(st.integers(1, 8))):
        i, j = (data.draw(st.integers(0, len(ids) - 1)) for _ in "ab")
        kind = data.draw(st.sampled_from([*UNARY, *BINARY, "mm", "sum", "mean", "max over", "transpose", "concat"]))
        x, y, a, b = ids[i], ids[j], values[i], values[j]
        rank = a.ndim
        if kind in UNARY:
            node, value = g.activation(x, kind=kind), UNARY[kind](a)
        elif kind in BINARY:
            node, value = g.binary(x, y, kind=kind), BINARY[kind](a, b)
        elif kind == "mm":
            if a.shape[-1] != b.shape[-2]:
                continue
            node, value = g.mm(x, y), a @ b
        elif kind == "sum":
            node, value = g.reduce_sum(x, axes=(rank - 2,), keepdims=True), a.sum(-2, keepdim=True)
        elif kind == "mean":
            node, value = g.reduce_mean(x, axes=(-1,), keepdims=True), a.mean(-1, keepdim=True)
        elif kind == "max over":
            node, value = g.reduce_max(x, axes=(-1,), keepdims=True), a.amax(-1, keepdim=True)
        elif kind == "transpose":
            node, value = g.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2)), a.mT
        else:
            cut = g.narrow(g.concat(x, x, axis=-1), axis=rank - 1, start=1, len=a.shape[-1])
            node, value = cut, torch.cat((a, a), -1)[..., 1 : 1 + a.shape[-1]]
        ids.append(node)
        values.append(value)
    loss, total = g.reduce_mean(ids[-1], axes=tuple(range(values[-1].ndim))), values[-1].mean()
    g.set_outputs(loss, names=["loss"])
    training = backward(g, loss=loss)
    assert validate(training) == []
    assert verify_plan(training, plan_memory_native(training)) == []
    got = evaluate(training, {f"p{k}": v.detach().numpy() for k, v in enumerate(leaves)})
    wants = torch.autograd.grad(total, leaves, allow_unused=True)
    for k, want in enumerate(wants):
        np.testing.assert_allclose(got[f"d_p{k}"], 0 if want is None else want.numpy(), rtol=1e-7, atol=1e-10)


# --- structure ----------------------------------------------------------------------------------------


def test_forward_nodes_come_first_unchanged_and_the_graph_is_not_touched() -> None:
    g = mlp()
    before, nodes = g.content_hash, list(g.nodes)
    training = backward(g, loss=g.outputs[0])
    assert training.nodes[: len(nodes)] == nodes and g.content_hash == before
    assert training.output_names == ["loss", "y", "d_w1", "d_b1", "d_w2", "d_b2"]
    assert training.name == "mlp.training"


def test_only_what_wrt_needs_is_built() -> None:
    g = mlp()
    last, everything = (backward(g, loss=g.outputs[0], wrt=w) for w in (["b2"], None))
    assert last.output_names == ["loss", "y", "d_b2"]
    assert [n.op.name for n in last.nodes[len(g) :]].count("MatMul") == 0
    made = [n.op.name for n in everything.nodes[len(g) :]]
    assert made.count("MatMul") == 3  # dw2, dh, dw1; not dx
    read = {i for n in everything.nodes for i in n.inputs} | set(everything.outputs)
    assert [n for n in everything.nodes[len(g) :] if n.id not in read] == []


def test_backward_nodes_carry_the_source_of_their_forward_node() -> None:
    g = Graph("g")
    here = Source("model.py", "gate", "layers.0", "Tanh")
    x = g.tanh(g.param("w", (3,), F64), source=(here,))
    g.set_outputs(g.reduce_sum(x, axes=(0,)), names=["y"])
    training = backward(g, loss=g.outputs[0])
    made = training.nodes[training.outputs[-1]]
    assert made.op.name == "ActivationBackward" and made.source == (here,)


def test_outputs_are_seeded_by_inputs_once_each() -> None:
    g = Graph("g")
    w = g.param("w", (2, 3), F64)
    y = g.exp(w)
    g.set_outputs(y, g.neg(y), y, g.argmax(y, axis=1), names=["a", "b", "c", "i"])
    training = backward(g)
    assert [training[i].name for i in training.inputs] == ["d_a", "d_b"]
    w0, da, db = (np.random.default_rng(s).standard_normal((2, 3)) for s in range(3))
    np.testing.assert_allclose(evaluate(training, {"w": w0, "d_a": da, "d_b": db})["d_w"], (da - db) * np.exp(w0))


def test_a_param_the_loss_does_not_reach_has_gradient_zero_and_a_note() -> None:
    g = Graph("g")
    w, other = g.param("w", (2,), F64), g.param("other", (2, 2), F64)
    loss = g.reduce_sum(g.floor(w), axes=(0,))
    g.set_outputs(loss, g.exp(other), names=["loss", "y"])
    training = backward(g, loss=loss)
    got = evaluate(training, {"w": np.ones(2), "other": np.ones((2, 2))})
    np.testing.assert_array_equal(got["d_other"], np.zeros((2, 2)))
    np.testing.assert_array_equal(got["d_w"], np.zeros(2))
    assert training.notes == [f"{n}: the loss doesn't depend on it, its gradient is zero" for n in ("w", "other")]


def test_weights_follow() -> None:
    g = Graph("g")
    w = g.param("w", (2,), data=np.ones(2, np.float32))
    g.set_outputs(g.reduce_sum(g.mul(w, g.exp(w)), axes=(0,)), names=["loss"])
    training = backward(g, loss=g.outputs[0])
    forward, back = split(training)
    assert set(training.weights) == set(forward.weights) == set(back.weights) == {"w"}


def test_mixed_precision_gradients_have_the_params_width() -> None:
    g = Graph("g")
    w = g.param("w", (5, 3), DType.BF16)
    y = g.cast(g.mm(g.cast(g.input("x", (2, 5)), to=DType.BF16), w), to=DType.F32)
    loss = g.reduce_mean(y, axes=(0, 1))
    g.set_outputs(loss, names=["loss"])
    training = backward(g, loss=loss, wrt=["w", "x"])
    assert [str(training[o].shape) for o in training.outputs] == ["f32[]", "bf16[5, 3]", "f32[2, 5]"]


def test_symbols_pass_where_no_extent_is_asked_for() -> None:
    g = Graph("g")
    y = g.tanh(g.mm(g.input("x", ("B", 4)), g.param("w", (4, 2))))
    g.set_outputs(y, names=["y"])
    training = backward(g)
    bound = training.bind({"B": 3})
    assert validate(bound) == [] and str(bound[bound.outputs[-1]].shape) == "f32[4, 2]"
    g.set_outputs(g.reduce_mean(y, axes=(0, 1)), names=["m"])
    with pytest.raises(UnboundDimError, match=r"dim B of .* has no value; bind its symbol"):
        backward(g)


def _scalar(build: Callable[[Graph, int], int]) -> Graph:
    g = Graph("g")
    y = build(g, g.param("w", (3, 4)))
    return g.set_outputs(y, names=["y"])


@pytest.mark.parametrize(("build", "text"), [
    (lambda g, w: g.add(Custom("mine", g[w].shape, num_inputs=1), w, name="c"),
     r"Custom c in 'g.training' has no gradient declared; wanted one of Activation, AdaLayerNorm, .*Where"),
    (lambda g, w: g.pad(w, before=(1, 0), after=(0, 0), mode="edge"), r"Pad %1 .* has no gradient here: mode edge"),
    (lambda g, w: g.kv_append(w, g.narrow(w, axis=0, start=0, len=1), g.constant([1]), axis=0),
     "known only at the run"),
    (lambda g, w: g.reduce_prod(w, axes=(0,)), r"Reduce %1 .* no gradient here: prod divides"),
    (lambda g, w: g.scatter_elements(w, g.constant([[0]]), g.constant([[1.0]]), axis=0, reduction="mul"),
     r"ScatterElements %3 .* reduction 'mul'; only none and add"),
    (lambda g, w: g.conv_transpose2d(g.reshape(w, dims=(1, 1, 3, 4)), g.constant(np.ones((1, 1, 2, 2))), strides=(1, 1),
                                     pads=(0,) * 4, dilations=(1, 1), output_padding=(1, 0)),
                                         "is not below the strides"),
    (lambda g, w: g.activation_backward(w, w, kind="tanh"), "ActivationBackward %1 .* has no gradient declared"),
])
def test_ops_without_a_gradient_are_named(build: Callable[[Graph, int], int], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        backward(_scalar(build))


def test_an_op_without_a_gradient_off_the_way_is_no_matter() -> None:
    g = Graph("g")
    x = g.add(Custom("mine", g[g.input("x", (3,))].shape, num_inputs=1), 0)
    g.set_outputs(g.mul(x, g.param("w", (3,))), names=["y"])
    assert backward(g).output_names == ["y", "d_w"]
    with pytest.raises(GraphError, match="Custom"):
        backward(g, wrt=["x"])


@pytest.mark.parametrize(("how", "text"), [
    ({"loss": 1}, r"loss Activation %1 in 'g' is f32\[3, 4\]; wanted one float: reduce it first"),
    ({"loss": 9}, r"loss %9 is not a node of 'g' \(2 nodes\)"),
    ({"wrt": ["v"]}, "no node named 'v' in 'g'"),
    ({"wrt": []}, "wrt is empty for 'g'"),
])
def test_bad_arguments(how: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        backward(_scalar(lambda g, w: g.exp(w)), **how)


def test_what_can_not_be_differentiated_by() -> None:
    g = Graph("g")
    i = g.input("i", (3,), I64)
    y = g.exp(g.cast(i, to=F64), name="e")
    g.set_outputs(y, names=["y"])
    with pytest.raises(GraphError, match="'g' has no float params to differentiate by; name inputs in wrt"):
        backward(g)
    for name, text in (("i", r"wrt 'i' is Input i64\[3\] in 'g'"), ("e", r"wrt 'e' is Activation f64\[3\] in 'g'")):
        with pytest.raises(GraphError, match=text):
            backward(g, wrt=[name])
    g.input("x", (2,))
    with pytest.raises(GraphError, match="no float output of 'g' depends on what wrt names"):
        backward(g, wrt=["x"])


def test_split_wants_a_training_graph() -> None:
    with pytest.raises(GraphError, match="'mlp' is no training graph"):
        split(mlp())
