"""Owns weights shared between two plans: a forward plan's layout, mapped onto a backward plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from planner_core.errors import PlanError
from planner_core.ir import Graph, NodeId
from planner_core.memory.facts import DTYPES
from planner_core.memory.plan import WEIGHTS, MemoryPlan, Slot
from planner_core.memory.planner import place_views
from planner_core.memory.widths import MIN_GUARD

__all__ = ["SharedWeightLayout"]


@dataclass(frozen=True, slots=True)
class SharedWeightLayout:
    """Params' slots by name, sorted by name; ``size`` is the furthest end (guards counted). ``nodes``: each param's id in
    the forward graph, in the same order."""

    slots: tuple[tuple[str, Slot], ...]
    size: int
    nodes: tuple[NodeId, ...] = ()

    @classmethod
    def from_forward(cls, graph: Graph, plan: MemoryPlan) -> SharedWeightLayout:
        """The layout of a forward plan that allocates its params; ``PlanError`` where it doesn't."""
        slots = {}
        for p in graph.params:
            if p not in plan.assignments:
                raise PlanError(f"param {graph[p].name!r} has no slot in the forward plan; plan it with "
                                "allocate_params=True")
            slots[graph[p].name] = plan.assignments[p]
        ends = [s.end + s.guard for s in slots.values()]
        ids = {graph[p].name: p for p in graph.params}
        return cls(tuple(sorted(slots.items())), max(ends, default=0), tuple(ids[name] for name in sorted(ids)))

    def apply_to_plan(self, graph: Graph, plan: MemoryPlan) -> MemoryPlan:
        """A copy of ``plan`` with every param on the forward plan's bytes, in the region "weights" (so that
        weights and activations never share a number); views of params follow.

        ``PlanError`` where a name, a size or a type differs, or where the forward plan's alignment is too small for this one.
        """
        mine = dict(self.slots)
        names = [graph[p].name for p in graph.params]
        lost = [n for n in names if n not in mine]
        if lost:
            raise PlanError(f"params {lost} of {graph.name!r} are not in the forward plan; it has {sorted(mine)}, "
                            f"the backward graph {sorted(names)}")
        out = dataclasses.replace(
            plan, space=plan.space.copy(), offset=plan.offset.copy(), size=plan.size.copy(),
            guard=plan.guard.copy(), weights_size=self.size)
        guard = max(plan.options.alignment, MIN_GUARD)
        for p in graph.params:
            slot, want = mine[graph[p].name], int(plan.size[p])
            if slot.size != want and graph[p].shape.nbytes:  # an empty param takes one alignment in either plan
                raise PlanError(f"param {graph[p].name!r}: {slot.size} bytes in the forward plan, {want} in the "
                                f"backward graph ({graph[p].shape})")
            stored = DTYPES[int(plan.storage[p])]
            if slot.storage is not stored:
                raise PlanError(f"param {graph[p].name!r}: {slot.storage} in the forward plan, {stored} in the backward graph "
                                f"({graph[p].shape}); cast it there, or build both graphs with one type")
            if slot.offset % plan.options.alignment or slot.guard < guard:
                raise PlanError(f"param {graph[p].name!r}: at {slot.offset} with a guard of {slot.guard} in the forward plan, which "
                                f"doesn't fit alignment {plan.options.alignment} (guard {guard}); plan the forward graph with "
                                "that alignment, or the backward graph with the forward plan's")
            out.space[p], out.offset[p], out.guard[p] = WEIGHTS, slot.offset, slot.guard
        place_views(out)
        return out
