"""Sizes and costs of the zoo against what was published, each number with its source."""

from __future__ import annotations

import pytest

from planner_core import zoo
from planner_core.errors import GraphError

LLAMA3_3B = {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256}

PARAMETERS = [
    ("bert-base", {}, 109_482_240, "bert-base-uncased's checkpoint with the pooler, without the masked-word head"),
    ("minilm", {}, 22_713_216, "all-MiniLM-L6-v2's checkpoint (six layers of 384), with the pooler"),
    ("resnet50", {}, 25_557_032, "torchvision's ResNet50_Weights metadata, num_params"),
    ("hifigan", {}, 13_920_000, "Kong et al. 2020, table 1: V1, 13.92 M"),
    ("llama-prefill", {}, 6_738_415_616, "Llama-2-7b's checkpoint"),
    ("llama-decode", {"quant": "q4_0"}, 6_738_415_616, "the same weights, packed"),
    # 3,212,749,824 with input and output embeddings tied: ours has a head of its own
    ("llama-prefill", {**LLAMA3_3B, "quant": "q4_k"}, 3_212_749_824 + 128256 * 3072, "Llama-3.2-3B's checkpoint"),
    # likewise tied there: 596,049,920
    ("llama-prefill", {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 3072,
                       "vocab": 151936, "qk_norm": True}, 596_049_920 + 151936 * 1024, "Qwen3-0.6B's checkpoint"),
    ("moe", {"quant": "q4_0"}, 46_702_792_704, "the same weights, packed"),
    ("moe", {}, 46_702_792_704, "Mixtral-8x7B-v0.1's checkpoint (46.7 B, Jiang et al. 2024)"),
    ("mamba", {}, 129_135_360, "mamba-130m's checkpoint"),
    ("albert-onnx", {}, 11_683_584, "albert-base-v2's checkpoint with the pooler (12 M, Lan et al. 2019, table 1)"),
    ("dit-block", {}, 675_000_000, "Peebles & Xie 2022: DiT-XL/2, 675 M"),
    # the up-convolutions are nearest upsampling here
    ("unet3d", {}, 19_069_955 - 2_752_512 - 896, "Çiçek et al. 2016: 19,069,955"),
]

FLOPS = [
    ("bert-base", {}, 22.5e9, "Sun et al., MobileBERT, 2020: 22.5 B at 128 tokens"),
    ("resnet50", {}, 2 * 4.09e9, "torchvision's metadata: 4.09 G multiply-adds at 224²"),
    ("dit-block", {}, 2 * 118.64e9, "Peebles & Xie 2022: DiT-XL/2, 118.64 G multiply-adds"),
    # 2·N per token, less the embedding that is looked up, plus attention 4·hidden·keys a layer
    ("llama-decode", {"past": 0}, 2 * (6_738_415_616 - 32000 * 4096), "Kaplan et al. 2020: 2 N a token"),
]


@pytest.mark.parametrize(("name", "params", "want", "source"), PARAMETERS, ids=[f"{p[0]}-{p[3]}" for p in PARAMETERS])
def test_parameter_counts(name: str, params: dict[str, object], want: int, source: str) -> None:
    assert zoo.param_count(zoo.build(name, **params)) == pytest.approx(want, rel=0.01), source


@pytest.mark.parametrize(("name", "params", "want", "source"), FLOPS, ids=[f[0] for f in FLOPS])
def test_flops(name: str, params: dict[str, object], want: float, source: str) -> None:
    assert zoo.flops(zoo.build(name, **params)) == pytest.approx(want, rel=0.01), source


def test_quantised_weights_take_the_schemes_bytes() -> None:
    """Every matmul of a q8_0 decoder reads 34 bytes for 32 weights; norms and embedding stay f32."""
    g = zoo.build("llama-decode", layers=1, hidden=64, heads=4, ffn=96, vocab=32, past=3, quant="q8_0")
    packed = {g[p].name: g[p].shape.numel for p in g.params if g[p].dtype.text == "u8"}
    assert packed == {**{f"layers.0.{n}.w": 64 * 64 // 32 * 34 for n in ("q", "k", "v", "projected")},
                      **{f"layers.0.{n}.w": 64 * 96 // 32 * 34 for n in ("gate", "up", "down")},
                      "head.w": 64 * 32 // 32 * 34}
    assert len(g.of("DequantMatMul")) == 8 and not g.of("MatMul")


def test_half_floats_everywhere() -> None:
    g = zoo.build("llama-prefill", layers=1, hidden=64, heads=4, ffn=96, vocab=32, seq=4, quant="f16")
    assert {n.dtype.text for n in g.nodes if n.name != "tokens"} == {"f16"}


@pytest.mark.parametrize(("name", "params", "text"), [
    ("llama-prefill", {"quant": "q9"}, r"llama-prefill: quant 'q9': wanted '', f16, bf16 or one of q4_0"),
    ("llama-prefill", {"heads": 3, "kv_heads": 2}, "llama-prefill: wanted kv heads that divide heads"),
    ("bert-base", {"seq": 600}, "bert-base: wanted seq within positions"),
    ("hifigan", {"channels": 100}, "hifigan: wanted channels in multiples of 16"),
    ("moe", {"quant": "f16"}, "moe: wanted f32 or packed weights"),
    ("moe", {"top_k": 9}, "moe: wanted experts for every choice"),
    ("unet3d", {"size": 100}, "unet3d: wanted size and depth that halve at every level"),
    ("dit-block", {"patch": 3}, "dit-block: wanted patches that tile the latent"),
    ("albert-onnx", {"heads": 5}, "albert-onnx: wanted heads that divide hidden"),
    ("tts-duration", {"frames": 0}, "tts-duration: wanted positive sizes"),
    ("sam-attention", {"heads": 5}, "sam-attention: wanted heads that divide hidden"),
    ("mamba", {"seq": 0}, "mamba: wanted positive sizes"),
    ("matmul-train", {"rows": 0}, "matmul-train: wanted positive sizes"),
    ("resnet50", {"size": 16}, "resnet50: wanted size of at least 32"),
])
def test_bad_sizes_are_named(name: str, params: dict[str, object], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        zoo.build(name, **params)
