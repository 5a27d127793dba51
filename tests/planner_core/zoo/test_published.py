"""Sizes and costs of the zoo against what was published, each number with its source.

Where nothing was published for the graph as we have it, the layer list of the paper is written out here, with
none of our code, and the reason says why.
"""

from __future__ import annotations

from math import prod

import pytest

from planner_core import zoo
from planner_core.errors import GraphError

LLAMA3_3B = {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256}

def mamba_params(layers: int) -> int:
    """Gu & Dao 2023 and the released code: width 768, inner 1536, rank 48, state 16, window 4."""
    d, inner, rank, state = 768, 1536, 48, 16
    block = (d + d * 2 * inner + inner * 4 + inner + inner * (rank + 2 * state) + rank * inner + inner
             + inner * state + inner + inner * d)
    return layers * block + d + 50280 * d


def fast_speech_params() -> int:
    """Ren et al. 2020 (FastSpeech 2): FFT blocks of 4 + 4, hidden 256, kernels 9 and 1 over 1024 filters; a duration
    predictor of two convolutions of 3 with their norms and a linear layer (Ren et al. 2019, §3.3)."""
    d, f = 256, 1024
    block = 4 * (d * d + d) + (9 * d * f + f) + (f * d + d) + 2 * 2 * d
    predictor = 2 * (3 * d * d + d + 2 * d) + d + 1
    return 300 * d + 8 * block + predictor + d * 80 + 80


SAM_BLOCK = 4 * 768 * 768 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
"""qkv, projection, two linears, two norms of a ViT-B block, without relative positions."""
SAM_REST = (16 * 16 * 3 * 768 + 768 + 64 * 64 * 768  # patches, positions
            + 8 * (SAM_BLOCK + 2 * 27 * 64)  # eight windowed blocks, 14 places a side
            + 768 * 256 + 2 * 256 + 9 * 256 * 256 + 2 * 256)  # neck

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
    ("mamba", {}, 129_135_360, "mamba-130m-hf's checkpoint"),
    ("mamba-train", {"layers": 24}, 129_135_360, "the same, in training"),
    # 28 blocks, for the number of buffers: no such checkpoint
    ("mamba-train", {}, mamba_params(28), "written out from the paper"),
    ("albert-onnx", {}, 11_683_584, "albert-base-v2's checkpoint with the pooler (12 M, Lan et al. 2019, table 1)"),
    ("dit-block", {}, 675_000_000, "Peebles & Xie 2022: DiT-XL/2, 675 M"),
    # the up-convolutions are nearest upsampling here
    ("unet3d", {}, 19_069_955 - 2_752_512 - 896, "Çiçek et al. 2016, §2: 19,069,955"),
    # the encoder whole has 89,670,912; ours is its four global blocks
    ("sam-attention", {}, 89_670_912 - SAM_REST, "sam_vit_b's image encoder (91 M with the decoder, Kirillov et al. 2023)"),
    # published counts include FastSpeech 2's pitch and energy predictors
    ("tts-duration", {}, fast_speech_params(), "written out from the paper"),
]


def hifigan_flops(frames: int) -> int:
    """Kong et al. 2020, the released V1 configuration: every convolution; activations and sums are under 1 %."""
    macs, t, c = frames * 80 * 512 * 7, frames, 512
    for rate, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
        macs += t * c * (c // 2) * kernel
        t, c = t * rate, c // 2
        macs += sum(6 * t * c * c * k for k in (3, 7, 11))
    return 2 * (macs + t * c * 7)


def unet3d_flops(depth: int, size: int) -> int:
    """Çiçek et al. 2016, §2: two convolutions of 3 a level each way, padded here; the rest is under 1 %."""
    down = [(1, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512)]
    up = [(256 + 512, 256, 256), (128 + 256, 128, 128), (64 + 128, 64, 64)]
    levels = [(i, c) for i, c in enumerate(down)] + [(2 - i, c) for i, c in enumerate(up)]
    macs = sum(27 * (a * b + b * c) * (depth * size * size >> 3 * i) for i, (a, b, c) in levels)
    return 2 * (macs + 64 * 3 * depth * size * size)


def mamba_flops(layers: int, tokens: int) -> int:
    """2 N a token, as every weight multiplies once (the tied embedding in the head), and the scan's O(BLDN)
    (Gu & Dao 2023, §3.3.2): per state element Δ·A and its exp, Δ·B·u, the update and the read-out, two each."""
    return 2 * mamba_params(layers) * tokens + 8 * tokens * 1536 * 16 * layers


def sam_flops(side: int) -> int:
    """Four ViT-B blocks over ``side``² tokens: linears, scores and their sum of values, ``q·R_h`` and ``q·R_w``, and
    on each score the two sums of the bias and a softmax of five."""
    n, d, heads = side * side, 768, 12
    return 4 * (2 * n * 12 * d * d + 4 * n * n * d + 4 * heads * n * side * (d // heads) + 7 * heads * n * n)


def fast_speech_flops(phonemes: int, frames: int) -> int:
    """The products of ``fast_speech_params``: blocks over phonemes, then over frames."""
    d, f = 256, 1024
    blocks = sum(4 * (t * (4 * d * d + 9 * d * f + f * d) + 2 * t * t * d) for t in (phonemes, frames))
    return 2 * (blocks + phonemes * (6 * d * d + d) + frames * d * 80)


FLOPS = [
    ("bert-base", {}, 22.5e9, "Sun et al., MobileBERT, 2020: 22.5 B at 128 tokens"),
    ("resnet50", {}, 2 * 4.09e9, "torchvision's metadata: 4.09 G multiply-adds at 224²"),
    ("dit-block", {}, 2 * 118.64e9, "Peebles & Xie 2022: DiT-XL/2, 118.64 G multiply-adds"),
    ("llama-prefill", {"seq": 128}, 1700.06e9, "calflops' table of models: llama2-7b at (1, 128), 1700.06 GFLOPs"),
    # 2·N per token, less the embedding that is looked up, plus attention 4·hidden·keys a layer
    ("llama-decode", {"past": 0}, 2 * (6_738_415_616 - 32000 * 4096), "Kaplan et al. 2020: 2 N a token"),
    ("moe", {}, 2 * (12.9e9 - 32000 * 4096), "Mistral AI, 2023: 12.9 B of 46.7 B parameters a token; 2 a parameter"),
    # no published count (Kong et al. give times): 900 frames
    ("hifigan", {}, hifigan_flops(900), "written out from the paper"),
    # published at other sizes and without padding
    ("unet3d", {}, unet3d_flops(64, 128), "written out from the paper"),
    ("mamba", {}, mamba_flops(24, 512), "written out from the paper"),
    # whole encoders are published, blocks are not
    ("sam-attention", {}, sam_flops(64), "written out from the paper"),
    ("tts-duration", {}, fast_speech_flops(100, 800), "written out from the paper"),
    # six of twelve layers, half the width: no published count at 128 tokens
    ("minilm", {}, 2 * (128 * 6 * 12 * 384**2 + 6 * 2 * 128**2 * 384), "12 h² a layer and token, and attention"),
    # ALBERT shares BERT-base's shape but for the embedding's projection; each use of a weight takes it out of 8 bits
    ("albert-onnx", {"kernels": True}, 22.5e9 + 3 * 12 * 12 * 768**2, "Sun et al. 2020, and three ops a weight and use"),
]


@pytest.mark.parametrize(("name", "params", "want", "source"), PARAMETERS, ids=[f"{p[0]}-{p[3]}" for p in PARAMETERS])
def test_parameter_counts(name: str, params: dict[str, object], want: int, source: str) -> None:
    assert zoo.param_count(zoo.build(name, **params)) == pytest.approx(want, rel=0.01), source


def test_every_model_is_counted() -> None:
    """But the benchmark's stack, and the pair of one matmul; training costs are multiples of the forward's."""
    own = {"decoder-stack", "matmul-train"}
    assert {p[0] for p in PARAMETERS} | own == set(zoo.names())
    assert {f[0] for f in FLOPS} | own | {"mamba-train"} == set(zoo.names())


def test_training_costs_three_times_the_forward() -> None:
    """Two products backward for each forward (Kaplan et al. 2020: 6 N a token against 2 N); the scan's parts more."""
    assert 2.9 < zoo.flops(zoo.build("mamba-train", layers=24)) / mamba_flops(24, 512) < 3.3
    forward, backward = zoo.build("matmul-train")
    assert zoo.flops(backward) == 2 * zoo.flops(forward) == 4 * prod((512, 1024, 4096))


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
    ("llama-decode", {"sliced_mlp": True}, "llama-decode: wanted slices of a packed mlp alone"),
    ("bert-base", {"seq": 600}, "bert-base: wanted seq within positions"),
    ("hifigan", {"channels": 100}, "hifigan: wanted channels in multiples of 16"),
    ("moe", {"quant": "f16"}, "moe: wanted f32 or packed weights"),
    ("moe", {"top_k": 9}, "moe: wanted experts for every choice"),
    ("unet3d", {"size": 100}, "unet3d: wanted size and depth that halve at every level"),
    ("dit-block", {"patch": 3}, "dit-block: wanted patches that tile the latent"),
    ("albert-onnx", {"heads": 5}, "albert-onnx: wanted heads that divide hidden"),
    ("tts-duration", {"frames": 0}, "tts-duration: frames=0: wanted 1 or more"),
    ("sam-attention", {"heads": 5}, "sam-attention: wanted heads that divide hidden"),
    ("mamba", {"seq": 0}, "mamba: seq=0: wanted 1 or more"),
    ("mamba-train", {"layers": 0}, "mamba-train: layers=0: wanted 1 or more"),
    ("matmul-train", {"rows": 0}, "matmul-train: rows=0: wanted 1 or more"),
    ("resnet50", {"size": 16}, "resnet50: wanted size of at least 32"),
])
def test_bad_sizes_are_named(name: str, params: dict[str, object], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        zoo.build(name, **params)
