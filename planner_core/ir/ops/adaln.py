"""Owns the modulated norm and gated sum of diffusion transformers. x ``[B, S, H]``, modulations ``[B, H]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads
from planner_core.ir.shape import Shape


def _modulated(what: str, x: Shape, *modulations: Shape) -> None:
    for m in modulations:
        if x.rank != 3 or m.rank != 2 or not m.dims[0].same(x.dims[0]) or not m.dims[1].same(x.dims[2]):
            raise GraphError(f"{what}: x {x} and modulation {m}: wanted [B, S, H] and [B, H]")
        if m.dtype is not x.dtype:
            raise GraphError(f"{what}: x {x} and modulation {m}: dtypes differ, cast one of them")


@op(family="norm", operands="x scale shift", rows=rows.along_last_axis)
class AdaLayerNorm(Op):
    """``norm(x) · (1 + scale) + shift`` with one scale and shift a sequence (Peebles & Xie 2022, adaLN).

    norm: LayerNorm over H without gain or bias, or, with ``layer_norm`` off, RMSNorm.
    """

    eps: float = 1e-6
    layer_norm: bool = True

    def infer(self, x: Shape, scale: Shape, shift: Shape, *_: Shape) -> Shape:
        _modulated("AdaLayerNorm", x, scale, shift)
        return x

    def evaluate(self, x: Array, scale: Array, shift: Array, *_: Array) -> Array:
        d = x - x.mean(-1, keepdims=True) if self.layer_norm else x
        y = d / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps)
        return np.asarray(y * (1 + scale[:, None]) + shift[:, None], dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 8 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, scale, _ = inputs
        how: dict[str, Any] = {"eps": self.eps, "layer_norm": self.layer_norm}
        return (g.ada_layer_norm_backward(x, scale, dy, wrt="input", **how),
                g.ada_layer_norm_backward(x, scale, dy, wrt="scale", **how), g.reduce_sum(dy, axes=(1,)))


@op(family="norm", operands="x y gate", rows=rows.aligned)
class GatedResidual(Op):
    """``x + gate · y`` with one gate vector a sequence (Peebles & Xie 2022, adaLN-Zero)."""

    def infer(self, x: Shape, y: Shape, gate: Shape, *_: Shape) -> Shape:
        _modulated("GatedResidual", x, gate)
        if x.rank != y.rank or x.dtype is not y.dtype or not all(
                a.same(b) for a, b in zip(x.dims, y.dims, strict=True)):
            raise GraphError(f"GatedResidual: x {x} and y {y} differ")
        return x

    def evaluate(self, x: Array, y: Array, gate: Array, *_: Array) -> Array:
        return np.asarray(x + gate[:, None] * y, dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 2 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        _, y, gate = inputs
        return (dy, g.gated_residual_backward(gate, dy, wrt="y"), g.gated_residual_backward(y, dy, wrt="gate"))
