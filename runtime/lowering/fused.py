"""Lowers ops that fusion made: products, norms and convolutions with what stands around them, regions."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

from planner_core.ir import DType, Node, ops
from planner_core.ir.ops.attention import MASKS
from runtime.command_list import Thunk
from runtime.command_list.thunks import blocked, fused, matmul, packed_attention, region, scan
from runtime.lowering.core import Lowering, lowers


@lowers(ops.FusedMatMulBiasAct, widths="any")
def _mm_bias_act(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    a, w, bias = n.inputs
    *lead, k = ctx.dims(a)
    m, cols = math.prod(lead), ctx.dims(w)[1]
    if k == 0:
        yield ctx.host(n)
        return
    yield matmul.FusedMmBiasAct(ctx.operand(a, m, k), ctx.operand(w), ctx.operand(bias), ctx.operand(n.id, m, cols), m, k,
                                cols, o.activation, o.alpha, o.beta)


@lowers(ops.ResidualLayerNorm, widths=2)
def _residual_ln(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, res, g, b, *bias = n.inputs
    h = ctx.dims(x)[-1]
    rows = n.shape.numel // h
    yield fused.FusedResidualLN(ctx.operand(x, rows, h), ctx.operand(res, rows, h), ctx.operand(bias[0]) if bias else None,
                                ctx.operand(g), ctx.operand(b), ctx.operand(n.id, rows, h), rows, h, o.eps)


@lowers(ops.ResidualRmsNorm, widths=2)
def _residual_rms(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, res, g, *more = n.inputs
    bias, b = o.split(tuple(more))
    h = ctx.dims(x)[-1]
    rows = n.shape.numel // h
    yield fused.FusedResidualRmsNorm(
        ctx.operand(x, rows, h), ctx.operand(res, rows, h), None if bias is None else ctx.operand(bias), ctx.operand(g),
        None if b is None else ctx.operand(b), ctx.operand(n.id, rows, h), rows, h, o.eps)


@lowers(ops.RmsNormMulSilu)
def _gated_norm(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, g, z, *b = n.inputs
    h = ctx.dims(x)[-1]
    rows = n.shape.numel // h
    yield fused.FusedRmsNormMulSilu(ctx.operand(x, rows, h), ctx.operand(g), ctx.operand(b[0]) if b else None,
                                    ctx.operand(z, rows, h), ctx.operand(n.id, rows, h), rows, h, o.eps)


@lowers(ops.GroupNorm)
def _group_norm(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, g, b = n.inputs
    count, c, *space = ctx.dims(x)
    h, w = (space[0], math.prod(space[1:])) if space else (1, 1)
    yield fused.GroupNorm(ctx.operand(x, count, c, h * w), ctx.operand(g), ctx.operand(b), ctx.operand(n.id, count, c, h * w),
                          count, c, h, w, o.groups, o.eps)


@lowers(ops.GeGLU)
def _geglu(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    half = ctx.dims(n.id)[-1]
    rows = n.shape.numel // half
    yield fused.FusedGeGLU(ctx.operand(n.inputs[0], rows, 2 * half), ctx.operand(n.id, rows, half), half, n.shape.numel,
                           o.gate_first, o.kind)


@lowers(ops.DepthwiseConv1dBsc, widths=1)
def _depthwise(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w = n.inputs
    batch, width, channels = ctx.dims(x)
    yield fused.FusedDepthwiseConv1dBsc(ctx.operand(x), ctx.operand(w), ctx.operand(n.id), batch, width, ctx.dims(n.id)[1],
                                        channels, ctx.dims(w)[2], o.silu)


# --- regions ------------------------------------------------------------------------------------------


@lowers(ops.ElementwiseRegion, widths="any")
def _region(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    inputs = tuple(ctx.flat(i) for i in n.inputs)
    length = n.shape.numel
    mask, moduli = region.reading(inputs, length, o.prologue_input if o.prologue else -1)
    out_n, c, h, w = ctx.dims(n.id) if o.prologue else (0, 0, 0, 0)
    yield region.ElementwiseRegion(
        inputs, ctx.flat(n.id), length, region.flat_chain(o.steps), mask, moduli,
        region.PROLOGUE_NEAREST2X if o.prologue else region.PROLOGUE_NONE, out_n, c, h, w, o.prologue_input)


@lowers(ops.BatchElementwiseRegion, widths="any")
def _batch_region(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    inputs = tuple(ctx.flat(i) for i in n.inputs)
    length = n.shape.numel // o.num_batch
    mask, moduli = region.reading(inputs[: len(inputs) // o.num_batch], length)
    yield region.BatchElementwiseRegion(inputs, ctx.operand(n.id, o.num_batch, length), length, o.num_batch,
                                        region.flat_chain(o.steps), mask, moduli)


# --- attention, scans, block weights ------------------------------------------------------------------


@lowers(ops.FusedAttentionBlock, widths="f32")
def _attention_block(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    qkv, *more = n.inputs
    if ctx.storage(n.id) is not DType.F32:
        yield ctx.host(n)
        return
    tables, mask = o.split(tuple(more))
    batch, seq = ctx.dims(n.id)[:2]
    cos, sin = (ctx.operand(t) for t in tables) if tables else (None, None)
    yield packed_attention.FusedAttn(
        ctx.operand(qkv, batch, seq, 3, o.num_heads, o.head_dim), ctx.operand(mask[0]) if mask else None, cos, sin,
        ctx.operand(n.id, batch, seq, o.num_heads, o.head_dim), batch, seq, o.num_heads, o.head_dim, MASKS.index(o.mask_kind),
        int.from_bytes(struct.pack("<f", o.score_scale), "little"))


@lowers(ops.SelectiveScan)
def _selective_scan(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, delta, a, b, c = (ctx.operand(i) for i in n.inputs)
    batch, seq, hidden = ctx.dims(n.id)
    yield scan.SelectiveScan(x, delta, a, b, c, ctx.operand(n.id), batch, seq, hidden, ctx.dims(n.inputs[2])[1])


@lowers(ops.DequantMatMulBlocked, widths="f32")
def _blocked(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, scale, *zero = n.inputs
    *lead, k = ctx.dims(x)
    m, cols = math.prod(lead), ctx.dims(w)[0]
    codes = {8: DType.I8, 4: DType.U8}[o.bits]
    if any(ctx.storage(i) is not DType.F32 for i in (x, scale, n.id)) or any(ctx.storage(i) is not codes for i in (w, *zero)):
        yield ctx.host(n)
        return
    made = blocked.DequantMatMulInt8 if o.bits == 8 else blocked.DequantMatMulInt4
    yield made(ctx.operand(x, m, k), ctx.operand(w), ctx.operand(scale), ctx.operand(zero[0]) if zero else None,
               ctx.operand(n.id, m, cols), m, k, cols, o.block_size)


@lowers(ops.DequantMatMulFp8, widths="f32")
def _fp8(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, scale = n.inputs
    *lead, k = ctx.dims(x)
    m, cols = math.prod(lead), ctx.dims(w)[0]
    if any(ctx.storage(i) is not DType.F32 for i in (x, scale, n.id)):
        yield ctx.host(n)
        return
    yield blocked.DequantMatMulFp8(ctx.operand(x, m, k), ctx.operand(w), ctx.operand(scale), ctx.operand(n.id, m, cols), m, k, cols,
                                   ctx.graph[w].dtype is DType.F8E5M2)


@lowers(ops.DequantMatMulNvfp4, widths="f32")
def _nvfp4(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, scale, total = n.inputs
    *lead, k = ctx.dims(x)
    m, cols = math.prod(lead), ctx.dims(w)[0]
    if any(ctx.storage(i) is not DType.F32 for i in (x, total, n.id)) or ctx.storage(w) is not DType.U8:
        yield ctx.host(n)
        return
    yield blocked.DequantMatMulNvfp4(ctx.operand(x, m, k), ctx.operand(w), ctx.operand(scale), ctx.flat(total),
                                     ctx.operand(n.id, m, cols), m, k, cols)
