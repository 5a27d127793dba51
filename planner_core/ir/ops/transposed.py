"""Owns products that read an operand transposed, so that the transpose is never written (rule ``transpose_into_matmul``)."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, swapped
from planner_core.ir.ops.matmul import GroupedMatMul, MatMul
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait

__all__ = ["TransposedGroupedMatMul", "TransposedMatMul"]


def _turned(s: Shape, turn: bool) -> Shape:
    if not turn:
        return s
    if s.rank < 2:
        raise GraphError(f"TransposedMatMul: {s} has no two axes to exchange")
    return s.with_dims((*s.dims[:-2], s.dims[-1], s.dims[-2]))


@op(family="matmul", operands="a b", traits=(Trait.PRODUCT,), rows=rows.product)
class TransposedMatMul(Op):
    """``MatMul`` of a, last two axes exchanged if ``trans_a``, and b, likewise if ``trans_b``. FLOPs: 2·M·K·N·batch."""

    trans_a: bool = False
    trans_b: bool = False

    def infer(self, a: Shape, b: Shape, *_: Shape) -> Shape:
        try:
            return MatMul().infer(_turned(a, self.trans_a), _turned(b, self.trans_b))
        except GraphError as e:
            raise GraphError(f"a {a} (trans_a={self.trans_a}) and b {b} (trans_b={self.trans_b}): {e}") from e

    def evaluate(self, a: Array, b: Array, *_: Array) -> Array:
        return MatMul().evaluate(np.swapaxes(a, -1, -2) if self.trans_a else a, np.swapaxes(b, -1, -2) if self.trans_b else b)

    def flops(self, out: Shape, a: Shape, b: Shape, *_: Shape) -> int:
        return 2 * out.numel * (a.dims[-2 if self.trans_a else -1].value or 0)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        a, b = inputs
        turned = swapped(g, a) if self.trans_a else a, swapped(g, b) if self.trans_b else b
        da, db = MatMul().gradient(g, node, turned, dy)
        assert da is not None and db is not None
        return swapped(g, da) if self.trans_a else da, swapped(g, db) if self.trans_b else db


@op(family="matmul", operands="x w expert_idx", traits=(Trait.PRODUCT,))
class TransposedGroupedMatMul(Op):
    """``GroupedMatMul`` over a bank stored ``[experts, n, k]``: row i is ``x[i] @ w[expert_idx[i]]ᵀ``."""

    def infer(self, x: Shape, w: Shape, idx: Shape, *_: Shape) -> Shape:
        if w.rank != 3:
            raise GraphError(f"TransposedGroupedMatMul: w must be [experts, n, k], got {w}")
        return GroupedMatMul().infer(x, _turned(w, True), idx)

    def evaluate(self, x: Array, w: Array, idx: Array, *_: Array) -> Array:
        return GroupedMatMul().evaluate(x, np.swapaxes(w, 1, 2), idx)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * out.numel * (x.dims[1].value or 0)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, w, idx = inputs
        return (g.grouped_mat_mul(dy, w, idx), swapped(g, g.grouped_mat_mul_backward_weight(
            x, dy, idx, experts=g[w].shape.sizes[0])), None)
