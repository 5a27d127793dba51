"""Owns handlers of ops that move, cut or re-shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_extents import quotient
from planner_core.importers.onnx_value import Value
from planner_core.ir import UNKNOWN, Dim, DimLike, Shape, broadcast_dims, dim, ops


def reshape(c: Call, x: Value, dims: Sequence[DimLike]) -> Value:
    made = tuple(dim(d) for d in dims)
    return x if made == x.shape.dims else c.emit(ops.Reshape(made), x)


def transpose(c: Call, x: Value, perm: Sequence[int]) -> Value:
    return x if list(perm) == list(range(x.shape.rank)) else c.emit(ops.Transpose(tuple(perm)), x)


def product(dims: Sequence[Dim]) -> Dim:
    if any(d.value is None for d in dims):
        return quotient(dims, ())
    return dim(math.prod(d.value or 0 for d in dims))


def axes_of(c: Call, since: int, index: int = 1, name: str = "axes") -> tuple[int, ...] | None:
    """Axes: an attribute before opset ``since``, operand ``index`` from then on."""
    return c.ints(name) if c.opset < since else c.known_ints(index, name)


@onnx_op("Reshape")
def reshape_op(c: Call) -> Value:
    x, want = c[0], c.extents(1, "target shape")
    keep = not c.attr("allowzero", 0)
    dims: list[Dim] = []
    for i, n in enumerate(want):
        if n == 0 and keep:
            dims.append(x.shape.dims[i])
        else:
            dims.append(n if isinstance(n, Dim) else UNKNOWN if n < 0 else dim(n))
    holes = [i for i, n in enumerate(want) if n in (UNKNOWN, -1)]
    others = [d.value for i, d in enumerate(dims) if i not in holes]
    if len(holes) == 1 and x.shape.is_static and all(v is not None for v in others):
        rest = math.prod(v for v in others if v is not None)
        if rest:
            dims[holes[0]] = dim(x.shape.numel // rest)
    elif len(holes) == 1:
        dims[holes[0]] = quotient(x.shape.dims, [d for i, d in enumerate(dims) if i not in holes])
    return reshape(c, x, dims)


@onnx_op("Flatten")
def flatten(c: Call) -> Value:
    x, axis = c[0], int(c.attr("axis", 1))
    axis = axis + x.shape.rank if axis < 0 else axis
    return reshape(c, x, (product(x.shape.dims[:axis]), product(x.shape.dims[axis:])))


@onnx_op("Squeeze")
def squeeze(c: Call) -> Value:
    x = c[0]
    axes = axes_of(c, 13)
    if axes is None:
        if not x.shape.is_static:
            raise Unsupported("it drops axes of extent 1, and some extents are unknown")
        drop = {i for i, d in enumerate(x.shape.dims) if d.value == 1}
    else:
        drop = {x.shape.axis(a) for a in axes}
    return reshape(c, x, [d for i, d in enumerate(x.shape.dims) if i not in drop])


@onnx_op("Unsqueeze")
def unsqueeze(c: Call) -> Value:
    x = c[0]
    axes = axes_of(c, 13) or ()
    rank = x.shape.rank + len(axes)
    new, rest = {a % rank for a in axes}, iter(x.shape.dims)
    return reshape(c, x, [dim(1) if i in new else next(rest) for i in range(rank)])


@onnx_op("Transpose")
def transpose_op(c: Call) -> Value:
    perm = c.ints("perm") or tuple(reversed(range(c[0].shape.rank)))
    return transpose(c, c[0], perm)


@onnx_op("Concat")
def concat(c: Call) -> Value:
    ins = [c[i] for i in range(len(c.ins))]
    return ins[0] if len(ins) == 1 else c.emit(ops.Concat(c.axis(ins[0], default=1)), *ins)


@onnx_op("Split")
def split(c: Call) -> list[Value]:
    """Sizes: an attribute before opset 13, then operand 1; from 18 ``num_outputs`` may stand in."""
    x, axis, parts = c[0], c.axis(c[0]), len(c.node.output)
    sizes = axes_of(c, 13, name="split")
    if not sizes:
        have = x.shape.dims[axis].value
        if have is None:
            raise Unsupported("it splits an axis of unknown extent evenly")
        chunk = -(-have // parts)
        sizes = tuple(max(0, min(chunk, have - i * chunk)) for i in range(parts))
    return [c.emit(ops.Narrow(axis, sum(sizes[:i]), n), x) if c.used(i) else x for i, n in enumerate(sizes)]


@onnx_op("Slice")
def slice_op(c: Call) -> Value:
    """Bounds are attributes before opset 10, operands after; clamped here as the spec says."""
    x = c[0]
    if c.opset < 10:
        starts, stops, axes, steps = c.ints("starts") or (), c.ints("ends") or (), c.ints("axes"), None
    else:
        starts, stops = c.known_ints(1, "starts") or (), c.known_ints(2, "ends") or ()
        axes, steps = c.known_ints(3, "axes"), c.known_ints(4, "steps")
    axes = tuple(x.shape.axis(a) for a in (axes if axes is not None else range(len(starts))))
    steps = steps or (1,) * len(starts)
    cut: list[tuple[int, int, int, int]] = []
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        n = x.shape.dims[axis].value
        if n is None:
            if start == 0 and step == 1 and stop >= 2**31 - 1:
                continue
            if start < 0 or stop < 0 or step < 0:
                raise Unsupported("it counts from the end of an axis of unknown extent")
        else:
            start, stop = (v + n if v < 0 else v for v in (start, stop))
            low, high = (0, n) if step > 0 else (-1, n - 1)
            start, stop = min(max(start, max(low, 0)), high if step < 0 else n), min(max(stop, low), n)
            if (start, stop, step) == (0, n, 1):
                continue
            if max(0, math.ceil((stop - start) / step)) == 0:
                start, stop, step = 0, 0, 1
        cut.append((axis, start, stop, step))
    if not cut:
        return x
    if len(cut) == 1 and cut[0][3] == 1 and x.shape.dims[cut[0][0]].value is not None:
        axis, start, stop, _ = cut[0]
        return c.emit(ops.Narrow(axis, start, stop - start), x)
    a, b, s, t = zip(*cut, strict=True)
    return c.emit(ops.Slice(a, b, s, t), x)


@onnx_op("Expand")
def expand(c: Call) -> Value:
    x, want = c[0], c.extents(1, "target shape")
    dims = tuple(dim(n) for n in want)
    still_open = any(d.value is None for d in dims) and not any(d.is_unknown for d in dims)
    if still_open and broadcast_dims(x.shape, Shape(dims)) == x.shape.dims:
        return x
    out = c.emit(ops.Expand(dims), x) if dims else x
    return x if out.shape.is_static and out.shape.dims == x.shape.dims and out.array is None and _drop(c, out) else out


def _drop(c: Call, v: Value) -> bool:
    if v in c.pending:
        c.pending.remove(v)
    return True


@onnx_op("Tile")
def tile(c: Call) -> Value:
    x = c[0]
    repeats = c.known_ints(1, "repeats") or ()
    if not x.shape.is_static and any(r != 1 and d.value is None for r, d in zip(repeats, x.shape.dims, strict=True)):
        raise Unsupported("it repeats an axis of unknown extent")
    if all(r == 1 for r in repeats):
        return x
    narrow = [d for r, d in zip(repeats, x.shape.dims, strict=True) if r != 1]
    out = [d if r == 1 else dim(r * (d.value or 0)) for r, d in zip(repeats, x.shape.dims, strict=True)]
    if all(d.value == 1 for d in narrow):
        return c.emit(ops.Expand(tuple(out)), x)
    inner: list[Dim] = []
    wide: list[Dim] = []
    for r, d in zip(repeats, x.shape.dims, strict=True):
        inner += [d] if r == 1 else [dim(1), d]
        wide += [d] if r == 1 else [dim(r), d]
    return reshape(c, c.emit(ops.Expand(tuple(wide)), reshape(c, x, inner)), out)


@onnx_op("Pad")
def pad(c: Call) -> Value:
    """Widths and value are attributes before opset 11, operands after; axes came with opset 18."""
    x, mode = c[0], str(c.attr("mode", "constant"))
    if mode not in ("constant", "edge", "reflect"):
        raise Unsupported(f"mode {mode}")
    value: float = 0.0
    axes: tuple[int, ...] | None = None
    if c.opset < 11:
        widths = c.ints("pads") or ()
        value = float(c.attr("value", 0.0))
    else:
        widths = c.known_ints(1, "widths") or ()
        fill = c.known(2, "fill value")
        value = 0.0 if fill is None or fill.size == 0 else fill.reshape(-1)[0].item()
        axes = c.known_ints(3, "axes") if c.opset >= 18 else None
    rank = x.shape.rank
    before, after = [0] * rank, [0] * rank
    where = [x.shape.axis(a) for a in axes] if axes is not None else list(range(rank))
    for i, a in enumerate(where):
        before[a], after[a] = widths[i], widths[i + len(where)]
    if not any(before) and not any(after):
        return x
    if min(*before, *after) < 0 and (mode != "constant" or not x.shape.is_static):
        raise Unsupported("negative widths")
    if mode == "constant" and isinstance(value, int) and float(value) != value:  # Pad's own is a float, of 53 bits
        padded = ops.Pad(tuple(before), tuple(after))
        inside = c.emit(padded, c.emit(ops.Expand(x.shape.dims), c.const(np.asarray(True))))
        return c.emit(ops.Where(), inside, c.emit(padded, x), c.const(np.asarray(value), x.shape.dtype))
    return c.emit(ops.Pad(tuple(before), tuple(after), mode, float(value) if mode == "constant" else 0.0), x)


@onnx_op("DepthToSpace")
def depth_to_space(c: Call) -> Value:
    n, ch, h, w = c[0].shape.dims
    b = int(c.attr("blocksize"))
    if str(c.attr("mode", "DCR")) == "DCR":
        x = reshape(c, c[0], (n, b, b, ch // (b * b), h, w))
        x = transpose(c, x, (0, 3, 4, 1, 5, 2))
    else:
        x = reshape(c, c[0], (n, ch // (b * b), b, b, h, w))
        x = transpose(c, x, (0, 1, 4, 2, 5, 3))
    return reshape(c, x, (n, ch // (b * b), h * b, w * b))


@onnx_op("SpaceToDepth")
def space_to_depth(c: Call) -> Value:
    n, ch, h, w = c[0].shape.dims
    b = int(c.attr("blocksize"))
    x = reshape(c, c[0], (n, ch, h // b, b, w // b, b))
    perm = (0, 3, 5, 1, 2, 4) if str(c.attr("mode", "DCR")) == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshape(c, transpose(c, x, perm), (n, ch * (b * b), h // b, w // b))
