"""Owns the checks that several ops make of an operand beside their first: its dims against those it must have."""

from __future__ import annotations

from collections.abc import Sequence

from planner_core.errors import GraphError
from planner_core.ir.shape import Dim, DimLike, Shape, dim

__all__ = ["dims_of", "rope_tables", "wanted"]


def wanted(op: str, name: str, x: Shape, dims: Sequence[DimLike], why: str) -> None:
    """Refuse operand ``name`` whose rank or known extents aren't ``dims``; ``why`` says where those come from."""
    want = tuple(dim(d) for d in dims)
    if x.rank != len(want) or any(a.clashes(b) for a, b in zip(x.dims, want, strict=True)):
        raise GraphError(f"{op} {name} {x}: wanted {dims_of(want)}, {why}")


def dims_of(dims: Sequence[Dim]) -> str:
    """``[2, S, 8]``."""
    return f"[{', '.join(map(str, dims))}]"


def rope_tables(op: str, x: Shape, half: int, cos: Shape, sin: Shape) -> None:
    """Refuse tables that don't turn the ``half`` pairs of each position of x ``[..,S,H·D]``.

    One row a position ``[S, half]`` (more rows where S is a symbol, which the largest S must fit), one row for all
    ``[1, half]``, or one a token ``[..,S, half]``; cos and sin alike.
    """
    where = x.dims[:-1] if x.rank > 1 else (dim(1),)
    for name, t in (("cos", cos), ("sin", sin)):
        token = t.rank == x.rank > 2 and not any(a.clashes(b) for a, b in zip(t.dims[:-1], where, strict=True))
        rows, seq = t.dims[0] if t.rank else dim(0), where[-1]
        longer = seq.symbol is not None and rows.value is not None and rows.value >= (seq.value or 0)
        position = t.rank == 2 and (rows.value == 1 or longer or not rows.clashes(seq))
        if not (token or position) or t.dims[-1].clashes(dim(half)):
            raise GraphError(f"{op} {name} {t}: wanted {dims_of((seq, dim(half)))} or [1, {half}]"
                             + (f", or one row a token {dims_of((*where, dim(half)))}" if x.rank > 2 else "")
                             + f", {half} pairs for x {x}")
    wanted(op, "sin", sin, cos.dims, f"as cos {cos}")
