"""Owns ``Value``: an ONNX tensor on its way into the graph, and what of it is known at import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import Array, DType, NodeId, Op, Shape, Source, ops

if TYPE_CHECKING:
    from planner_core.importers.onnx_build import Builder

__all__ = ["Value", "fold", "partial"]

INT_LIMIT = 1 << 20
"""Bytes up to which integer and bool results of known operands are computed at import."""
FLOAT_LIMIT = 1 << 16
"""The same for floats: small tables and scales are computed, weights stay operands of ops in the graph."""
READ_LIMIT = 1 << 24
_PARTIAL_ELEMENTS = 64


@dataclass(slots=True, eq=False)
class Value:
    """A tensor: its shape, its data where known, its node once it has one.

    ``recipe`` makes the node (op, operands, source) when ``Builder.place`` is called. ``partial`` is
    shape data with NaN where an extent is unknown. ``odd``: its element type (or sequence) has no DType. ``rankless``: its one unknown dim stands for dims of any number. ``owner`` is the builder whose graph has the node.
    """

    shape: Shape
    array: Array | None = None
    name: str = ""
    recipe: tuple[Op, tuple[Value, ...]] | None = None
    source: tuple[Source, ...] = ()
    partial: Array | None = None
    from_file: bool = False
    constant: bool = False
    odd: bool = False
    rankless: bool = False
    node: NodeId | None = None
    owner: Builder | None = field(default=None, repr=False)

    @classmethod
    def of(cls, array: Array, name: str = "") -> Value:
        array = np.asarray(array)
        return cls(Shape.of(array.shape, DType.of(array.dtype)), array=array, name=name)


def fold(op: Op, shape: Shape, ins: tuple[Value, ...]) -> Array | None:
    """The op's result when every operand is known and the result is small; else None."""
    arrays = [v.array for v in ins]
    if not shape.is_static or any(a is None for a in arrays):
        return None
    known = [a for a in arrays if a is not None]
    limit = FLOAT_LIMIT if shape.dtype.is_float else INT_LIMIT
    read = max((a.nbytes for a in known), default=0)
    if shape.nbytes > limit or read > (FLOAT_LIMIT if shape.dtype.is_float else READ_LIMIT):
        return None
    try:
        with np.errstate(all="ignore"):
            out = np.asarray(op.evaluate(*known))
    except (GraphError, ValueError, IndexError, TypeError, ArithmeticError):
        return None
    if out.shape != shape.sizes:
        return None
    return out.astype(shape.dtype.numpy, copy=False)


def partial(op: Op, shape: Shape, ins: tuple[Value, ...]) -> Array | None:
    """Shape data through an op that moves or adds integers, NaN for what nobody knows; else None."""
    if not (shape.dtype.is_int and shape.is_static and shape.numel <= _PARTIAL_ELEMENTS):
        return None
    if not any(v.partial is not None for v in ins):
        return None
    got: list[Array] = []
    for i, v in enumerate(ins):
        known = v.partial if v.partial is not None else v.array
        if known is None or (i == 1 and isinstance(op, ops.Gather) and v.array is None):
            return None
        got.append(known if i == 1 and isinstance(op, ops.Gather) else known.astype(np.float64))
    if isinstance(op, ops.Cast):
        return got[0]
    if isinstance(op, ops.Binary) and op.kind == "div":
        with np.errstate(all="ignore"):
            return np.trunc(got[0] / got[1])
    whole = isinstance(op, (ops.Gather, ops.Concat, ops.Reshape, ops.Slice, ops.Narrow))
    if not whole and not (isinstance(op, ops.Binary) and op.kind in ("add", "sub", "mul")):
        return None
    try:
        return np.asarray(op.evaluate(*got))
    except (GraphError, ValueError, IndexError):
        return None
