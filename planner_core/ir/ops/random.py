"""Owns random fills and sampling. Streams are counter-based (``planner_core.ir.philox``): equal keys, equal numbers."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.dtype import DType
from planner_core.ir.op import Array, Op, op
from planner_core.ir.philox import key_words, normal, uniform
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait


def _float(what: str, shape: Shape) -> Shape:
    if not shape.dtype.is_float:
        raise GraphError(f"{what} fills floats, not {shape}")
    return shape


@op(family="random", traits=(Trait.STATEFUL,))
class RngNormal(Op):
    """``mean + scale · z``, z standard normal; element i from ``(key, op_seed, i)``."""

    shape: Shape
    mean: float = 0.0
    scale: float = 1.0
    key: int = 0
    op_seed: float | None = None

    def infer(self, *_: Shape) -> Shape:
        return _float("RngNormal", self.shape)

    def evaluate(self, *_: Array) -> Array:
        z = normal(key_words(self.key, self.op_seed), 0, self.shape.numel)
        return (self.mean + self.scale * z).astype(self.shape.dtype.numpy).reshape(self.shape.sizes)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 8 * out.numel


@op(family="random", traits=(Trait.STATEFUL,))
class RngUniform(Op):
    """Uniform in ``[low, high)``; element i from ``(key, op_seed, i)``."""

    shape: Shape
    low: float = 0.0
    high: float = 1.0
    key: int = 0
    op_seed: float | None = None

    def infer(self, *_: Shape) -> Shape:
        if not self.low <= self.high:
            raise GraphError(f"RngUniform in [{self.low}, {self.high}): wanted low ≤ high")
        return _float("RngUniform", self.shape)

    def evaluate(self, *_: Array) -> Array:
        u = uniform(key_words(self.key, self.op_seed), 0, self.shape.numel)
        return (self.low + (self.high - self.low) * u).astype(self.shape.dtype.numpy).reshape(self.shape.sizes)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 2 * out.numel


@op(family="random", operands="logits", traits=(Trait.STATEFUL,))
class Sample(Op):
    """One token a row of logits ``[.., vocab]``, as i64 ``[..]``: softmax of ``logits / temperature`` over the ``top_k``
    largest, then the fewest of these whose probability reaches ``top_p``, drawn by the row's number of stream ``seed``.

    top_k 0 and top_p 1 keep all; temperature 0 takes the first maximum. Ties keep the lower token first.
    """

    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def infer(self, logits: Shape, *_: Shape) -> Shape:
        logits.axis(-1)
        if logits.rank < 1 or self.top_k < 0 or not 0 < self.top_p <= 1 or self.temperature < 0:
            raise GraphError(f"Sample of {logits} with top_k={self.top_k}, top_p={self.top_p}, temperature={self.temperature}: "
                             "wanted rows of logits, top_k ≥ 0, 0 < top_p ≤ 1, temperature ≥ 0")
        return Shape(logits.dims[:-1], DType.I64)

    def evaluate(self, logits: Array, *_: Array) -> Array:
        rows = logits.reshape(-1, logits.shape[-1]).astype(np.float64)
        if self.temperature == 0:
            return np.asarray(rows.argmax(-1).reshape(logits.shape[:-1]), dtype=np.int64)
        draws = uniform(key_words(self.seed, None), 0, len(rows))
        out = np.empty(len(rows), np.int64)
        for i, row in enumerate(rows):
            order = np.argsort(-row, kind="stable")[: self.top_k or None]
            p = np.exp((row[order] - row[order[0]]) / self.temperature)
            total = np.cumsum(p / p.sum())
            kept = int(np.searchsorted(total, self.top_p)) + 1 if self.top_p < 1 else len(total)
            kept = min(kept, len(total))
            out[i] = order[min(int(np.searchsorted(total[:kept], draws[i] * total[kept - 1], side="right")), kept - 1)]
        return out.reshape(logits.shape[:-1])

    def flops(self, out: Shape, logits: Shape, *_: Shape) -> int:
        return 5 * logits.numel
