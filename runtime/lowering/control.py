"""Lowers custom ops and ops with nested bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner_core.ir import Node, ops
from runtime.command_list import Thunk
from runtime.command_list.thunks.host import CustomOp, HostOp, ScanHost, kernel_attrs
from runtime.errors import LoweringError
from runtime.lowering.core import Lowering, lowers
from runtime.lowering.signal import vq_assign


@lowers(ops.Custom, widths="moves")
def _custom(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    if o.op_name == "rlx.vq_assign":
        yield vq_assign(ctx, n, kernel_attrs(o.op_name, o.attrs, LoweringError).get("metric", "l2"))
        return
    more = ctx.results(n.id)
    if list(more) != list(range(1, len(more) + 1)):
        raise LoweringError(f"the graph has its results {list(more)}; a kernel needs every one from 1 up")
    yield CustomOp(o.op_name, tuple(ctx.operand(i) for i in n.inputs), ctx.operand(n.id), o.attrs,
                   tuple(more.values()), n.label)


@lowers(ops.If, ops.Loop, ops.Scan, widths="moves", exact=True)
def _bodies(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    more = ctx.results(n.id)
    yield (ScanHost if isinstance(n.op, ops.Scan) else HostOp)(
        o, tuple(ctx.operand(i) for i in n.inputs), ctx.operand(n.id), tuple(more.values()), tuple(more), n.label)
