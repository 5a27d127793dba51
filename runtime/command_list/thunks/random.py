"""Owns random fills and sampling. Each piece of a fill is drawn on its own: element i depends on the key and i alone."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from planner_core.ir.philox import key_words, normal, uniform
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.picks import fill_places, pair_dtype, sort_first
from runtime.command_list.widths import PIECE

_F64, _I64 = DType.F64.numpy, DType.I64.numpy


@thunk(name="RngNormal", label="rng_normal", partial_extent="no", where="host")
class RngNormal(Thunk):
    """dst[i] = mean + scale z(key, op_seed, i), z standard normal, a piece at a time."""

    dst: Out
    len: int
    mean: float
    scale: float
    key: int
    op_seed: float | None

    def run(self, dst: Array, scratch: Scratch) -> None:
        words = key_words(self.key, self.op_seed)
        for i in range(0, self.len, PIECE):
            z = normal(words, i, min(PIECE, self.len - i))
            z *= self.scale
            z += self.mean
            np.copyto(dst[i : i + PIECE], z, casting="unsafe")


@thunk(name="RngUniform", label="rng_uniform", partial_extent="no", where="host")
class RngUniform(Thunk):
    """dst[i] = low + (high - low) u(key, op_seed, i), u in [0, 1), a piece at a time."""

    dst: Out
    len: int
    low: float
    high: float
    key: int
    op_seed: float | None

    def run(self, dst: Array, scratch: Scratch) -> None:
        words = key_words(self.key, self.op_seed)
        for i in range(0, self.len, PIECE):
            u = uniform(words, i, min(PIECE, self.len - i))
            u *= self.high - self.low
            u += self.low
            np.copyto(dst[i : i + PIECE], u, casting="unsafe")


@thunk(name="Sample", label="sample", partial_extent="full_ok", where="host")
class Sample(Thunk):
    """dst[batch] = a token a row of logits: softmax of logits / temperature over the top_k, cut at top_p, drawn by the
    row's number of stream ``seed``; temperature 0 = the first maximum."""

    logits: In
    dst: Out
    batch: int
    vocab: int
    top_k: int
    top_p: float
    temperature: float
    seed: int

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.vocab, pair_dtype(_F64)), (self.vocab, _F64))

    def run(self, logits: Array, dst: Array, scratch: Scratch) -> None:
        pairs, p = scratch.take(self.vocab, pair_dtype(_F64)), scratch.take(self.vocab, _F64)
        draws = uniform(key_words(self.seed, None), 0, self.batch)
        for i, row in enumerate(logits):
            if self.temperature == 0:
                dst[i] = row.argmax()
                continue
            np.negative(row, out=pairs.real, casting="unsafe")
            fill_places(pairs, 1)
            count = min(self.top_k or self.vocab, self.vocab)
            order = sort_first(pairs, count)
            kept = p[:count]
            np.copyto(kept, order.real)
            np.subtract(kept[0].copy(), kept, out=kept)
            np.divide(kept, self.temperature, out=kept)
            np.exp(kept, out=kept)
            np.divide(kept, kept.sum(), out=kept)
            np.cumsum(kept, out=kept)
            if self.top_p < 1:
                kept = kept[: int(np.searchsorted(kept, self.top_p)) + 1]
            at = int(np.searchsorted(kept, draws[i] * kept[-1], side="right"))
            dst[i] = int(order[min(at, len(kept) - 1)].imag)
