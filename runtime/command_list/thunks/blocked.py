"""Owns products with blockwise integer and narrow float weights: dequantised a strip of rows at a time in scratch, then multiplied."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from planner_core.ir.ops.narrow_floats import E2M1, NVFP4_BLOCK
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import CHUNK_BYTES, Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk

_F32 = DType.F32.numpy
_E2M1 = np.concatenate([E2M1, -E2M1])


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


@thunk(name="DequantMatMulFp8", label="dequant_matmul_fp8", partial_extent="full_ok", where="host")
class DequantMatMulFp8(Thunk):
    """dst[m, n] = x (w_q scale)ᵀ with w_q [n, k] in E4M3 or, ``e5m2``, E5M2; scale [n] or [1]."""

    x: In
    w_q: In
    scale: In
    dst: Out
    m: int
    k: int
    n: int
    e5m2: bool

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((_rows(self.n, self.k) * self.k, _F32))

    def run(self, x: Array, w_q: Array, scale: Array, dst: Array, scratch: Scratch) -> None:
        rows = _rows(self.n, self.k)
        strip = scratch.take((rows, self.k), _F32)
        for r in range(0, self.n, rows):
            part = slice(r, min(r + rows, self.n))
            wide = strip[: part.stop - r]
            np.copyto(wide, w_q[part], casting="unsafe")
            np.multiply(wide, scale[part, None] if scale.size > 1 else scale, out=wide)
            np.matmul(x, wide.T, out=dst[:, part])


@thunk(name="DequantMatMulNvfp4", label="dequant_matmul_nvfp4", partial_extent="full_ok", where="host")
class DequantMatMulNvfp4(Thunk):
    """dst[m, n] = x (w_q scale)ᵀ global_scale; w_q E2M1 codes, two a byte, low nibble first, [n, k / 2]; scale E4M3
    [n, k / 16]."""

    x: In
    w_q: In
    scale: In
    global_scale: In
    dst: Out
    m: int
    k: int
    n: int

    @property
    def scratch_bytes(self) -> int:
        rows = _rows(self.n, self.k)
        return scratch_for((rows * self.k, _F32), (rows * self.k, np.dtype(np.intp)), (rows * (self.k // NVFP4_BLOCK), _F32))

    def run(self, x: Array, w_q: Array, scale: Array, global_scale: Array, dst: Array, scratch: Scratch) -> None:
        rows, blocks = _rows(self.n, self.k), self.k // NVFP4_BLOCK
        strip, codes = scratch.take((rows, self.k), _F32), scratch.take((rows, self.k), np.intp)
        wide_scale = scratch.take((rows, blocks), _F32)
        for r in range(0, self.n, rows):
            part = slice(r, min(r + rows, self.n))
            count = part.stop - r
            np.bitwise_and(w_q[part], 15, out=codes[:count, 0::2], casting="unsafe")
            np.right_shift(w_q[part], 4, out=codes[:count, 1::2], casting="unsafe")
            wide = strip[:count]
            np.take(_E2M1, codes[:count], out=wide, mode="clip")
            np.copyto(wide_scale[:count], scale[part], casting="unsafe")
            blocked = wide.reshape(count, blocks, NVFP4_BLOCK)
            np.multiply(blocked, wide_scale[:count, :, None], out=blocked)
            np.matmul(x, wide.T, out=dst[:, part])
        np.multiply(dst, global_scale, out=dst)
