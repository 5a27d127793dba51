"""Owns ``albert-onnx``: an encoder as an ONNX import leaves it, with quantised matmuls as opaque customs."""

from __future__ import annotations

import json

from planner_core.ir import DType, Graph, NodeId, Shape
from planner_core.ir.ops import Custom
from planner_core.zoo.blocks import layer_norm, require
from planner_core.zoo.registry import zoo

__all__ = ["albert_onnx"]

EPS = 1e-12


@zoo("albert-onnx")
def albert_onnx(layers: int = 12, hidden: int = 768, heads: int = 12, ffn: int = 3072, embedding: int = 128,
                vocab: int = 30000, seq: int = 128, batch: int = 1, positions: int = 512, kernels: bool = False) -> Graph:
    """ALBERT-base v2 in dynamic 8-bit ONNX form: one layer's weights read 12 times, 11.7 M parameters.

    Lan et al., "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations" (2019),
    table 1: base, 12 M; 11,683,584 with the pooler. Each matmul is a host op ``onnx.QMatMul(x, w, scale,
    zero)``: ``x @ ((w - zero) · scale)`` with u8 weights; the planner keeps what such ops read alive.
    ``kernels`` writes the same products as Cast, Sub, Mul and MatMul, which run everywhere.
    """
    require("albert-onnx", at_least_one_layer=layers > 0, heads_that_divide_hidden=heads > 0 and hidden % heads == 0,
            seq_within_positions=0 < seq <= positions)
    g = Graph("albert-onnx")
    made: dict[str, tuple[NodeId, NodeId, NodeId, NodeId]] = {}
    norms: dict[str, tuple[NodeId, NodeId]] = {}

    def qmatmul(x: NodeId, name: str, at: str, k: int, n: int) -> NodeId:
        if name not in made:
            made[name] = (g.param(name + ".q", (k, n), DType.U8), g.param(name + ".scale", ()),
                          g.param(name + ".zero", (), DType.U8), g.param(name + ".b", (n,)))
        w, scale, zero, bias = made[name]
        if kernels:
            wide, off = (g.cast(p, to=DType.F32, name=f"{at}{s}") for p, s in ((w, ".wide"), (zero, ".off")))
            y = g.mm(x, g.mul(g.sub(wide, off, name=at + ".centred"), scale, name=at + ".w"), name=at)
        else:
            out = Shape.of((*g[x].shape.dims[:-1], n))
            y = g.add(Custom("onnx.QMatMul", out, num_inputs=4, attrs=json.dumps({"k": k, "n": n})), x, w, scale, zero, name=at)
        return g.add(y, bias, name=at + ".biased")

    def norm(x: NodeId, name: str, at: str) -> NodeId:
        if name not in norms:
            norms[name] = (g.param(name + ".gamma", (hidden,)), g.param(name + ".beta", (hidden,)))
        return g.layer_norm(x, *norms[name], eps=EPS, name=at)

    tokens, types = (g.input(n, (batch, seq), DType.I64) for n in ("input_ids", "token_type_ids"))
    x = g.add(g.gather(g.param("embed.word", (vocab, embedding)), tokens, axis=0, name="embed.words"),
              g.gather(g.param("embed.type", (2, embedding)), types, axis=0, name="embed.types"), name="embed.sum1")
    where = g.narrow(g.param("embed.position", (positions, embedding)), axis=0, start=0, len=seq, name="embed.places")
    x = layer_norm(g, g.add(x, where, name="embed.sum2"), "embed.norm", embedding, EPS)
    x = qmatmul(x, "up", "up", embedding, hidden)
    for i in range(layers):
        at = f"layers.{i}."
        q, k, v = (qmatmul(x, p, at + p, hidden, hidden) for p in "qkv")
        a = g.attention(q, k, v, num_heads=heads, head_dim=hidden // heads, name=at + "attended")
        a = qmatmul(a, "projected", at + "projected", hidden, hidden)
        x = norm(g.add(x, a, name=at + "residual1"), "norm1", at + "norm1")
        h = g.gelu_approx(qmatmul(x, "ffn1", at + "ffn1", hidden, ffn), name=at + "gelu")
        h = qmatmul(h, "ffn2", at + "ffn2", ffn, hidden)
        x = norm(g.add(x, h, name=at + "residual2"), "norm2", at + "norm2")
    first = g.reshape(g.narrow(x, axis=1, start=0, len=1, name="first"), dims=(batch, hidden), name="first_row")
    pooled = g.tanh(qmatmul(first, "pooler", "pooler", hidden, hidden), name="pooled")
    return g.set_outputs(x, pooled, names=["last_hidden_state", "pooler_output"])
