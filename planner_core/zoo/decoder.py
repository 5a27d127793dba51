"""Owns ``decoder-stack``: a LLaMA-like decoder, for benchmarks and first pictures."""

from __future__ import annotations

from planner_core.errors import GraphError
from planner_core.ir import DType, Graph
from planner_core.zoo.registry import zoo

__all__ = ["decoder_stack"]

PER_LAYER = 29
"""Nodes one layer adds: 9 params, 20 others."""
AROUND = 7
"""Nodes outside the layers: the input, RoPE tables, final norm and head (an embedding makes it two more)."""


@zoo("decoder-stack")
def decoder_stack(nodes: int = 0, layers: int = 4, hidden: int = 256, heads: int = 8, kv_heads: int = 0,
                  ffn: int = 0, seq: int = 64, vocab: int = 1000, batch: int = 1, embed: bool = False) -> Graph:
    """A LLaMA-like decoder stack: RMSNorm, RoPE attention, SwiGLU feed-forward, residual adds.

    ``nodes`` sets ``layers`` so that about that many nodes come out. ``kv_heads`` 0: as many as ``heads``;
    ``ffn`` 0: 8/3 of ``hidden``, rounded up to 16. ``embed`` starts from token ids: its ``Gather`` is host
    indexing, which makes the named entry points pin every ancestor of the output.
    """
    if nodes:
        layers = max(1, round((nodes - AROUND) / PER_LAYER))
    kv_heads, ffn = kv_heads or heads, ffn or -(-hidden * 8 // 3 // 16) * 16
    if layers < 1 or heads < 1 or hidden % heads or heads % kv_heads or hidden // heads % 2:
        raise GraphError(f"decoder-stack: layers={layers}, hidden={hidden}, heads={heads}, kv_heads={kv_heads}: wanted "
                         "at least one layer, heads that divide hidden into even widths, kv_heads that divide heads")
    d = hidden // heads
    kv = d * kv_heads
    g = Graph("decoder-stack")
    start = g.input(*(("tokens", (batch, seq), DType.I32) if embed else ("x", (batch, seq, hidden), DType.F32)))
    cos, sin = g.param("rope.cos", (seq, d // 2)), g.param("rope.sin", (seq, d // 2))
    x = g.gather(g.param("embed", (vocab, hidden)), start, axis=0, name="embedded") if embed else start
    for i in range(layers):
        at = f"layers.{i}."
        h = g.rms_norm(x, g.param(at + "norm1", (hidden,)), name=at + "normed")
        q = g.mm(h, g.param(at + "wq", (hidden, hidden)), name=at + "q")
        k = g.mm(h, g.param(at + "wk", (hidden, kv)), name=at + "k")
        v = g.mm(h, g.param(at + "wv", (hidden, kv)), name=at + "v")
        q = g.rope(q, cos, sin, head_dim=d, n_rot=d, name=at + "q_rot")
        k = g.rope(k, cos, sin, head_dim=d, n_rot=d, name=at + "k_rot")
        q = g.reshape(q, dims=(batch, seq, heads, d), name=at + "q_heads")
        k = g.reshape(k, dims=(batch, seq, kv_heads, d), name=at + "k_heads")
        v = g.reshape(v, dims=(batch, seq, kv_heads, d), name=at + "v_heads")
        a = g.attention(q, k, v, num_heads=heads, head_dim=d, kv_heads=kv_heads, mask_kind="causal", name=at + "attended")
        a = g.reshape(a, dims=(batch, seq, hidden), name=at + "merged")
        a = g.mm(a, g.param(at + "wo", (hidden, hidden)), name=at + "projected")
        x = g.add(x, a, name=at + "residual1")
        h = g.rms_norm(x, g.param(at + "norm2", (hidden,)), name=at + "normed2")
        gate = g.silu(g.mm(h, g.param(at + "w_gate", (hidden, ffn)), name=at + "gate"), name=at + "gate_silu")
        up = g.mm(h, g.param(at + "w_up", (hidden, ffn)), name=at + "up")
        h = g.mm(g.mul(gate, up, name=at + "swiglu"), g.param(at + "w_down", (ffn, hidden)), name=at + "down")
        x = g.add(x, h, name=at + "residual2")
    x = g.rms_norm(x, g.param("norm", (hidden,)), name="normed")
    return g.set_outputs(g.mm(x, g.param("head", (hidden, vocab)), name="logits"), names=["logits"])
