"""Owns handlers of constants and of the shape arithmetic that disappears at import."""

from __future__ import annotations

import numpy as np

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_extents import difference, dims_of
from planner_core.importers.onnx_value import Value
from planner_core.ir import Dim, DType, Shape, dim, ops

_RANGE_BYTES = 1 << 22
_TABLE_BYTES = 1 << 24


@onnx_op("Constant")
def constant(c: Call) -> Value:
    """A weight when it has several elements, a ``Constant`` otherwise."""
    model, name = c.builder.model, c.node.output[0]
    for a in c.node.attribute:
        if a.name == "value":
            value = model.tensor_value(a.t, name, "Constant")
        elif a.name == "sparse_value":
            dense = model.file.tensors.sparse(a.sparse_tensor)
            if dense is None:
                raise Unsupported("sparse data of a type without a DType")
            value = Value.of(dense, name)
        elif a.name in ("value_float", "value_floats"):
            value = Value.of(np.asarray(c.attr(a.name), np.float32), name)
        elif a.name in ("value_int", "value_ints"):
            value = Value.of(np.asarray(c.attr(a.name), np.int64), name)
        else:
            raise Unsupported("a string constant")
        value.from_file, value.constant, value.source = True, True, (c.source,)
        return value
    raise Unsupported("a constant without a value")


@onnx_op("Shape")
def shape(c: Call) -> Value:
    dims = c[0].shape.dims
    rank = len(dims)
    start, end = int(c.attr("start", 0)), c.attr("end")
    stop = rank if end is None else int(end)
    start, stop = (min(max(v + rank if v < 0 else v, 0), rank) for v in (start, stop))
    picked = dims[start:max(start, stop)]
    if all(d.value is not None for d in picked):
        return c.derived(np.asarray([d.value for d in picked], np.int64))
    known = dims_of(picked)
    out = Shape((Dim(len(picked)),), DType.I64)
    return c.lazy(ops.Custom("onnx.Shape", out, 1, 1, f'{{"start": {start}, "end": {stop}}}'), known, c[0])


@onnx_op("Size")
def size(c: Call) -> Value:
    if not c[0].shape.is_static:
        raise Unsupported("its operand has unknown extents")
    return c.derived(np.asarray(c[0].shape.numel, np.int64))


@onnx_op("ConstantOfShape")
def constant_of_shape(c: Call) -> Value:
    fill = next((c.builder.model.file.tensors.array(a.t) for a in c.node.attribute if a.name == "value"),
                np.zeros(1, np.float32))
    if fill is None:
        raise Unsupported("a fill value of a type without a DType")
    dims = tuple(dim(n) for n in c.extents(0, "shape"))
    scalar = c.derived(fill.reshape(()))
    return c.emit(ops.Expand(dims), scalar) if dims else scalar


@onnx_op("Range")
def arange(c: Call) -> Value:
    if any(c[i].array is None and c[i].partial is not None for i in range(3)):
        return _open_range(c)
    parts = [c.known(i, what) for i, what in enumerate(("start", "limit", "step"))]
    start, limit, step = (p.reshape(-1)[0] for p in parts if p is not None)
    dtype = c[0].shape.dtype
    if not step:
        raise Unsupported("its step is 0")
    if dtype.is_int:  # a float has 53 bits of an i64
        count = max(0, -((int(start) - int(limit)) // int(step)))
    else:
        count = max(0, int(np.ceil((float(limit) - float(start)) / float(step))))
    if dtype.nbytes(count) > _RANGE_BYTES:
        raise Unsupported(f"{count} elements, too many to write out")
    return c.derived((np.arange(count) * step + start).astype(dtype.numpy))


def _open_range(c: Call) -> Value:
    """Ones summed up as far as the open extent goes."""
    (start,), (limit,), (step,) = (c.extents(i, what) for i, what in enumerate(("start", "limit", "step")))
    count = difference(limit, start)
    if step != 1 or not isinstance(count, Dim) or count.is_unknown:
        raise Unsupported(f"from {start} to {limit} by {step} is no count of steps of 1")
    made = _counted(c, count, c[0].shape.dtype)
    return made if start == 0 else c.emit(ops.Binary("add"), made, c[0])


def _counted(c: Call, count: Dim, dtype: DType) -> Value:
    """0, 1, … up to an extent that may be open."""
    return c.emit(ops.Cumsum(exclusive=True), c.emit(ops.Expand((count,)), c.const(np.asarray(1), dtype)))


@onnx_op("EyeLike")
def eye_like(c: Call) -> Value:
    from planner_core.importers.onnx_tensors import dtype_of

    rows, cols = c[0].shape.sizes
    to = c.attr("dtype")
    dtype = c[0].shape.dtype if to is None else dtype_of(int(to))[0]
    return c.derived(np.eye(rows, cols, int(c.attr("k", 0))), dtype)


@onnx_op("Trilu")
def trilu(c: Call) -> Value:
    """Known data is cut now; otherwise a bool table of the last two axes selects."""
    x, k = c[0], c.known_ints(1, "diagonal")
    offset, upper = (k[0] if k else 0), bool(c.attr("upper", 1))
    if not Shape(x.shape.dims[-2:]).is_static:
        high, wide = x.shape.dims[-2:]
        row = c.emit(ops.Binary("add"), _counted(c, high, DType.I64), c.const(np.asarray(offset)))
        row = c.emit(ops.Reshape((high, dim(1))), row)
        keep = c.emit(ops.Compare("ge" if upper else "le"), _counted(c, wide, DType.I64), row)
        return c.emit(ops.Where(), keep, x, c.like(x, 0))
    rows, cols = Shape(x.shape.dims[-2:]).sizes
    if rows * cols > _TABLE_BYTES:
        raise Unsupported(f"a table of {rows} × {cols} is too large to write out")
    if x.array is not None and x.array.nbytes <= _TABLE_BYTES:
        return c.derived(np.triu(x.array, offset) if upper else np.tril(x.array, offset))
    full = np.ones((rows, cols), np.bool_)
    keep = c.derived(np.triu(full, offset) if upper else np.tril(full, offset))
    return c.emit(ops.Where(), keep, x, c.like(x, 0))


@onnx_op("OneHot")
def one_hot(c: Call) -> Value:
    """``where(index == 0…depth-1, on, off)``; negative indices count from the end."""
    depth = c.known_ints(1, "depth")
    idx, values = c[0], c[2]
    if depth is None:
        raise Unsupported("its depth is missing")
    rank = idx.shape.rank + 1
    axis = int(c.attr("axis", -1)) % rank
    if idx.shape.dtype.is_float:
        raise Unsupported("float indices")
    below = c.emit(ops.Compare("lt"), idx, c.like(idx, 0))
    idx = c.emit(ops.Where(), below, c.emit(ops.Binary("add"), idx, c.like(idx, depth[0])), idx)
    wide = c.emit(ops.Reshape((*idx.shape.dims[:axis], dim(1), *idx.shape.dims[axis:])), idx)
    table = c.derived(np.arange(depth[0]).reshape([-1 if i == axis else 1 for i in range(rank)]), idx.shape.dtype)
    off, on = (c.emit(ops.Reshape(()), c.emit(ops.Narrow(0, i, 1), values)) for i in (0, 1))
    return c.emit(ops.Where(), c.emit(ops.Compare("eq"), wide, table), on, off)

