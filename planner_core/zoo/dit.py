"""Owns ``dit-block``: diffusion transformer blocks, modulated by the timestep (adaLN-Zero)."""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.zoo.blocks import linear, require
from planner_core.zoo.registry import zoo

__all__ = ["dit_block"]

FREQUENCIES = 256
"""Width of the timestep's sinusoids."""
EPS = 1e-6


def _modulation(g: Graph, c: NodeId, at: str, hidden: int, count: int) -> list[NodeId]:
    """``count`` vectors from silu(c)."""
    m = linear(g, g.silu(c, name=at + "silu"), at + "ada", hidden, count * hidden)
    return [g.narrow(m, axis=1, start=i * hidden, len=hidden, name=f"{at}mod{i}") for i in range(count)]


@zoo("dit-block")
def dit_block(layers: int = 28, hidden: int = 1152, heads: int = 16, patch: int = 2, size: int = 32, channels: int = 4,
              batch: int = 1) -> Graph:
    """DiT-XL/2 on a 32 × 32 latent: 28 adaLN-Zero blocks, 675 M parameters, 118.6 G multiply-adds.

    Peebles & Xie, "Scalable Diffusion Models with Transformers" (2022). Inputs: the latent,
    the timestep's sinusoids and the class embedding's row (its 1.2 M table stays outside: no host indexing).
    """
    require("dit-block", heads_that_divide_hidden=heads > 0 and hidden % heads == 0, positive_sizes=layers > 0 and size > 0,
            patches_that_tile_the_latent=patch > 0 and size % patch == 0)
    g = Graph("dit-block")
    grid = size // patch
    tokens = grid * grid
    latent = g.input("latent", (batch, channels, size, size))
    t, label = g.input("timestep", (batch, FREQUENCIES)), g.input("label", (batch, hidden))
    x = g.fused_conv_bias_act(latent, g.param("patch.w", (hidden, channels, patch, patch)), g.param("patch.b", (hidden,)),
                              strides=(patch, patch), pads=(0, 0, 0, 0), dilations=(1, 1), name="patch")
    x = g.transpose(g.reshape(x, dims=(batch, hidden, tokens), name="patches"), perm=(0, 2, 1), name="tokens")
    x = g.add(x, g.param("positions", (tokens, hidden)), name="placed")
    c = g.silu(linear(g, t, "time1", FREQUENCIES, hidden), name="time_silu")
    c = g.add(linear(g, c, "time2", hidden, hidden), label, name="condition")
    for i in range(layers):
        at = f"blocks.{i}."
        shift1, scale1, gate1, shift2, scale2, gate2 = _modulation(g, c, at, hidden, 6)
        h = g.ada_layer_norm(x, scale1, shift1, eps=EPS, name=at + "norm1")
        q, k, v = (linear(g, h, at + p, hidden, hidden) for p in "qkv")
        a = g.attention(q, k, v, num_heads=heads, head_dim=hidden // heads, name=at + "attended")
        x = g.gated_residual(x, linear(g, a, at + "projected", hidden, hidden), gate1, name=at + "residual1")
        h = g.ada_layer_norm(x, scale2, shift2, eps=EPS, name=at + "norm2")
        h = g.gelu_approx(linear(g, h, at + "ffn1", hidden, 4 * hidden), name=at + "gelu")
        x = g.gated_residual(x, linear(g, h, at + "ffn2", 4 * hidden, hidden), gate2, name=at + "residual2")
    shift, scale = _modulation(g, c, "final.", hidden, 2)
    x = g.ada_layer_norm(x, scale, shift, eps=EPS, name="final.norm")
    width = 2 * channels  # noise and its variance
    x = linear(g, x, "final.head", hidden, patch * patch * width)
    x = g.reshape(x, dims=(batch, grid, grid, patch, patch, width), name="pixels")
    x = g.transpose(x, perm=(0, 5, 1, 3, 2, 4), name="pixels_t")
    return g.set_outputs(g.reshape(x, dims=(batch, width, size, size), name="noise"), names=["noise"])
