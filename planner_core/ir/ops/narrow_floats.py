"""Owns products with weights in eight- and four-bit floats."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.dtype import DType
from planner_core.ir.op import Array, Op, op
from planner_core.ir.shape import Shape

E2M1 = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
"""Values of the codes 0–7; bit 3 is the sign (OCP MX, NVFP4)."""
NVFP4_BLOCK = 16


def _product(what: str, x: Shape, w: Shape, k: int | None, unit: str) -> Shape:
    if x.rank < 1 or w.rank != 2 or (k is not None and w.dims[1].value not in (None, k)):
        raise GraphError(f"{what}: x {x} and w {w}: wanted [.., k] and [n, {unit}]")
    return x.with_dims((*x.dims[:-1], w.dims[0]))


@op(family="matmul", operands="x w_q scale", rows=rows.product)
class DequantMatMulFp8(Op):
    """``x[.., k] @ (w_q · scale)ᵀ``; w_q f8e4m3 or f8e5m2 ``[n, k]``, scale ``[n]`` or ``[1]`` (OCP FP8)."""

    def infer(self, x: Shape, w: Shape, scale: Shape, *_: Shape) -> Shape:
        if w.dtype not in (DType.F8E4M3, DType.F8E5M2):
            raise GraphError(f"DequantMatMulFp8: w {w}, wanted f8e4m3 or f8e5m2")
        if scale.rank != 1 or not (scale.dims[0].value == 1 or scale.dims[0].same(w.dims[0])):
            raise GraphError(f"DequantMatMulFp8: scale {scale}, wanted [1] or [{w.dims[0]}]")
        return _product("DequantMatMulFp8", x, w, x.dims[-1].value, "k")

    def evaluate(self, x: Array, w: Array, scale: Array, *_: Array) -> Array:
        return np.asarray(np.matmul(x, (w.astype(scale.dtype) * scale[:, None]).T), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[-1].value or 0)


@op(family="matmul", operands="x w_q scale global_scale", rows=rows.product)
class DequantMatMulNvfp4(Op):
    """``x[.., k] @ (w · scale · global_scale)ᵀ``, w in E2M1, two codes a byte, low nibble first: w_q u8 ``[n, k/2]``; scale
    f8e4m3 ``[n, k/16]``, one a block of 16; global_scale ``[1]`` (NVIDIA's NVFP4)."""

    def infer(self, x: Shape, w: Shape, scale: Shape, total: Shape, *_: Shape) -> Shape:
        k = x.dims[x.axis(-1)].value
        if w.dtype is not DType.U8 or scale.dtype is not DType.F8E4M3 or (k is not None and k % NVFP4_BLOCK):
            raise GraphError(f"DequantMatMulNvfp4: x {x}, w {w}, scale {scale}: wanted u8 codes, f8e4m3 scales, k a multiple of 16")
        out = _product("DequantMatMulNvfp4", x, w, None if k is None else k // 2, "k/2")
        if scale.rank != 2 or not scale.dims[0].same(w.dims[0]) or (k is not None and scale.dims[1].value not in (None, k // 16)):
            raise GraphError(f"DequantMatMulNvfp4: scale {scale}, wanted [{w.dims[0]}, k/16] for x {x}, w {w}")
        if total.numel != 1:
            raise GraphError(f"DequantMatMulNvfp4: global scale {total}, wanted one element")
        return out

    def evaluate(self, x: Array, w: Array, scale: Array, total: Array, *_: Array) -> Array:
        codes = np.stack([w.astype(np.uint8) & 15, w.astype(np.uint8) >> 4], axis=-1).reshape(w.shape[0], -1)
        wide = E2M1[codes & 7] * np.where(codes & 8, -1, 1) * np.repeat(scale.astype(np.float32), NVFP4_BLOCK, axis=1)
        return np.asarray(np.matmul(x, wide.T.astype(x.dtype)) * total.reshape(()).astype(x.dtype), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[-1].value or 0)
