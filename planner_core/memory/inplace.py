"""Owns in-place reuse: which elementwise outputs may take the bytes of an input that dies there."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Graph, NodeId
from planner_core.memory.facts import I64, NOT_BOUNDARY, GraphFacts, Mask, facts_of

__all__ = ["handed_over", "may_take", "merge", "takeovers"]



def may_take(graph: Graph, f: GraphFacts, old: NodeId, new: NodeId) -> bool:
    """By its op and shapes alone: ``new`` reads all of the buffer ``old``, element k only for its own element k.

    An operand that shows only part of the buffer, or is broadcast, would be read after it was overwritten: of a fused
    region, too, every operand that shows the buffer must show it element by element.
    """
    n = graph[new]
    if not n.op.by_element:
        return False
    reads = [i for i in n.inputs if f.root[i] == old]
    whole = f.elements[new]
    return bool(reads and f.root[new] == new and whole > 0 and f.boundary[old] == NOT_BOUNDARY
                and f.elements[old] == whole and all(f.elements[i] == whole for i in reads))


def takeovers(graph: Graph, owns: Mask, elided: Mask, birth: I64, death: I64, size: I64, guard: I64,
              storage: I64) -> tuple[tuple[NodeId, NodeId], ...]:
    """``(old, new)`` pairs, in schedule order: ``old`` dies where ``new`` is born, and hands over its bytes.
    Of several inputs that could, the first does."""
    f = facts_of(graph)
    out = []
    for n in graph.nodes:
        e = n.id
        if not n.op.by_element or not owns[e] or birth[e] != e or guard[e]:
            continue
        for i in n.inputs:
            r = int(f.root[i])
            if (owns[r] and death[r] == e and birth[r] < e and not guard[r] and size[r] == size[e]
                    and storage[r] == storage[e] and not any(elided[k] for k in n.inputs) and may_take(graph, f, r, e)):
                out.append((r, e))
                break
    return tuple(out)


def merge(pairs: tuple[tuple[NodeId, NodeId], ...], death: I64) -> tuple[I64, I64]:
    """``(head, end)``: the first buffer of each chain of hand-overs, and the last step of its bytes at a head."""
    head, end = np.arange(len(death), dtype=np.int64), death.copy()
    for old, new in pairs:
        head[new] = head[old]
        end[head[old]] = max(end[head[old]], death[new])
    return head, end


def handed_over(pairs: tuple[tuple[NodeId, NodeId], ...], death: I64) -> I64:
    """Deaths with every handed-over buffer's one step earlier: its bytes are the new buffer's at that step."""
    if not pairs:
        return death
    out = death.copy()
    out[[old for old, _ in pairs]] -= 1
    return out
