"""Owns ``diff_plans``: what moved, grew, shrank, lives longer or shorter, and what explains it."""

from __future__ import annotations

from dataclasses import dataclass

from planner_core.errors import PlanError
from planner_core.ir import Graph, NodeId
from planner_core.memory.options import PlanOptions
from planner_core.memory.plan import MemoryPlan, Slot
from planner_core.options import options_of
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text

__all__ = ["PlanDiff", "TensorChange", "diff_plans", "match_nodes"]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor in both plans. ``kinds`` out of moved, grew, shrank, longer, shorter, gained, lost."""

    a: NodeId
    b: NodeId
    label: str
    kinds: tuple[str, ...]
    old: Slot | None
    new: Slot | None
    old_range: tuple[int, int]
    new_range: tuple[int, int]
    causes: tuple[str, ...]
    """Rules that extend it in one plan only, and options that differ, as ``name: old -> new``."""


@dataclass(frozen=True, slots=True, repr=False)
class PlanDiff(Shown):
    changes: tuple[TensorChange, ...]
    only_a: tuple[NodeId, ...]
    only_b: tuple[NodeId, ...]
    options: tuple[tuple[str, object, object], ...]
    arena_delta: int

    def _facts(self) -> Facts:
        return ("PlanDiff", (("changed tensors", len(self.changes)), ("only in a", len(self.only_a)), ("only in b", len(self.only_b)),
                             ("options", len(self.options)), ("arena", f"{'-' if self.arena_delta < 0 else '+'}{bytes_text(abs(self.arena_delta))}")),
                "diff.changes lists them")



def _hashes(graph: Graph) -> list[int]:
    """Structural hash a node: its op and its operands' hashes."""
    out: list[int] = []
    for n in graph.nodes:
        bodies = tuple(b.content_hash for b in n.op.bodies())
        out.append(hash((n.op.name if bodies else n.op, bodies, n.shape, tuple(out[i] for i in n.inputs))))
    return out


def match_nodes(a: Graph, b: Graph) -> dict[NodeId, NodeId]:
    """Nodes of ``a`` to nodes of ``b``: by unique name, then by source, then by structural hash."""
    if a is b:
        return {i: i for i in range(len(a))}
    out: dict[NodeId, NodeId] = {}
    taken: set[NodeId] = set()
    keys = (
        ([n.name or None for n in a.nodes], [n.name or None for n in b.nodes]),
        ([n.source or None for n in a.nodes], [n.source or None for n in b.nodes]),
        (_hashes(a), _hashes(b)),
    )
    for ka, kb in keys:
        places: dict[object, list[NodeId]] = {}
        for j, key in enumerate(kb):
            if key is not None and j not in taken:
                places.setdefault((key, b[j].op.name), []).append(j)
        for i, key in enumerate(ka):
            free = places.get((key, a[i].op.name)) if key is not None and i not in out else None
            if free:
                out[i] = free.pop(0)
                taken.add(out[i])
    return out


def diff_plans(a: MemoryPlan, b: MemoryPlan) -> PlanDiff:
    """Compare two plans with their graphs (the same graph, or two matched as in ``match_nodes``)."""
    if a.graph is None or b.graph is None:
        raise PlanError("diff_plans needs both plans' graphs; load them with MemoryPlan.from_json(text, graph=…)")
    pairs = match_nodes(a.graph, b.graph)
    options = tuple((o.name, getattr(a.options, o.name), getattr(b.options, o.name)) for o in options_of(PlanOptions)
                    if getattr(a.options, o.name) != getattr(b.options, o.name))
    named = tuple(f"{n}: {getattr(x, 'value', x)} -> {getattr(y, 'value', y)}" for n, x, y in options)
    changes = []
    for i, j in pairs.items():
        old, new = a.assignments.get(i), b.assignments.get(j)
        ra, rb = (int(a.birth[i]), int(a.death[i])), (int(b.birth[j]), int(b.death[j]))
        kinds = []
        if old is not None and new is not None:
            if (old.space, old.offset) != (new.space, new.offset):
                kinds.append("moved")
            if new.size != old.size:
                kinds.append("grew" if new.size > old.size else "shrank")
        elif old is not new:
            kinds.append("gained" if old is None else "lost")
        if rb[1] - rb[0] != ra[1] - ra[0]:
            kinds.append("longer" if rb[1] - rb[0] > ra[1] - ra[0] else "shorter")
        if kinds:
            ea, eb = ({e.rule for e in p.extensions_of(k)} for p, k in ((a, i), (b, j)))
            rules = tuple(f"rule {r}" for r in sorted(ea ^ eb))
            changes.append(TensorChange(i, j, a.graph[i].label, tuple(kinds), old, new, ra, rb, rules + named))
    return PlanDiff(tuple(changes), tuple(i for i in range(len(a.graph)) if i not in pairs),
                    tuple(j for j in range(len(b.graph)) if j not in set(pairs.values())), options,
                    b.arena_size - a.arena_size)
