"""Owns norms with a residual or a gate, group norm, GELU's own thunks, GeGLU, the short depthwise convolution."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from planner_core.ir import Array
from runtime.command_list.formulas import (
    activate,
    activation_scratch,
    multiply_activated,
    multiply_activated_scratch,
)
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.reduce import norm_rows, norm_scratch, normalize
from runtime.command_list.widths import PIECE, buffers, store, wide_dtype, wide_scratch


def _terms(x: Array, res: Array, bias: Array | None) -> tuple[Array, ...]:
    return (x, res) if bias is None else (x, res, bias)


@thunk(name="FusedResidualLN", label="fused_residual_ln", partial_extent="scales", where="gpu")
class FusedResidualLN(Thunk):
    """out = LayerNorm(x + res (+ bias)) * g + b over the last axis."""

    x: In
    res: In
    bias: In | None
    g: In
    b: In
    out: Out
    rows: int
    h: int
    eps: float

    @property
    def has_bias(self) -> bool:
        return self.bias is not None

    @property
    def scratch_bytes(self) -> int:
        return norm_scratch(self.rows, self.h, self.out.storage.numpy)

    def run(self, x: Array, res: Array, bias: Array | None, g: Array, b: Array, out: Array, scratch: Scratch) -> None:
        norm_rows(_terms(x, res, bias), g, b, out, self.eps, True, scratch)


@thunk(name="FusedResidualRmsNorm", label="fused_residual_rms_norm", partial_extent="scales", where="gpu")
class FusedResidualRmsNorm(Thunk):
    """out = RmsNorm(x + res (+ bias)) * g (+ b) over the last axis."""

    x: In
    res: In
    bias: In | None
    g: In
    b: In | None
    out: Out
    rows: int
    h: int
    eps: float

    @property
    def has_bias(self) -> bool:
        return self.bias is not None

    @property
    def scratch_bytes(self) -> int:
        return norm_scratch(self.rows, self.h, self.out.storage.numpy)

    def run(self, x: Array, res: Array, bias: Array | None, g: Array, b: Array | None, out: Array,
            scratch: Scratch) -> None:
        norm_rows(_terms(x, res, bias), g, b, out, self.eps, False, scratch)


@thunk(name="FusedRmsNormMulSilu", label="fused_rms_norm_mul_silu", partial_extent="scales", where="gpu")
class FusedRmsNormMulSilu(Thunk):
    """out = (RmsNorm(x) * g (+ b)) * silu(z) over the last axis."""

    x: In
    g: In
    b: In | None
    z: In
    out: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        storage = self.out.storage
        return norm_scratch(self.rows, self.h, storage.numpy) + multiply_activated_scratch(storage, self.rows * self.h)

    def run(self, x: Array, g: Array, b: Array | None, z: Array, out: Array, scratch: Scratch) -> None:
        norm_rows((x,), g, b, out, self.eps, False, scratch)
        multiply_activated("silu", z, out, scratch)


@thunk(name="GroupNorm", label="group_norm", partial_extent="no", where="gpu")
class GroupNorm(Thunk):
    """dst = (x - mean) / sqrt(var + eps) * g[c] + b[c], moments over each group of channels and all pixels; NCHW seen as
    [n, c, h·w]."""

    src: In
    g: In
    b: In
    dst: Out
    n: int
    c: int
    h: int
    w: int
    num_groups: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.n * self.num_groups, wide_dtype(self.dst.storage.numpy)))

    def run(self, src: Array, g: Array, b: Array, dst: Array, scratch: Scratch) -> None:
        rows = self.n * self.num_groups
        normalize(src.reshape(rows, -1), dst.reshape(rows, -1), scratch.take(rows, wide_dtype(dst.dtype)), self.eps, True)
        np.multiply(dst, g[:, None], out=dst)
        np.add(dst, b[:, None], out=dst)


# --- GELU ---------------------------------------------------------------------------------------------


@thunk(name="GeluApproxOut", label="gelu_approx_out", partial_extent="scales", where="gpu")
class GeluApproxOut(Thunk):
    """dst = gelu(src), tanh form, f32."""

    act: ClassVar[str] = "gelu_approx"
    src: In
    dst: Out
    len: int

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch("gelu_approx", self.src.storage, self.len)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        activate("gelu_approx", src, dst, scratch)


@thunk(name="GeluApproxHost", label="gelu_approx_host", partial_extent="scales", where="host")
class GeluApproxHost(Thunk):
    """dst = gelu(src), tanh form, f32, on the host: for operands past 4 GiB of the arena."""

    act: ClassVar[str] = "gelu_approx"
    src: In
    dst: Out
    len: int

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch("gelu_approx", self.src.storage, self.len)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        activate("gelu_approx", src, dst, scratch)


@thunk(name="FusedGeGLU", label="fused_geglu", partial_extent="scales", where="gpu", extension=True)
class FusedGeGLU(Thunk):
    """dst[rows, n_half] = up * gelu(gate) from packed rows [gate | up] (or [up | gate]); ``act``: gelu or its tanh form."""

    src: In
    dst: Out
    n_half: int
    total: int
    gate_first: bool
    act: str

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch(self.act, self.dst.storage, self.total)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        low, high = src[:, : self.n_half], src[:, self.n_half :]
        gate, up = (low, high) if self.gate_first else (high, low)
        np.copyto(dst, gate)
        activate(self.act, dst, dst, scratch)
        np.multiply(dst, up, out=dst)


# --- short convolution --------------------------------------------------------------------------------


@thunk(name="FusedDepthwiseConv1dBsc", label="fused_depthwise_conv1d_bsc", partial_extent="scales", where="gpu")
class FusedDepthwiseConv1dBsc(Thunk):
    """dst[b, s, c] = Σ_t src[b, s + t, c] weight[c, 0, t], perhaps silu of it; src [batch, width, channels]."""

    src: In
    weight: In
    dst: Out
    batch: int
    width: int
    out_seq: int
    channels: int
    k: int
    silu: bool

    @property
    def _rows(self) -> int:
        return max(1, min(self.out_seq, PIECE // max(self.channels, 1)))

    @property
    def scratch_bytes(self) -> int:
        storage = self.dst.storage
        wide, block = wide_dtype(storage.numpy), self._rows * self.channels
        own = scratch_for((self.k * self.channels, wide), (block, wide)) + wide_scratch(storage.numpy, block)
        return own + (activation_scratch("silu", storage, self.dst.numel) if self.silu else 0)

    def run(self, src: Array, weight: Array, dst: Array, scratch: Scratch) -> None:
        taps = scratch.take((self.k, self.channels), wide_dtype(dst.dtype))
        np.copyto(taps, weight[:, 0].T)
        product = scratch.take((self._rows, self.channels), wide_dtype(dst.dtype))
        (total,) = buffers(scratch, dst.dtype, product.size)
        for x, y in zip(src, dst, strict=True):
            for r in range(0, self.out_seq, self._rows):
                to = y[r : r + self._rows]
                out = to if total is None else total[: to.size].reshape(to.shape)
                np.multiply(x[r : r + len(out)], taps[0], out=out)
                for t in range(1, self.k):
                    np.multiply(x[r + t : r + t + len(out)], taps[t], out=product[: len(out)])
                    np.add(out, product[: len(out)], out=out)
                store(to, out)
        if self.silu:
            activate("silu", dst, dst, scratch)
