"""Owns the backward thunks of attention and rotary embedding."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array
from runtime.command_list.attention_kernels import HeadScores, rotate_pairs
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import buffers, is_half, store, wide_dtype, wide_scratch, widened

WRT = ("q", "k", "v", "mask")


@thunk(name="AttentionBackward", label="attention_bwd", partial_extent="scales", where="gpu")
class AttentionBackward(Thunk):
    """Gradient of Attention wrt q, k, v or its bias mask; the probabilities p are computed again, a block of query rows
    at a time. dv = pᵀ dy; ds = p (dy vᵀ - Σ dy vᵀ p) = dmask; dq = ds k scale; dk = dsᵀ q scale."""

    q: In
    k: In
    v: In
    dy: In
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
    wrt: str
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
        wide = wide_dtype(dtype)
        own = scratch_for((self.kv_seq * self.head_dim, wide), (self.kv_seq, wide))
        return self._scores.scratch_bytes(dtype, 3) + own + wide_scratch(dtype, *self._copies)

    @property
    def _copies(self) -> tuple[int, ...]:
        """Elements of a head's keys and values, of a block of its queries and of their gradient, and of the sum that a
        piece of ``out`` is: a mask whole, a head's keys, a block of queries."""
        keys, rows = self.kv_seq * self.head_dim, self._scores.rows * self.head_dim
        return keys, keys, rows, rows, {"mask": self.out.numel, "q": rows}.get(self.wrt, keys)

    def run(self, q: Array, k: Array, v: Array, dy: Array, mask: Array | None, out: Array, scratch: Scratch) -> None:
        if not self.bhsd:
            q, k, v, dy = (x.swapaxes(1, 2) for x in (q, k, v, dy))
            out = out if self.wrt == "mask" else out.swapaxes(1, 2)
        rule, half, wide = self._scores, is_half(q.dtype), wide_dtype(q.dtype)
        masks = None if mask is None else np.broadcast_to(mask, (self.batch, self.heads, self.seq, self.kv_seq))
        blocks, stat, hidden = rule.take(scratch, q.dtype, 3)
        part, column = scratch.take((self.kv_seq, self.head_dim), wide), scratch.take((1, self.kv_seq), wide)
        wide_k, wide_v, wide_q, wide_dy, total = buffers(scratch, q.dtype, *self._copies)
        grid = out if total is None or self.wrt != "mask" else total.reshape(out.shape)
        if self.wrt == "mask":
            grid[...] = 0
            grid = grid.reshape((1,) * (4 - grid.ndim) + grid.shape)
        share = self.heads // self.kv_heads
        for b in range(self.batch):
            for h in range(self.heads):
                kv = h // share
                keys, values = widened(k[b, kv], wide_k), widened(v[b, kv], wide_v)
                into = out[b, kv] if self.wrt in ("k", "v") else out
                if total is not None and self.wrt in ("k", "v"):
                    into = total.reshape(into.shape)
                if self.wrt in ("k", "v") and h % share == 0:
                    into[...] = 0
                for r in range(0, self.seq, rule.rows):
                    n = min(rule.rows, self.seq - r)
                    p, dp, slope = (x[:n] for x in blocks)
                    rows = slice(r, r + n)
                    query, grad = widened(q[b, h, rows], wide_q), widened(dy[b, h, rows], wide_dy)
                    rule.probabilities(query, keys, r, None if masks is None else masks[b, h, rows], p, stat[:n], hidden[:n],
                                       slope)
                    if self.wrt == "v":
                        np.matmul(p.T, grad, out=part)
                        np.add(into, part, out=into)
                        continue
                    np.matmul(grad, values.T, out=dp)
                    self._score_gradient(p, dp, stat[:n])
                    if self.wrt == "mask":
                        _add_summed(grid[b % grid.shape[0], h % grid.shape[1]], dp, rows, stat[:n], column)
                        continue
                    if self.attn_logit_softcap:
                        dp *= slope
                    dp *= rule.scale
                    if self.wrt == "q":
                        to = out[b, h, rows]
                        made = to if total is None else total[: to.size].reshape(to.shape)
                        np.matmul(dp, keys, out=made)
                        store(to, made)
                    else:
                        np.matmul(dp.T, query, out=part)
                        np.add(into, part, out=into)
                if half and self.wrt in ("k", "v") and h % share == share - 1:
                    store(out[b, kv], into)
        if half and self.wrt == "mask":
            store(out, grid.reshape(out.shape))

    def _score_gradient(self, p: Array, dp: Array, stat: Array) -> None:
        """dp becomes p (dp - Σ dp p)."""
        np.matmul(dp[:, None, :], p[:, :, None], out=stat[:, :, None])
        np.subtract(dp, stat, out=dp)
        np.multiply(dp, p, out=dp)


def _add_summed(into: Array, ds: Array, rows: slice, stat: Array, column: Array) -> None:
    """into[seq or 1, kv_seq or 1] += ds, summed over what is 1."""
    if into.shape[1] == 1 != ds.shape[1]:
        np.add.reduce(ds, axis=1, keepdims=True, out=stat)
        ds = stat
    if into.shape[0] == 1:
        total = column[:, : ds.shape[1]]
        np.add.reduce(ds, axis=0, keepdims=True, out=total)
        np.add(into, total, out=into)
    else:
        np.add(into[rows], ds, out=into[rows])


@thunk(name="RopeBackward", label="rope_backward", partial_extent="scales", where="host")
class RopeBackward(Thunk):
    """dx = dy with the pairs of each head's first n_rot turned back; tables [cos_len, n_rot / 2], one row a position (or
    one for all)."""

    dy: In
    cos: In
    sin: In
    dx: Out
    batch: int
    seq: int
    hidden: int
    head_dim: int
    n_rot: int
    cos_len: int
    interleaved: bool = False

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self.dy.numel // max(self.head_dim, 1) * (self.n_rot // 2), self.dy.storage.numpy))

    def run(self, dy: Array, cos: Array, sin: Array, dx: Array, scratch: Scratch) -> None:
        x, y = (a.reshape(self.batch, self.seq, -1, self.head_dim) for a in (dy, dx))
        half, n = self.n_rot // 2, self.n_rot
        c, s = (a.reshape(self.cos_len, 1, half) for a in (cos, sin))
        low, high = (slice(0, n, 2), slice(1, n, 2)) if self.interleaved else (slice(0, half), slice(half, n))
        t = scratch.take((*x.shape[:3], half), x.dtype)
        rotate_pairs(x[..., low], x[..., high], c, s, y[..., low], y[..., high], t, back=True)
        np.copyto(y[..., n:], x[..., n:])
