"""Owns ``moe``: the decoder with mixture-of-experts banks, stored as read or transposed."""

from __future__ import annotations

from planner_core.ir import DType, Graph, NodeId, QuantScheme
from planner_core.zoo.blocks import linear, quant_of, require
from planner_core.zoo.llama import attention_block, rms, rope_tables
from planner_core.zoo.registry import zoo

__all__ = ["moe"]


def _grouped(g: Graph, x: NodeId, name: str, out: str, chosen: NodeId, experts: int, n: int, transposed: bool,
             scheme: QuantScheme | None) -> NodeId:
    """Each row of x through the bank of the expert chosen for it."""
    k = g[x].shape.sizes[-1]
    if scheme is not None:
        packed = g.param(name, (experts * n * scheme.row_bytes(k),), DType.U8)
        return g.dequant_grouped_mat_mul(x, packed, chosen, n=n, experts=experts, scheme=scheme, name=out)
    if transposed:
        bank = g.transpose(g.param(name, (experts, n, k)), perm=(0, 2, 1), name=name + "_t")
    else:
        bank = g.param(name, (experts, k, n))
    return g.grouped_mat_mul(x, bank, chosen, name=out)


def _experts(g: Graph, x: NodeId, at: str, hidden: int, ffn: int, experts: int, top_k: int, transposed: bool,
             scheme: QuantScheme | None) -> NodeId:
    """Rows repeated ``top_k`` times, each through the expert that the router chose, summed by its weight."""
    batch, seq, _ = g[x].shape.sizes
    rows = batch * seq
    h = g.reshape(rms(g, x, at + "norm2", hidden), dims=(rows, hidden), name=at + "rows")
    scores = linear(g, h, at + "router", hidden, experts, bias=False)
    chosen = g.reshape(g.top_k(scores, k=top_k, name=at + "chosen"), dims=(rows * top_k,), name=at + "expert")
    share = g.softmax(g.top_k(scores, k=top_k, values=True, name=at + "scores"), name=at + "share")
    each = g.expand(g.reshape(h, dims=(rows, 1, hidden), name=at + "rows3"), dims=(rows, top_k, hidden), name=at + "spread")
    each = g.reshape(each, dims=(rows * top_k, hidden), name=at + "each")
    gate = _grouped(g, each, at + "gate", at + "gated", chosen, experts, ffn, transposed, scheme)
    up = _grouped(g, each, at + "up", at + "upped", chosen, experts, ffn, transposed, scheme)
    y = g.mul(g.silu(gate, name=at + "gate_silu"), up, name=at + "swiglu")
    y = _grouped(g, y, at + "down", at + "downed", chosen, experts, hidden, transposed, scheme)
    y = g.reshape(y, dims=(rows, top_k, hidden), name=at + "answers")
    y = g.mul(y, g.reshape(share, dims=(rows, top_k, 1), name=at + "share3"), name=at + "weighted")
    y = g.reshape(g.reduce_sum(y, axes=(1,), name=at + "mixed"), dims=(batch, seq, hidden), name=at + "mixed3")
    return g.add(x, y, name=at + "residual2")


@zoo("moe")
def moe(layers: int = 32, hidden: int = 4096, heads: int = 32, kv_heads: int = 8, ffn: int = 14336, experts: int = 8,
        top_k: int = 2, vocab: int = 32000, seq: int = 1, batch: int = 1, transposed: bool = True,
        embed: bool = True, quant: str = "") -> Graph:
    """Mixtral 8×7B, without a cache: 32 layers of 8 experts, 2 a token, 46.7 B parameters.

    Jiang et al., "Mixtral of Experts" (2024). A bank holds 8 × 4096 × 14336 weights: 1.88 GB in f32, three
    banks a layer. ``transposed``: banks are stored ``[experts, n, k]``, as checkpoints have them, and read
    through a Transpose: a second copy of each unless it is elided.
    ``quant``: a GGUF scheme for every matmul but the router's; packed banks are read as stored.
    """
    require("moe", at_least_one_layer=layers > 0, experts_for_every_choice=0 < top_k <= experts,
            heads_that_divide_hidden_into_even_widths=heads > 0 and hidden % (2 * heads) == 0,
            kv_heads_that_divide_heads=kv_heads > 0 and heads % kv_heads == 0)
    dtype, scheme = quant_of("moe", quant)
    require("moe", f32_or_packed_weights=dtype is DType.F32)  # only f32 banks fold
    g = Graph("moe")
    if embed:
        tokens = g.input("tokens", (batch, seq), DType.I64)
        x = g.gather(g.param("embed", (vocab, hidden)), tokens, axis=0, name="embedded")
    else:
        x = g.input("x", (batch, seq, hidden))
    d = hidden // heads
    tables = rope_tables(g, 0, seq, d, DType.F32)
    for i in range(layers):
        at = f"layers.{i}."
        x = attention_block(g, x, at, tables, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=d, past=0,
                            packed_qkv=False, cache=False, scheme=scheme)
        x = _experts(g, x, at, hidden, ffn, experts, top_k, transposed, scheme)
    return g.set_outputs(linear(g, rms(g, x, "norm", hidden), "head", hidden, vocab, bias=False, scheme=scheme),
                         names=["logits"])
