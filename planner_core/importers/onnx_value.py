"""Owns ``Value``: an ONNX tensor on its way into the graph, and what of it is known at import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import Array, DType, NodeId, Op, Shape, Source

if TYPE_CHECKING:
    from planner_core.importers.onnx_build import Builder

__all__ = ["Value", "fold"]

INT_LIMIT = 1 << 20
"""Bytes up to which integer and bool results of known operands are computed at import."""
FLOAT_LIMIT = 1 << 16
"""The same for floats: small tables and scales are computed, weights stay operands of ops in the graph."""
READ_LIMIT = 1 << 24


@dataclass(slots=True, eq=False)
class Value:
    """A tensor: its shape, its data where known, its node once it has one.

    ``recipe`` makes the node (op, operands, source) when ``Builder.place`` is called. ``partial`` is
    shape data known in part (``onnx_extents``). ``bound``: it hangs on a dim that the file leaves open, so that another
    binding gives other data. ``odd``: its element type (or sequence) has no DType. ``rankless``: its one unknown dim stands for dims of any number. ``owner`` is the builder whose graph has the node.
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
    bound: bool = False
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
