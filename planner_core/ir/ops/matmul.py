"""Owns matrix products, dense, grouped by expert, and over packed weights."""

from __future__ import annotations

import math

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.dtype import DType, QuantScheme
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, reshaped, swapped, unbroadcast
from planner_core.ir.ops.operands import wanted
from planner_core.ir.packed import dequantize
from planner_core.ir.shape import Shape, broadcast_dims, dim
from planner_core.ir.traits import Trait


@op(family="matmul", operands="a b", builders={"mm": {}}, traits=(Trait.PRODUCT,), rows=rows.product)
class MatMul(Op):
    """``a @ b`` as NumPy's matmul: last two axes multiply, the others broadcast. FLOPs: 2·M·K·N·batch."""

    def infer(self, a: Shape, b: Shape, *_: Shape) -> Shape:
        if a.rank < 1 or b.rank < 1:
            raise GraphError(f"matmul of {a} and {b}: scalars don't multiply")
        ka, kb = a.dims[-1], b.dims[-2 if b.rank > 1 else -1]
        if not ka.same(kb) and not (ka.is_unknown or kb.is_unknown):
            raise GraphError(f"matmul of {a} and {b}: inner extents {ka} and {kb} differ")
        if a.dtype is not b.dtype:
            raise GraphError(f"matmul of {a} and {b}: dtypes differ, cast one of them")
        try:
            lead = broadcast_dims(Shape(a.dims[:-2], a.dtype), Shape(b.dims[:-2], b.dtype))
        except GraphError as e:
            raise GraphError(f"matmul of {a} and {b}: the axes before the last two: {e}") from e
        return Shape((*lead, *a.dims[-2:-1], *(b.dims[-1:] if b.rank > 1 else ())), a.dtype)

    def evaluate(self, a: Array, b: Array, *_: Array) -> Array:
        return np.asarray(np.matmul(a, b), dtype=a.dtype)

    def flops(self, out: Shape, a: Shape, b: Shape, *_: Shape) -> int:
        return 2 * out.numel * (a.dims[-1].value or 0)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        a, b = inputs
        sa, sb, one = g[a].shape, g[b].shape, dim(1)
        if sa.rank == 1:
            a = g.reshape(a, dims=(one, *sa.dims))
        if sb.rank == 1:
            b = g.reshape(b, dims=(*sb.dims, one))
        lead = g[dy].shape.dims[: g[dy].shape.rank - (sa.rank > 1) - (sb.rank > 1)]
        full = g[dy].shape.with_dims((*lead, g[a].shape.dims[-2], g[b].shape.dims[-1]))
        dy = reshaped(g, dy, full)
        da = unbroadcast(g, g.mm(dy, swapped(g, b)), g[a].shape)
        if g[b].shape.rank == 2 and full.rank > 2:  # one product over all rows, not a batch of them to sum
            rows = math.prod(full.sizes[:-1])
            a = g.reshape(a, dims=(dim(rows), g[a].shape.dims[-1]))
            dy = g.reshape(dy, dims=(dim(rows), full.dims[-1]))
        db = unbroadcast(g, g.mm(swapped(g, a), dy), g[b].shape)
        return reshaped(g, da, sa), reshaped(g, db, sb)


def _grouped(x: Shape, k: int | None, n: int, what: str) -> Shape:
    if x.rank != 2 or (k is not None and x.dims[1].value not in (None, k)):
        raise GraphError(f"{what}: x must be [m, {k}], got {x}")
    return x.with_dims((x.dims[0], n))


@op(family="matmul", operands="x w expert_idx", traits=(Trait.PRODUCT,), rows=rows.grouped)
class GroupedMatMul(Op):
    """Row i: ``x[i] @ w[expert_idx[i]]``; x ``[m,k]``, w ``[experts,k,n]``, idx ``[m]``."""

    def infer(self, x: Shape, w: Shape, idx: Shape, *_: Shape) -> Shape:
        if w.rank != 3:
            raise GraphError(f"GroupedMatMul: w must be [experts, k, n], got {w}")
        _grouped(x, w.dims[1].value, 0, f"GroupedMatMul w {w}")
        wanted("GroupedMatMul", "expert_idx", idx, x.dims[:1], f"one expert a row of x {x}")
        return x.with_dims((x.dims[0], w.dims[2]))

    def evaluate(self, x: Array, w: Array, idx: Array, *_: Array) -> Array:
        return np.asarray(np.matmul(x[:, None], w[idx.astype(np.int64)])[:, 0], dtype=x.dtype)  # einsum knows no bf16

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[1].value or 0)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, w, idx = inputs
        return (g.grouped_mat_mul(dy, swapped(g, w), idx),
                g.grouped_mat_mul_backward_weight(x, dy, idx, experts=g[w].shape.sizes[0]), None)


def _check_packed(w: Shape, rows: int, k: int, scheme: QuantScheme, what: str) -> None:
    if w.dtype is not DType.U8:
        raise GraphError(f"{what}: packed weights are u8, got {w}")
    want = rows * scheme.row_bytes(k)
    if w.is_static and w.numel != want:
        raise GraphError(f"{what}: {w} holds {w.numel} bytes; {scheme} with k={k}, {rows} rows wants {want}")


@op(family="matmul", operands="x w_packed", rows=rows.product)
class DequantMatMul(Op):
    """``x[.., k] @ dequant(w)ᵀ`` with w ``n`` packed rows of ``k`` elements (GGUF's layout)."""

    n: int
    scheme: QuantScheme

    def infer(self, x: Shape, w: Shape, *_: Shape) -> Shape:
        k = x.dims[-1].value
        if k is not None:
            _check_packed(w, self.n, k, self.scheme, f"DequantMatMul x {x}")
        return x.with_dims((*x.dims[:-1], self.n))

    def evaluate(self, x: Array, w: Array, *_: Array) -> Array:
        rows = dequantize(w.reshape(self.n, -1), self.scheme, x.shape[-1])
        return np.asarray(np.matmul(x.astype(np.promote_types(x.dtype, np.float32)), rows.T), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[-1].value or 0)


@op(family="matmul", operands="w_packed")
class Dequantize(Op):
    """f32 ``[n, k]`` of ``n`` packed rows of ``k`` elements (GGUF's layout): the weight written out in full."""

    n: int
    k: int
    scheme: QuantScheme

    def infer(self, w: Shape, *_: Shape) -> Shape:
        _check_packed(w, self.n, self.k, self.scheme, "Dequantize")
        return Shape.of((self.n, self.k), DType.F32)

    def evaluate(self, w: Array, *_: Array) -> Array:
        return dequantize(w.reshape(self.n, -1), self.scheme, self.k)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 2 * out.numel


@op(family="matmul", operands="x w_packed expert_idx", rows=rows.grouped)
class DequantGroupedMatMul(Op):
    """``GroupedMatMul`` over packed expert weights: ``experts`` × ``n`` packed rows of ``k`` elements."""

    n: int
    experts: int
    scheme: QuantScheme

    def infer(self, x: Shape, w: Shape, idx: Shape, *_: Shape) -> Shape:
        k = x.dims[-1].value
        if k is not None:
            _check_packed(w, self.experts * self.n, k, self.scheme, f"DequantGroupedMatMul x {x}")
        wanted("DequantGroupedMatMul", "expert_idx", idx, x.dims[:1], f"one expert a row of x {x}")
        return _grouped(x, k, self.n, "DequantGroupedMatMul")

    def evaluate(self, x: Array, w: Array, idx: Array, *_: Array) -> Array:
        bank = w.reshape(self.experts, self.n, -1)
        rows = [dequantize(bank[int(e)], self.scheme, x.shape[1]) @ v.astype(np.promote_types(v.dtype, np.float32))
                for e, v in zip(idx.reshape(-1), x, strict=True)]
        return np.asarray(rows, dtype=x.dtype).reshape(len(x), self.n)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[1].value or 0)
