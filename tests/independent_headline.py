"""The headline numbers of a graph once more, from the definitions, sharing no code with the planner.

Params stand apart; every other buffer starts at a multiple of 64; inputs and constants live throughout and
carry a 128-byte guard; first fit by size, ties in schedule order. Static packs live throughout.
"""

from __future__ import annotations

from math import prod

from planner_core.ir import Graph

STATIC = {"Cast", "Reshape", "Transpose", "Narrow", "Expand", "Concat", "Activation", "Binary", "Where", "Fma"}


def headline(graph: Graph, pinned: bool = False) -> dict[str, int]:
    """nodes, weights, naive, arena and bound in bytes, widths native (the four models hold no halves)."""
    nodes, last = graph.nodes, len(graph.nodes)
    size = [prod(n.shape.sizes) * n.shape.dtype.numpy.itemsize for n in nodes]
    root, static = list(range(last)), [False] * last
    for n in nodes:
        op, first = n.op.name, n.inputs[0] if n.inputs else -1
        if op == "Reshape" or (op == "Narrow" and n.op.axis == 0) or (op == "Cast" and nodes[first].dtype == n.dtype):
            root[n.id] = root[first]
        static[n.id] = op in ("Param", "Constant") or (
            op in STATIC and bool(n.inputs) and all(static[i] for i in n.inputs))
    birth, death = list(range(last)), list(range(last))
    for n in nodes:
        for i in n.inputs:
            death[root[i]] = max(death[root[i]], n.id)
        death[root[n.id]] = max(death[root[n.id]], n.id)
    keep, todo = set(), list(graph.outputs)
    while todo:
        i = todo.pop()
        if i not in keep:
            keep.add(i)
            todo += nodes[i].inputs if pinned else ()
    for i in keep:
        death[root[i]] = last
    for n in nodes:
        if n.op.name in ("Input", "Constant") or static[n.id]:
            birth[root[n.id]], death[root[n.id]] = 0, last
    weights = [n.id for n in nodes if n.op.name == "Param"]
    mine = [n.id for n in nodes if root[n.id] == n.id and n.op.name != "Param" and size[n.id]]
    guard = {i: 128 if nodes[i].op.name in ("Input", "Constant") else 0 for i in mine}
    mine.sort(key=lambda i: (-size[i], i))
    at: dict[int, int] = {}
    for i in mine:
        rivals = [(at[j], at[j] + size[j] + guard[j]) for j in at if birth[j] <= death[i] and birth[i] <= death[j]]
        ends = sorted({0, *(-(-e // 64) * 64 for _, e in rivals)})
        at[i] = next(c for c in ends if all(c + size[i] + guard[i] <= s or e <= c for s, e in rivals))
    spans = {i: -(-(size[i] + guard[i]) // 64) * 64 for i in mine}
    peak = max(sum(spans[i] for i in mine if birth[i] <= t <= death[i]) for t in range(last + 1))
    naive = sum(spans[i] for i in mine) - (spans[mine[-1]] - size[mine[-1]] - guard[mine[-1]])
    arena = max(at[i] + size[i] + guard[i] for i in mine)
    return {"nodes": last, "weights": sum(size[i] for i in weights), "naive": naive, "arena": arena, "peak": peak}
