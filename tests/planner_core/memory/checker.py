"""A plan checker for the tests: quadratic, from the graph alone, sharing no code with ``verify_plan``.

It works out views, widths, sizes and what must be live when by itself, then compares every pair of buffers.
``checked(plan, graph)`` runs it beside ``verify_plan``; every test that makes a plan goes through that.
"""

from __future__ import annotations

import numpy as np

from planner_core.ir import DType, Graph
from planner_core.ir.ops.region import BINARY_STEP, step_name
from planner_core.memory import ArenaWidthPolicy, MemoryPlan, verify_plan

SPACES = ("arena", "weights", None)
STATIC_ANY = {"Cast", "Reshape", "Transpose", "Narrow", "Expand", "Concat", "Activation", "Binary", "Where", "Fma"}


def checked(plan: MemoryPlan, graph: Graph) -> MemoryPlan:
    """The plan, once both checkers found nothing wrong with it."""
    assert complaints(plan, graph) == []
    assert verify_plan(graph, plan) == []
    return plan


def complaints(plan: MemoryPlan, graph: Graph) -> list[str]:
    """Everything wrong with a plan, one line each."""
    nodes, n, o = graph.nodes, len(graph), plan.options
    bad: list[str] = []
    readers: list[list[tuple[int, int]]] = [[] for _ in nodes]
    for node in nodes:
        for k, i in enumerate(node.inputs):
            readers[i].append((node.id, k))

    # views: root and elements before, from the table of spec §1
    root, before = list(range(n)), [0] * n
    for node in nodes:
        name = node.op.name
        if name in ("Reshape", "KvAppend") or (name == "Narrow" and node.op.axis == 0) or (
                name == "Cast" and nodes[node.inputs[0]].dtype is node.dtype):
            parent = nodes[node.inputs[0]]
            skip = node.op.start * int(np.prod([d.value or 0 for d in parent.shape.dims[1:]])) if name == "Narrow" else 0
            root[node.id], before[node.id] = root[parent.id], before[parent.id] + skip

    folded = {i for i in range(n) if o.elide_bank_transposes and folds(graph, i, readers[i], o.elide_requires_small_m)}
    if folded != set(np.flatnonzero(plan.elided).tolist()):
        bad.append(f"elided {np.flatnonzero(plan.elided)}, wanted {sorted(folded)}")
    kept_native: set[int] = set()
    if o.width_policy.name.endswith("WIDENED"):
        touched = [i for m in nodes if m.op.name in ("Custom", "KvAppend") for i in (m.id, *m.inputs)]
        kept_native = {root[i] for i in touched}

    # what each buffer must hold and when it must be there
    static = [False] * n
    birth, death = list(range(n)), list(range(n))
    for node in nodes:
        name = node.op.name
        static[node.id] = name in ("Param", "Constant") or (
            name in STATIC_ANY and bool(node.inputs) and all(static[i] for i in node.inputs))
        if name == "Result":
            birth[node.id] = birth[node.inputs[0]]
    for i in range(n):
        if static[i] or nodes[i].op.name == "Input":
            birth[root[i]], death[root[i]] = 0, n
        if i in folded:
            continue
        reads = nodes[i].inputs
        for k in [nodes[k].inputs[0] if k in folded else k for k in reads]:
            death[root[k]] = max(death[root[k]], i)
        death[root[i]] = max(death[root[i]], i)
    for i in graph.outputs:
        death[root[i]] = n

    slots = []
    for i, node in enumerate(nodes):
        r, name = root[i], node.op.name
        kind = nodes[r].op.name
        boundary = kind in ("Input", "Param", "Constant")
        off = boundary and not {"Input": o.allocate_inputs, "Param": o.allocate_params,
                                "Constant": o.allocate_constants}[kind]
        if any(d.value is None for d in (*node.shape.dims, *nodes[r].shape.dims)) or off or r in folded:
            continue
        count = int(np.prod([d.value for d in node.shape.dims], dtype=np.int64))
        bits = bits_of(o.width_policy, nodes[r].dtype, kind == "Param" or r in kept_native)
        need = -(-count * bits // 8)
        if need == 0 and (r != i or not boundary):
            continue
        need = need or max(o.alignment, 1)
        where = SPACES[int(plan.space[i])]
        if where is None:
            bad.append(f"%{i} {name} has no slot")
            continue
        at, size, guard = int(plan.offset[i]), int(plan.size[i]), int(plan.guard[i])
        if size < need:
            bad.append(f"%{i} {name} has {size} bytes, needs {need}")
        if plan.root[i] != r:
            bad.append(f"%{i} {name} has root %{r}, not %{plan.root[i]}")
        if r != i:
            if where != SPACES[int(plan.space[r])] or at != plan.offset[r] + before[i] * bits // 8:
                bad.append(f"view %{i} {name} is not at its root %{r} + {before[i] * bits // 8}")
            if at + size > plan.offset[r] + plan.size[r] or at < plan.offset[r]:
                bad.append(f"view %{i} {name} reaches past its root %{r}")
            continue
        if at % o.alignment:
            bad.append(f"%{i} {name} is misaligned")
        if boundary and guard < max(o.alignment, 128):
            bad.append(f"%{i} {name} has no guard")
        if at < 0 or at + size + guard > (plan.arena_size if where == "arena" else plan.weights_size):
            bad.append(f"%{i} {name} lies outside {where}")
        if plan.birth[i] > birth[i] or plan.death[i] < death[i]:
            bad.append(f"%{i} {name} lives [{plan.birth[i]}, {plan.death[i]}], needed [{birth[i]}, {death[i]}]")
        slots.append((where, at, at + size + guard, int(plan.birth[i]), int(plan.death[i]), i))
    alias = {frozenset((a, b)) for a, b in plan.inplace if plan.death[a] == plan.birth[b] == b and hands_over(graph, root, a, b)}
    for a in slots:
        for b in slots:
            if (a[5] < b[5] and a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and a[3] <= b[4] and b[3] <= a[4]
                    and frozenset((a[5], b[5])) not in alias):
                bad.append(f"%{a[5]} and %{b[5]} overlap in {a[0]}")
    return bad


def hands_over(graph: Graph, root: list[int], old: int, new: int) -> bool:
    """Elementwise, and every operand that shows the old buffer shows all of it, one element an element."""
    n, numel = graph[new], graph[new].shape.numel
    plain = ("add", "sub", "mul", "div", "max", "min")
    simple = n.op.name == "Activation" or (n.op.name == "Binary" and n.op.kind in plain)
    if n.op.name == "ElementwiseRegion" and not n.op.prologue:
        simple = n.op.steps[-1][0] != BINARY_STEP or step_name(n.op.steps[-1]) in plain
    shown = [graph[i].shape.numel for i in n.inputs if root[i] == old]
    return simple and bool(shown) and {graph[old].shape.numel, *shown} == {numel}


def folds(graph: Graph, node: int, readers: list[tuple[int, int]], small: bool) -> bool:
    """Spec §2, both kinds."""
    t = graph[node]
    if t.op.name != "Transpose" or t.dtype is not DType.F32 or node in graph.outputs or not readers:
        return False
    if t.op.perm == (0, 2, 1):
        return all(graph[r].op.name == "GroupedMatMul" and k == 1 and graph[r].dtype is DType.F32
                   and (not small or rows(graph, r) <= 4) for r, k in readers)
    return not small and t.op.perm == (1, 0) and len(readers) == 1 and graph[readers[0][0]].op.name == "MatMul" and all(
        graph[i].shape.rank == 2 for i in graph[readers[0][0]].inputs)


def rows(graph: Graph, node: int) -> float:
    m = graph[node].shape.dims[0].value
    return float("inf") if m is None else m


def bits_of(policy: ArenaWidthPolicy, dtype: DType, native: bool) -> int:
    """Spec §5's table, bits an element."""
    wide = {"F32_UNIFORM": True, "NATIVE": False, "HYBRID": dtype not in (DType.F16, DType.BF16),
            "NATIVE_HALF_WIDENED": dtype in (DType.F16, DType.BF16),
            "NATIVE_BF16_WIDENED": dtype is DType.BF16}[policy.name]
    return max(32, dtype.bits) if wide and not native else dtype.bits
