"""Owns spec §2: transposes that the matmul reading them folds away. Fusion, planner and lowering all ask here."""

from __future__ import annotations

from planner_core.ir import DType, Graph, Node, NodeId
from planner_core.ir.ops import GroupedMatMul, MatMul, Transpose
from planner_core.ir.overwrites import spoiled_by_appends

__all__ = ["SMALL_M_GROUPED", "folded_transposes", "is_elidable_bank_transpose", "is_elidable_folded_transpose",
           "is_elidable_matmul_transpose"]

SMALL_M_GROUPED = 4
"""Most rows for which a grouped matmul counts as small."""


def _is_f32(n: Node) -> bool:
    return n.shape.dtype is DType.F32


def _transpose(graph: Graph, node: NodeId, perm: tuple[int, ...]) -> bool:
    n = graph[node]
    return (isinstance(n.op, Transpose) and tuple(n.op.perm) == perm and _is_f32(n)
            and node not in graph.outputs)


def is_elidable_bank_transpose(graph: Graph, node: NodeId, require_small_m: bool = False) -> bool:
    """A rank-3 f32 transpose (0,2,1) read at least once, and only as operand 1 of f32 ``GroupedMatMul``s;
    with ``require_small_m`` each of at most ``SMALL_M_GROUPED`` rows (an underivable m is not small)."""
    if not _transpose(graph, node, (0, 2, 1)):
        return False
    reads = graph.uses.of(node)
    for reader, operand in reads:
        r = graph[reader]
        if not isinstance(r.op, GroupedMatMul) or operand != 1 or not _is_f32(r):
            return False
        m = r.shape.dims[0].value
        if require_small_m and (m is None or m > SMALL_M_GROUPED):
            return False
    return bool(reads)


def is_elidable_matmul_transpose(graph: Graph, node: NodeId) -> bool:
    """A rank-2 transpose (1,0) read exactly once, by a rank-2 × rank-2 f32 ``MatMul``."""
    if not _transpose(graph, node, (1, 0)):
        return False
    reads = graph.uses.of(node)
    if len(reads) != 1:
        return False
    r = graph[reads[0][0]]
    return isinstance(r.op, MatMul) and _is_f32(r) and all(graph[i].shape.rank == 2 for i in r.inputs)


def is_elidable_folded_transpose(graph: Graph, node: NodeId, require_small_m: bool = False) -> bool:
    """Either kind; the 2-D one counts only without ``require_small_m``."""
    return is_elidable_bank_transpose(graph, node, require_small_m) or (
        not require_small_m and is_elidable_matmul_transpose(graph, node)
    )


def folded_transposes(graph: Graph, require_small_m: bool = False) -> list[NodeId]:
    """Every transpose of a graph that is elidable, in order, but those whose source an append overwrites before the product
    reads it (``overwrites.py``): they are made while the old rows are there."""
    found = [i for i in graph.of(Transpose) if is_elidable_folded_transpose(graph, i, require_small_m)]
    spoiled = spoiled_by_appends(graph, found)
    return [i for i in found if i not in spoiled]
