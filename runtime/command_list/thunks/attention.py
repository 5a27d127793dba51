"""Owns attention, rotary embedding and SwiGLU thunks."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from planner_core.ir import Array
from runtime.command_list.attention_kernels import HeadScores, rotate_pairs
from runtime.command_list.formulas import activate, activation_scratch
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import buffers, store, wide_scratch, widened


@thunk(name="Attention", label="attention", partial_extent="scales", where="gpu")
class Attention(Thunk):
    """softmax(q kᵀ scale + mask) v per head, a block of query rows at a time (halves: of one head's f32 copies). q, k, v, out are [B, S, H, D],
    or [B, H, S, D] with ``bhsd``. score_scale 0 = 1/√d; softcap 0 = off."""

    q: In
    k: In
    v: In
    mask: In | None
    out: Out
    batch: int
    seq: int
    kv_seq: int
    heads: int
    kv_heads: int
    head_dim: int
    mask_kind: int
    window: int
    bhsd: int
    score_scale: float
    attn_logit_softcap: float

    @property
    def _scores(self) -> HeadScores:
        return HeadScores(self.seq, self.kv_seq, self.score_scale or self.head_dim**-0.5, self.attn_logit_softcap,
                          self.mask_kind, self.window)

    @property
    def scratch_bytes(self) -> int:
        dtype = self.q.storage.numpy
        return self._scores.scratch_bytes(dtype) + wide_scratch(dtype, *self._copies)

    @property
    def _copies(self) -> tuple[int, ...]:
        """Elements of a head's keys and values, of a block of its queries and of its result."""
        keys, rows = self.kv_seq * self.head_dim, self._scores.rows * self.head_dim
        return keys, keys, rows, rows

    def run(self, q: Array, k: Array, v: Array, mask: Array | None, out: Array, scratch: Scratch) -> None:
        q, k, v, out = ((x if self.bhsd else x.swapaxes(1, 2)) for x in (q, k, v, out))
        wide = None if mask is None else np.broadcast_to(mask, (self.batch, self.heads, self.seq, self.kv_seq))
        share, rule = self.heads // self.kv_heads, self._scores
        (scores,), stats, hidden = rule.take(scratch, q.dtype)
        wide_k, wide_v, wide_q, wide_out = buffers(scratch, q.dtype, *self._copies)
        for b in range(self.batch):
            for h in range(self.heads):
                keys, values = widened(k[b, h // share], wide_k), widened(v[b, h // share], wide_v)
                for r in range(0, self.seq, rule.rows):
                    n = min(rule.rows, self.seq - r)
                    s, some = scores[:n], None if wide is None else wide[b, h, r : r + n]
                    rule.probabilities(widened(q[b, h, r : r + n], wide_q), keys, r, some, s, stats[:n], hidden[:n])
                    to = out[b, h, r : r + n]
                    made = to if wide_out is None else wide_out[: to.size].reshape(to.shape)
                    np.matmul(s, values, out=made)
                    store(to, made)


@thunk(name="Rope", label="rope", partial_extent="scales", where="gpu")
class Rope(Thunk):
    """Pairs of the first n_rot of each head_dim are rotated; src and dst are [rows, heads, head_dim], src's rows
    ``src_row_stride`` elements apart (a slice of a wider row is read in place; src is then flat up to its last element),
    tables [seq, n_rot / 2], at least, or one row for all (or one a token with ``cos_per_token``)."""

    src: In
    cos: In
    sin: In
    dst: Out
    batch: int
    seq: int
    hidden: int
    head_dim: int
    n_rot: int
    src_row_stride: int
    cos_per_token: bool = False
    interleaved: bool = False

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.dst.numel // max(self.head_dim, 1) * (self.n_rot // 2), self.src.storage.numpy))

    def run(self, src: Array, cos: Array, sin: Array, dst: Array, scratch: Scratch) -> None:
        y = dst.reshape(self.batch, self.seq, -1, self.head_dim)
        step, row = src.itemsize, self.src_row_stride * src.itemsize
        x = as_strided(src, y.shape, (self.seq * row, row, self.head_dim * step, step), writeable=False)
        half, n = self.n_rot // 2, self.n_rot
        each = (self.batch, self.seq, 1, half) if self.cos_per_token else (-1, 1, half)
        c, s = (t.reshape(each) if self.cos_per_token else t.reshape(each)[: self.seq] for t in (cos, sin))
        low, high = (slice(0, n, 2), slice(1, n, 2)) if self.interleaved else (slice(0, half), slice(half, n))
        t = scratch.take((*x.shape[:3], half), x.dtype)
        rotate_pairs(x[..., low], x[..., high], c, s, y[..., low], y[..., high], t)
        np.copyto(y[..., n:], x[..., n:])


@thunk(name="FusedSwiGLU", label="fused_swiglu", partial_extent="scales", where="gpu")
class FusedSwiGLU(Thunk):
    """dst[rows, n_half] = up * silu(gate) from packed rows [gate | up] (or [up | gate])."""

    src: In
    dst: Out
    n_half: int
    total: int
    gate_first: bool
    src_dt: str = "f32"
    dst_dt: str = "f32"

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch("silu", self.dst.storage, self.total)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        low, high = src[:, : self.n_half], src[:, self.n_half :]
        gate, up = (low, high) if self.gate_first else (high, low)
        np.copyto(dst, gate)
        activate("silu", dst, dst, scratch)
        np.multiply(dst, up, out=dst)
