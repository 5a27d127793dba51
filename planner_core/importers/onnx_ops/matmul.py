"""Owns handlers of matrix products."""

from __future__ import annotations

from planner_core.importers.onnx_call import Call, Unsupported, onnx_op
from planner_core.importers.onnx_ops.structure import product, reshape, transpose
from planner_core.importers.onnx_value import Value
from planner_core.ir import DType, ops


@onnx_op("MatMul")
def matmul(c: Call) -> Value:
    return c.emit(ops.MatMul(), c[0], c[1])


@onnx_op("Gemm")
def gemm(c: Call) -> Value:
    """``alpha * a' b' + beta * c``; a weight that only such products read transposed is stored so. Halves with a factor are
    computed in f32."""
    a, b, bias = c[0], c[1], c.get(2)
    if c.attr("transA", 0):
        a = transpose(c, a, (1, 0))
    if c.attr("transB", 0):
        b = c.builder.model.transposed_weight(b) or transpose(c, b, (1, 0))
    alpha, beta, dtype = float(c.attr("alpha", 1.0)), float(c.attr("beta", 1.0)), a.shape.dtype
    if dtype.is_half and (alpha != 1.0 or (bias is not None and beta != 1.0)):  # rounded once, after the factors
        y = c.emit(ops.MatMul(), *(c.emit(ops.Cast(DType.F32), v) for v in (a, b)))
        wide = None if bias is None else c.emit(ops.Cast(DType.F32), bias)
        return c.emit(ops.Cast(dtype), _scaled(c, y, alpha, wide, beta))
    y = c.emit(ops.MatMul(), a, b)
    if dtype.is_int and not (_whole(alpha, dtype) and _whole(beta, dtype)):  # an integer has no half of itself
        wide = None if bias is None else c.emit(ops.Cast(DType.F64), bias)
        return c.emit(ops.Cast(dtype), _scaled(c, c.emit(ops.Cast(DType.F64), y), alpha, wide, beta))
    return _scaled(c, y, alpha, bias, beta)


def _whole(factor: float, dtype: DType) -> bool:
    """``dtype`` holds the factor."""
    return factor.is_integer() and (factor >= 0 or dtype.text[0] != "u")


def _scaled(c: Call, y: Value, alpha: float, bias: Value | None, beta: float) -> Value:
    """``alpha * y + beta * bias``."""
    if alpha != 1.0:
        y = c.emit(ops.Binary("mul"), y, c.like(y, alpha))
    if bias is None or beta == 0.0:
        return y
    if beta != 1.0:
        bias = c.emit(ops.Binary("mul"), bias, c.like(bias, beta))
    return c.emit(ops.Binary("add"), y, bias)


@onnx_op("Einsum")
def einsum(c: Call) -> Value:
    """One operand permuted or summed, or two as a batched matrix product."""
    equation = str(c.attr("equation", "")).replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(c.ins) or len(terms) > 2:
        raise Unsupported(f"equation {equation}")
    if any(len(set(t)) != len(t) for t in (*terms, out)) or any(
            len(t) != c[i].shape.rank for i, t in enumerate(terms)):
        raise Unsupported(f"equation {equation}")
    reduced = []
    for i, term in enumerate(terms):
        elsewhere = set(out).union(*(t for j, t in enumerate(terms) if j != i))
        drop = tuple(k for k, label in enumerate(term) if label not in elsewhere)
        x = c.emit(ops.Reduce("sum", drop), c[i]) if drop else c[i]
        reduced.append((x, "".join(label for label in term if label in elsewhere)))
    if len(reduced) == 1:
        x, term = reduced[0]
        return transpose(c, x, [term.index(label) for label in out])
    (x, a), (y, b) = reduced
    extent = {label: d for v, t in reduced for label, d in zip(t, v.shape.dims, strict=True)}
    batch = [label for label in a if label in b and label in out]
    inner = [label for label in a if label in b and label not in out]
    rows, cols = [label for label in a if label not in b], [label for label in b if label not in a]
    if any(x.shape.dims[a.index(k)] != y.shape.dims[b.index(k)] for k in batch + inner):
        raise Unsupported(f"equation {equation} broadcasts a label")
    x = transpose(c, x, [a.index(k) for k in batch + rows + inner])
    y = transpose(c, y, [b.index(k) for k in batch + inner + cols])
    lead = [extent[k] for k in batch]
    m, k, n = (product([extent[label] for label in g]) for g in (rows, inner, cols))
    z = c.emit(ops.MatMul(), reshape(c, x, (*lead, m, k)), reshape(c, y, (*lead, k, n)))
    z = reshape(c, z, [extent[label] for label in batch + rows + cols])
    return transpose(c, z, [(batch + rows + cols).index(label) for label in out])
