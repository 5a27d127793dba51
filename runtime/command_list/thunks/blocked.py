"""Owns products with blockwise integer weights: dequantised a strip of rows at a time in scratch, then multiplied."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import CHUNK_BYTES, Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk

_F32 = DType.F32.numpy


def _rows(n: int, k: int) -> int:
    return max(1, min(n, CHUNK_BYTES // (4 * max(k, 1))))


def _apply_blocks(wide: Array, scale: Array, zp: Array | None, default: float, block: int) -> None:
    """wide = (wide - zero) · scale, one zero and scale a block of each row."""
    if default and zp is None:
        wide -= default
    for j in range(scale.shape[1]):
        part = wide[:, j * block : (j + 1) * block]
        if zp is not None:
            np.subtract(part, zp[:, j : j + 1], out=part)
        np.multiply(part, scale[:, j : j + 1], out=part)


@thunk(name="DequantMatMulInt8", label="dequant_matmul_int8", partial_extent="full_ok", where="host")
class DequantMatMulInt8(Thunk):
    """dst[m, n] = x[m, k] ((w_q - zp) scale)ᵀ; w_q int8 [n, k], scale and zp [n, ⌈k / block_size⌉]."""

    x: In
    w_q: In
    scale: In
    zp: In | None
    dst: Out
    m: int
    k: int
    n: int
    block_size: int

    @property
    def is_asymmetric(self) -> bool:
        return self.zp is not None

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((_rows(self.n, self.k) * self.k, _F32))

    def run(self, x: Array, w_q: Array, scale: Array, zp: Array | None, dst: Array, scratch: Scratch) -> None:
        rows = _rows(self.n, self.k)
        strip = scratch.take((rows, self.k), _F32)
        for r in range(0, self.n, rows):
            part = slice(r, min(r + rows, self.n))
            wide = strip[: part.stop - r]
            np.copyto(wide, w_q[part], casting="unsafe")
            _apply_blocks(wide, scale[part], None if zp is None else zp[part], 0, self.block_size)
            np.matmul(x, wide.T, out=dst[:, part])


@thunk(name="DequantMatMulInt4", label="dequant_matmul_int4", partial_extent="full_ok", where="host")
class DequantMatMulInt4(Thunk):
    """dst[m, n] = x[m, k] ((w_q - zp) scale)ᵀ; w_q two codes a byte, low nibble first, [n, ⌈k / 2⌉]; zero 8 without zp;
    scale and zp (one a byte) [n, ⌈k / block_size⌉]."""

    x: In
    w_q: In
    scale: In
    zp: In | None
    dst: Out
    m: int
    k: int
    n: int
    block_size: int

    @property
    def is_asymmetric(self) -> bool:
        return self.zp is not None

    @property
    def scratch_bytes(self) -> int:
        rows, packed = _rows(self.n, self.k), -(-self.k // 2)
        return scratch_for((rows * 2 * packed, _F32), (rows * packed, DType.U8.numpy))

    def run(self, x: Array, w_q: Array, scale: Array, zp: Array | None, dst: Array, scratch: Scratch) -> None:
        rows, packed = _rows(self.n, self.k), -(-self.k // 2)
        strip, nibbles = scratch.take((rows, 2 * packed), _F32), scratch.take((rows, packed), np.uint8)
        for r in range(0, self.n, rows):
            part = slice(r, min(r + rows, self.n))
            count = part.stop - r
            np.bitwise_and(w_q[part], 15, out=nibbles[:count])
            np.copyto(strip[:count, 0::2], nibbles[:count])
            np.right_shift(w_q[part], 4, out=nibbles[:count])
            np.copyto(strip[:count, 1::2], nibbles[:count])
            wide = strip[:count, : self.k]
            _apply_blocks(wide, scale[part], None if zp is None else zp[part], 8, self.block_size)
            np.matmul(x, wide.T, out=dst[:, part])
