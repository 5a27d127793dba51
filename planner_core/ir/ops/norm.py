"""Owns normalisations."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, channel_last, channel_sum, per_channel, scalar
from planner_core.ir.ops.operands import wanted
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait


def _vector(x: Shape, axis: int, *vectors: Shape) -> Shape:
    if not x.rank:
        raise GraphError(f"{x} has no axis to normalise over; wanted at least one")
    for v in vectors:
        if v.rank != 1 or not v.dims[0].same(x.dims[axis]):
            raise GraphError(f"a norm over axis {axis} of {x} wants vectors of {x.dims[axis]}, got {v}")
    return x


@op(family="norm", operands="x gamma beta", rows=rows.along_last_axis)
class LayerNorm(Op):
    """``(x - mean) / sqrt(var + eps) * gamma + beta`` over the last axis (Ba et al. 2016)."""

    eps: float = 1e-5

    def infer(self, x: Shape, gamma: Shape, beta: Shape, *_: Shape) -> Shape:
        return _vector(x, x.rank - 1, gamma, beta)

    def evaluate(self, x: Array, gamma: Array, beta: Array, *_: Array) -> Array:
        d = x - x.mean(-1, keepdims=True)
        return np.asarray(d / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps) * gamma + beta, x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 8 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, gamma, _ = inputs
        return (g.layer_norm_backward_input(x, gamma, dy, eps=self.eps),
                g.layer_norm_backward_gamma(x, dy, eps=self.eps), g.layer_norm_backward_beta(dy))


@op(family="norm", operands="x gamma beta", rows=rows.images)
class LayerNorm2d(Op):
    """LayerNorm over C at each pixel of NCHW."""

    eps: float = 1e-6

    def infer(self, x: Shape, gamma: Shape, beta: Shape, *_: Shape) -> Shape:
        return _vector(x, 1, gamma, beta)

    def evaluate(self, x: Array, gamma: Array, beta: Array, *_: Array) -> Array:
        d = x - x.mean(1, keepdims=True)
        y = d / np.sqrt((d * d).mean(1, keepdims=True) + self.eps)
        return np.asarray(y * gamma[:, None, None] + beta[:, None, None], x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 8 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, dy = channel_last(g, inputs[0]), channel_last(g, dy)
        dx = g.layer_norm_backward_input(x, inputs[1], dy, eps=self.eps)
        return (channel_last(g, dx, back=True), g.layer_norm_backward_gamma(x, dy, eps=self.eps),
                g.layer_norm_backward_beta(dy))


@op(family="norm", operands="x gamma beta?", rows=rows.along_last_axis)
class RmsNorm(Op):
    """``x / sqrt(mean(x²) + eps) * gamma (+ beta)`` over the last axis (Zhang & Sennrich 2019)."""

    eps: float = 1e-6

    def infer(self, x: Shape, gamma: Shape, *beta: Shape) -> Shape:
        return _vector(x, x.rank - 1, gamma, *beta)

    def evaluate(self, x: Array, gamma: Array, *beta: Array) -> Array:
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * gamma
        return np.asarray(y + beta[0] if beta else y, dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 5 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, gamma, *beta = inputs
        return (g.rms_norm_backward_input(x, gamma, dy, eps=self.eps), g.rms_norm_backward_gamma(x, dy, eps=self.eps),
                *(g.rms_norm_backward_beta(dy) for _ in beta))


@op(family="norm", operands="x gamma beta mean var", rows=rows.images)
class BatchNorm(Op):
    """Inference form over axis 1: ``(x - mean) / sqrt(var + eps) * gamma + beta``."""

    eps: float = 1e-5

    def infer(self, x: Shape, *vectors: Shape) -> Shape:
        return _vector(x, 1, *vectors)

    def evaluate(self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, *_: Array) -> Array:
        wide = (slice(None),) + (None,) * (x.ndim - 2)
        scale = gamma / np.sqrt(var + self.eps)
        return np.asarray(x * scale[wide] + (beta - mean * scale)[wide], dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 2 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, gamma, _, mean, var = inputs
        rank = g[x].shape.rank
        r = g.rsqrt(g.add(var, scalar(g, self.eps, dy)))
        scale = g.mul(gamma, r)
        d_beta = channel_sum(g, dy)
        moved = channel_sum(g, g.mul(dy, g.sub(x, per_channel(g, mean, rank))))  # Σ dy·(x - mean)
        d_gamma = g.mul(moved, r)
        d_var = g.mul(g.mul(d_gamma, scale), g.mul(r, scalar(g, -0.5, dy)))
        return g.mul(dy, per_channel(g, scale, rank)), d_gamma, d_beta, g.neg(g.mul(d_beta, scale)), d_var


@op(family="norm", operands="x dy", traits=(Trait.HOST_INDEXING,))
class LayerNormBackwardGamma(Op):
    """Gradient of LayerNorm's gamma: ``sum over rows of dy * (x - mean) / sqrt(var + eps)``, ``[h]``."""

    eps: float = 1e-5

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        wanted("LayerNormBackwardGamma", "dy", dy, x.dims, f"as x {x}")
        return Shape((x.dims[-1],), x.dtype)

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        d = x - x.mean(-1, keepdims=True)
        y = dy * d / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps)
        return np.asarray(y.reshape(-1, x.shape[-1]).sum(0), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 8 * x.numel
