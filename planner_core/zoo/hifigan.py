"""Owns ``hifigan``: the vocoder whose pinned ancestors cost most."""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.zoo.blocks import conv1d, require
from planner_core.zoo.registry import zoo

__all__ = ["hifigan"]

UPSAMPLES = ((8, 16), (8, 16), (2, 4), (2, 4))
"""(rate, kernel) of each transposed convolution: 256 samples a frame in all."""
KERNELS = (3, 7, 11)
DILATIONS = (1, 3, 5)
SLOPE = 0.1
LAST_SLOPE = 0.01
"""The last activation's slope is PyTorch's default, not the model's: so in the published code."""


def _upsample(g: Graph, x: NodeId, name: str, cin: int, cout: int, rate: int, kernel: int) -> NodeId:
    """ConvTranspose1d as a 2-D one over a row: reshapes are free."""
    n, _, t = g[x].shape.sizes
    pad = (kernel - rate) // 2
    x = g.reshape(x, dims=(n, cin, 1, t), name=name + ".row")
    y = g.conv_transpose2d(x, g.param(name + ".w", (cin, cout, 1, kernel)), strides=(1, rate), pads=(0, pad, 0, pad),
                           dilations=(1, 1), name=name)
    y = g.reshape(y, dims=(n, cout, t * rate), name=name + ".line")
    return g.add(y, g.param(name + ".b", (cout, 1)), name=name + ".biased")


@zoo("hifigan")
def hifigan(frames: int = 900, channels: int = 512, mels: int = 80, batch: int = 1) -> Graph:
    """HiFi-GAN V1's generator: a mel spectrogram to a waveform, 256 samples a frame, 13.92 M parameters.

    Kong et al., "HiFi-GAN: Generative Adversarial Networks for Efficient and High Fidelity Speech Synthesis"
    (2020), table 1: 13.92 M. Four upsamplings, each followed by the mean of three residual blocks (kernels
    3, 7, 11; dilations 1, 3, 5). 900 frames are 10.4 s at 22,050 Hz; every stage after the first holds
    8,192 values a frame and about fifty tensors of them, so keeping all ancestors costs ~5 GB.
    """
    require("hifigan", at_least_one_frame=frames > 0, channels_in_multiples_of_16=channels > 0 and channels % 16 == 0)
    g = Graph("hifigan")
    x = conv1d(g, g.input("mel", (batch, mels, frames)), "pre", mels, channels, 7)
    for i, (rate, kernel) in enumerate(UPSAMPLES):
        cout = channels >> (i + 1)
        x = _upsample(g, g.leaky_relu(x, alpha=SLOPE, name=f"ups.{i}.act"), f"ups.{i}", cout * 2, cout, rate, kernel)
        total: NodeId | None = None
        for j, k in enumerate(KERNELS):
            y = x
            for m, dilation in enumerate(DILATIONS):
                at = f"blocks.{i}.{j}.{m}."
                h = conv1d(g, g.leaky_relu(y, alpha=SLOPE, name=at + "act1"), at + "conv1", cout, cout, k, dilation=dilation)
                h = conv1d(g, g.leaky_relu(h, alpha=SLOPE, name=at + "act2"), at + "conv2", cout, cout, k)
                y = g.add(h, y, name=at + "sum")
            total = y if total is None else g.add(total, y, name=f"blocks.{i}.{j}.total")
        assert total is not None
        x = g.div(total, g.constant(float(len(KERNELS)), name=f"blocks.{i}.count"), name=f"blocks.{i}.mean")
    x = conv1d(g, g.leaky_relu(x, alpha=LAST_SLOPE, name="post.act"), "post", channels >> len(UPSAMPLES), 1, 7)
    return g.set_outputs(g.tanh(x, name="waveform"), names=["waveform"])
