"""Owns losses and their backward ops."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads, spread
from planner_core.ir.ops.indexing import _wrap
from planner_core.ir.shape import Shape


def _check(what: str, logits: Shape, labels: Shape) -> Shape:
    """The rows' shape, after checking that labels are one int a row or one float a class."""
    rows = Shape(logits.dims[: logits.axis(-1)], logits.dtype)
    want = rows.dims if labels.dtype.is_int else logits.dims
    fits = labels.rank == len(want) and all(a.same(b) for a, b in zip(labels.dims, want, strict=True))
    if not fits or not (labels.dtype.is_int or labels.dtype is logits.dtype):
        raise GraphError(f"{what}: labels {labels} don't fit logits {logits}: wanted ints {list(map(str, rows.dims))} "
                         f"or {logits}")
    return rows


def _dense(labels: Array, logits: Array) -> Array:
    if labels.dtype.kind not in "iu":
        return labels
    classes = logits.shape[-1]
    return np.asarray(np.arange(classes) == _wrap(labels, classes)[..., None], dtype=logits.dtype)


@op(family="losses", operands="logits labels")
class SoftmaxCrossEntropy(Op):
    """Per row ``-Σ_c t_c · log softmax(logits)_c``; logits ``[.., C]``, result ``[..]``.

    labels: class numbers (ints ``[..]``; negative ones count from the end), or targets ``t`` dense ``[.., C]``.
    """

    def infer(self, logits: Shape, labels: Shape, *_: Shape) -> Shape:
        return _check("SoftmaxCrossEntropy", logits, labels)

    def evaluate(self, logits: Array, labels: Array, *_: Array) -> Array:
        s = logits - logits.max(-1, keepdims=True)
        log_p = s - np.log(np.exp(s).sum(-1, keepdims=True))
        return np.asarray(-(_dense(labels, logits) * log_p).sum(-1), dtype=logits.dtype)

    def flops(self, out: Shape, logits: Shape, *_: Shape) -> int:
        return 6 * logits.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        logits, labels = inputs
        d_logits = g.softmax_cross_entropy_backward(logits, labels, dy)
        if g[labels].dtype.is_int:
            return d_logits, None
        rows = spread(g, dy, g[logits].shape, (-1,))
        return d_logits, g.neg(g.mul(rows, g.log(g.softmax(logits))))


@op(family="losses", operands="logits labels dy")
class SoftmaxCrossEntropyBackward(Op):
    """Gradient wrt the logits: ``dy · (softmax(logits)·Σt - t)`` per row; dy ``[..]``, result ``[.., C]``."""

    def infer(self, logits: Shape, labels: Shape, dy: Shape, *_: Shape) -> Shape:
        rows = _check("SoftmaxCrossEntropyBackward", logits, labels)
        if dy.rank != rows.rank or not all(a.same(b) for a, b in zip(dy.dims, rows.dims, strict=True)):
            raise GraphError(f"SoftmaxCrossEntropyBackward: dy {dy}, wanted {rows}")
        return logits

    def evaluate(self, logits: Array, labels: Array, dy: Array, *_: Array) -> Array:
        e = np.exp(logits - logits.max(-1, keepdims=True))
        t = _dense(labels, logits)
        p = e / e.sum(-1, keepdims=True)
        return np.asarray(dy[..., None] * (p * t.sum(-1, keepdims=True) - t), dtype=logits.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 7 * out.numel
