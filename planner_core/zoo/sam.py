"""Owns ``sam-attention``: attention with decomposed relative positions, score by score."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Graph, NodeId
from planner_core.zoo.blocks import layer_norm, linear, require
from planner_core.zoo.registry import zoo

__all__ = ["sam_attention"]

EPS = 1e-6


def _positions(g: Graph, at: str, side: int, width: int) -> NodeId:
    """``[side, width, side]``: row q holds the embedding of every distance q - k."""
    distance = np.arange(side)[:, None] - np.arange(side)[None, :] + side - 1
    table = g.gather(g.param(at, (2 * side - 1, width)), g.constant(distance.astype(np.int64), name=at + ".distance"),
                     axis=0, name=at + ".rows")
    return g.transpose(table, perm=(0, 2, 1), name=at + ".t")


def _attention(g: Graph, x: NodeId, at: str, hidden: int, heads: int, side: int) -> NodeId:
    batch, tokens, d = g[x].shape.sizes[0], side * side, hidden // heads
    rows = batch * heads
    qkv = g.reshape(linear(g, x, at + "qkv", hidden, 3 * hidden), dims=(batch, tokens, 3, heads, d), name=at + "qkv5")
    qkv = g.reshape(g.transpose(qkv, perm=(2, 0, 3, 1, 4), name=at + "qkv_t"), dims=(3, rows, tokens, d), name=at + "qkv4")
    q, k, v = (g.reshape(g.narrow(qkv, axis=0, start=i, len=1, name=f"{at}{p}1"), dims=(rows, tokens, d), name=at + p)
               for i, p in enumerate("qkv"))
    scaled = g.mul(q, g.constant(d**-0.5), name=at + "q_scaled")
    scores = g.mm(scaled, g.transpose(k, perm=(0, 2, 1), name=at + "k_t"), name=at + "scores")
    grid = g.reshape(q, dims=(rows, side, side, d), name=at + "q_grid")
    high = g.mm(grid, _positions(g, at + "rel_h", side, d), name=at + "bias_h")
    turned = g.transpose(grid, perm=(0, 2, 1, 3), name=at + "q_turned")
    wide = g.transpose(g.mm(turned, _positions(g, at + "rel_w", side, d), name=at + "bias_wt"), perm=(0, 2, 1, 3),
                       name=at + "bias_w")
    scores = g.reshape(scores, dims=(rows, side, side, side, side), name=at + "scores5")
    scores = g.add(scores, g.reshape(high, dims=(rows, side, side, side, 1), name=at + "bias_h5"), name=at + "scores_h")
    scores = g.add(scores, g.reshape(wide, dims=(rows, side, side, 1, side), name=at + "bias_w5"), name=at + "scores_hw")
    share = g.softmax(g.reshape(scores, dims=(rows, tokens, tokens), name=at + "biased"), name=at + "share")
    a = g.reshape(g.mm(share, v, name=at + "attended"), dims=(batch, heads, tokens, d), name=at + "attended4")
    a = g.reshape(g.transpose(a, perm=(0, 2, 1, 3), name=at + "attended_t"), dims=(batch, tokens, hidden), name=at + "merged")
    return linear(g, a, at + "projected", hidden, hidden)


@zoo("sam-attention")
def sam_attention(layers: int = 4, hidden: int = 768, heads: int = 12, ffn: int = 3072, side: int = 64,
                  batch: int = 1) -> Graph:
    """The global-attention blocks of SAM's ViT-B image encoder, relative position bias decomposed by axis.

    Kirillov et al., "Segment Anything" (2023); the bias as in Li et al., "MViTv2" (2021): ``q·R_h`` and
    ``q·R_w`` added to the scores of a 64 × 64 grid. ViT-B has four such blocks beside eight windowed ones;
    one score tensor is 12 × 4096² values, 805 MB, and a block makes several.
    """
    require("sam-attention", heads_that_divide_hidden=heads > 0 and hidden % heads == 0,
            positive_sizes=min(layers, side) > 0)
    g = Graph("sam-attention")
    x = g.input("x", (batch, side * side, hidden))
    for i in range(layers):
        at = f"blocks.{i}."
        a = _attention(g, layer_norm(g, x, at + "norm1", hidden, EPS), at, hidden, heads, side)
        x = g.add(x, a, name=at + "residual1")
        h = g.gelu(linear(g, layer_norm(g, x, at + "norm2", hidden, EPS), at + "ffn1", hidden, ffn), name=at + "gelu")
        x = g.add(x, linear(g, h, at + "ffn2", ffn, hidden), name=at + "residual2")
    return g.set_outputs(x, names=["features"])
