"""Owns the cross-entropy thunks, forward and backward, a block of rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.formulas import PIECE
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.errors import RunError

_INTP = np.dtype(np.intp)


def _block(n: int, c: int) -> int:
    return max(1, min(n, PIECE // max(c, 1)))


def _labels(labels: Array, c: int, at: Array) -> Array:
    """Flat addresses of each row's class in [rows, c]; ``RunError`` outside [-c, c)."""
    np.copyto(at, labels, casting="unsafe")
    if at.size and not (-c <= at.min() and at.max() < c):
        raise RunError(f"label {int(at[(at < -c) | (at >= c)][0])} is outside [-{c}, {c})")
    np.mod(at, c, out=at)
    at += np.arange(at.size) * c
    return at


def _dot(a: Array, b: Array, out: Array) -> None:
    np.matmul(a[:, None, :], b[:, :, None], out=out[:, None, None])


class _Rows:
    """Scratch of a block: shifted logits and four values a row."""

    def __init__(self, n: int, c: int, dtype: np.dtype[Any], scratch: Scratch) -> None:
        block = _block(n, c)
        self.shifted = scratch.take((block, c), dtype)
        self.a, self.b = scratch.take(block, dtype), scratch.take(block, dtype)
        self.at = scratch.take(block, _INTP)

    @staticmethod
    def scratch_bytes(n: int, c: int, dtype: np.dtype[Any]) -> int:
        block = _block(n, c)
        return scratch_for((block * c, dtype), (block, dtype), (block, dtype), (block, _INTP))

    def shift(self, logits: Array) -> Array:
        """logits less each row's largest."""
        n = len(logits)
        np.maximum.reduce(logits, axis=1, out=self.a[:n])
        np.subtract(logits, self.a[:n, None], out=self.shifted[:n])
        return self.shifted[:n]


def _log_sum(s: Array, out: Array) -> None:
    np.exp(s, out=s)
    np.add.reduce(s, axis=1, out=out)
    np.log(out, out=out)


@thunk(name="SoftmaxCrossEntropyDense", label="softmax_cross_entropy_dense", partial_extent="scales", where="gpu")
class SoftmaxCrossEntropyDense(Thunk):
    """dst[n] = -Σ_c targets log softmax(logits) of rows [n, c]."""

    logits: In
    targets: In
    dst: Out
    n: int
    c: int

    @property
    def scratch_bytes(self) -> int:
        return _Rows.scratch_bytes(self.n, self.c, self.logits.storage.numpy)

    def run(self, logits: Array, targets: Array, dst: Array, scratch: Scratch) -> None:
        rows = _Rows(self.n, self.c, logits.dtype, scratch)
        for r in range(0, self.n, len(rows.a)):
            part = slice(r, min(r + len(rows.a), self.n))
            s, t, out = rows.shift(logits[part]), targets[part], dst[part]
            dot, total = rows.a[: len(s)], rows.b[: len(s)]
            _dot(t, s, dot)
            _log_sum(s, out)
            np.add.reduce(t, axis=1, out=total)
            np.multiply(out, total, out=out)
            np.subtract(out, dot, out=out)


@thunk(name="SoftmaxCrossEntropyWithLogits", label="softmax_cross_entropy_with_logits", partial_extent="no", where="gpu")
class SoftmaxCrossEntropyWithLogits(Thunk):
    """dst[n] = logsumexp(logits) - logits[label] of rows [n, c]; negative labels count from the end."""

    logits: In
    labels: In
    dst: Out
    n: int
    c: int

    @property
    def scratch_bytes(self) -> int:
        return _Rows.scratch_bytes(self.n, self.c, self.logits.storage.numpy)

    def run(self, logits: Array, labels: Array, dst: Array, scratch: Scratch) -> None:
        rows = _Rows(self.n, self.c, logits.dtype, scratch)
        for r in range(0, self.n, len(rows.a)):
            part = slice(r, min(r + len(rows.a), self.n))
            s, out = rows.shift(logits[part]), dst[part]
            at, picked = _labels(labels[part], self.c, rows.at[: len(s)]), rows.b[: len(s)]
            np.take(s.reshape(-1), at, out=picked, mode="wrap")
            _log_sum(s, out)
            np.subtract(out, picked, out=out)


@thunk(name="SoftmaxCrossEntropyBackward", label="softmax_cross_entropy_backward", partial_extent="no", where="gpu")
class SoftmaxCrossEntropyBackward(Thunk):
    """dlogits = d_loss (softmax(logits) Σt - t) by row; t is one-hot of ``labels[n]``, or, ``dense``, ``labels[n, c]``."""

    logits: In
    labels: In
    d_loss: In
    dlogits: Out
    n: int
    c: int
    dense: bool = False

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.n, self.logits.storage.numpy), (self.n, _INTP))

    def run(self, logits: Array, labels: Array, d_loss: Array, dlogits: Array, scratch: Scratch) -> None:
        stat, at = scratch.take(self.n, logits.dtype), scratch.take(self.n, _INTP)
        np.maximum.reduce(logits, axis=1, out=stat)
        np.subtract(logits, stat[:, None], out=dlogits)
        np.exp(dlogits, out=dlogits)
        np.add.reduce(dlogits, axis=1, out=stat)
        np.divide(dlogits, stat[:, None], out=dlogits)
        if self.dense:
            np.add.reduce(labels, axis=1, out=stat)
            np.multiply(dlogits, stat[:, None], out=dlogits)
            np.subtract(dlogits, labels, out=dlogits)
        else:
            np.subtract.at(dlogits.reshape(-1), _labels(labels, self.c, at), dlogits.dtype.type(1))
        np.multiply(dlogits, d_loss[:, None], out=dlogits)
