"""Lowers random fills, sampling, Fourier transforms, codebook assignment, im2col."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import DType, Node, ops
from planner_core.ir.ops.signal import METRICS, NORMS
from runtime.command_list import Thunk
from runtime.command_list.thunks import random, signal
from runtime.errors import LoweringError
from runtime.lowering.core import Lowering, lowers


@lowers(ops.RngNormal, widths="moves")
def _normal(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield random.RngNormal(ctx.flat(n.id), n.shape.numel, o.mean, o.scale, o.key, o.op_seed)


@lowers(ops.RngUniform, widths="moves")
def _uniform(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    yield random.RngUniform(ctx.flat(n.id), n.shape.numel, o.low, o.high, o.key, o.op_seed)


@lowers(ops.Sample, widths="moves")
def _sample(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    *lead, vocab = ctx.dims(n.inputs[0])
    batch = math.prod(lead)
    yield random.Sample(ctx.operand(n.inputs[0], batch, vocab), ctx.operand(n.id, batch), batch, vocab, o.top_k, o.top_p,
                        o.temperature, o.seed)


@lowers(ops.Fft)
def _fft(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    *lead, width = ctx.dims(n.id)
    outer = math.prod(lead)
    yield signal.Fft1d(ctx.operand(n.inputs[0], outer, ctx.dims(n.inputs[0])[-1]), ctx.operand(n.id, outer, width), outer,
                       width // 2, o.inverse, NORMS.index(o.norm), ctx.storage(n.id), o.real_input)


def vq_assign(ctx: Lowering, n: Node, metric: str) -> Thunk:
    """The thunk of a ``VqAssign``, or of the custom op of that meaning; ``LoweringError`` if its operands don't fit."""
    got = ", ".join(str(ctx.graph[i].shape) for i in n.inputs) or "none"
    if len(n.inputs) != 2 or metric not in METRICS or ctx.graph[n.inputs[1]].shape.rank != 2:
        raise LoweringError(f"{n.label}: got operands {got}, metric {metric!r}; wanted x [.., d], a codebook [k, d] and one of "
                            f"{', '.join(METRICS)}")
    x, cb = n.inputs
    k, d = ctx.dims(cb)
    rows = ctx.graph[x].shape.numel // max(d, 1)
    if not d or not k or ctx.dims(x)[-1:] != (d,) or n.shape.numel != rows:
        raise LoweringError(f"{n.label}: got operands {got} and output {n.shape}; wanted x [.., {d}], a codebook [k, {d}] with "
                            "entries, and one index a row of x")
    return signal.VqAssign(ctx.operand(x, rows, d), ctx.operand(cb), ctx.operand(n.id, rows), rows, d, k, METRICS.index(metric))


@lowers(ops.VqAssign, widths="f32")
def _vq(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    if {ctx.storage(i) for i in n.inputs} <= {DType.F32, DType.F64}:
        yield vq_assign(ctx, n, o.metric)
    else:
        yield ctx.host(n)


@lowers(ops.Im2Col, widths="moves")
def _im2col(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    count, c, h, w = ctx.dims(n.inputs[0])
    out = o.extents(ctx.graph[n.inputs[0]].shape)
    yield signal.Im2Col(ctx.operand(n.inputs[0]), ctx.operand(n.id), count, c, h, w, *out,
                        *(v for pair in (o.kernel, o.strides, o.pads[:2], o.dilations) for v in pair))
