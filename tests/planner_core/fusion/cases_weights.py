"""Where projections of one value become one product, and where they don't."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.packed import random_blocks
from tests.planner_core.fusion.harness import Applied, Refused

METAL = FusionTarget.METAL
Q2 = QuantScheme.Q2_0


def _weight(g: Graph, name: str, dims: tuple[int, ...], data: bool = True, dtype: DType = DType.F32) -> int:
    known = np.random.default_rng(len(g)).standard_normal(dims).astype(dtype.numpy) if data else None
    return g.param(name, dims, dtype, data=known)


def gated(kind: str = "silu", *, data: bool = True, bias: str = "", tied: bool = False, live: bool = False, shared: bool = False,
          output: bool = False, left: bool = False, rows: str = "", dtype: DType = DType.F32, fused: bool = False) -> Graph:
    g = Graph("gated")
    x = g.input("x", (2, 3, 4), dtype)

    def project(name: str) -> int:
        if name in rows.split():
            return g.transposed_mat_mul(x, _weight(g, name, (6, 4), data, dtype), trans_b=True)
        w = g.input(name, (4, 6), dtype) if live and name == "up" else _weight(g, name, (4, 6), data, dtype)
        if name in bias.split():
            return g.fused_mat_mul_bias_act(x, w, _weight(g, name + ".b", (6,), data, dtype))
        if fused and name == "gate":
            return g.fused_mat_mul_bias_act(x, w, g.constant(np.zeros(6, dtype.numpy)), activation=kind)
        return g.mm(x, w)

    gate, up = project("gate"), project("up")
    act = gate if fused else g.activation(gate, kind=kind)
    y = g.mul(up, act) if left else g.mul(act, up)
    more = [up] if output else [g.reduce_max(up, axes=(0,))] if shared else []
    if tied:
        more.append(g.neg(g.find("up").id))
    return g.set_outputs(y, *more)


def packed(other: QuantScheme = Q2, rows: int = 3) -> Graph:
    """Gate and up over packed weights."""
    g = Graph("packed")
    x, rng = g.input("x", (1, rows, 128)), np.random.default_rng(0)
    gate, up = (g.dequant_mat_mul(x, g.param(n, (5, s.row_bytes(128)), DType.U8, data=random_blocks(rng, s, 5, 128)), n=5, scheme=s)
                for n, s in (("gate", Q2), ("up", other)))
    return g.set_outputs(g.mul(g.silu(gate), up))


def attention(*, data: bool = True, rope: str = "", kv_heads: int = 0, mask: str = "none", softcap: float = 0.0, live: bool = False,
              shared: bool = False, output: bool = False, bias: bool = False, dtype: DType = DType.F32, interleaved: bool = False,
              other_rows: bool = False, packed: str = "", split: bool = True) -> Graph:
    g = Graph("attention")
    heads, d, s = 2, 4, 3
    kv = kv_heads or heads
    x = g.input("x", (2, s, 128 if packed else 5), dtype)
    k = 128 if packed else 5
    cos, sin = (g.input(n, (s, d // 2), dtype) for n in ("cos", "sin"))
    parts = []
    for name, h in (("q", heads), ("k", kv), ("v", kv)):
        if packed:
            scheme = QuantScheme.Q1_0 if name == packed else Q2
            blocks = random_blocks(np.random.default_rng(len(g)), scheme, h * d, k)
            y = g.dequant_mat_mul(x, g.param(name, blocks.shape, DType.U8, data=blocks), n=h * d, scheme=scheme)
        else:
            w = g.input(name, (k, h * d), dtype) if live and name == "k" else _weight(g, name, (k, h * d), data, dtype)
            y = g.fused_mat_mul_bias_act(x, w, _weight(g, name + ".b", (h * d,), data, dtype)) if bias else g.mm(x, w)
        if name in rope:
            y = g.rope(y, cos, sin, head_dim=d, n_rot=d, interleaved=interleaved)
        dims = (1, 2 * s, h, d) if other_rows else (2, s, h, d)
        parts.append(g.reshape(y, dims=dims) if split else y)
    more = [parts[2]] if output else [g.neg(parts[2])] if shared else []
    masks = [g.input("mask", (1, 1, s, s), dtype)] if mask == "bias" else []
    how = {"window": 1} if mask == "sliding_window" else {}
    y = g.attention(*parts, *masks, num_heads=heads, head_dim=d, kv_heads=kv_heads, mask_kind=mask, softcap=softcap, **how)
    return g.set_outputs(g.relu(y), *more)


BLOCK = ("FusedAttentionBlock",)
APPLIED = [
    Applied("concat_gate_up", gated, made=("SwiGLU",), gone=("Binary(mul)", "Activation(silu)"), id="silu"),
    Applied("concat_gate_up", lambda: gated("gelu", left=True), made=("GeGLU",), gone=("Binary(mul)",), id="gelu"),
    Applied("concat_gate_up", lambda: gated("gelu_approx", bias="gate up"), made=("GeGLU", "FusedMatMulBiasAct"), id="bias"),
    Applied("concat_gate_up", lambda: gated(bias="up"), made=("SwiGLU", "FusedMatMulBiasAct"), id="one bias"),
    Applied("concat_gate_up", lambda: gated(fused=True), made=("SwiGLU",), gone=("FusedMatMulBiasAct",), id="activation inside"),
    Applied("concat_gate_up", lambda: gated(rows="gate up"), made=("TransposedMatMul",), id="rows"),
    Applied("concat_gate_up", packed, made=("SwiGLU", "DequantMatMul"), gone=("Binary(mul)",), id="packed weights"),
    Applied("concat_qkv", attention, made=BLOCK, gone=("Attention",), id="plain"),
    Applied("concat_qkv", lambda: attention(rope="qk", mask="causal", split=False), made=BLOCK, gone=("Rope",), id="rope"),
    Applied("concat_qkv", lambda: attention(bias=True, mask="bias"), made=(*BLOCK, "FusedMatMulBiasAct"), id="bias and mask"),
    Applied("concat_qkv", lambda: attention(packed="none"), made=(*BLOCK, "DequantMatMul"), id="packed weights"),
]
REFUSED = [
    Refused("concat_gate_up", Refusal.NO_DATA, lambda: gated(data=False)),
    Refused("concat_gate_up", Refusal.SHARED, lambda: gated(shared=True)),
    Refused("concat_gate_up", Refusal.SHARED, lambda: gated(tied=True), id="weight"),
    Refused("concat_gate_up", Refusal.OUTPUT, lambda: gated(output=True)),
    Refused("concat_gate_up", Refusal.NOT_CONSTANT, lambda: gated(live=True)),
    Refused("concat_gate_up", Refusal.LAYOUT, lambda: gated(rows="gate")),
    Refused("concat_gate_up", Refusal.QUANTISATION, lambda: packed(QuantScheme.Q1_0)),
    Refused("concat_gate_up", Refusal.DTYPE, lambda: gated(dtype=DType.F64)),
    Refused("concat_gate_up", Refusal.COMMAND_PASS, lambda: packed(rows=1), target=METAL, decode_forms=False),
    Refused("concat_qkv", Refusal.NO_DATA, lambda: attention(data=False)),
    Refused("concat_qkv", Refusal.SHARED, lambda: attention(shared=True)),
    Refused("concat_qkv", Refusal.OUTPUT, lambda: attention(output=True)),
    Refused("concat_qkv", Refusal.NOT_CONSTANT, lambda: attention(live=True)),
    Refused("concat_qkv", Refusal.LAYOUT, lambda: attention(other_rows=True)),
    Refused("concat_qkv", Refusal.QUANTISATION, lambda: attention(packed="v")),
    Refused("concat_qkv", Refusal.HEADS, lambda: attention(kv_heads=1)),
    Refused("concat_qkv", Refusal.MASK, lambda: attention(mask="sliding_window")),
    Refused("concat_qkv", Refusal.ROTATION, lambda: attention(rope="q")),
    Refused("concat_qkv", Refusal.ROTATION, lambda: attention(rope="qk", interleaved=True), id="interleaved"),
    Refused("concat_qkv", Refusal.SAVES_NOTHING, lambda: attention(softcap=5.0)),
    Refused("concat_qkv", Refusal.DTYPE, lambda: attention(dtype=DType.F16)),
]
