"""Owns the fused thunks that command passes make: one-row MLPs, binaries with an activation, slices at once."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType, QuantScheme
from runtime.command_list.formulas import activate, activation_scratch, binary
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.quant.product import packed_matmul, packed_scratch

_F32 = DType.F32.numpy


def _gate_up_scratch(act: str, k: int, n: int, x: DType) -> int:
    more = packed_scratch(1, k, n, DType.F32, DType.F32) + activation_scratch(act, DType.F32, n)
    wide = [(k, _F32)] if x is not DType.F32 else []
    return scratch_for((n, _F32), (n, _F32), *wide) + more


def _gate_up(act: str, x: Array, gate_w: Array, up_w: Array, dst: Array, scheme: QuantScheme, scratch: Scratch) -> None:
    """dst = (x upᵀ) act(x gateᵀ), in f32 whatever the widths."""
    n, k = gate_w.shape[0], x.shape[1]
    gate, up = scratch.take((1, n), _F32), scratch.take((1, n), _F32)
    if x.dtype != _F32:
        wide = scratch.take(x.shape, _F32)
        np.copyto(wide, x)
        x = wide
    packed_matmul(x, gate_w, gate, k, scheme, scratch)
    packed_matmul(x, up_w, up, k, scheme, scratch)
    activate(act, gate, gate, scratch)
    np.multiply(gate, up, out=dst, casting="unsafe")


@thunk(name="FusedMlpGateUpSwiGLU", label="fused_mlp_gate_up_swiglu", partial_extent="full_ok", where="gpu")
class FusedMlpGateUpSwiGLU(Thunk):
    """dst[n] = (x upᵀ) silu(x gateᵀ), one row; gate and up are n packed rows of k."""

    x: In
    gate_w: In
    up_w: In
    dst: Out
    k: int
    n: int
    scheme: QuantScheme
    x_f16: bool = False
    dst_f16: bool = False

    @property
    def scratch_bytes(self) -> int:
        return _gate_up_scratch("silu", self.k, self.n, self.x.storage)

    def run(self, x: Array, gate_w: Array, up_w: Array, dst: Array, scratch: Scratch) -> None:
        _gate_up("silu", x, gate_w, up_w, dst, self.scheme, scratch)


@thunk(name="FusedMlpGateUpGelu", label="fused_mlp_gate_up_gelu", partial_extent="full_ok", where="gpu")
class FusedMlpGateUpGelu(Thunk):
    """dst[n] = (x upᵀ) gelu_approx(x gateᵀ), one row, f32."""

    x: In
    gate_w: In
    up_w: In
    dst: Out
    k: int
    n: int
    scheme: QuantScheme

    @property
    def scratch_bytes(self) -> int:
        return _gate_up_scratch("gelu_approx", self.k, self.n, self.x.storage)

    def run(self, x: Array, gate_w: Array, up_w: Array, dst: Array, scratch: Scratch) -> None:
        _gate_up("gelu_approx", x, gate_w, up_w, dst, self.scheme, scratch)


@thunk(name="FusedMlpDownResidual", label="fused_mlp_down_residual", partial_extent="full_ok", where="gpu")
class FusedMlpDownResidual(Thunk):
    """dst[n] = res[n] + x[k] wᵀ, one row; dst may be res."""

    x: In
    w: In
    res: In
    dst: Out
    k: int
    n: int
    scheme: QuantScheme
    x_f16: bool = False
    dst_f16: bool = False
    res_f16: bool = False

    @property
    def scratch_bytes(self) -> int:
        return packed_scratch(1, self.k, self.n, self.x.storage, DType.F32) + scratch_for((self.n, _F32))

    def run(self, x: Array, w: Array, res: Array, dst: Array, scratch: Scratch) -> None:
        sum_ = scratch.take((1, self.n), _F32)
        packed_matmul(x, w, sum_, self.k, self.scheme, scratch)
        np.add(res, sum_, out=dst, casting="unsafe")


@thunk(name="FusedBinaryActivation", label="fused_binary_activation", partial_extent="scales", where="gpu")
class FusedBinaryActivation(Thunk):
    """dst = act(lhs op rhs); dst may be an operand."""

    lhs: In
    rhs: In
    dst: Out
    len: int
    op: str
    act: str

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch(self.act, self.dst.storage, self.len)

    def run(self, lhs: Array, rhs: Array, dst: Array, scratch: Scratch) -> None:
        binary(self.op, lhs, rhs, dst, scratch)
        activate(self.act, dst, dst, scratch)


@thunk(name="FusedTernaryActivation", label="fused_ternary_activation", partial_extent="scales", where="gpu")
class FusedTernaryActivation(Thunk):
    """dst = act((lhs op0 rhs0) op1 rhs1); dst may be lhs or rhs0, and rhs1 is not read after dst is written."""

    lhs: In
    rhs0: In
    rhs1: In
    dst: Out
    len: int
    op0: str
    op1: str
    act: str

    @property
    def _keeps(self) -> bool:
        """dst shares bytes with rhs1, so the first result waits in scratch."""
        return self.dst.overlaps(self.rhs1)

    @property
    def scratch_bytes(self) -> int:
        first = scratch_for((self.len, self.dst.storage.numpy)) if self._keeps else 0
        return first + activation_scratch(self.act, self.dst.storage, self.len)

    def run(self, lhs: Array, rhs0: Array, rhs1: Array, dst: Array, scratch: Scratch) -> None:
        first = scratch.take(dst.shape, dst.dtype) if self._keeps else dst
        binary(self.op0, lhs, rhs0, first, scratch)
        binary(self.op1, first, rhs1, dst, scratch)
        activate(self.act, dst, dst, scratch)


@thunk(name="SplitLastAxis", label="split_lastax", partial_extent="scales", where="gpu")
class SplitLastAxis(Thunk):
    """segments[i][outer, len_i] = src[outer, starts[i] : starts[i] + len_i], every slice in one dispatch."""

    src: In
    outer: int
    src_axis: int
    segments: tuple[Out, ...]
    starts: tuple[int, ...]

    @property
    def bytes_read(self) -> int:
        return self.bytes_written

    def run(self, src: Array, segments: tuple[Array, ...], scratch: Scratch) -> None:
        for start, dst in zip(self.starts, segments, strict=True):
            np.copyto(dst, src[:, start : start + dst.shape[1]])
