"""Owns ``MemoryPlan``: the result as columns, its report, its JSON; explanations are in ``explain.py``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.derived import Derived
from planner_core.errors import PlanError
from planner_core.ir import DType, Graph, NodeId
from planner_core.memory.facts import DTYPES, I64, Mask
from planner_core.memory.liveness import Extension, ExtensionTable
from planner_core.memory.options import PlanOptions
from planner_core.memory.problem import Problem
from planner_core.options import coerce_option, options_of
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text

if TYPE_CHECKING:
    from planner_core.memory.explain import AliveReason, HereReason, Peak, Saving

__all__ = ["ARENA", "NO_SLOT", "SPACES", "WEIGHTS", "MemoryPlan", "Slot"]

ARENA, WEIGHTS, NO_SLOT = 0, 1, 2
SPACES = ("arena", "weights", "none")


@dataclass(frozen=True, slots=True)
class Slot:
    """Bytes of one node: ``[offset, offset + size)`` of a region, then ``guard`` bytes nobody may use.

    ``storage`` is the element type as stored, which may be wider than the node's.
    """

    space: str
    offset: int
    size: int
    guard: int
    storage: DType

    @property
    def end(self) -> int:
        """First byte after the data."""
        return self.offset + self.size


class Assignments(Mapping[NodeId, Slot]):
    """Node -> slot, made from the plan's columns on demand."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._plan = plan

    def __getitem__(self, node: NodeId) -> Slot:
        p = self._plan
        if not 0 <= node < len(p.space) or p.space[node] == NO_SLOT:
            raise KeyError(node)
        return Slot(SPACES[p.space[node]], int(p.offset[node]), int(p.size[node]), int(p.guard[node]),
                    DTYPES[int(p.storage[node])])

    def __iter__(self) -> Iterator[NodeId]:
        return iter(np.flatnonzero(self._plan.space != NO_SLOT).tolist())

    def __len__(self) -> int:
        return int((self._plan.space != NO_SLOT).sum())


@dataclass(eq=False, slots=True, repr=False)
class MemoryPlan(Derived, Shown):
    """Where every tensor of a graph lives, when, and why. One array entry a node; steps are node ids.

    ``arena_size`` and ``weights_size`` include the last guard; ``scratch_size`` is the largest arena of a
    control-flow body. ``lower_bound`` is the arena's (guards and alignment counted).
    """

    options: PlanOptions
    birth: I64
    death: I64
    last_read: I64
    root: I64
    view_offset: I64
    """Bytes from the root's first byte, at the root's stored width."""
    space: Any
    offset: I64
    size: I64
    guard: I64
    storage: I64
    elided: Mask
    unknown: Mask
    """Nodes whose size nobody knows before the run: they have no slot."""
    extensions: ExtensionTable
    arena_size: int
    weights_size: int
    scratch_size: int
    lower_bound: int
    bound_step: int
    safety_moves: tuple[NodeId, ...] = ()
    no_reuse: bool = False
    """Nothing is reused: by option, or because a rule demands it."""
    inplace: tuple[tuple[NodeId, NodeId], ...] = ()
    graph: Graph | None = field(default=None, repr=False)
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read_only(self) -> MemoryPlan:
        """This plan with columns that can't be written any more: what a planner or a loader does last."""
        for f in fields(self):
            column = getattr(self, f.name, None)
            if isinstance(column, np.ndarray):
                column.flags.writeable = False
        return self

    def _facts(self) -> Facts:
        name = f" of {self.graph.name!r}" if self.graph is not None else ""
        return (f"MemoryPlan{name}", (
            ("tensors", f"{len(self.birth):,}"), ("arena", bytes_text(self.arena_size)), ("weights", bytes_text(self.weights_size)),
            ("scratch", bytes_text(self.scratch_size)), ("optimal", self.optimal)), "plan.to_frame() lists the tensors")

    @property
    def assignments(self) -> Mapping[NodeId, Slot]:
        """Node -> ``Slot``, views included."""
        return Assignments(self)

    @property
    def schedule(self) -> range:
        """Nodes in execution order: their own."""
        return range(len(self.birth))

    @property
    def roots(self) -> I64:
        """Alias of ``root``."""
        return self.root

    @property
    def last_step(self) -> int:
        return len(self.birth)

    @property
    def total_size(self) -> int:
        """Arena, weights and scratch together."""
        return self.arena_size + self.weights_size + self.scratch_size

    @property
    def is_optimal(self) -> bool:
        """The arena is as small as its lower bound: certified optimal for these live ranges. Never said of a
        plan with tensors of unknown size."""
        return self.arena_size == self.lower_bound and not bool(self.unknown.any())

    @property
    def optimal(self) -> str:
        """``yes``, ``gap ≤ 1.2%`` above the bound, or ``unknown`` with tensors of unknown size."""
        from planner_core.memory.bounds import gap_text

        return "unknown" if bool(self.unknown.any()) else gap_text(self.arena_size, self.lower_bound, self.is_optimal)

    @property
    def total_unshared_bytes(self) -> int:
        """Sum of all arena slots, views included, guards not."""
        return sum(self.size[self.space == ARENA].tolist())  # views of a huge tensor can pass 64 bits together

    @property
    def bytes_saved(self) -> int:
        """``max(0, total_unshared_bytes - arena_size)``."""
        return max(0, self.total_unshared_bytes - self.arena_size)

    def buffers(self, space: int = ARENA) -> I64:
        """Nodes that own bytes in a region (views left out)."""
        own = (self.space == space) & (self.root == np.arange(len(self.root)))
        return np.flatnonzero(own)

    def problem(self, space: int = ARENA) -> Problem:
        """The placement problem of a region: its buffers in node order, those that share bytes in place as one."""
        lives = self.slot_lives(space)
        ids, death = (np.asarray([row[k] for row in lives], dtype=np.int64) for k in (0, 1))
        return Problem.of(self.birth[ids], death, self.size[ids], alignment=self.options.alignment,
                          guard=self.guard[ids])

    def slot_lives(self, space: int = ARENA) -> list[tuple[NodeId, int]]:
        """``(node, last step)`` of each run of bytes with one owner at a time: buffers, those that hand their bytes
        over in place as one, under the first one's id, to the last one's death."""
        from planner_core.memory.inplace import merge

        head, end = merge(self.inplace, self.death)
        ids = self.buffers(space)
        return [(i, int(end[i])) for i in ids[head[ids] == ids].tolist()]

    def extensions_of(self, node: NodeId) -> list[Extension]:
        """What rules did to one node's range, in rule order."""
        from planner_core.memory.rules import RULES

        e = self.extensions
        return [Extension(node, RULES[int(e.rule[k])].name, int(e.cause[k]), int(e.old[k]), int(e.new[k]), bool(e.birth[k]))
                for k in np.flatnonzero(e.node == node).tolist()]

    # --- explanations (explain.py) ----------------------------------------------------------------

    def _node(self, node: NodeId | str) -> NodeId:
        if isinstance(node, str):
            if self.graph is None:
                raise PlanError("names need the plan's graph; load it with MemoryPlan.from_json(text, graph=…)")
            return self.graph.find(node).id
        if not 0 <= node < len(self.birth):
            raise PlanError(f"node {node} is not in this plan; wanted 0 to {len(self.birth) - 1}, or a name")
        return node

    def why_alive(self, node: NodeId | str) -> list[AliveReason]:
        """Every reason for the ends of the live range of a node (id or name)."""
        from planner_core.memory.explain import why_alive

        return why_alive(self, self._node(node))

    def why_here(self, node: NodeId | str) -> list[HereReason]:
        """The earlier-placed, simultaneously live buffers that kept a slot from lower offsets."""
        from planner_core.memory.explain import why_here

        return why_here(self, self._node(node))

    def peak(self) -> Peak:
        """The step with most live bytes, and every tensor live there, largest first."""
        from planner_core.memory.explain import peak

        return self.derived(peak)

    def savings(self) -> list[Saving]:
        """From "every tensor its own bytes" to this plan, step by step, in signed bytes."""
        from planner_core.memory.explain import savings

        return self.derived(savings)

    def to_frame(self) -> Any:
        """One row a node: names, live range in nodes, slot in bytes, what keeps it (``planner_core.frames.plan_frame``)."""
        from planner_core.frames import plan_frame

        return plan_frame(self)

    # --- forms ------------------------------------------------------------------------------------

    def report(self) -> str:
        """Spec §9's text: a header, then one ``offset\\tsize\\t%node`` row a slot; weights after the arena."""
        lines = [f"# arena_size={self.arena_size} total_unshared={self.total_unshared_bytes} saved={self.bytes_saved}",
                 "# offset\tsize\tnode"]
        for space in (ARENA, WEIGHTS):
            ids = np.flatnonzero(self.space == space)
            if space == WEIGHTS and (self.weights_size or len(ids)):
                lines += [f"# weights_size={self.weights_size}"]
            order = ids[np.lexsort((ids, self.size[ids], self.offset[ids]))]
            lines += [f"{self.offset[i]}\t{self.size[i]}\t%{i}" for i in order.tolist()]
        return "\n".join([*lines, ""])

    _COLUMNS = ("birth", "death", "last_read", "root", "view_offset", "space", "offset", "size", "guard",
                "storage", "elided", "unknown")
    _SCALARS = ("arena_size", "weights_size", "scratch_size", "lower_bound", "bound_step", "no_reuse")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryPlan):
            return NotImplemented
        return (
            self.options == other.options
            and all(getattr(self, s) == getattr(other, s) for s in (*self._SCALARS, "safety_moves", "inplace"))
            and all(np.array_equal(getattr(self, c), getattr(other, c)) for c in self._COLUMNS)
            and all(np.array_equal(getattr(self.extensions, f.name), getattr(other.extensions, f.name))
                    for f in dataclasses.fields(ExtensionTable))
        )

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> str:
        """Everything but the graph, as JSON text."""
        value: dict[str, Any] = {"format": "rlx-plan", "version": 1}
        value["options"] = {o.name: _plain(getattr(self.options, o.name)) for o in options_of(PlanOptions)}
        value["env"] = [list(e) for e in self.options.env]
        value |= {s: getattr(self, s) for s in self._SCALARS}
        value["safety_moves"], value["inplace"] = list(self.safety_moves), [list(p) for p in self.inplace]
        value["columns"] = {c: getattr(self, c).tolist() for c in self._COLUMNS}
        value["extensions"] = {f.name: getattr(self.extensions, f.name).tolist()
                               for f in dataclasses.fields(ExtensionTable)}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, graph: Graph | None = None) -> MemoryPlan:
        """Inverse of ``to_json``; ``graph`` is needed again for names and ``savings``."""
        try:
            value = json.loads(text)
            if value["format"] != "rlx-plan" or value["version"] != 1:
                raise PlanError(f"not a plan of this version: {value['format']!r} {value['version']!r}")
            options = PlanOptions(
                **{k: coerce_option(PlanOptions, k, v) for k, v in value["options"].items()},
                env=tuple((a, b) for a, b in value["env"]))
            columns: dict[str, Any] = {c: np.asarray(value["columns"][c], dtype=bool if c in ("elided", "unknown") else np.int64)
                       for c in cls._COLUMNS}
            columns["space"] = columns["space"].astype(np.int8)
            table = ExtensionTable(**{k: np.asarray(v, dtype=bool if k == "birth" else np.int64)
                                      for k, v in value["extensions"].items()})
            return cls(options=options, **columns, extensions=table,
                       **{s: value[s] for s in cls._SCALARS}, safety_moves=tuple(value["safety_moves"]),
                       inplace=tuple((a, b) for a, b in value["inplace"]), graph=graph)
        except (KeyError, TypeError, ValueError) as e:
            if isinstance(e, PlanError):
                raise
            raise PlanError(f"can't read the plan: {type(e).__name__} {e}") from e


def _plain(v: Any) -> Any:
    return getattr(v, "value", v)
