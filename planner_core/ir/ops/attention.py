"""Owns attention and what stands around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, attributes, op
from planner_core.ir.ops.adjoint import Grads, reshaped, unbroadcast
from planner_core.ir.ops.operands import rope_tables, wanted
from planner_core.ir.shape import Shape, dim

MASKS = ("none", "causal", "custom", "bias", "sliding_window")
"""Mask kinds in the command list's order 0–4."""


@op(family="attention", operands="q k v mask?", rows=rows.attends)
class Attention(Op):
    """``softmax(q kᵀ · scale + mask) v`` per head; ``score_scale`` 0 = 1/√d, ``softcap`` 0 = off.

    layout ``bshd``: q ``[B,S,H·D]`` or ``[B,S,H,D]``, k and v with ``kv_heads`` (query heads share them in
    groups); ``bhsd``: ``[B,H,S,D]``. mask: ``custom`` keeps where non-zero, ``bias`` is added,
    ``sliding_window`` sees keys ``[p - window, p]``, p counted from the end of the keys. A row that sees no key (all of
    its mask 0, its bias −inf, or p before the first key) gives zeros, and no gradient, whatever the kind of mask (PyTorch;
    a softmax written out over such a row gives NaN).
    """

    num_heads: int
    head_dim: int
    kv_heads: int = 0
    mask_kind: str = "none"
    window: int = 0
    score_scale: float = 0.0
    softcap: float = 0.0
    layout: str = "bshd"

    def infer(self, q: Shape, k: Shape, v: Shape, *mask: Shape) -> Shape:
        if self.mask_kind not in MASKS or self.layout not in ("bshd", "bhsd"):
            raise GraphError(f"Attention mask {self.mask_kind!r}, layout {self.layout!r}: "
                             f"wanted one of {', '.join(MASKS)} and bshd or bhsd")
        if (self.mask_kind in ("custom", "bias")) != bool(mask):
            raise GraphError(f"Attention with mask {self.mask_kind!r} got {len(mask)} mask operands")
        kv = self.kv_heads or self.num_heads
        if self.num_heads % kv:
            raise GraphError(f"{self.num_heads} heads can't share {kv} key heads evenly")
        for s, heads, what in ((q, self.num_heads, "q"), (k, kv, "k"), (v, kv, "v")):
            at = self._heads_at(s)
            have = [s.dims[at], s.dims[-1]] if s.rank == 4 else [s.dims[-1]] if s.rank == 3 and self.layout == "bshd" else []
            want = [heads, self.head_dim] if s.rank == 4 else [heads * self.head_dim]
            if not have or any(d.value not in (None, n) for d, n in zip(have, want, strict=True)):
                raise GraphError(f"Attention {what} {s}: wanted {heads} heads × {self.head_dim} ({self.layout})")
        seq = 2 if self.layout == "bhsd" else 1
        for name, s in (("k", k), ("v", v)):
            if s.dims[0].clashes(q.dims[0]) or s.dims[seq].clashes(k.dims[seq]):
                raise GraphError(f"Attention {name} {s}: wanted batch {q.dims[0]} as q {q}, and {k.dims[seq]} keys as k {k}")
        if mask:
            full = (q.dims[0], dim(self.num_heads), q.dims[seq], k.dims[seq])
            tail = full[4 - mask[0].rank :] if mask[0].rank < 4 else full
            fits = (d if m.value != 1 else m for m, d in zip(mask[0].dims, tail, strict=False))
            wanted("Attention", "mask", mask[0], tuple(fits), "or 1, for [batch, heads, queries, keys]")
        return q

    def _heads_at(self, x: Shape) -> int:
        """The axis of the heads in an operand of rank 4."""
        return 1 if self.layout == "bhsd" else min(2, x.rank - 1)

    def split_heads(self, x: Array, heads: int) -> Array:
        """``[B, heads, S, D]`` of an operand in this layout."""
        return x if self.layout == "bhsd" else x.reshape(x.shape[0], x.shape[1], heads, self.head_dim).swapaxes(1, 2)

    def probabilities(self, q: Array, k: Array, *mask: Array) -> tuple[Array, Array]:
        """(softmax of the scores ``[B, H, Sq, Sk]``, slope of the softcap at each score)."""
        kv, d = self.kv_heads or self.num_heads, self.head_dim
        qh, kh = self.split_heads(q, self.num_heads), self.split_heads(k, kv)
        kh = np.repeat(kh, self.num_heads // kv, axis=1)
        s = qh @ kh.swapaxes(-1, -2) * (self.score_scale or d**-0.5)
        slope = np.ones((), dtype=s.dtype)
        if self.softcap:
            t = np.tanh(s / self.softcap)
            s, slope = self.softcap * t, 1 - t * t
        sq, sk = s.shape[-2:]
        pos, key = np.arange(sq)[:, None] + sk - sq, np.arange(sk)[None, :]
        if self.mask_kind == "bias":
            s = s + mask[0]
        elif self.mask_kind != "none":
            if self.mask_kind == "custom":
                keep = np.broadcast_to(mask[0] != 0, s.shape)
            else:
                keep = (key <= pos) & (self.mask_kind == "causal" or key >= pos - self.window)
            s = np.where(keep, s, -np.inf)
        top = s.max(-1, keepdims=True, initial=-np.inf)
        blind = (top == -np.inf) & (self.mask_kind != "none")
        p = np.exp(s - np.where(blind, 0, top))  # without a key: nothing to weigh
        return p / np.where(blind, 1, p.sum(-1, keepdims=True)), slope

    def evaluate(self, q: Array, k: Array, v: Array, *mask: Array) -> Array:
        kv = self.kv_heads or self.num_heads
        vh = np.repeat(self.split_heads(v, kv), self.num_heads // kv, axis=1)
        out = self.probabilities(q, k, *mask)[0] @ vh
        return np.asarray(out if self.layout == "bhsd" else out.swapaxes(1, 2).reshape(q.shape), dtype=q.dtype)

    def flops(self, out: Shape, q: Shape, k: Shape, *_: Shape) -> int:
        keys = k.dims[2 if self.layout == "bhsd" else 1].value or 0
        return 4 * out.numel * keys

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        q, k, v, *mask = inputs
        how = dict(attributes(self))
        names = ("q", "k", "v", *(("mask",) if self.mask_kind == "bias" else ()))
        made = tuple(g.attention_backward(q, k, v, dy, *mask, wrt=wrt, **how) for wrt in names)
        return (*made, None) if self.mask_kind == "custom" else made


def table_rows(t: Array, x: tuple[int, ...]) -> Array:
    """A rotary table ready to meet x ``[.., S, heads, pairs]``: the first S rows, or one, or one a token."""
    return t[..., None, :] if t.ndim > 2 else t[: x[-2] if len(x) > 1 else 1, None]


@op(family="attention", operands="x cos sin", rows=rows.rotates)
class Rope(Op):
    """Rotary embedding of the first ``n_rot`` of each head's ``head_dim`` (Su et al. 2021).

    x ``[..,S,H·D]``; tables ``[S, n_rot/2]``, one row for all positions ``[1, n_rot/2]``, or one a token
    ``[..,S, n_rot/2]``. Pairs are (i, i + n_rot/2), or (2i, 2i+1) when interleaved.
    """

    head_dim: int
    n_rot: int
    interleaved: bool = False

    def infer(self, x: Shape, cos: Shape, sin: Shape, *_: Shape) -> Shape:
        width = x.dims[-1].value
        if self.n_rot % 2 or self.n_rot > self.head_dim or (width is not None and width % self.head_dim):
            raise GraphError(f"Rope n_rot={self.n_rot}, head_dim={self.head_dim} don't fit {x}")
        rope_tables("Rope", x, self.n_rot // 2, cos, sin)
        return x

    def evaluate(self, x: Array, cos: Array, sin: Array, *_: Array) -> Array:
        half = self.n_rot // 2
        out = x.reshape(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim).copy()
        c, s = (table_rows(t, x.shape) for t in (cos, sin))
        if self.interleaved:
            a, b = out[..., 0 : self.n_rot : 2].copy(), out[..., 1 : self.n_rot : 2].copy()
            out[..., 0 : self.n_rot : 2], out[..., 1 : self.n_rot : 2] = a * c - b * s, b * c + a * s
        else:
            a, b = out[..., :half].copy(), out[..., half : self.n_rot].copy()
            out[..., :half], out[..., half : self.n_rot] = a * c - b * s, b * c + a * s
        return np.asarray(out.reshape(x.shape), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 3 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        x, cos, sin = inputs
        how: dict[str, Any] = {"head_dim": self.head_dim, "n_rot": self.n_rot, "interleaved": self.interleaved}
        tables = []
        for wrt, table in (("cos", cos), ("sin", sin)):
            shape = g[table].shape
            if shape.rank > 2:
                tables.append(g.rope_table_backward(x, dy, wrt=wrt, per_token=True, **how))
                continue
            made = g.rope_table_backward(x, dy, wrt=wrt, **how)  # one row for all positions broadcasts
            rows = g[made].shape.with_dims((shape.dims[0], g[made].shape.dims[1]))
            tables.append(reshaped(g, unbroadcast(g, made, rows), shape))
        return g.rope_backward(dy, cos, sin, **how), *tables


@op(family="attention", operands="x", rows=rows.along_one_axis)
class Softmax(Op):
    """``exp(x - max) / sum`` along an axis."""

    axis: int = -1

    def infer(self, x: Shape, *_: Shape) -> Shape:
        x.axis(self.axis)
        return x

    def evaluate(self, x: Array, *_: Array) -> Array:
        e = np.exp(x - x.max(self.axis, keepdims=True))
        return np.asarray(e / e.sum(self.axis, keepdims=True), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 5 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.softmax_backward(node, dy, axis=self.axis),)


@op(family="attention", operands="x", rows=rows.along_last_axis)
class SwiGLU(Op):
    """One packed row ``[.., 2n]`` to ``up * silu(gate)`` ``[.., n]``, gate first or second."""

    gate_first: bool = True

    def infer(self, x: Shape, *_: Shape) -> Shape:
        width = x.dims[-1].value
        if width is not None and width % 2:
            raise GraphError(f"SwiGLU splits the last axis in half; {x} has an odd one")
        return x.with_dims((*x.dims[:-1], x.dims[-1] // 2))

    def evaluate(self, x: Array, *_: Array) -> Array:
        a, b = np.split(x, 2, axis=-1)
        gate, up = (a, b) if self.gate_first else (b, a)
        return np.asarray(up * gate / (1 + np.exp(-gate)), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 5 * out.numel

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return (g.swiglu_backward(inputs[0], dy, gate_first=self.gate_first),)
