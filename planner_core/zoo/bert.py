"""Owns the BERT encoders: ``bert-base`` and ``minilm``."""

from __future__ import annotations

from planner_core.ir import DType, Graph, NodeId
from planner_core.zoo.blocks import layer_norm, linear, require
from planner_core.zoo.registry import zoo

__all__ = ["bert_base", "encoder_layer", "minilm"]

EPS = 1e-12
TYPES = 2
"""Sentence types: first, second."""


def encoder_layer(g: Graph, x: NodeId, at: str, hidden: int, heads: int, ffn: int) -> NodeId:
    """Post-norm: ``x = LN(x + attention(x)); x = LN(x + W₂ gelu(W₁ x))``."""
    q, k, v = (linear(g, x, f"{at}.{n}", hidden, hidden) for n in "qkv")
    a = g.attention(q, k, v, num_heads=heads, head_dim=hidden // heads, name=at + ".attended")
    a = linear(g, a, at + ".projected", hidden, hidden)
    x = layer_norm(g, g.add(x, a, name=at + ".residual1"), at + ".norm1", hidden, EPS)
    h = g.gelu(linear(g, x, at + ".ffn1", hidden, ffn), name=at + ".gelu")
    h = linear(g, h, at + ".ffn2", ffn, hidden)
    return layer_norm(g, g.add(x, h, name=at + ".residual2"), at + ".norm2", hidden, EPS)


def _encoder(name: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, seq: int, batch: int,
             positions: int, embed: bool) -> Graph:
    require(name, at_least_one_layer=layers > 0, heads_that_divide_hidden=heads > 0 and hidden % heads == 0,
            seq_within_positions=0 < seq <= positions)
    g = Graph(name)
    if embed:
        tokens, types = (g.input(n, (batch, seq), DType.I64) for n in ("input_ids", "token_type_ids"))
        word = g.gather(g.param("embed.word", (vocab, hidden)), tokens, axis=0, name="embed.words")
        kind = g.gather(g.param("embed.type", (TYPES, hidden)), types, axis=0, name="embed.types")
        where = g.narrow(g.param("embed.position", (positions, hidden)), axis=0, start=0, len=seq, name="embed.places")
        x = g.add(g.add(word, kind, name="embed.sum1"), where, name="embed.sum2")
        x = layer_norm(g, x, "embed.norm", hidden, EPS)
    else:
        x = g.input("embedded", (batch, seq, hidden))
    for i in range(layers):
        x = encoder_layer(g, x, f"layers.{i}", hidden, heads, ffn)
    first = g.reshape(g.narrow(x, axis=1, start=0, len=1, name="first"), dims=(batch, hidden), name="first_row")
    pooled = g.tanh(linear(g, first, "pooler", hidden, hidden), name="pooled")
    return g.set_outputs(x, pooled, names=["last_hidden_state", "pooler_output"])


@zoo("bert-base")
def bert_base(layers: int = 12, hidden: int = 768, heads: int = 12, ffn: int = 3072, vocab: int = 30522,
              seq: int = 128, batch: int = 1, positions: int = 512, embed: bool = True) -> Graph:
    """BERT-base, uncased: 12 post-norm encoder layers and the pooler, 109.48 M parameters.

    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018): L=12, H=768, A=12, "110M".
    109,482,240 with the pooler, 108,891,648 without, neither counting the masked-word head. 22.5 GFLOPs at
    128 tokens (Sun et al., "MobileBERT", 2020). No attention mask: one sequence of full length.
    ``embed=False`` starts after the embedding, which makes the graph free of host indexing.
    """
    return _encoder("bert-base", layers, hidden, heads, ffn, vocab, seq, batch, positions, embed)


@zoo("minilm")
def minilm(layers: int = 6, hidden: int = 384, heads: int = 12, ffn: int = 1536, vocab: int = 30522,
           seq: int = 128, batch: int = 1, positions: int = 512, embed: bool = True) -> Graph:
    """MiniLM-L6-H384, uncased: the usual sentence encoder, 22.7 M parameters.

    Wang et al., "MiniLM: Deep Self-Attention Distillation" (2020); 22,713,216 with the pooler.
    """
    return _encoder("minilm", layers, hidden, heads, ffn, vocab, seq, batch, positions, embed)
