"""Owns ``mamba``: a stack of selective state-space blocks, forward."""

from __future__ import annotations

from planner_core.ir import DType, Graph, NodeId
from planner_core.zoo.blocks import conv1d, linear, require
from planner_core.zoo.registry import zoo

__all__ = ["mamba"]

EPS = 1e-5
WINDOW = 4
"""Taps of the causal depthwise convolution."""


def _block(g: Graph, x: NodeId, at: str, hidden: int, state: int) -> NodeId:
    inner, rank = 2 * hidden, -(-hidden // 16)
    h = g.rms_norm(x, g.param(at + "norm.gamma", (hidden,)), eps=EPS, name=at + "norm")
    both = linear(g, h, at + "in", hidden, 2 * inner, bias=False)
    u, z = (g.narrow(both, axis=2, start=s, len=inner, name=at + p) for p, s in (("u", 0), ("z", inner)))
    u = conv1d(g, g.transpose(u, perm=(0, 2, 1), name=at + "u_t"), at + "conv", inner, inner, WINDOW, groups=inner,
               before=WINDOW - 1, after=0)
    u = g.silu(g.transpose(u, perm=(0, 2, 1), name=at + "conv_t"), name=at + "conv_silu")
    picked = linear(g, u, at + "select", inner, rank + 2 * state, bias=False)
    step, b, c = (g.narrow(picked, axis=2, start=s, len=n, name=at + p)
                  for p, s, n in (("step", 0, rank), ("b", rank, state), ("c", rank + state, state)))
    delta = g.softplus(linear(g, step, at + "delta", rank, inner), name=at + "delta_plus")
    a = g.neg(g.exp(g.param(at + "a_log", (inner, state)), name=at + "a_exp"), name=at + "a")
    y = g.selective_scan(u, delta, a, b, c, name=at + "scan")
    y = g.add(y, g.mul(u, g.param(at + "skip", (inner,)), name=at + "skipped"), name=at + "scan_skip")
    y = g.mul(y, g.silu(z, name=at + "z_silu"), name=at + "gated")
    return g.add(x, linear(g, y, at + "out", inner, hidden, bias=False), name=at + "residual")


@zoo("mamba")
def mamba(layers: int = 24, hidden: int = 768, state: int = 16, vocab: int = 50280, seq: int = 512, batch: int = 1,
          embed: bool = True) -> Graph:
    """Mamba-130M: 24 selective-scan blocks, 129.1 M parameters with the embedding tied.

    Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023): inner width 2·hidden,
    state 16, a causal convolution of 4; 129,135,360 in the released 130M. Logits read the embedding transposed.
    ``embed=False`` starts from hidden states and ends with them.
    """
    require("mamba", positive_sizes=min(layers, hidden, state, seq, batch) > 0)
    g = Graph("mamba")
    if embed:
        table = g.param("embed", (vocab, hidden))
        x = g.gather(table, g.input("tokens", (batch, seq), DType.I64), axis=0, name="embedded")
    else:
        x = g.input("x", (batch, seq, hidden))
    for i in range(layers):
        x = _block(g, x, f"layers.{i}.", hidden, state)
    x = g.rms_norm(x, g.param("norm.gamma", (hidden,)), eps=EPS, name="norm")
    if not embed:
        return g.set_outputs(x, names=["hidden"])
    return g.set_outputs(g.mm(x, g.transpose(table, perm=(1, 0), name="head"), name="logits"), names=["logits"])
