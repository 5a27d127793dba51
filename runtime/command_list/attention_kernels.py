"""Owns the scores of one head: block of query rows times keys, scale, softcap, mask, softmax, all in declared scratch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.scratch import CHUNK_BYTES, Scratch, scratch_for
from runtime.command_list.widths import wide_dtype

__all__ = ["MASK_BIAS", "MASK_CAUSAL", "MASK_CUSTOM", "MASK_NONE", "MASK_WINDOW", "HeadScores", "rotate_pairs"]

MASK_NONE, MASK_CAUSAL, MASK_CUSTOM, MASK_BIAS, MASK_WINDOW = range(5)


@dataclass(frozen=True, slots=True)
class HeadScores:
    """How scores of ``seq`` queries and ``kv_seq`` keys are formed. ``softcap`` 0 = off; the last query sees the last
    key; a window sees keys [p - window, p]. A row whose mask hides every key is all zeros."""

    seq: int
    kv_seq: int
    scale: float
    softcap: float = 0.0
    mask_kind: int = MASK_NONE
    window: int = 0

    @property
    def rows(self) -> int:
        """Query rows a block."""
        return max(1, min(self.seq, CHUNK_BYTES // (4 * max(self.kv_seq, 1))))

    def scratch_bytes(self, dtype: np.dtype[np.generic], blocks: int = 1) -> int:
        """``blocks`` score blocks, one value a row (both in f32 where ``dtype`` is half), and the hidden keys."""
        block, dtype = self.rows * self.kv_seq, wide_dtype(dtype)
        return scratch_for(*[(block, dtype)] * blocks, (self.rows, dtype), (block, DType.BOOL.numpy))

    def take(self, scratch: Scratch, dtype: np.dtype[np.generic], blocks: int = 1) -> tuple[list[Array], Array, Array]:
        """(score blocks, row values, hidden keys)."""
        dtype = wide_dtype(dtype)
        return ([scratch.take((self.rows, self.kv_seq), dtype) for _ in range(blocks)],
                scratch.take((self.rows, 1), dtype), scratch.take((self.rows, self.kv_seq), np.bool_))

    def probabilities(self, q: Array, keys: Array, first: int, mask: Array | None, s: Array, stat: Array, hidden: Array,
                      slope: Array | None = None) -> None:
        """s = softmax(q keysᵀ scale + mask) for queries from ``first``; ``slope`` = the softcap's derivative there. q and
        keys have s's width (a product takes the width of its operands, whatever its destination's)."""
        if not self.kv_seq:
            return  # no key: nothing to weigh, and a sum over none is 0
        np.matmul(q, keys.T, out=s)
        s *= self.scale
        if self.softcap:
            s /= self.softcap
            np.tanh(s, out=s)
            if slope is not None:
                np.multiply(s, s, out=slope)
                np.subtract(1, slope, out=slope)
            s *= self.softcap
        if self.mask_kind == MASK_BIAS and mask is not None:
            np.add(s, mask, out=s)
        elif self.mask_kind == MASK_CUSTOM and mask is not None:
            np.equal(mask, 0, out=hidden)
            np.copyto(s, -np.inf, where=hidden)
        elif self.mask_kind in (MASK_CAUSAL, MASK_WINDOW):
            pos = np.arange(first, first + len(s))[:, None] + self.kv_seq - self.seq
            key = np.arange(self.kv_seq)
            np.greater(key, pos, out=hidden)
            np.copyto(s, -np.inf, where=hidden)
            if self.mask_kind == MASK_WINDOW:
                np.less(key, pos - self.window, out=hidden)
                np.copyto(s, -np.inf, where=hidden)
        np.maximum.reduce(s, axis=1, keepdims=True, out=stat)
        blind = hidden[:, :1]
        if self.mask_kind != MASK_NONE:  # a row that sees no key weighs nothing
            np.equal(stat, -np.inf, out=blind)
            np.copyto(stat, 0, where=blind)
        np.subtract(s, stat, out=s)
        np.exp(s, out=s)
        np.add.reduce(s, axis=1, keepdims=True, out=stat)
        if self.mask_kind != MASK_NONE:
            np.copyto(stat, 1, where=blind)
        np.divide(s, stat, out=s)


def rotate_pairs(a: Array, b: Array, c: Array, s: Array, out_a: Array, out_b: Array, t: Array, back: bool = False) -> None:
    """(out_a, out_b) = (a·c - b·s, b·c + a·s), or turned ``back``: s negated; t is scratch of their size."""
    minus, plus = (np.add, np.subtract) if back else (np.subtract, np.add)
    np.multiply(a, c, out=out_a)
    np.multiply(b, s, out=t)
    minus(out_a, t, out=out_a)
    np.multiply(b, c, out=out_b)
    np.multiply(a, s, out=t)
    plus(out_b, t, out=out_b)
