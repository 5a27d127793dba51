"""Owns the row rules: whether an op keeps the rows of a bucket apart, as its declaration names (``@op(rows=...)``).

A rule gets the bucket axis of every node and answers None, or why rows see one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner_core.ir.graph import Graph, Node

__all__ = ["Rows", "along_axes", "along_last_axis", "along_one_axis", "anywhere", "attends", "gathers", "grouped", "images", "packed_attention", "product", "reduces_one_axis", "region", "rotates", "transposes", "aligned"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The bucket axis of every node that depends on the bucket. ``whole``: asked for a run over all rows, of which the last
    are padding: they may move and lie anywhere, but no other row may see them."""

    graph: Graph
    symbol: str
    axis: dict[int, int]
    whole: bool = False

    def from_right(self, node: int) -> int:
        """The axis counted from the last, which is 0."""
        return self.graph[node].shape.rank - 1 - self.axis[node]


def anywhere(rows: Rows, n: Node, o: Any) -> str | None:
    """The rows may lie anywhere: each element is only moved or read as it is."""
    return None


def aligned(rows: Rows, n: Node, o: Any) -> str | None:
    """Broadcasting: row i of the result reads row i of every operand that has rows."""
    at = rows.from_right(n.id)
    for i in n.inputs:
        s = rows.graph[i].shape
        if i in rows.axis:
            if rows.from_right(i) != at:
                return f"{rows.graph[i].label} has its rows on another axis"
        elif s.rank > at and s.sizes[s.rank - 1 - at] != 1 and not rows.whole:
            return f"{rows.graph[i].label} has an entry a row without saying so"
    return None


def region(rows: Rows, n: Node, o: Any) -> str | None:
    """A fused chain, element by element."""
    return "its prologue moves rows" if o.prologue else aligned(rows, n, o)


def along_last_axis(rows: Rows, n: Node, o: Any) -> str | None:
    """Allow mixing along the last axis alone."""
    if any(i in rows.axis and rows.from_right(i) == 0 for i in n.inputs):
        return "it mixes the rows"
    return aligned(rows, n, o)


def along_one_axis(rows: Rows, n: Node, o: Any) -> str | None:
    """Allow mixing along one axis alone."""
    if rows.graph[n.inputs[0]].shape.axis(o.axis) == rows.axis.get(n.inputs[0], rows.axis[n.id]):
        return "it works along the rows"
    return aligned(rows, n, o)


def reduces_one_axis(rows: Rows, n: Node, o: Any) -> str | None:
    """Allow reducing one axis that isn't the rows'."""
    return "it reduces the rows" if rows.graph[n.inputs[0]].shape.axis(o.axis) == rows.axis[n.inputs[0]] else None


def along_axes(rows: Rows, n: Node, o: Any) -> str | None:
    """Allow reducing or reversing axes that aren't the rows'."""
    x = rows.graph[n.inputs[0]].shape
    return "it works along the rows" if rows.axis[n.inputs[0]] in {x.axis(a) for a in o.axes} else None


def transposes(rows: Rows, n: Node, o: Any) -> str | None:
    """The rows keep their axis, or everything may move."""
    return None if rows.whole or o.perm[rows.axis[n.id]] == rows.axis[n.inputs[0]] else "it moves the rows"


def gathers(rows: Rows, n: Node, o: Any) -> str | None:
    """Rows are looked up, one by one."""
    table, indices = n.inputs
    if table in rows.axis or indices not in rows.axis or rows.graph[table].shape.axis(o.axis) != 0:
        return "it looks the rows up"
    return None


def product(rows: Rows, n: Node, o: Any) -> str | None:
    """A row of the result comes from that row of the left side."""
    left, *others = n.inputs
    if left not in rows.axis or any(i in rows.axis for i in others):
        return "its right side has the rows"
    transposed = bool(getattr(o, "trans_a", False))
    if rows.graph[left].shape.rank < 2 or rows.from_right(left) == (1 if transposed else 0):
        return "it sums over the rows"
    return "its left side is transposed" if transposed else None


def grouped(rows: Rows, n: Node, o: Any) -> str | None:
    """Each row goes to one expert."""
    x, w, expert = n.inputs
    return "its rows aren't tokens" if w in rows.axis or rows.axis.get(x) != 0 or rows.axis.get(expert) != 0 else None


def images(rows: Rows, n: Node, o: Any) -> str | None:
    """Rows are whole images."""
    x, *others = n.inputs
    kept = {i for i in others if i in rows.axis}
    residual = kept == {n.inputs[-1]} and len(n.inputs) > 3 and "residual?" in n.op.operands
    if kept and not residual:
        return "its weights have the rows"
    return None if rows.axis.get(x) == 0 and all(rows.axis[i] == 0 for i in kept) else "the rows aren't whole images"


def rotates(rows: Rows, n: Node, o: Any) -> str | None:
    """Rows are positions or batches, the pairs lie in the last axis."""
    x, *tables = n.inputs
    if x not in rows.axis or rows.from_right(x) == 0:
        return "its pairs lie along the rows"
    if rows.whole:
        return None
    if any(rows.graph[t].shape.rank != 2 for t in tables):
        return "its tables have a row a token"
    along = rows.from_right(x) == 1  # positions: the kernel reads the tables' first rows
    for t in tables:
        if t in rows.axis and not (along and rows.axis[t] == 0):
            return "its tables have other rows"
        if along and rows.graph[t].shape.sizes[0] < rows.graph[x].shape.sizes[-2]:
            return "its tables have one row for all"
    return None


def packed_attention(rows: Rows, n: Node, o: Any) -> str | None:
    """Queries see no row behind them, but through a causal mask."""
    qkv, *more = n.inputs
    tables, mask = o.split(tuple(more))
    seen = ("causal",) if rows.whole else ("causal", "none")
    if mask or rows.axis.get(qkv) != 1 or o.mask_kind not in seen:
        return "its mask has the rows" if mask else "its queries see the rows behind them"
    return None if rows.whole or all(rows.axis.get(t) == 0 for t in tables) else "its tables have rows of their own"


def attends(rows: Rows, n: Node, o: Any) -> str | None:
    """Queries see no row behind them, or rows are batches."""
    q, k, v, *mask = n.inputs
    at = 2 if o.layout == "bhsd" else 1
    if rows.axis.get(q) == 0 and rows.axis.get(k) == 0 and rows.axis.get(v) == 0 and not mask:
        return None  # rows are batches
    if mask or rows.axis.get(q) != at:
        return "its mask has the rows" if mask else "its keys have the rows, its queries have not"
    if k not in rows.axis and v not in rows.axis:
        return None if o.mask_kind == "none" else "its queries count from the end of the keys"
    seen = ("causal", "sliding_window") if rows.whole else ("causal", "sliding_window", "none")
    if rows.axis.get(k) != at or rows.axis.get(v) != at or o.mask_kind not in seen:
        return "its queries see the rows behind them"
    lengths = {rows.graph[i].shape.sizes[at] for i in (q, k, v)}
    return None if len(lengths) == 1 else "queries and keys differ in length"
