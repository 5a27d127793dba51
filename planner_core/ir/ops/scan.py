"""Owns state-space scans along a sequence."""

from __future__ import annotations

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads
from planner_core.ir.shape import Shape


@op(family="scan", operands="x delta a b c")
class SelectiveScan(Op):
    """``h_t = exp(Δ_t a) h_{t-1} + Δ_t x_t b_t;  y_t = Σ_n h_t c_t``, h₀ = 0 (Gu & Dao 2023, Mamba).

    x, Δ ``[B, S, D]``; a ``[D, N]``; b, c ``[B, S, N]``; y ``[B, S, D]``. The state ``[B, D, N]`` is never
    stored over S. The skip ``D · x`` is not part of it.
    """

    def infer(self, x: Shape, delta: Shape, a: Shape, b: Shape, c: Shape, *_: Shape) -> Shape:
        if x.rank != 3 or a.rank != 2 or b.rank != 3 or c.rank != 3 or delta.rank != 3 or not (
                all(p.same(q) for p, q in zip(x.dims, delta.dims, strict=True)) and a.dims[0].same(x.dims[2])
                and all(p.same(q) for m in (b, c) for p, q in zip(m.dims, (*x.dims[:2], a.dims[1]), strict=True))):
            raise GraphError(f"SelectiveScan: x {x}, delta {delta}, a {a}, b {b}, c {c}: "
                             "wanted [B, S, D] twice, [D, N], [B, S, N] twice")
        if any(s.dtype is not x.dtype for s in (delta, a, b, c)):
            raise GraphError(f"SelectiveScan: x {x}, delta {delta}, a {a}, b {b}, c {c}: dtypes differ, cast some")
        return x

    def evaluate(self, x: Array, delta: Array, a: Array, b: Array, c: Array, *_: Array) -> Array:
        h = np.zeros((x.shape[0], *a.shape), dtype=x.dtype)
        out = np.empty_like(x)
        for t in range(x.shape[1]):
            step = delta[:, t, :, None]
            h = np.exp(step * a) * h + step * x[:, t, :, None] * b[:, t, None]
            out[:, t] = (h * c[:, t, None]).sum(-1)
        return out

    def flops(self, out: Shape, x: Shape, delta: Shape, a: Shape, *_: Shape) -> int:
        return 9 * out.numel * (a.dims[1].value or 0)

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return tuple(g.selective_scan_backward(*inputs, dy, wrt=wrt) for wrt in ("x", "delta", "a", "b", "c"))
