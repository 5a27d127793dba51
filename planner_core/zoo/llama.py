"""Owns the LLaMA-style decoders: ``llama-prefill`` and ``llama-decode``, in every weight format."""

from __future__ import annotations

from planner_core.ir import DType, Graph, NodeId, QuantScheme
from planner_core.zoo.blocks import linear, quant_of, require
from planner_core.zoo.registry import zoo

__all__ = ["attention_block", "llama_decode", "llama_prefill"]

EPS = 1e-5


def rms(g: Graph, x: NodeId, name: str, n: int) -> NodeId:
    return g.rms_norm(x, g.param(name + ".gamma", (n,), g[x].dtype), eps=EPS, name=name)


def rope_tables(g: Graph, start: int, rows: int, d: int, dtype: DType) -> tuple[NodeId, NodeId]:
    """cos and sin for positions ``start`` … ``start + rows``: axis-0 slices of one table, hence views."""
    cos, sin = (g.param("rope." + f, (start + rows, d // 2), dtype) for f in ("cos", "sin"))
    if not start:
        return cos, sin
    return tuple(g.narrow(t, axis=0, start=start, len=rows, name=f"rope.{f}_here") for t, f in ((cos, "cos"), (sin, "sin")))  # type: ignore[return-value]


def _head_norm(g: Graph, x: NodeId, name: str, heads: int, head_dim: int) -> NodeId:
    """RMSNorm of each head by itself (Qwen3): between two reshapes, which are views."""
    dims = g[x].shape.dims
    y = rms(g, g.reshape(x, dims=(*dims[:2], heads, head_dim), name=name + ".heads"), name, head_dim)
    return g.reshape(y, dims=dims, name=name + ".merged")


def attention_block(g: Graph, x: NodeId, at: str, tables: tuple[NodeId, NodeId], *, hidden: int, heads: int,
                    kv_heads: int, head_dim: int, past: int, packed_qkv: bool, cache: bool,
                    scheme: QuantScheme | None, qk_norm: bool = False) -> NodeId:
    """``x + W_o attention(RoPE(W_q h), RoPE(W_k h), W_v h)``, h the normed x; new rows go behind ``past`` cached ones."""
    batch, seq, _ = g[x].shape.sizes
    q_width, kv = heads * head_dim, kv_heads * head_dim
    h = rms(g, x, at + "norm1", hidden)
    if packed_qkv:
        qkv = linear(g, h, at + "qkv", hidden, q_width + 2 * kv, bias=False, scheme=scheme)
        q, k, v = (g.narrow(qkv, axis=2, start=s, len=n, name=at + label)
                   for label, s, n in (("q", 0, q_width), ("k", q_width, kv), ("v", q_width + kv, kv)))
    else:
        q, k, v = (linear(g, h, at + label, hidden, n, bias=False, scheme=scheme)
                   for label, n in (("q", q_width), ("k", kv), ("v", kv)))
    if qk_norm:
        q, k = _head_norm(g, q, at + "q_norm", heads, head_dim), _head_norm(g, k, at + "k_norm", kv_heads, head_dim)
    q = g.rope(q, *tables, head_dim=head_dim, n_rot=head_dim, name=at + "q_rot")
    k = g.rope(k, *tables, head_dim=head_dim, n_rot=head_dim, name=at + "k_rot")
    if cache:
        k, v = (g.kv_append(g.input(f"{at}{label}_cache", (batch, past + seq, kv), g[x].dtype), rows, axis=1, start=past,
                            name=f"{at}{label}_all") for label, rows in (("k", k), ("v", v)))
    a = g.attention(q, k, v, num_heads=heads, head_dim=head_dim, kv_heads=kv_heads,
                    mask_kind="causal" if seq > 1 else "none", name=at + "attended")
    a = linear(g, a, at + "projected", q_width, hidden, bias=False, scheme=scheme)
    return g.add(x, a, name=at + "residual1")


def _mlp(g: Graph, x: NodeId, at: str, hidden: int, ffn: int, packed: bool, sliced: bool,
         scheme: QuantScheme | None) -> NodeId:
    h = rms(g, x, at + "norm2", hidden)
    if packed:
        both = linear(g, h, at + "gate_up", hidden, 2 * ffn, bias=False, scheme=scheme)
    if packed and not sliced:
        h = g.swi_g_l_u(both, name=at + "swiglu")
    else:
        if packed:
            gate, up = (g.narrow(both, axis=2, start=start, len=ffn, name=at + part) for part, start in (("gate", 0), ("up", ffn)))
        else:
            gate, up = (linear(g, h, at + part, hidden, ffn, bias=False, scheme=scheme) for part in ("gate", "up"))
        h = g.mul(g.silu(gate, name=at + "gate_silu"), up, name=at + "swiglu")
    h = linear(g, h, at + "down", ffn, hidden, bias=False, scheme=scheme)
    return g.add(x, h, name=at + "residual2")


def _llama(name: str, *, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int,
           seq: int, past: int, batch: int, quant: str, packed_qkv: bool, cache: bool, embed: bool, last_only: bool,
           qk_norm: bool, packed_mlp: bool, sliced_mlp: bool) -> Graph:
    kv_heads, head_dim = kv_heads or heads, head_dim or hidden // max(heads, 1)
    require(name, at_least_one_layer=layers > 0, kv_heads_that_divide_heads=heads > 0 and heads % max(kv_heads, 1) == 0,
            an_even_head_width=head_dim > 0 and head_dim % 2 == 0, at_least_one_token=seq > 0 and past >= 0,
            a_cache_for_past_tokens=cache or not past, slices_of_a_packed_mlp_alone=packed_mlp or not sliced_mlp)
    dtype, scheme = quant_of(name, quant)
    g = Graph(name)
    if embed:
        tokens = g.input("tokens", (batch, seq), DType.I64)
        x = g.gather(g.param("embed", (vocab, hidden), dtype), tokens, axis=0, name="embedded")
    else:
        x = g.input("x", (batch, seq, hidden), dtype)
    tables = rope_tables(g, past, seq, head_dim, dtype)
    for i in range(layers):
        at = f"layers.{i}."
        x = attention_block(g, x, at, tables, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                            past=past, packed_qkv=packed_qkv, cache=cache, scheme=scheme, qk_norm=qk_norm)
        x = _mlp(g, x, at, hidden, ffn, packed_mlp, sliced_mlp, scheme)
    if last_only and seq > 1:
        x = g.narrow(x, axis=1, start=seq - 1, len=1, name="last")
    x = rms(g, x, "norm", hidden)
    return g.set_outputs(linear(g, x, "head", hidden, vocab, bias=False, scheme=scheme), names=["logits"])


@zoo("llama-prefill")
def llama_prefill(layers: int = 32, hidden: int = 4096, heads: int = 32, kv_heads: int = 0, head_dim: int = 0,
                  ffn: int = 11008, vocab: int = 32000, seq: int = 512, batch: int = 1, quant: str = "",
                  packed_qkv: bool = False, cache: bool = True, embed: bool = True, last_only: bool = False,
                  qk_norm: bool = False, packed_mlp: bool = False, sliced_mlp: bool = False) -> Graph:
    """LLaMA-2-7B reading a prompt: 32 layers, 6.738 B parameters.

    Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models" (2023): RMSNorm, rotary positions,
    SwiGLU; 6,738,415,616 parameters in the released 7B. ``kv_heads`` 0: as many as ``heads`` (fewer: grouped
    queries); ``head_dim`` 0: hidden / heads. ``quant``: "" f32, "f16", "bf16", or a GGUF scheme (``q4_k``):
    matmuls read packed u8 weights, activations stay f32. ``packed_qkv``: one matmul for q, k and v, then slices;
    ``packed_mlp``: one for gate and up, then SwiGLU, or with ``sliced_mlp`` two slices, SiLU and a product, as
    exporters write it. ``qk_norm``: each head of q and k normed, as Qwen3 does
    (Yang et al. 2025). ``last_only``: logits of the last token alone, as when serving. Caches enter as inputs
    and the new rows are appended in place.
    """
    return _llama("llama-prefill", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                  ffn=ffn, vocab=vocab, seq=seq, past=0, batch=batch, quant=quant, packed_qkv=packed_qkv, cache=cache,
                  embed=embed, last_only=last_only, qk_norm=qk_norm, packed_mlp=packed_mlp, sliced_mlp=sliced_mlp)


@zoo("llama-decode")
def llama_decode(layers: int = 32, hidden: int = 4096, heads: int = 32, kv_heads: int = 0, head_dim: int = 0,
                 ffn: int = 11008, vocab: int = 32000, past: int = 2047, batch: int = 1, quant: str = "",
                 packed_qkv: bool = False, embed: bool = True, qk_norm: bool = False, packed_mlp: bool = False, sliced_mlp: bool = False) -> Graph:
    """LLaMA-2-7B writing one token behind ``past`` cached ones; parameters as for ``llama-prefill``.

    The cache (2 · past+1 · hidden values a layer) is the memory here: activations are one row each.
    """
    return _llama("llama-decode", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                  ffn=ffn, vocab=vocab, seq=1, past=past, batch=batch, quant=quant, packed_qkv=packed_qkv, cache=True,
                  embed=embed, last_only=False, qk_norm=qk_norm, packed_mlp=packed_mlp, sliced_mlp=sliced_mlp)
