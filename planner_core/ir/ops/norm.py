"""Owns normalisations."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.op import Array, Op, op
from planner_core.ir.shape import Shape


def _vector(x: Shape, axis: int, *vectors: Shape) -> Shape:
    for v in vectors:
        if v.rank != 1 or not v.dims[0].same(x.dims[axis]):
            raise GraphError(f"a norm over axis {axis} of {x} wants vectors of {x.dims[axis]}, got {v}")
    return x


@op(family="norm", operands="x gamma beta")
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


@op(family="norm", operands="x gamma beta")
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


@op(family="norm", operands="x gamma beta?")
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


@op(family="norm", operands="x gamma beta mean var")
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


@op(family="norm", operands="x dy")
class LayerNormBackwardGamma(Op):
    """Gradient of LayerNorm's gamma: ``sum over rows of dy * (x - mean) / sqrt(var + eps)``, ``[h]``."""

    eps: float = 1e-5

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        return Shape((x.dims[-1],), x.dtype)

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        d = x - x.mean(-1, keepdims=True)
        y = dy * d / np.sqrt((d * d).mean(-1, keepdims=True) + self.eps)
        return np.asarray(y.reshape(-1, x.shape[-1]).sum(0), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 8 * x.numel
