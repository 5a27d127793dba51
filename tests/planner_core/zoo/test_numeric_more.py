"""The rest of the zoo against PyTorch, written by hand here, at small sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from planner_core import zoo
from planner_core.errors import GraphError
from planner_core.memory import SharedWeightLayout, plan_memory, plan_memory_backward
from tests.planner_core.memory.checker import checked
from tests.planner_core.zoo.numeric import noise, run, same, tensors
from tests.planner_core.zoo.test_numeric import W, heads, linear, merged, norm, rotate

torch.set_num_threads(1)


@pytest.mark.parametrize("transposed", [False, True], ids=["as-read", "transposed"])
def test_moe(transposed: bool) -> None:
    g = zoo.build("moe", layers=2, hidden=16, heads=2, kv_heads=1, ffn=12, experts=4, top_k=2, vocab=30, seq=5, batch=2,
                  transposed=transposed)
    tokens = np.random.default_rng(1).integers(0, 30, (2, 5))
    got = run(g, tokens=tokens)[0]
    w = tensors(g)

    def experts(at: str, h: Tensor) -> Tensor:
        """Token by token, expert by expert."""
        rows = h.reshape(-1, h.shape[-1])
        out = torch.zeros_like(rows)
        banks = {n: w[at + n].transpose(1, 2) if transposed else w[at + n] for n in ("gate", "up", "down")}
        for i, row in enumerate(rows):
            score, which = linear(w, at + "router", row).topk(2)
            for share, e in zip(score.softmax(-1), which.tolist(), strict=True):
                out[i] += share * ((F.silu(row @ banks["gate"][e]) * (row @ banks["up"][e])) @ banks["down"][e])
        return out.reshape(h.shape)

    x = F.embedding(torch.tensor(tokens), w["embed"])
    for i in range(2):
        at = f"layers.{i}."
        h = F.rms_norm(x, (16,), w[at + "norm1.gamma"], 1e-5)
        q, k, v = (heads(linear(w, at + p, h), n) for p, n in (("q", 2), ("k", 1), ("v", 1)))
        a = F.scaled_dot_product_attention(rotate(w, q, 0), rotate(w, k, 0), v, is_causal=True, enable_gqa=True)
        x = x + linear(w, at + "projected", merged(a))
        x = x + experts(at, F.rms_norm(x, (16,), w[at + "norm2.gamma"], 1e-5))
    same(got, linear(w, "head", F.rms_norm(x, (16,), w["norm.gamma"], 1e-5)))


def test_matmul_training_pair() -> None:
    """Both graphs against autograd, with one weight; the backward plan reads the forward's bytes."""
    forward, backward = zoo.build("matmul-train", rows=5, k=6, n=7)
    x, dy = noise(5, 6), noise(5, 7, seed=6)
    y = run(forward, x=x)[0]
    dx, dw = run(backward, x=x, d_y=dy)
    assert np.array_equal(forward.weights["w"], backward.weights["w"])
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(forward.weights["w"], requires_grad=True)
    ty = tx @ tw
    ty.backward(torch.tensor(dy))
    assert tx.grad is not None and tw.grad is not None
    same(y, ty.detach())
    same(dx, tx.grad)
    same(dw, tw.grad)

    plan = checked(plan_memory(forward), forward)
    shared = plan_memory_backward(backward, 64, SharedWeightLayout.from_forward(forward, plan))
    assert shared.offset[backward.find("w").id] == plan.offset[forward.find("w").id]


def test_unet3d() -> None:
    g = zoo.build("unet3d", size=8, depth=4, base=3, levels=3, batch=2)
    volume = noise(2, 1, 4, 8, 8)
    got = run(g, volume=volume)[0]
    w = tensors(g)

    def conv(name: str, x: Tensor) -> Tensor:
        return F.leaky_relu(F.conv3d(x, w[name + ".w"], w[name + ".b"], padding=1), 0.01)

    x, skips = torch.tensor(volume), []
    for i in range(3):
        x = conv(f"down.{i}.b", conv(f"down.{i}.a", x))
        if i < 2:
            skips.append(x)
            x = F.max_pool3d(x, 2)
    for i in (1, 0):
        x = torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), skips[i]], 1)
        x = conv(f"up.{i}.b", conv(f"up.{i}.a", x))
    same(got, F.conv3d(x, w["head.w"], w["head.b"]))


def test_albert() -> None:
    """The form that runs; the customs' form plans the same products."""
    sizes = {"layers": 2, "hidden": 24, "heads": 4, "ffn": 40, "embedding": 8, "vocab": 50, "seq": 7, "positions": 9}
    g = zoo.build("albert-onnx", kernels=True, **sizes)
    rng = np.random.default_rng(0)
    ids, types = rng.integers(0, 50, (1, 7)), rng.integers(0, 2, (1, 7))
    got = run(g, input_ids=ids, token_type_ids=types)
    w = tensors(g)

    def q(name: str, x: Tensor) -> Tensor:
        return x @ ((w[name + ".q"].float() - w[name + ".zero"].float()) * w[name + ".scale"]) + w[name + ".b"]

    x = F.embedding(torch.tensor(ids), w["embed.word"]) + F.embedding(torch.tensor(types), w["embed.type"])
    x = q("up", norm(w, "embed.norm", x + w["embed.position"][:7], 1e-12))
    for _ in range(2):
        a = F.scaled_dot_product_attention(*(heads(q(p, x), 4) for p in "qkv"))
        x = norm(w, "norm1", x + q("projected", merged(a)), 1e-12)
        x = norm(w, "norm2", x + q("ffn2", F.gelu(q("ffn1", x), approximate="tanh")), 1e-12)
    same(got[0], x)
    same(got[1], torch.tanh(q("pooler", x[:, 0])))
    custom = zoo.build("albert-onnx", **sizes)
    assert {custom[p].name for p in custom.params} == {g[p].name for p in g.params}
    with pytest.raises(GraphError, match="Custom has no reference evaluation"):
        run(custom, input_ids=ids, token_type_ids=types)


def test_tts_duration() -> None:
    g = zoo.build("tts-duration", phonemes=6, frames=11, hidden=16, ffn=24, layers=1, vocab=20, mels=5, kernel=3, longest=4)
    ids = np.arange(6) * 3
    zoo.random_weights(g, 1)
    g.weights["duration.head.b"] = np.full(1, 1.2, np.float32)  # about two frames a phoneme
    mel, durations = run(g, phonemes=ids)
    w = tensors(g)

    def conv(name: str, x: Tensor) -> Tensor:
        k = w[name + ".w"].shape[-1]
        return F.conv1d(x.transpose(1, 2), w[name + ".w"], w[name + ".b"], padding=k // 2).transpose(1, 2)

    def block(at: str, x: Tensor) -> Tensor:
        a = F.scaled_dot_product_attention(*(heads(linear(w, at + p, x), 2) for p in "qkv"))
        x = norm(w, at + "norm1", x + linear(w, at + "projected", merged(a)), 1e-5)
        return norm(w, at + "norm2", x + conv(at + "conv2", F.relu(conv(at + "conv1", x))), 1e-5)

    x = block("encoder.0.", F.embedding(torch.tensor(ids), w["embed"])[None])
    h = x
    for i in range(2):
        h = norm(w, f"duration.{i}.norm", F.relu(conv(f"duration.{i}", h)), 1e-5)
    spans = (torch.exp(linear(w, "duration.head", h))[0, :, 0].round() - 1).clamp(0, 4).long()
    assert spans.tolist() == durations.tolist() and durations.dtype == np.int64 and len(set(durations.tolist())) > 1
    long = torch.repeat_interleave(x[0], spans, 0)
    long = torch.cat([long, x[0, -1:].expand(11, -1)])[:11]
    same(mel, linear(w, "mel", block("decoder.0.", long[None])))


def test_sam_attention() -> None:
    side, n, hidden = 3, 2, 8
    g = zoo.build("sam-attention", layers=2, hidden=hidden, heads=n, ffn=12, side=side, batch=2)
    x0 = noise(2, side * side, hidden)
    got = run(g, x=x0)[0]
    w = tensors(g)
    x = torch.tensor(x0)
    for i in range(2):
        at = f"blocks.{i}."
        h = linear(w, at + "qkv", norm(w, at + "norm1", x, 1e-6))
        q, k, v = (heads(p, n) for p in h.chunk(3, -1))
        bias = torch.empty(2, n, side * side, side * side)
        for a in range(side * side):  # from the definition: every pair of places
            for b in range(side * side):
                dh, dw = a // side - b // side, a % side - b % side
                rows = w[at + "rel_h"][dh + side - 1] + w[at + "rel_w"][dw + side - 1]
                bias[:, :, a, b] = q[:, :, a] @ rows
        x = x + linear(w, at + "projected", merged(F.scaled_dot_product_attention(q, k, v, attn_mask=bias)))
        x = x + linear(w, at + "ffn2", F.gelu(linear(w, at + "ffn1", norm(w, at + "norm2", x, 1e-6))))
    same(got, x)


def test_dit() -> None:
    g = zoo.build("dit-block", layers=2, hidden=16, heads=2, size=6, batch=2)
    latent, time, label = noise(2, 4, 6, 6), noise(2, 256, seed=7), noise(2, 16, seed=8)
    got = run(g, latent=latent, timestep=time, label=label)[0]
    w = tensors(g)

    def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(x, (16,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]

    x = F.conv2d(torch.tensor(latent), w["patch.w"], w["patch.b"], stride=2).flatten(2).transpose(1, 2) + w["positions"]
    c = linear(w, "time2", F.silu(linear(w, "time1", torch.tensor(time)))) + torch.tensor(label)
    for i in range(2):
        at = f"blocks.{i}."
        m = linear(w, at + "ada", F.silu(c)).chunk(6, 1)
        h = modulate(x, m[0], m[1])
        a = F.scaled_dot_product_attention(*(heads(linear(w, at + p, h), 2) for p in "qkv"))
        x = x + m[2][:, None] * linear(w, at + "projected", merged(a))
        h = F.gelu(linear(w, at + "ffn1", modulate(x, m[3], m[4])), approximate="tanh")
        x = x + m[5][:, None] * linear(w, at + "ffn2", h)
    x = linear(w, "final.head", modulate(x, *linear(w, "final.ada", F.silu(c)).chunk(2, 1)))
    same(got, torch.einsum("nhwpqc->nchpwq", x.reshape(2, 3, 3, 2, 2, 8)).reshape(2, 8, 6, 6))


def mamba_block(w: W, at: str, x: Tensor, state: int) -> Tensor:
    h = F.rms_norm(x, x.shape[-1:], w[at + "norm.gamma"], 1e-5)
    u, z = linear(w, at + "in", h).chunk(2, -1)
    inner = u.shape[-1]
    u = F.conv1d(F.pad(u.transpose(1, 2), (3, 0)), w[at + "conv.w"], w[at + "conv.b"], groups=inner).transpose(1, 2)
    u = F.silu(u)
    step, b, c = linear(w, at + "select", u).split([w[at + "delta.w"].shape[0], state, state], -1)
    delta = F.softplus(linear(w, at + "delta", step))
    a = -torch.exp(w[at + "a_log"])
    hidden, ys = torch.zeros(x.shape[0], inner, state), []
    for t in range(x.shape[1]):
        hidden = torch.exp(delta[:, t, :, None] * a) * hidden + torch.einsum("bd,bn->bdn", delta[:, t] * u[:, t], b[:, t])
        ys.append(torch.einsum("bdn,bn->bd", hidden, c[:, t]))
    y = torch.stack(ys, 1) + u * w[at + "skip"]
    return x + linear(w, at + "out", y * F.silu(z))


def test_mamba() -> None:
    g = zoo.build("mamba", layers=2, hidden=16, state=4, vocab=30, seq=6, batch=2)
    tokens = np.random.default_rng(1).integers(0, 30, (2, 6))
    got = run(g, tokens=tokens)[0]
    w = tensors(g)
    x = F.embedding(torch.tensor(tokens), w["embed"])
    for i in range(2):
        x = mamba_block(w, f"layers.{i}.", x, 4)
    same(got, F.rms_norm(x, (16,), w["norm.gamma"], 1e-5) @ w["embed"].T)


def test_mamba_training() -> None:
    """Loss and every gradient against autograd through the hand-written block."""
    g = zoo.build("mamba-train", layers=2, hidden=16, state=4, vocab=30, seq=6, batch=2)
    rng = np.random.default_rng(1)
    tokens, labels = rng.integers(0, 30, (2, 6)), rng.integers(0, 30, (2, 6))
    loss, *grads = run(g, tokens=tokens, labels=labels)
    w = {k: v.clone().requires_grad_() for k, v in tensors(g).items()}
    x = F.embedding(torch.tensor(tokens), w["embed"])
    for i in range(2):
        x = mamba_block(w, f"layers.{i}.", x, 4)
    logits = F.rms_norm(x, (16,), w["norm.gamma"], 1e-5) @ w["embed"].T
    want = F.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).flatten())
    want.backward()
    np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-5)
    assert g.output_names == ["loss", *(f"d_{g[p].name}" for p in g.params)] and len(grads) == len(w)
    for p, d in zip(g.params, grads, strict=True):
        grad = w[g[p].name].grad
        assert grad is not None
        same(d, grad)


@pytest.mark.parametrize("layer_norm", [True, False], ids=["layer-norm", "rms-norm"])
def test_ada_layer_norm(layer_norm: bool) -> None:
    from planner_core.ir.ops import AdaLayerNorm

    x, scale, shift = noise(2, 3, 8), noise(2, 8, seed=6), noise(2, 8, seed=7)
    fn = F.layer_norm if layer_norm else F.rms_norm
    want = fn(torch.tensor(x), (8,), eps=1e-6) * (1 + torch.tensor(scale)[:, None]) + torch.tensor(shift)[:, None]
    same(AdaLayerNorm(layer_norm=layer_norm).evaluate(x, scale, shift), want)
