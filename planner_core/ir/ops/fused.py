"""Owns ops that fusion makes of several: products with an epilogue, norms with a residual, gated halves, packed attention.

Elementwise chains: ``region.py``; convolution with an epilogue: ``conv.py``; adaLN: ``adaln.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, channel_sum, filled, per_channel, reshaped, unbroadcast
from planner_core.ir.ops.attention import Attention, Rope
from planner_core.ir.ops.elementwise import ACTIVATION, FLAT, _sigmoid
from planner_core.ir.ops.matmul import MatMul
from planner_core.ir.ops.norm import _vector
from planner_core.ir.ops.operands import wanted
from planner_core.ir.ops.region import (
    REGION_STEP,
    BatchElementwiseRegion,
    ElementwiseRegion,
    region_steps,
    region_text,
)
from planner_core.ir.shape import Dim, Shape, dim
from planner_core.ir.traits import Trait

__all__ = [
    "REGION_STEP", "BatchElementwiseRegion", "DepthwiseConv1dBsc", "DequantMatMulBlocked", "ElementwiseRegion",
    "FusedAttentionBlock", "FusedMatMulBiasAct", "GeGLU", "GroupNorm", "ResidualLayerNorm", "ResidualRmsNorm",
    "RmsNormMulSilu", "region_steps", "region_text",
]


def _one_dtype(what: str, *shapes: Shape) -> None:
    if any(s.dtype is not shapes[0].dtype for s in shapes):
        raise GraphError(f"{what} of {', '.join(map(str, shapes))}: dtypes differ, cast some")


def _equal(what: str, a: Shape, b: Shape) -> None:
    if a.rank != b.rank or not all(p.same(q) for p, q in zip(a.dims, b.dims, strict=True)):
        raise GraphError(f"{what}: {a} and {b} must have the same shape")


# --- products -----------------------------------------------------------------------------------------


@op(family="matmul", operands="a w bias", traits=(Trait.PRODUCT,), rows=rows.product)
class FusedMatMulBiasAct(Op):
    """``act(a @ w + bias)``; a ``[.., k]``, w ``[k, n]``, bias ``[n]``; activation "" = none.

    ``alpha``, ``beta`` as in ``Activation``. FLOPs: 2·M·K·N + 2·M·N.
    """

    activation: str = ""
    alpha: float = 0.0
    beta: float = 0.0

    def infer(self, a: Shape, w: Shape, bias: Shape, *_: Shape) -> Shape:
        if self.activation and self.activation not in ACTIVATION:
            raise GraphError(f"activation {self.activation!r}: wanted one of {', '.join(ACTIVATION)}")
        if w.rank != 2 or bias.rank != 1 or not bias.dims[0].same(w.dims[1]):
            raise GraphError(f"FusedMatMulBiasAct: w {w} and bias {bias}: wanted [k, n] and [n]")
        _one_dtype("FusedMatMulBiasAct", a, w, bias)
        return MatMul().infer(a, w)

    def evaluate(self, a: Array, w: Array, bias: Array, *_: Array) -> Array:
        y = np.matmul(a, w) + bias
        return np.asarray(ACTIVATION[self.activation](y, self.alpha, self.beta) if self.activation else y, dtype=a.dtype)

    def flops(self, out: Shape, a: Shape, *_: Shape) -> int:
        return 2 * out.numel * ((a.dims[-1].value or 0) + 1)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        if self.activation in FLAT:
            return None, None, None
        if self.activation:
            pre = g.add(replace(self, activation="", alpha=0.0, beta=0.0), *inputs)
            dy = g.activation_backward(pre, dy, kind=self.activation, alpha=self.alpha, beta=self.beta)
        return *MatMul().gradient(g, node, inputs[:2], dy), unbroadcast(g, dy, g[inputs[2]].shape)


@op(family="matmul", operands="x w_q scale zero_point?", rows=rows.product)
class DequantMatMulBlocked(Op):
    """``x[.., k] @ ((w_q - zero_point) · scale)ᵀ`` with one scale, and perhaps one zero point, a block of a row.

    bits 8: w_q i8 ``[n, k]``, zero 0 where no zero point is given. bits 4: w_q u8 ``[n, ⌈k/2⌉]``, element i in the low
    (even i) or high nibble of byte i // 2, codes 0–15, zero 8 where none is given (ONNX MatMulNBits). scale and
    zero_point ``[n, ⌈k / block_size⌉]``; zero points are i8 or u8, one a byte.
    """

    bits: int = 8
    block_size: int = 32

    def infer(self, x: Shape, w: Shape, scale: Shape, *zero: Shape) -> Shape:
        if self.bits not in (8, 4) or self.block_size < 1:
            raise GraphError(f"DequantMatMulBlocked of {self.bits} bits in blocks of {self.block_size}: wanted 8 or 4 bits")
        want = DType.I8 if self.bits == 8 else DType.U8
        k = x.dims[-1].value
        if w.rank != 2 or w.dtype is not want:
            raise GraphError(f"DequantMatMulBlocked: w {w}, wanted {want} [n, {'k' if self.bits == 8 else 'k / 2'}]")
        if k is not None and w.dims[1].value not in (None, k if self.bits == 8 else -(-k // 2)):
            raise GraphError(f"DequantMatMulBlocked: x {x} has k = {k}, w {w} holds rows of another length")
        blocks = None if k is None else -(-k // self.block_size)
        for s in (scale, *zero):
            if s.rank != 2 or not s.dims[0].same(w.dims[0]) or s.dims[1].value not in (None, blocks or s.dims[1].value):
                raise GraphError(f"DequantMatMulBlocked: scale or zero_point {s}, wanted [{w.dims[0]}, {blocks}], one a block of "
                                 f"{self.block_size} of w {w}")
        if not scale.dtype.is_float or any(z.dtype is not want for z in zero):
            raise GraphError(f"DequantMatMulBlocked: scale {scale} must be float, zero points {want}")
        return x.with_dims((*x.dims[:-1], w.dims[0]))

    def dequantize(self, w: Array, scale: Array, zero: Array | None, k: int) -> Array:
        """The weights ``[n, k]`` in the scale's dtype."""
        if self.bits == 4:
            w = w.astype(np.uint8)  # perhaps stored wider
            w = np.stack([w & 15, w >> 4], axis=-1).reshape(w.shape[0], -1)[:, :k]
        wide = [np.repeat(v, self.block_size, axis=1)[:, :k] for v in (scale, *(() if zero is None else (zero,)))]
        codes = w.astype(scale.dtype) - (wide[1].astype(scale.dtype) if len(wide) > 1 else scale.dtype.type(0 if self.bits == 8 else 8))
        return np.asarray(codes * wide[0])

    def evaluate(self, x: Array, w: Array, scale: Array, *zero: Array) -> Array:
        dense = self.dequantize(w, scale, zero[0] if zero else None, x.shape[-1])
        return np.asarray(np.matmul(x, dense.T.astype(x.dtype)), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[-1].value or 0)


# --- norms --------------------------------------------------------------------------------------------


@op(family="norm", operands="x residual gamma beta bias?", rows=rows.along_last_axis)
class ResidualLayerNorm(Op):
    """``LayerNorm(x + residual (+ bias)) · gamma + beta`` over the last axis; x and residual ``[.., h]``, the rest ``[h]``."""

    eps: float = 1e-5

    def infer(self, x: Shape, residual: Shape, gamma: Shape, beta: Shape, *bias: Shape) -> Shape:
        _equal("ResidualLayerNorm", x, residual)
        _one_dtype("ResidualLayerNorm", x, residual)
        return _vector(x, x.rank - 1, gamma, beta, *bias)

    def evaluate(self, x: Array, residual: Array, gamma: Array, beta: Array, *bias: Array) -> Array:
        s = x + residual
        for b in bias:
            s = s + b
        d = s - s.mean(-1, keepdims=True)
        return np.asarray(d / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps) * gamma + beta, dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return (4 + len(ins)) * out.numel + out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, residual, gamma, _, *bias = inputs
        s = g.add(x, residual)
        for b in bias:
            s = g.add(s, b)
        dx = g.layer_norm_backward_input(s, gamma, dy, eps=self.eps)
        return (dx, dx, g.layer_norm_backward_gamma(s, dy, eps=self.eps), g.layer_norm_backward_beta(dy),
                *(unbroadcast(g, dx, g[b].shape) for b in bias))


@op(family="norm", operands="x residual gamma more*", rows=rows.along_last_axis)
class ResidualRmsNorm(Op):
    """``RmsNorm(x + residual (+ bias)) · gamma (+ beta)`` over the last axis; x and residual ``[.., h]``, the rest ``[h]``.

    ``more`` holds bias if ``has_bias``, then beta if ``has_beta``.
    """

    eps: float = 1e-6
    has_bias: bool = False
    has_beta: bool = False

    def split(self, more: tuple[Any, ...]) -> tuple[Any, Any]:
        """(bias or None, beta or None) of the operands after gamma."""
        return more[0] if self.has_bias else None, more[-1] if self.has_beta else None

    def infer(self, x: Shape, residual: Shape, gamma: Shape, *more: Shape) -> Shape:
        if len(more) != self.has_bias + self.has_beta:
            raise GraphError(f"ResidualRmsNorm with has_bias={self.has_bias}, has_beta={self.has_beta} got {len(more)} "
                             "operands after gamma")
        _equal("ResidualRmsNorm", x, residual)
        _one_dtype("ResidualRmsNorm", x, residual)
        return _vector(x, x.rank - 1, gamma, *more)

    def evaluate(self, x: Array, residual: Array, gamma: Array, *more: Array) -> Array:
        bias, beta = self.split(more)
        s = x + residual if bias is None else x + residual + bias
        y = s / np.sqrt((s * s).mean(-1, keepdims=True) + self.eps) * gamma
        return np.asarray(y if beta is None else y + beta, dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return (3 + len(ins)) * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, residual, gamma, *more = inputs
        bias, _ = self.split(tuple(more))
        s = g.add(x, residual) if bias is None else g.add(g.add(x, residual), bias)
        dx = g.rms_norm_backward_input(s, gamma, dy, eps=self.eps)
        return (dx, dx, g.rms_norm_backward_gamma(s, dy, eps=self.eps),
                *((unbroadcast(g, dx, g[bias].shape),) if self.has_bias else ()),
                *((g.rms_norm_backward_beta(dy),) if self.has_beta else ()))


@op(family="norm", operands="x gamma z beta?", rows=rows.along_last_axis)
class RmsNormMulSilu(Op):
    """``(RmsNorm(x) · gamma (+ beta)) · silu(z)`` over the last axis; x and z ``[.., h]`` (gated norm of Mamba 2)."""

    eps: float = 1e-6

    def infer(self, x: Shape, gamma: Shape, z: Shape, *beta: Shape) -> Shape:
        _equal("RmsNormMulSilu", x, z)
        _one_dtype("RmsNormMulSilu", x, z)
        return _vector(x, x.rank - 1, gamma, *beta)

    def evaluate(self, x: Array, gamma: Array, z: Array, *beta: Array) -> Array:
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * gamma
        return np.asarray((y + beta[0] if beta else y) * (z * _sigmoid(z)), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return (7 + len(ins)) * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, gamma, z, *beta = inputs
        normed = g.rms_norm(x, gamma, *beta, eps=self.eps)
        dn = g.mul(dy, g.silu(z))
        return (g.rms_norm_backward_input(x, gamma, dn, eps=self.eps), g.rms_norm_backward_gamma(x, dn, eps=self.eps),
                g.activation_backward(z, g.mul(dy, normed), kind="silu"), *(g.rms_norm_backward_beta(dn) for _ in beta))


@op(family="norm", operands="x gamma beta", rows=rows.images)
class GroupNorm(Op):
    """``(x - mean) / sqrt(var + eps) · gamma + beta``, moments over each of ``groups`` runs of channels and all of space
    (Wu & He 2018); x ``[N, C, ..]``, gamma and beta ``[C]``."""

    groups: int
    eps: float = 1e-5

    def infer(self, x: Shape, gamma: Shape, beta: Shape, *_: Shape) -> Shape:
        if x.rank < 2 or self.groups < 1 or (x.dims[1].value or 0) % self.groups:
            raise GraphError(f"GroupNorm of {x} in {self.groups} groups: wanted N, C, space…, C a multiple of the groups")
        return _vector(x, 1, gamma, beta)

    def evaluate(self, x: Array, gamma: Array, beta: Array, *_: Array) -> Array:
        rows = x.reshape(x.shape[0], self.groups, -1)
        d = rows - rows.mean(-1, keepdims=True)
        y = (d / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps)).reshape(x.shape)
        wide = (slice(None),) + (None,) * (x.ndim - 2)
        return np.asarray(y * gamma[wide] + beta[wide], dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 8 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, gamma, _ = inputs
        shape = g[x].shape
        rest = dim(shape.numel // (shape.sizes[0] * self.groups))
        grouped = shape.with_dims((shape.dims[0], self.groups, rest))
        flat = Shape((rest,), shape.dtype)
        ones, zeros = filled(g, 1, flat), filled(g, 0, flat)
        rows = reshaped(g, x, grouped)
        xhat = reshaped(g, g.layer_norm(rows, ones, zeros, eps=self.eps), shape)
        d = g.mul(dy, per_channel(g, gamma, shape.rank))
        dx = g.layer_norm_backward_input(rows, ones, reshaped(g, d, grouped), eps=self.eps)
        return reshaped(g, dx, shape), channel_sum(g, g.mul(dy, xhat)), channel_sum(g, dy)


# --- gated halves, short convolution ------------------------------------------------------------------


@op(family="attention", operands="x", builders={"geglu": {}}, rows=rows.along_last_axis)
class GeGLU(Op):
    """One packed row ``[.., 2n]`` to ``up · gelu(gate)`` ``[.., n]``, gate first or second (Shazeer 2020).

    ``approximate``: GELU's tanh form.
    """

    gate_first: bool = True
    approximate: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        width = x.dims[x.axis(-1)].value
        if width is not None and width % 2:
            raise GraphError(f"GeGLU splits the last axis in half; {x} has an odd one")
        return x.with_dims((*x.dims[:-1], x.dims[-1] // 2))

    @property
    def kind(self) -> str:
        """The gate's activation."""
        return "gelu_approx" if self.approximate else "gelu"

    def evaluate(self, x: Array, *_: Array) -> Array:
        a, b = np.split(x, 2, axis=-1)
        gate, up = (a, b) if self.gate_first else (b, a)
        return np.asarray(up * ACTIVATION[self.kind](gate, 0.0, 0.0), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 5 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        (x,) = inputs
        axis, n = g[x].shape.rank - 1, g[node].shape.sizes[-1]
        a, b = (g.narrow(x, axis=axis, start=start, len=n) for start in (0, n))
        gate, up = (a, b) if self.gate_first else (b, a)
        d_up = g.mul(dy, g.activation(gate, kind=self.kind))
        d_gate = g.activation_backward(gate, g.mul(dy, up), kind=self.kind)
        return (g.concat(*((d_gate, d_up) if self.gate_first else (d_up, d_gate)), axis=axis),)


@op(family="conv", operands="x w", builders={"depthwise_conv1d_bsc": {}}, traits=(Trait.PRODUCT,), rows=rows.images)
class DepthwiseConv1dBsc(Op):
    """``y[b, s, c] = Σ_t x[b, s + t, c] · w[c, 0, t]``, perhaps silu of it; x ``[B, W, C]``, w ``[C, 1, k]``, y
    ``[B, W - k + 1, C]`` (the short convolution of Mamba and gated delta nets; the caller pads)."""

    silu: bool = False

    def infer(self, x: Shape, w: Shape, *_: Shape) -> Shape:
        if x.rank != 3 or w.rank != 3 or w.dims[1].value != 1 or not w.dims[0].same(x.dims[2]):
            raise GraphError(f"DepthwiseConv1dBsc: x {x}, w {w}: wanted [B, W, C] and [C, 1, k]")
        _one_dtype("DepthwiseConv1dBsc", x, w)
        width, k = x.dims[1], w.sizes[2]
        if width.value is not None and width.value < k:
            raise GraphError(f"DepthwiseConv1dBsc: window of {k} is wider than x {x} (w {w})")
        return x.with_dims((x.dims[0], width - (k - 1) if k > 1 else width, x.dims[2]))

    def evaluate(self, x: Array, w: Array, *_: Array) -> Array:
        k = w.shape[2]
        out = x.shape[1] - k + 1
        y = np.zeros((x.shape[0], out, x.shape[2]), dtype=x.dtype)
        for t in range(k):
            y += x[:, t : t + out] * w[:, 0, t]
        return np.asarray(y * _sigmoid(y) if self.silu else y, dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, w: Shape, *_: Shape) -> int:
        return out.numel * (2 * (w.dims[2].value or 0) + (4 if self.silu else 0))

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, w = inputs
        if self.silu:
            dy = g.activation_backward(g.depthwise_conv1d_bsc(x, w), dy, kind="silu")
        xt, dyt = (g.transpose(v, perm=(0, 2, 1)) for v in (x, dy))
        how: dict[str, Any] = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": g[w].shape.sizes[0]}
        dx = g.conv_backward_input(w, dyt, **how, dims=g[xt].shape.dims)
        return g.transpose(dx, perm=(0, 2, 1)), g.conv_backward_weight(xt, dyt, **how, dims=g[w].shape.dims)


# --- packed attention ---------------------------------------------------------------------------------


@op(family="attention", operands="qkv more*", rows=rows.packed_attention)
class FusedAttentionBlock(Op):
    """Attention over one packed row: q, k, v = thirds of ``qkv``, RoPE on q and k, then ``softmax(q kᵀ · scale + mask) v``.

    qkv ``[B, S, 3·H·D]``, or ``[B, S, 3, H, D]``; result ``[B, S, H·D]``. ``more`` holds cos and sin ``[S, D/2]`` if
    ``has_rope`` (pairs i, i + D/2), then the mask if ``mask_kind`` is custom (``[B or 1, .., S]``, kept where non-zero)
    or bias. The projections before and after stay products of their own. ``score_scale`` 0 = 1/√D.
    """

    num_heads: int
    head_dim: int
    has_rope: bool = False
    mask_kind: str = "none"
    score_scale: float = 0.0

    def split(self, more: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """((cos, sin) or (), (mask,) or ()) of the operands after qkv."""
        return (tuple(more[:2]), tuple(more[2:])) if self.has_rope else ((), tuple(more))

    def attention(self) -> Attention:
        """The op on split heads that this stands for."""
        return Attention(self.num_heads, self.head_dim, mask_kind=self.mask_kind, score_scale=self.score_scale)

    def infer(self, qkv: Shape, *more: Shape) -> Shape:
        if self.mask_kind == "sliding_window":
            raise GraphError("FusedAttentionBlock has no window; use Attention for mask 'sliding_window'")
        tables, mask = self.split(more)
        if len(tables) != 2 * self.has_rope or len(mask) != (self.mask_kind in ("custom", "bias")):
            raise GraphError(f"FusedAttentionBlock with has_rope={self.has_rope}, mask {self.mask_kind!r} got {len(more)} "
                             "operands after qkv")
        width = self.num_heads * self.head_dim
        tail: tuple[Dim, ...] = qkv.dims[2:]
        want = (3 * width,) if qkv.rank == 3 else (3, self.num_heads, self.head_dim)
        if len(tail) != len(want) or any(d.value not in (None, n) for d, n in zip(tail, want, strict=True)):
            raise GraphError(f"FusedAttentionBlock qkv {qkv}: wanted [B, S, {3 * width}] for {self.num_heads} heads × {self.head_dim}")
        out = qkv.with_dims((*qkv.dims[:2], width))
        half = self.head_dim // 2
        if self.has_rope:
            if self.head_dim % 2:
                raise GraphError(f"FusedAttentionBlock with has_rope: head_dim {self.head_dim} is odd; qkv {qkv}")
            for name, table in zip(("cos", "sin"), tables, strict=True):
                wanted("FusedAttentionBlock", name, table, (qkv.dims[1], half), f"one row a position of qkv {qkv}")
        return self.attention().infer(out, out, out, *mask)

    def evaluate(self, qkv: Array, *more: Array) -> Array:
        tables, mask = self.split(more)
        q, k, v = np.split(qkv.reshape(*qkv.shape[:2], -1), 3, axis=-1)
        if tables:
            rope = Rope(self.head_dim, self.head_dim)
            q, k = rope.evaluate(q, *tables), rope.evaluate(k, *tables)
        return self.attention().evaluate(q, k, v, *mask)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 4 * out.numel * (out.dims[1].value or 0) + (6 * out.numel if self.has_rope else 0)
