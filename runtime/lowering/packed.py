"""Lowers products with packed weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import DType, Node, ops
from runtime.command_list import Thunk
from runtime.command_list.thunks import packed
from runtime.lowering.core import Lowering, lowers

_WIDTHS = (DType.F32, DType.F16, DType.BF16)


@lowers(ops.DequantMatMul, widths="any")
def _dequant(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w = n.inputs
    *lead, k = ctx.dims(x)
    m = math.prod(lead)
    a, b = ctx.storage(x), ctx.storage(n.id)
    if a not in _WIDTHS or b not in _WIDTHS or ctx.storage(w) is not DType.U8:
        yield ctx.host(n)
        return
    yield packed.DequantMatMulGguf(ctx.operand(x, m, k), ctx.operand(w, o.n, o.scheme.row_bytes(k)),
                                   ctx.operand(n.id, m, o.n), m, k, o.n, o.scheme, a is DType.F16, b is DType.F16)


@lowers(ops.DequantGroupedMatMul, widths="any")
def _dequant_grouped(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, idx = n.inputs
    m, k = ctx.dims(x)
    if ctx.storage(x) not in _WIDTHS or ctx.storage(n.id) not in _WIDTHS or ctx.storage(w) is not DType.U8:
        yield ctx.host(n)
        return
    yield packed.DequantGroupedMatMulGguf(
        ctx.operand(x), ctx.operand(w, o.experts, o.n, o.scheme.row_bytes(k)), ctx.flat(idx), ctx.operand(n.id), m, k,
        o.n, o.experts, o.scheme)
