"""Zoo graphs with random weights against PyTorch, written by hand here, at small sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from planner_core import zoo
from planner_core.autodiff import backward
from runtime import compile_graph
from tests.planner_core.zoo.numeric import noise, run, same, tensors

torch.set_num_threads(1)
W = dict[str, Tensor]


def linear(w: W, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[name + ".w"].T, w.get(name + ".b"))


def heads(x: Tensor, n: int) -> Tensor:
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def norm(w: W, name: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[name + ".gamma"], w[name + ".beta"], eps)


def bert(w: W, ids: Tensor, types: Tensor, layers: int, n: int) -> tuple[Tensor, Tensor]:
    x = F.embedding(ids, w["embed.word"]) + F.embedding(types, w["embed.type"]) + w["embed.position"][: ids.shape[1]]
    x = norm(w, "embed.norm", x, 1e-12)
    for i in range(layers):
        at = f"layers.{i}."
        q, k, v = (heads(linear(w, at + p, x), n) for p in "qkv")
        a = merged(F.scaled_dot_product_attention(q, k, v))
        x = norm(w, at + "norm1", x + linear(w, at + "projected", a), 1e-12)
        x = norm(w, at + "norm2", x + linear(w, at + "ffn2", F.gelu(linear(w, at + "ffn1", x))), 1e-12)
    return x, torch.tanh(linear(w, "pooler", x[:, 0]))


@pytest.mark.parametrize("name", ["bert-base", "minilm"])
def test_bert(name: str) -> None:
    g = zoo.build(name, layers=2, hidden=24, heads=4, ffn=40, vocab=50, seq=7, batch=2, positions=9)
    rng = np.random.default_rng(0)
    ids, types = rng.integers(0, 50, (2, 7)), rng.integers(0, 2, (2, 7))
    got = run(g, input_ids=ids, token_type_ids=types)
    for a, b in zip(got, bert(tensors(g), torch.tensor(ids), torch.tensor(types), 2, 4), strict=True):
        same(a, b)


def rotate(w: W, x: Tensor, start: int) -> Tensor:
    """Rotary positions as complex numbers, from the definition: pairs (i, i + d/2)."""
    half = x.shape[-1] // 2
    angle = torch.arange(start, start + x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    z = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def llama(w: W, tokens: Tensor, layers: int, n: int, kv: int) -> Tensor:
    x = F.embedding(tokens, w["embed"])
    for i in range(layers):
        at = f"layers.{i}."
        h = F.rms_norm(x, x.shape[-1:], w[at + "norm1.gamma"], 1e-5)
        if at + "qkv.w" in w:
            d = w[at + "qkv.w"].shape[1] // (n + 2 * kv)
            q, k, v = linear(w, at + "qkv", h).split([n * d, kv * d, kv * d], -1)
        else:
            q, k, v = (linear(w, at + p, h) for p in "qkv")
        q, k, v = heads(q, n), heads(k, kv), heads(v, kv)
        if at + "q_norm.gamma" in w:
            q, k = (F.rms_norm(p, p.shape[-1:], w[at + name], 1e-5) for p, name in ((q, "q_norm.gamma"), (k, "k_norm.gamma")))
        q, k = rotate(w, q, 0), rotate(w, k, 0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + linear(w, at + "projected", merged(a))
        h = F.rms_norm(x, x.shape[-1:], w[at + "norm2.gamma"], 1e-5)
        if at + "gate_up.w" in w:
            gate, up = linear(w, at + "gate_up", h).chunk(2, -1)
        else:
            gate, up = linear(w, at + "gate", h), linear(w, at + "up", h)
        x = x + linear(w, at + "down", F.silu(gate) * up)
    return linear(w, "head", F.rms_norm(x, x.shape[-1:], w["norm.gamma"], 1e-5))


SMALL = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 40, "batch": 2}


def _caches(g: object, fill: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    return {g[i].name: (fill or {}).get(g[i].name, np.zeros(g[i].shape.sizes, np.float32))  # type: ignore[index]
            for i in g.inputs if g[i].name != "tokens"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("packed", "sliced", "qk_norm"),
                         [(False, False, False), (True, False, False), (True, True, False), (True, False, True)],
                         ids=["separate", "packed", "sliced", "qk-norm"])
def test_llama_prefill_then_decode(packed: bool, sliced: bool, qk_norm: bool) -> None:
    """Prefill gives PyTorch's logits; decoding the last token behind the others' cache gives the last row."""
    tokens = np.random.default_rng(2).integers(0, 40, (2, 6))
    form = {**SMALL, "packed_qkv": packed, "packed_mlp": packed, "sliced_mlp": sliced, "qk_norm": qk_norm}
    g = zoo.build("llama-prefill", seq=6, **form)
    got = run(g, tokens=tokens, **_caches(g))[0]
    want = llama(tensors(g), torch.tensor(tokens), 2, 4, 2)
    same(got, want)
    last = zoo.build("llama-prefill", seq=6, last_only=True, cache=False, **form)
    same(run(last, tokens=tokens)[0], want[:, -1:])

    rows = [n.id for n in g.nodes if n.op.name == "KvAppend"]
    g.set_outputs(*rows)
    filled = {g[r].name.replace("_all", "_cache"): a for r, a in zip(rows, run(g, tokens=tokens, **_caches(g)), strict=True)}
    for a in filled.values():
        a[:, 5] = np.nan  # the row that decoding must write
    d = zoo.build("llama-decode", past=5, **form)
    same(run(d, tokens=tokens[:, 5:], **_caches(d, filled))[0], want[:, -1:])


@pytest.mark.parametrize(("quant", "tolerance"), [("f16", 0.01), ("bf16", 0.08)])
def test_half_float_llama(quant: str, tolerance: float) -> None:
    """Every value in 16 bits, near PyTorch in 32 with the same weights."""
    tokens = np.random.default_rng(2).integers(0, 40, (2, 6))
    g = zoo.build("llama-prefill", seq=6, quant=quant, cache=False, **SMALL)
    got = run(g, tokens=tokens)[0].astype(np.float32)
    wide = {k: torch.from_numpy(v.astype(np.float32)) for k, v in g.weights.items()}
    same(got, llama(wide, torch.tensor(tokens), 2, 4, 2), tolerance)


def test_decoder_stack() -> None:
    """From token ids, with grouped queries."""
    g = zoo.build("decoder-stack", layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, seq=6, vocab=40, batch=2, embed=True)
    tokens = np.random.default_rng(2).integers(0, 40, (2, 6)).astype(np.int32)
    got = run(g, tokens=tokens)[0]
    w = tensors(g)
    x = F.embedding(torch.tensor(tokens), w["embed"])
    for i in range(2):
        at = f"layers.{i}."
        h = F.rms_norm(x, (32,), w[at + "norm1"], 1e-6)
        q, k, v = (heads(h @ w[at + p], n) for p, n in (("wq", 4), ("wk", 2), ("wv", 2)))
        a = F.scaled_dot_product_attention(rotate(w, q, 0), rotate(w, k, 0), v, is_causal=True, enable_gqa=True)
        x = x + merged(a) @ w[at + "wo"]
        h = F.rms_norm(x, (32,), w[at + "norm2"], 1e-6)
        x = x + (F.silu(h @ w[at + "w_gate"]) * (h @ w[at + "w_up"])) @ w[at + "w_down"]
    same(got, F.rms_norm(x, (32,), w["norm"], 1e-6) @ w["head"])


def test_gradients_of_a_llama_equal_autograds() -> None:
    """Every param's, for a random seed on the logits; packed QKV, grouped queries and query norms on the way."""
    g = zoo.build("llama-prefill", seq=6, packed_qkv=True, packed_mlp=True, qk_norm=True, cache=False, **SMALL)
    trained = [g[p].name for p in g.params if not g[p].name.startswith("rope.")]
    tokens, seed = np.random.default_rng(2).integers(0, 40, (2, 6)), noise(2, 6, 40)
    training = backward(g, wrt=trained)
    logits, *grads = run(training, tokens=tokens, d_logits=seed)
    w = {k: v.clone().requires_grad_() for k, v in tensors(training).items()}
    want = llama(w, torch.tensor(tokens), 2, 4, 2)
    same(logits, want.detach())
    want.backward(torch.tensor(seed))
    for name, d in zip(trained, grads, strict=True):
        grad = w[name].grad
        assert grad is not None
        same(d, grad)


@pytest.mark.parametrize("name", ["bert-base", "minilm"])
def test_gradients_of_a_bert_equal_autograds(name: str) -> None:
    g = zoo.build(name, layers=2, hidden=24, heads=4, ffn=40, vocab=50, seq=7, batch=2, positions=9)
    rng = np.random.default_rng(0)
    ids, types = rng.integers(0, 50, (2, 7)), rng.integers(0, 2, (2, 7))
    training = backward(g)
    seeds = {f"d_{n}": noise(*g[o].shape.sizes, seed=6) for o, n in zip(g.outputs, g.output_names, strict=True)}
    _, _, *grads = run(training, input_ids=ids, token_type_ids=types, **seeds)
    w = {k: v.clone().requires_grad_() for k, v in tensors(training).items()}
    for y, s in zip(bert(w, torch.tensor(ids), torch.tensor(types), 2, 4), seeds.values(), strict=True):
        y.backward(torch.tensor(s), retain_graph=True)
    for p, d in zip(g.params, grads, strict=True):
        grad, label = w[g[p].name].grad, g[p].name
        assert grad is not None
        if label.endswith(".k.b"):  # softmax doesn't see a shift of all keys: zero but for rounding
            assert np.abs(d).max() < 1e-5 and grad.abs().max() < 1e-5
        else:
            same(d, grad)


def test_resnet() -> None:
    g = zoo.build("resnet50", size=32, width=4, blocks=2, classes=10, batch=2)
    image = noise(2, 3, 32, 32)
    got = run(g, image=image)[0]
    w = tensors(g)

    def conv(name: str, x: Tensor, stride: int) -> Tensor:
        y = F.conv2d(x, w[name + ".w"], stride=stride, padding=w[name + ".w"].shape[-1] // 2)
        return F.batch_norm(y, *(w[f"{name}.bn.{p}"] for p in ("mean", "var", "gamma", "beta")))

    x = F.max_pool2d(F.relu(conv("stem", torch.tensor(image), 2)), 3, 2, 1)
    for stage in range(4):
        for i in range(2):
            at, stride = f"stages.{stage}.{i}.", 2 if stage and not i else 1
            y = conv(at + "c", F.relu(conv(at + "b", F.relu(conv(at + "a", x, 1)), stride)), 1)
            x = F.relu(y + (x if i else conv(at + "short", x, stride)))
    same(got, linear(w, "fc", x.mean((2, 3))))


def test_hifigan() -> None:
    g = zoo.build("hifigan", frames=3, channels=32, mels=5)
    mel = noise(1, 5, 3)
    got = run(g, mel=mel)[0]
    w = tensors(g)

    def conv(name: str, x: Tensor, dilation: int = 1) -> Tensor:
        return F.conv1d(x, w[name + ".w"], w[name + ".b"], padding=dilation * (w[name + ".w"].shape[-1] - 1) // 2,
                        dilation=dilation)

    x = conv("pre", torch.tensor(mel))
    for i, (rate, k) in enumerate([(8, 16), (8, 16), (2, 4), (2, 4)]):
        x = F.conv_transpose1d(F.leaky_relu(x, 0.1), w[f"ups.{i}.w"][:, :, 0], w[f"ups.{i}.b"][:, 0], rate, (k - rate) // 2)
        branches = []
        for j in range(3):
            y = x
            for m, dilation in enumerate((1, 3, 5)):
                h = conv(f"blocks.{i}.{j}.{m}.conv1", F.leaky_relu(y, 0.1), dilation)
                y = y + conv(f"blocks.{i}.{j}.{m}.conv2", F.leaky_relu(h, 0.1))
            branches.append(y)
        x = sum(branches) / 3
    want = torch.tanh(conv("post", F.leaky_relu(x)))
    assert want.shape == (1, 1, 3 * 256)
    same(got, want)


TINY = [
    ("albert-onnx", {"layers": 2, "hidden": 24, "heads": 4, "ffn": 40, "embedding": 8, "vocab": 20, "seq": 7, "kernels": True}),
    ("bert-base", {"layers": 2, "hidden": 24, "heads": 4, "ffn": 40, "vocab": 20, "seq": 7}),
    ("decoder-stack", {"layers": 2, "hidden": 32, "heads": 4, "seq": 6, "vocab": 20}),
    ("dit-block", {"layers": 2, "hidden": 16, "heads": 2, "size": 6}),
    ("hifigan", {"frames": 2, "channels": 16, "mels": 5}),
    ("llama-decode", {"past": 5, **SMALL}),
    ("llama-prefill", {"seq": 6, **SMALL}),
    ("mamba", {"layers": 2, "hidden": 16, "state": 4, "vocab": 20, "seq": 6}),
    ("mamba-train", {"layers": 2, "hidden": 16, "state": 4, "vocab": 20, "seq": 6}),
    ("matmul-train", {"rows": 3, "k": 4, "n": 5}),
    ("minilm", {"layers": 2, "hidden": 24, "heads": 4, "ffn": 40, "vocab": 20, "seq": 7}),
    ("moe", {"layers": 2, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 12, "experts": 4, "vocab": 20, "seq": 5}),
    ("resnet50", {"size": 32, "width": 4, "blocks": 1, "classes": 10}),
    ("sam-attention", {"layers": 1, "hidden": 8, "heads": 2, "ffn": 12, "side": 3}),
    ("tts-duration", {"phonemes": 6, "frames": 11, "hidden": 16, "ffn": 24, "layers": 1, "vocab": 20, "kernel": 3}),
    ("unet3d", {"size": 8, "depth": 4, "base": 3, "levels": 3}),
]


def test_every_model_has_tiny_sizes() -> None:
    assert [n for n, _ in TINY] == zoo.names()


PLANS = [("preset", {}, TINY), ("elided", {"elide_bank_transposes": True, "pin_output_ancestors": False},
                                TINY)]
RUNS = [(label, *t, plan) for label, plan, models in PLANS for t in models]


@pytest.mark.parametrize(("name", "params", "plan"), [r[1:] for r in RUNS], ids=[f"{r[1]}-{r[0]}" for r in RUNS])
def test_the_runtime_agrees_with_the_reference(name: str, params: dict[str, object], plan: dict[str, bool]) -> None:
    """The same graph on the bytes of its plan, twice: a second run finds weights and packs unharmed."""
    for g in zoo.graphs_of(name, **params):
        rng = np.random.default_rng(2)
        inputs = {n.name: rng.integers(0, 2, n.shape.sizes) if n.dtype.is_int else noise(*n.shape.sizes)
                  for n in map(g.__getitem__, g.inputs)}
        want = run(g, **inputs)
        for label, w in zip(g.output_names, want, strict=True):  # else being equal says nothing
            assert np.isfinite(w).all() and len(np.unique(w)) >= (0.25 * w.size if w.dtype.kind == "f" else min(2, w.size)), label
        compiled = compile_graph(g).with_options(**plan)
        for _ in range(2):
            got = compiled.run(inputs)
            for label, w in zip(g.output_names, want, strict=True):
                np.testing.assert_allclose(got[label], w, rtol=1e-3, atol=1e-3 * np.abs(w).max())


def test_weights_depend_on_seed_name_and_shape_alone() -> None:
    a = zoo.random_weights(zoo.build("llama-prefill", seq=6, **SMALL), 3).weights
    b = zoo.random_weights(zoo.build("llama-decode", past=5, **SMALL), 3).weights
    assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)
    c = zoo.random_weights(zoo.build("llama-prefill", seq=6, **SMALL), 4).weights
    assert not any(np.array_equal(a[k], c[k]) for k in a if not k.startswith("rope."))
    g = zoo.build("llama-decode", past=5, quant="q4_0", **SMALL)
    kept = np.zeros(g.find("head.w").shape.sizes, np.uint8)
    g.weights["head.w"] = kept
    assert zoo.random_weights(g).weights["head.w"] is kept, "data that is there stays"
