"""Lowers products that read an operand transposed: the product's own thunks, told how the operand is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner_core.ir import Node, ops
from runtime.command_list import Thunk
from runtime.command_list.thunks import matmul
from runtime.lowering.core import Lowering, lowers


@lowers(ops.TransposedMatMul, widths="any")
def _matmul(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    a, b = n.inputs
    da, db = ctx.dims(a), ctx.dims(b)
    if len(da) < 2 or len(db) < 2 or math.prod(da) * math.prod(db) == 0:
        yield ctx.host(n)
        return
    m, k = (da[-1], da[-2]) if o.trans_a else (da[-2], da[-1])
    cols = db[-2] if o.trans_b else db[-1]
    if len(db) == 2 and (len(da) == 2 or not o.trans_a):
        m = math.prod(da[:-1]) if not o.trans_a else m
        left = ctx.operand(a, *da) if o.trans_a else ctx.operand(a, m, k)
        yield matmul.Sgemm(left, ctx.operand(b), ctx.operand(n.id, m, cols), m, k, cols, ctx.storage(b).text == "f16",
                           o.trans_b, o.trans_a)
        return
    lead = ctx.dims(n.id)[:-2]
    batch = math.prod(lead)
    yield matmul.BatchedSgemm(ctx.operand(a), ctx.operand(b), ctx.operand(n.id), batch, m, k, cols,
                              math.prod(da[:-2]) == 1 < batch, math.prod(db[:-2]) == 1 < batch, o.trans_a, o.trans_b)


@lowers(ops.TransposedGroupedMatMul, widths="any")
def _grouped(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x, w, idx = n.inputs
    m, k = ctx.dims(x)
    yield matmul.GroupedMatMul(ctx.operand(x), ctx.operand(w), ctx.flat(idx), ctx.operand(n.id), m, k, ctx.dims(w)[1],
                               ctx.dims(w)[0], True)
