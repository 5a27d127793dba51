"""Owns the cross-entropy thunks, forward and backward, a block of rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.reduce import row_dots
from runtime.command_list.widths import PIECE, buffers, is_half, wide_dtype, wide_scratch, widened
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


class _Rows:
    """Scratch of a block: shifted logits and four values a row; f32 for halves."""

    def __init__(self, n: int, c: int, dtype: np.dtype[Any], scratch: Scratch) -> None:
        block, wide = _block(n, c), wide_dtype(dtype)
        self.shifted = scratch.take((block, c), wide)
        self.a, self.b, self.c = (scratch.take(block, wide) for _ in range(3))
        self.at = scratch.take(block, _INTP)

    @staticmethod
    def scratch_bytes(n: int, c: int, dtype: np.dtype[Any]) -> int:
        block, wide = _block(n, c), wide_dtype(dtype)
        return scratch_for((block * c, wide), *[(block, wide)] * 3, (block, _INTP))

    def shift(self, logits: Array) -> Array:
        """logits less each row's largest."""
        s, largest = self.shifted[: len(logits)], self.a[: len(logits)]
        np.maximum.reduce(logits, axis=1, out=largest, dtype=largest.dtype)
        np.subtract(logits, largest[:, None], out=s)
        return s


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
            dot, total, loss = rows.a[: len(s)], rows.b[: len(s)], rows.c[: len(s)]
            row_dots(t, s, dot)
            _log_sum(s, loss)
            np.add.reduce(t, axis=1, out=total, dtype=total.dtype)
            np.multiply(loss, total, out=loss)
            np.subtract(loss, dot, out=out)


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
            loss = rows.c[: len(s)]
            _log_sum(s, loss)
            np.subtract(loss, picked, out=out)


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
    def _block(self) -> int:
        """Rows at a time: all, in place, unless they are halves, which are widened a block at a time."""
        return _block(self.n, self.c) if is_half(self.logits.storage.numpy) else self.n

    @property
    def scratch_bytes(self) -> int:
        dtype, block = self.logits.storage.numpy, self._block
        return scratch_for((block, wide_dtype(dtype)), (block, _INTP)) + wide_scratch(dtype, block * self.c)

    def run(self, logits: Array, labels: Array, d_loss: Array, dlogits: Array, scratch: Scratch) -> None:
        block = self._block
        stats, places = scratch.take(block, wide_dtype(logits.dtype)), scratch.take(block, _INTP)
        (wide,) = buffers(scratch, logits.dtype, block * self.c)
        for r in range(0, self.n, max(block, 1)):
            x, to = widened(logits[r : r + block], wide), dlogits[r : r + block]
            made, stat = to if wide is None else x, stats[: len(to)]
            np.maximum.reduce(x, axis=1, out=stat)
            np.subtract(x, stat[:, None], out=made)
            np.exp(made, out=made)
            np.add.reduce(made, axis=1, out=stat)
            np.divide(made, stat[:, None], out=made)
            if self.dense:
                t = labels[r : r + block]
                np.add.reduce(t, axis=1, out=stat, dtype=stat.dtype)
                np.multiply(made, stat[:, None], out=made)
                np.subtract(made, t, out=made)
            else:
                at = _labels(labels[r : r + block], self.c, places[: len(to)])
                np.subtract.at(made.reshape(-1), at, made.dtype.type(1))
            np.multiply(made, d_loss[r : r + block, None], out=to)
