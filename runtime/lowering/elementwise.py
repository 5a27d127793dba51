"""Lowers elementwise ops. Broadcasts by spec: equal shapes, trailing add, or explicit strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner_core.ir import DType, Node, ops
from runtime.command_list import Operand, Thunk
from runtime.command_list.thunks import elementwise as t
from runtime.command_list.thunks.fused import GeluApproxHost, GeluApproxOut
from runtime.command_list.thunks.structure import Copy
from runtime.lowering.core import Lowering, lowers

LARGE_ARENA = 1 << 32
"""Offsets from here on are large: kernels with 32-bit offsets don't reach them."""


def padded(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Left-padded with 1s to a rank."""
    return (1,) * (rank - len(dims)) + dims


def broadcast_strides(dims: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major element strides of ``dims`` seen as ``out``; 0 where it repeats."""
    wide, step, strides = padded(dims, len(out)), 1, []
    for d, o in zip(reversed(wide), reversed(out), strict=True):
        strides.append(0 if d == 1 and o != 1 else step)
        step *= d
    return tuple(reversed(strides))


def wide(ctx: Lowering, node: int, rank: int) -> Operand:
    """The operand with its dims left-padded, ready for NumPy's broadcasting."""
    dims = padded(ctx.dims(node), rank)
    return ctx.operand(node, *dims) if dims else ctx.operand(node)


@lowers(ops.Binary, widths="any", exact=lambda n: n.op.kind in ("max", "min", "and", "or", "xor", "fmod"))  # type: ignore[attr-defined]
def _binary(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    a, b = n.inputs
    da, db, out = ctx.dims(a), ctx.dims(b), ctx.dims(n.id)
    size = n.shape.numel
    if da == db:
        yield t.BinaryFull(ctx.flat(a), ctx.flat(b), ctx.flat(n.id), size, o.kind)
    elif o.kind == "add" and da == out and da[len(da) - len(db):] == db:
        width = ctx.graph[b].shape.numel
        yield t.BiasAdd(ctx.operand(a, size // width, width), ctx.operand(b, width),
                        ctx.operand(n.id, size // width, width), size // width, width)
    else:
        rank = len(out)
        yield t.BinaryBroadcast(wide(ctx, a, rank), wide(ctx, b, rank), ctx.operand(n.id), size, o.kind, rank, out,
                                broadcast_strides(da, out), broadcast_strides(db, out))


@lowers(ops.Compare, widths="any", exact=True)
def _compare(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    a, b = n.inputs
    out = ctx.dims(n.id)
    dense = [ctx.dims(i) == out for i in (a, b)]
    one = [ctx.graph[i].shape.numel == 1 for i in (a, b)]
    if all(d or s for d, s in zip(dense, one, strict=True)):
        yield t.Compare(ctx.flat(a), ctx.flat(b), ctx.flat(n.id), n.shape.numel, o.kind,
                        not dense[0], not dense[1])
    else:
        yield t.CompareBroadcast(wide(ctx, a, len(out)), wide(ctx, b, len(out)), ctx.operand(n.id), o.kind)


@lowers(ops.Where, widths="any", exact=True)
def _where(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    out = ctx.dims(n.id)
    dense = [ctx.dims(i) == out for i in n.inputs]
    one = [ctx.graph[i].shape.numel == 1 for i in n.inputs]
    if all(d or s for d, s in zip(dense, one, strict=True)):
        c, x, y = (ctx.flat(i) for i in n.inputs)
        yield t.Where(c, x, y, ctx.flat(n.id), n.shape.numel, not dense[0], not dense[1], not dense[2])
    else:
        c, x, y = (wide(ctx, i, len(out)) for i in n.inputs)
        yield t.WhereBroadcast(c, x, y, ctx.operand(n.id))


@lowers(ops.Fma)
def _fma(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    rank = n.shape.rank
    a, b, c = (wide(ctx, i, rank) for i in n.inputs)
    yield t.Fma(a, b, c, ctx.operand(n.id), n.shape.numel)


_REAL_ONLY = frozenset({"gelu", "gelu_approx", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "elu", "erf",
                        "sin", "cos", "softplus", "hardsigmoid", "hardswish", "leaky_relu", "reciprocal"})


_KEEPS = frozenset({"relu", "sign", "not"})
_KEEPS_FLOATS = _KEEPS | {"neg", "abs", "floor", "ceil", "round"}
"""Activations whose value the operand's type holds: any type, or any float."""


@lowers(ops.Activation, widths=1, exact=lambda n: n.op.kind in (_KEEPS_FLOATS if n.dtype.is_float else _KEEPS))  # type: ignore[attr-defined]
def _activation(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    x = n.inputs[0]
    if o.kind in _REAL_ONLY and not ctx.storage(n.id).is_float:
        yield ctx.host(n)
        return
    src, dst = ctx.flat(x), ctx.flat(n.id)
    if src == dst:
        yield t.ActivationInPlace(dst, n.shape.numel, o.kind, o.alpha, o.beta)
    elif o.kind == "gelu_approx" and src.storage is dst.storage is DType.F32:
        far = max(src.offset + src.nbytes, dst.offset + dst.nbytes) > LARGE_ARENA
        yield (GeluApproxHost if far else GeluApproxOut)(src, dst, n.shape.numel)
    else:
        yield t.ActivationOut(src, dst, n.shape.numel, o.kind, o.alpha, o.beta)


@lowers(ops.Cast, widths="moves", exact=True)
def _cast(ctx: Lowering, n: Node, o: Any) -> Iterator[Thunk]:
    src, dst, size = ctx.flat(n.inputs[0]), ctx.flat(n.id), n.shape.numel
    a, b, was = src.storage, dst.storage, ctx.graph[n.inputs[0]].dtype
    if o.to is was or (a is b is o.to):  # nothing that the type can't hold
        yield Copy(src, dst, size)
    elif {a, o.to} == {DType.F32, DType.F16}:
        yield t.Cast(src, dst, size, a.text, o.to.text)
    else:
        yield t.CastHost(src, dst, size, was, o.to)
