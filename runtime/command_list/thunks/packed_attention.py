"""Owns attention over one packed row of q, k and v."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array
from runtime.command_list.attention_kernels import HeadScores, rotate_pairs
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk


@thunk(name="FusedAttn", label="fused_attn", partial_extent="no", where="gpu", proven=True)
class FusedAttn(Thunk):
    """out[batch, seq, heads, head_dim] = attention over qkv[batch, seq, 3, heads, head_dim], q and k rotated by halves
    first with ``has_rope`` (tables [seq, head_dim / 2]); f32. ``scale_bits``: f32 bits of the score scale, 0 = 1/√d."""

    qkv: In
    mask: In | None
    cos: In | None
    sin: In | None
    out: Out
    batch: int
    seq: int
    heads: int
    head_dim: int
    mask_kind: int
    scale_bits: int

    @property
    def has_rope(self) -> bool:
        return self.cos is not None

    @property
    def score_scale(self) -> float:
        """The scale as a number."""
        given = float(np.uint32(self.scale_bits).view(np.float32))
        return given or self.head_dim**-0.5

    @property
    def _scores(self) -> HeadScores:
        return HeadScores(self.seq, self.seq, self.score_scale, 0.0, self.mask_kind)

    @property
    def scratch_bytes(self) -> int:
        dtype = self.qkv.storage.numpy
        head, half = self.seq * self.head_dim, self.seq * (self.head_dim // 2)
        return self._scores.scratch_bytes(dtype) + (scratch_for((head, dtype), (head, dtype), (half, dtype)) if self.has_rope else 0)

    def run(self, qkv: Array, mask: Array | None, cos: Array | None, sin: Array | None, out: Array,
            scratch: Scratch) -> None:
        rule, half = self._scores, self.head_dim // 2
        (block,), stat, hidden = rule.take(scratch, qkv.dtype)
        wide = None if mask is None else np.broadcast_to(mask, (self.batch, self.heads, self.seq, self.seq))
        turned = [scratch.take((self.seq, self.head_dim), qkv.dtype) for _ in range(2)] if self.has_rope else []
        t = scratch.take((self.seq, half), qkv.dtype) if self.has_rope else stat
        for b in range(self.batch):
            for h in range(self.heads):
                q, k, v = (qkv[b, :, i, h] for i in range(3))
                if cos is not None and sin is not None:
                    for x, y in zip((q, k), turned, strict=True):
                        rotate_pairs(x[:, :half], x[:, half:], cos, sin, y[:, :half], y[:, half:], t)
                    q, k = turned
                for r in range(0, self.seq, rule.rows):
                    n = min(rule.rows, self.seq - r)
                    s = block[:n]
                    rule.probabilities(q[r : r + n], k, r, None if wide is None else wide[b, h, r : r + n], s, stat[:n],
                                       hidden[:n])
                    np.matmul(s, v, out=out[b, r : r + n, h])
