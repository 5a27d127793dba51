"""Owns ``tts-duration``: speech synthesis whose durations leave the graph as int64."""

from __future__ import annotations

import numpy as np

from planner_core.ir import DType, Graph, NodeId
from planner_core.zoo.blocks import conv1d, layer_norm, linear, require
from planner_core.zoo.registry import zoo

__all__ = ["tts_duration"]


def _turned_conv(g: Graph, x: NodeId, name: str, cin: int, cout: int, kernel: int) -> NodeId:
    """A convolution over the middle axis of ``[B, S, C]``, between two transposes."""
    y = conv1d(g, g.transpose(x, perm=(0, 2, 1), name=name + ".in"), name, cin, cout, kernel)
    return g.transpose(y, perm=(0, 2, 1), name=name + ".out")


def _fft_block(g: Graph, x: NodeId, at: str, hidden: int, heads: int, ffn: int, kernel: int) -> NodeId:
    q, k, v = (linear(g, x, at + p, hidden, hidden) for p in "qkv")
    a = g.attention(q, k, v, num_heads=heads, head_dim=hidden // heads, name=at + "attended")
    x = layer_norm(g, g.add(x, linear(g, a, at + "projected", hidden, hidden), name=at + "residual1"), at + "norm1", hidden)
    h = g.relu(_turned_conv(g, x, at + "conv1", hidden, ffn, kernel), name=at + "act")
    h = _turned_conv(g, h, at + "conv2", ffn, hidden, 1)
    return layer_norm(g, g.add(x, h, name=at + "residual2"), at + "norm2", hidden)


@zoo("tts-duration")
def tts_duration(phonemes: int = 100, frames: int = 800, hidden: int = 256, heads: int = 2, ffn: int = 1024,
                 layers: int = 4, vocab: int = 300, mels: int = 80, kernel: int = 9, longest: int = 50) -> Graph:
    """FastSpeech-style synthesis: phonemes to a mel spectrogram and to each phoneme's int64 duration.

    Ren et al., "FastSpeech" (2019) and "FastSpeech 2" (2020): 4 blocks each side, hidden 256, convolutions
    of 9 and 1 over 1024 filters, a duration predictor of two convolutions of 3. Durations are
    ``clip(round(exp(d)) - 1, 0, longest)``; frame t shows the phoneme whose span covers it (the last one
    past the end, so the mel has ``frames`` rows). One int64 output makes the planner reuse nothing.
    """
    require("tts-duration", heads_that_divide_hidden=heads > 0 and hidden % heads == 0,
            positive_sizes=min(phonemes, frames, layers) > 0, an_odd_kernel=kernel % 2 == 1)
    g = Graph("tts-duration")
    ids = g.input("phonemes", (phonemes,), DType.I64)
    x = g.reshape(g.gather(g.param("embed", (vocab, hidden)), ids, axis=0, name="embedded"), dims=(1, phonemes, hidden),
                  name="embedded3")
    for i in range(layers):
        x = _fft_block(g, x, f"encoder.{i}.", hidden, heads, ffn, kernel)
    h = x
    for i in range(2):
        h = g.relu(_turned_conv(g, h, f"duration.{i}", hidden, hidden, 3), name=f"duration.{i}.act")
        h = layer_norm(g, h, f"duration.{i}.norm", hidden)
    log = g.reshape(linear(g, h, "duration.head", hidden, 1), dims=(phonemes,), name="duration.log")
    spans = g.sub(g.round(g.exp(log, name="duration.exp"), name="duration.rounded"), g.constant(1.0), name="duration.less1")
    durations = g.cast(g.clip(spans, alpha=0.0, beta=float(longest), name="duration.clipped"), to=DType.I64, name="durations")
    ends = g.cumsum(durations, name="ends")
    t = g.constant(np.arange(frames, dtype=np.int64).reshape(frames, 1), name="frame")
    passed = g.cast(g.ge(t, g.reshape(ends, dims=(1, phonemes), name="ends2"), name="passed"), to=DType.I64, name="passed64")
    index = g.min(g.reduce_sum(passed, axes=(1,), name="count"), g.constant(np.int64(phonemes - 1)), name="index")
    flat = g.reshape(x, dims=(phonemes, hidden), name="encoded")
    y = g.reshape(g.gather(flat, index, axis=0, name="regulated"), dims=(1, frames, hidden), name="regulated3")
    for i in range(layers):
        y = _fft_block(g, y, f"decoder.{i}.", hidden, heads, ffn, kernel)
    return g.set_outputs(linear(g, y, "mel", hidden, mels), durations, names=["mel", "durations"])
