"""Owns ``decode_step``: one token of a LLaMA-style model over a resident cache of ``rows`` rows, for a ladder of such graphs.

Unlike ``llama-decode``, whose position is written into the graph, the position is an input: one graph serves every
token until its rows are full. Params are those of the zoo's LLaMA and equal at every size, so graphs of a ladder share
one weight buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner_core.ir import DType, Graph, NodeId
from planner_core.zoo.blocks import linear, quant_of, require

__all__ = ["DecodeConfig", "decode_step"]


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Sizes of the model. ``kv_heads`` 0: as many as ``heads``; ``positions``: rows of the rotary tables, the longest text.
    ``quant``: "" f32; f16 or bf16 for every float, the cache too; or a GGUF scheme (``q8_0``) for every matrix but the
    embedding. ``interleaved``: rotary pairs lie
    side by side, as GGUF files of LLaMA want."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 0
    ffn: int = 128
    vocab: int = 256
    positions: int = 256
    quant: str = ""
    interleaved: bool = False
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // max(self.heads, 1)

    @property
    def kv_dim(self) -> int:
        """Width of a cached row."""
        return (self.kv_heads or self.heads) * self.head_dim


def _norm(g: Graph, x: NodeId, name: str, c: DecodeConfig) -> NodeId:
    return g.rms_norm(x, g.param(name + ".gamma", (c.hidden,), g[x].dtype), eps=c.eps, name=name)


def decode_step(config: DecodeConfig, rows: int) -> Graph:
    """Inputs ``tokens`` ``[1, 1]``, ``position`` ``[1]``, ``past_k_{i}`` and ``past_v_{i}`` ``[1, rows, kv_dim]``; outputs
    ``logits``, then the token's own rows ``k_{i}`` (output 1 + 2i) and ``v_{i}`` (2 + 2i).

    Row ``position`` of each cache is written before it is read; later rows are masked, whatever they hold.
    """
    c = config
    kv_heads = c.kv_heads or c.heads
    dtype, scheme = quant_of("decode-step", c.quant)
    require("decode-step", at_least_one_layer=c.layers > 0, kv_heads_that_divide_heads=c.heads > 0 and c.heads % kv_heads == 0,
            an_even_head_width=c.head_dim * c.heads == c.hidden and c.head_dim % 2 == 0,
            rows_within_the_positions=0 < rows <= c.positions)
    g = Graph(f"decode-step-{rows}")
    tokens = g.input("tokens", (1, 1), DType.I64)
    position = g.input("position", (1,), DType.I64)
    x = g.gather(g.param("embed", (c.vocab, c.hidden), dtype), tokens, axis=0, name="embedded")
    tables = [g.gather(g.param(f"rope.{f}", (c.positions, c.head_dim // 2), dtype), position, axis=0, name=f"rope.{f}_here")
              for f in ("cos", "sin")]
    at_row = g.constant(np.arange(rows, dtype=np.int64).reshape(1, 1, 1, rows))
    seen = g.compare(at_row, g.reshape(position, dims=(1, 1, 1, 1)), kind="le", name="seen")
    new: list[NodeId] = []
    for i in range(c.layers):
        at = f"layers.{i}."
        h = _norm(g, x, at + "norm1", c)
        q, k, v = (linear(g, h, at + label, c.hidden, n, bias=False, scheme=scheme)
                   for label, n in (("q", c.hidden), ("k", c.kv_dim), ("v", c.kv_dim)))
        q = g.rope(q, *tables, head_dim=c.head_dim, n_rot=c.head_dim, interleaved=c.interleaved, name=at + "q_rot")
        k = g.rope(k, *tables, head_dim=c.head_dim, n_rot=c.head_dim, interleaved=c.interleaved, name=at + "k_rot")
        new += [k, v]
        keys, values = (
            g.kv_append(g.input(f"past_{part}_{i}", (1, rows, c.kv_dim), dtype), row, position, axis=1, name=f"{at}{part}_all")
            for part, row in (("k", k), ("v", v)))
        a = g.attention(q, keys, values, seen, num_heads=c.heads, head_dim=c.head_dim, kv_heads=kv_heads, mask_kind="custom",
                        name=at + "attended")
        x = g.add(x, linear(g, a, at + "projected", c.hidden, c.hidden, bias=False, scheme=scheme), name=at + "residual1")
        h = _norm(g, x, at + "norm2", c)
        gate, up = (linear(g, h, at + part, c.hidden, c.ffn, bias=False, scheme=scheme) for part in ("gate", "up"))
        h = g.mul(g.silu(gate, name=at + "gate_silu"), up, name=at + "swiglu")
        x = g.add(x, linear(g, h, at + "down", c.ffn, c.hidden, bias=False, scheme=scheme), name=at + "residual2")
    logits = linear(g, _norm(g, x, "norm", c), "head", c.hidden, c.vocab, bias=False, scheme=scheme)
    names = ["logits", *(f"{part}_{i}" for i in range(c.layers) for part in "kv")]
    return g.set_outputs(logits, *new, names=names)
