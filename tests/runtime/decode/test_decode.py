"""The decode demo: tokens as PyTorch's, one copy of the weights, eviction under a cap."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from planner_core.errors import GraphError, ImportModelError
from planner_core.ir import QuantScheme
from planner_core.ir.packed import dequantize
from planner_core.zoo.decode import DecodeConfig, decode_step
from planner_core.zoo.decode_gguf import load_gguf
from runtime import RunError
from runtime.decode import Decoder, random_decode_weights

SMALL = DecodeConfig(layers=3, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=61, positions=64)


def reference(config: DecodeConfig, weights: dict[str, np.ndarray], tokens: list[int]) -> torch.Tensor:
    """Logits ``[len, vocab]`` of the whole text at once in PyTorch: no cache, causal attention."""
    f = torch.nn.functional
    scheme = next((s for s in QuantScheme if s.text == config.quant), None)

    def matrix(name: str, k: int) -> torch.Tensor:
        w = weights[name + ".w"]
        return torch.from_numpy(np.ascontiguousarray(dequantize(w.reshape(-1, scheme.row_bytes(k)), scheme, k).T) if scheme else w)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return f.rms_norm(x, (config.hidden,), torch.from_numpy(weights[name + ".gamma"]), config.eps)

    n, heads, d = len(tokens), config.heads, config.head_dim
    kv = config.kv_heads or heads
    cos, sin = (torch.from_numpy(weights[f"rope.{t}"])[:n, None] for t in ("cos", "sin"))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        if config.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    x = torch.from_numpy(weights["embed"])[torch.tensor(tokens)]
    for i in range(config.layers):
        at = f"layers.{i}."
        h = norm(x, at + "norm1")
        q = rotated((h @ matrix(at + "q", config.hidden)).view(n, heads, d))
        k = rotated((h @ matrix(at + "k", config.hidden)).view(n, kv, d)).repeat_interleave(heads // kv, 1)
        v = (h @ matrix(at + "v", config.hidden)).view(n, kv, d).repeat_interleave(heads // kv, 1)
        a = f.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True)
        x = x + a.transpose(0, 1).reshape(n, -1) @ matrix(at + "projected", config.hidden)
        h = norm(x, at + "norm2")
        x = x + (f.silu(h @ matrix(at + "gate", config.hidden)) * (h @ matrix(at + "up", config.hidden))) @ matrix(at + "down", config.ffn)
    return norm(x, "norm") @ matrix("head", config.hidden)


CONFIGS = {
    "f32": SMALL,
    "many heads": DecodeConfig(layers=2, hidden=48, heads=6, kv_heads=1, ffn=64, vocab=50, positions=40, interleaved=True),
    "q8_0": DecodeConfig(layers=2, hidden=64, heads=4, ffn=96, vocab=70, positions=32, quant="q8_0"),
    "q4_0": DecodeConfig(layers=2, hidden=64, heads=2, kv_heads=1, ffn=64, vocab=40, positions=32, quant="q4_0"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_equal_pytorch_through_the_ladder(name: str) -> None:
    """"a small LLaMA-style model … generates tokens through the power-of-two ladder with a resident KV cache; tokens equal
    to the same model in PyTorch"."""
    config = CONFIGS[name]
    weights = random_decode_weights(config, seed=3)
    decoder = Decoder(config, weights, min_rows=4)
    prompt = [1, 7, 3, 9, 2]
    count = decoder.capacity - len(prompt) + 1
    made = decoder.generate(prompt, count, keep_logits=True)
    text = prompt + made.tokens[:-1]
    want = reference(config, weights, text).numpy()
    np.testing.assert_allclose(np.stack(made.logits), want, rtol=2e-3, atol=2e-4)
    assert made.tokens == want[len(prompt) - 1 :].argmax(-1).tolist()
    rungs = [b.upper for b in decoder.ladder.buckets if decoder.ladder.compiled_for_upper(b.upper)]
    assert rungs == [b.upper for b in decoder.ladder.buckets], "it climbed all of them"


@pytest.mark.parametrize(("quant", "unit"), [("f16", 2.0**-11), ("bf16", 2.0**-8)])
def test_half_models_stay_within_their_precision(quant: str, unit: float) -> None:
    config = DecodeConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=40, positions=32, quant=quant)
    weights = random_decode_weights(config, seed=3)
    decoder = Decoder(config, weights, min_rows=4)
    made = decoder.generate([1, 7, 3], 20, keep_logits=True)
    assert decoder.ladder.compiled_for_key(1).handles.view("past_k_0").dtype == weights["embed"].dtype
    wide = {k: v.astype(np.float32) for k, v in weights.items()}
    want = reference(dataclasses.replace(config, quant=""), wide, [1, 7, 3, *made.tokens[:-1]]).numpy()
    got = np.stack(made.logits).astype(np.float64)
    assert np.abs(got - want).max() <= 16 * unit * np.abs(want).max()


def test_resident_bytes_are_one_copy() -> None:
    """"shows weight sharing (resident bytes ≈ one copy)"."""
    weights = random_decode_weights(SMALL)
    decoder = Decoder(SMALL, weights, min_rows=4)
    decoder.generate([1], 40)
    ladder = decoder.ladder
    assert ladder.compiled_count == 5
    assert ladder.resident_bytes == sum(w.nbytes for w in weights.values())
    buffers = {id(ladder.compiled_for_upper(b.upper).executor.weight_buffer) for b in ladder.buckets}
    assert len(buffers) == 1


def test_eviction_under_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """"and eviction under a cap": without sharing every rung has a copy; the one before leaves once its rows are over."""
    weights = random_decode_weights(SMALL)
    want = Decoder(SMALL, weights, min_rows=4).generate([5, 6], 40).tokens
    monkeypatch.setenv("RLX_METAL_NO_SHARE", "1")
    decoder = Decoder(SMALL, weights, min_rows=4, large_bytes=1, unified_memory=False)
    assert decoder.generate([5, 6], 40).tokens == want
    assert decoder.ladder.totals().evictions == 4
    assert decoder.ladder.compiled_count == 1
    one = sum(w.nbytes for w in weights.values())
    assert max(e.resident_bytes for e in decoder.ladder.timeline()) == 2 * one, "two while rows move"
    assert decoder.ladder.resident_bytes == one


def test_another_text_starts_clean() -> None:
    decoder = Decoder(SMALL, random_decode_weights(SMALL), min_rows=4)
    first = decoder.generate([1, 2, 3], 20).tokens
    decoder.reset()
    decoder.generate([9, 9, 9, 9, 9, 9], 9)
    decoder.reset()
    assert decoder.generate([1, 2, 3], 20).tokens == first
    assert decoder.ladder.totals().misses == 4


def test_mistakes_are_explained() -> None:
    decoder = Decoder(SMALL, random_decode_weights(SMALL), min_rows=64)
    with pytest.raises(RunError, match="at least one token"):
        decoder.generate([], 3)
    with pytest.raises(RunError, match="token 61 is outside"):
        decoder.step(61)
    with pytest.raises(RunError, match="64 tokens long"):
        decoder.generate([1], 70)
    with pytest.raises(GraphError, match="rows within the positions"):
        decode_step(SMALL, 65)
    with pytest.raises(GraphError, match="quant 'f17'"):
        decode_step(DecodeConfig(quant="f17"), 4)
    with pytest.raises(GraphError, match="kv heads that divide heads"):
        decode_step(DecodeConfig(heads=4, kv_heads=3), 4)


def _write_gguf(path: Path, config: DecodeConfig, weights: dict[str, np.ndarray], arch: str = "llama", skip: str = "") -> None:
    gguf = pytest.importorskip("gguf")
    w = gguf.GGUFWriter(str(path), arch)
    w.add_block_count(config.layers)
    w.add_context_length(config.positions)
    w.add_embedding_length(config.hidden)
    w.add_feed_forward_length(config.ffn)
    w.add_head_count(config.heads)
    w.add_head_count_kv(config.kv_heads or config.heads)
    w.add_layer_norm_rms_eps(config.eps)
    kind = gguf.GGMLQuantizationType.Q8_0

    def add(name: str, data: np.ndarray, matrix: bool = False) -> None:
        if name != skip:
            if matrix and config.quant:
                w.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(data.T), kind), raw_dtype=kind)
            else:
                w.add_tensor(name, np.ascontiguousarray(data.T) if matrix else data)

    add("token_embd.weight", weights["embed"])
    add("output_norm.weight", weights["norm.gamma"])
    add("output.weight", weights["head.w"], True)
    for i in range(config.layers):
        for theirs, ours in (("attn_norm", "norm1.gamma"), ("ffn_norm", "norm2.gamma")):
            add(f"blk.{i}.{theirs}.weight", weights[f"layers.{i}.{ours}"])
        for theirs, ours in (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_output", "projected"),
                             ("ffn_gate", "gate"), ("ffn_up", "up"), ("ffn_down", "down")):
            add(f"blk.{i}.{theirs}.weight", weights[f"layers.{i}.{ours}.w"], True)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("quant", ["", "q8_0"])
def test_given_gguf_weights(quant: str, tmp_path: Path) -> None:
    """"with random or given GGUF weights"."""
    floats = DecodeConfig(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=40, positions=16, interleaved=True)
    want = DecodeConfig(**{f: getattr(floats, f) for f in floats.__slots__} | {"quant": quant})
    pytest.importorskip("gguf")
    _write_gguf(tmp_path / "m.gguf", want, random_decode_weights(floats, seed=4))
    config, weights = load_gguf(tmp_path / "m.gguf")
    assert (config.quant, config.layers, config.kv_dim, config.positions) == (quant, 2, 32, 16)
    made = Decoder(config, weights, min_rows=4).generate([3, 4], 14)
    logits = reference(config, weights, [3, 4, *made.tokens[:-1]])
    assert made.tokens == logits[1:].argmax(-1).tolist()


def test_other_gguf_files_are_refused(tmp_path: Path) -> None:
    config = DecodeConfig(layers=1, hidden=32, heads=2, ffn=32, vocab=8, positions=8)
    weights = random_decode_weights(config)
    _write_gguf(tmp_path / "gpt.gguf", config, weights, arch="gpt2")
    with pytest.raises(ImportModelError, match="architecture 'gpt2', wanted 'llama'"):
        load_gguf(tmp_path / "gpt.gguf")
    _write_gguf(tmp_path / "part.gguf", config, weights, skip="blk.0.ffn_up.weight")
    with pytest.raises(ImportModelError, match=r"lacks tensors blk\.0\.ffn_up\.weight"):
        load_gguf(tmp_path / "part.gguf")
    (tmp_path / "noise.gguf").write_bytes(b"nothing")
    with pytest.raises(ImportModelError, match="can't read"):
        load_gguf(tmp_path / "noise.gguf")
