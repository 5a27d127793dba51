"""Owns ``CommandList``: thunks in order, the slots they live in, and the boundary operands by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner_core.ir import DType, TensorData
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text
from runtime.command_list.operand import Operand
from runtime.command_list.thunk import Thunk

if TYPE_CHECKING:
    from runtime.command_list.provenance import Provenance

__all__ = ["Binding", "CommandList", "Constant", "SlotLife"]


@dataclass(frozen=True, slots=True)
class Binding:
    """A named boundary tensor: its bytes, its dims, and the dtype that the caller sees."""

    name: str
    operand: Operand
    dtype: DType


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes that the executor writes before the first thunk."""

    operand: Operand
    data: TensorData


@dataclass(frozen=True, slots=True)
class SlotLife:
    """A buffer of the plan: whose it is, where, and when it lives (steps, both ends included)."""

    node: int
    name: str
    op: str
    space: str
    offset: int
    size: int
    guard: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True, repr=False)
class CommandList(Shown):
    """A graph as a flat list of thunks over one arena and one weight buffer.

    ``node_of[i]`` is the graph node that thunk i runs (its schedule step); ``slots`` are the roots' lives,
    for audits and pictures.
    """

    name: str
    thunks: tuple[Thunk, ...]
    node_of: tuple[int, ...]
    arena_size: int
    weights_size: int
    scratch_bytes: int
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    params: tuple[Binding, ...]
    constants: tuple[Constant, ...]
    slots: tuple[SlotLife, ...]
    node_names: tuple[str, ...]
    static_nodes: frozenset[int] = frozenset()
    """Nodes computed from params and constants alone, in slots of their own: made in the first run, then kept."""
    provenance: Provenance | None = field(default=None, repr=False, compare=False)
    """For audits: the ``Provenance`` of the list, or None where it was written by hand or read from a file."""

    def _facts(self) -> Facts:
        return (f"CommandList {self.name!r}", (
            ("commands", f"{len(self.thunks):,}"), ("dispatches", f"{self.dispatches:,}"), ("arena", bytes_text(self.arena_size)),
            ("weights", bytes_text(self.weights_size)), ("scratch", bytes_text(self.scratch_bytes))), "commands.thunks holds them in order")

    def __len__(self) -> int:
        return len(self.thunks)

    def counts(self) -> dict[str, int]:
        """Thunks by label, most frequent first."""
        return dict(Counter(t.label for t in self.thunks).most_common())

    @property
    def once(self) -> frozenset[int]:
        """Indices of thunks that only the first run after a change of weights has to do."""
        if not self.static_nodes:
            return frozenset()
        return frozenset(i for i, n in enumerate(self.node_of) if n in self.static_nodes)

    @property
    def dispatches(self) -> int:
        """Thunks that do something in every run."""
        once = self.once
        return sum(t.where != "none" and i not in once for i, t in enumerate(self.thunks))

    @property
    def setup_dispatches(self) -> int:
        """Thunks that make static weight packs, in the first run only."""
        return sum(self.thunks[i].where != "none" for i in self.once)

    def __str__(self) -> str:
        setup = f" (+ {self.setup_dispatches} once)" if self.setup_dispatches else ""
        head = (f"command list {self.name!r}: {self.dispatches} dispatches{setup}, arena {self.arena_size} B, "
                f"weights {self.weights_size} B, scratch {self.scratch_bytes} B")
        width = len(str(max(len(self.thunks) - 1, 0)))
        lines = [f"  {i:>{width}}  {t}  ; {self.node_names[n]}"
                 for i, (t, n) in enumerate(zip(self.thunks, self.node_of, strict=True))]
        return "\n".join([head, *lines])
