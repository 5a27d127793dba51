"""Owns the backward ops of attention and rotary embedding."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.attention import Attention, table_rows
from planner_core.ir.ops.backward import one_of, same_dims
from planner_core.ir.ops.operands import rope_tables
from planner_core.ir.shape import Shape, dim


@op(family="backward", operands="q k v dy mask?")
class AttentionBackward(Op):
    """Gradient of Attention wrt one operand. With ``p = softmax(s)``, ``dp = dy vᵀ``, ``ds = p·(dp - Σ dp·p)``:
    ``dv = pᵀ dy; dmask = ds`` (bias); ``dq = ds k · scale; dk = dsᵀ q · scale`` (ds through the softcap's slope).

    Attributes and shapes as in ``Attention``; heads that share a key head are summed; the result has the
    shape of ``wrt``: q, k, v or mask. The probabilities are computed again, not kept.
    """

    wrt: str
    num_heads: int
    head_dim: int
    kv_heads: int = 0
    mask_kind: str = "none"
    window: int = 0
    score_scale: float = 0.0
    softcap: float = 0.0
    layout: str = "bshd"

    def forward(self) -> Attention:
        """The op this is the gradient of."""
        return Attention(self.num_heads, self.head_dim, self.kv_heads, self.mask_kind, self.window, self.score_scale,
                         self.softcap, self.layout)

    def infer(self, q: Shape, k: Shape, v: Shape, dy: Shape, *mask: Shape) -> Shape:
        one_of("AttentionBackward", self.wrt, "q", "k", "v", *(["mask"] if self.mask_kind == "bias" else []))
        same_dims("AttentionBackward", self.forward().infer(q, k, v, *mask), dy)
        return {"q": q, "k": k, "v": v}[self.wrt] if self.wrt != "mask" else mask[0]

    def evaluate(self, q: Array, k: Array, v: Array, dy: Array, *mask: Array) -> Array:
        fwd = self.forward()
        kv, d = self.kv_heads or self.num_heads, self.head_dim
        p, slope = fwd.probabilities(q, k, *mask)
        qh, dyh = fwd.split_heads(q, self.num_heads), fwd.split_heads(dy, self.num_heads)
        kh, vh = (np.repeat(fwd.split_heads(x, kv), self.num_heads // kv, axis=1) for x in (k, v))
        scale = self.score_scale or d**-0.5
        if self.wrt == "v":
            return self._merge(p.swapaxes(-1, -2) @ dyh, v, kv)
        dp = dyh @ vh.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True))
        if self.wrt == "mask":
            return _summed_to(ds, mask[0])
        ds = ds * slope * scale
        return self._merge(ds @ kh, q, self.num_heads) if self.wrt == "q" else \
            self._merge(ds.swapaxes(-1, -2) @ qh, k, kv)

    def _merge(self, x: Array, like: Array, heads: int) -> Array:
        """``[B, H, S, D]`` summed to ``heads`` and laid out as ``like``."""
        b, h, s, d = x.shape
        y = x.reshape(b, heads, h // heads, s, d).sum(2)
        return np.asarray(y if self.layout == "bhsd" else y.swapaxes(1, 2).reshape(like.shape), dtype=like.dtype)

    def flops(self, out: Shape, q: Shape, k: Shape, *_: Shape) -> int:
        keys = k.dims[2 if self.layout == "bhsd" else 1].value or 0
        return (6 if self.wrt in "qk" else 4) * q.numel * keys


def _summed_to(x: Array, like: Array) -> Array:
    lead = x.ndim - like.ndim
    axes = (*range(lead), *(lead + i for i, n in enumerate(like.shape) if n == 1))
    return np.asarray(x.sum(axes).reshape(like.shape), dtype=like.dtype)


def _pairs(n_rot: int, interleaved: bool) -> tuple[slice, slice]:
    half = n_rot // 2
    return (slice(0, n_rot, 2), slice(1, n_rot, 2)) if interleaved else (slice(0, half), slice(half, n_rot))


@op(family="backward", operands="dy cos sin")
class RopeBackward(Op):
    """Gradient of Rope's x: dy rotated back, ``(da, db) = (dya·cos + dyb·sin, dyb·cos - dya·sin)``.

    dy and the result ``[..,S,H·D]``; tables and attributes as in ``Rope``.
    """

    head_dim: int
    n_rot: int
    interleaved: bool = False

    def infer(self, dy: Shape, cos: Shape, sin: Shape, *_: Shape) -> Shape:
        width = dy.dims[-1].value
        if width is not None and width % self.head_dim:
            raise GraphError(f"RopeBackward head_dim={self.head_dim} doesn't fit dy {dy}")
        rope_tables("RopeBackward", dy, self.n_rot // 2, cos, sin)
        return dy

    def evaluate(self, dy: Array, cos: Array, sin: Array, *_: Array) -> Array:
        out = dy.reshape(*dy.shape[:-1], dy.shape[-1] // self.head_dim, self.head_dim).copy()
        c, s = (table_rows(t, dy.shape) for t in (cos, sin))
        i, j = _pairs(self.n_rot, self.interleaved)
        a, b = out[..., i].copy(), out[..., j].copy()
        out[..., i], out[..., j] = a * c + b * s, b * c - a * s
        return np.asarray(out.reshape(dy.shape), dtype=dy.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 3 * out.numel


@op(family="backward", operands="x dy")
class RopeTableBackward(Op):
    """Gradient of Rope's tables, summed over heads and, but for ``per_token``, over the batch: ``dcos = Σ a·dya + b·dyb``,
    ``dsin = Σ a·dyb - b·dya``; x, dy ``[..,S,H·D]``, result ``[S, n_rot/2]``, or ``[..,S, n_rot/2]`` per token."""

    wrt: str
    head_dim: int
    n_rot: int
    interleaved: bool = False
    per_token: bool = False

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        one_of("RopeTableBackward", self.wrt, "cos", "sin")
        same_dims("RopeTableBackward", x, dy)
        if self.per_token:
            return x.with_dims((*x.dims[:-1], self.n_rot // 2))
        return Shape((x.dims[-2], dim(self.n_rot // 2)), x.dtype)

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        i, j = _pairs(self.n_rot, self.interleaved)
        xs, ds = (t.reshape(-1, x.shape[-2], x.shape[-1] // self.head_dim, self.head_dim) for t in (x, dy))
        a, b, da, db = xs[..., i], xs[..., j], ds[..., i], ds[..., j]
        each = a * da + b * db if self.wrt == "cos" else a * db - b * da
        if self.per_token:
            return np.asarray(each.sum(2).reshape(*x.shape[:-1], self.n_rot // 2), dtype=x.dtype)
        return np.asarray(each.sum((0, 2)), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 2 * x.numel
