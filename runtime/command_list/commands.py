"""Owns ``CommandList``: thunks in order, the slots they live in, and the boundary operands by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from planner_core.ir import DType, TensorData
from runtime.command_list.operand import Operand
from runtime.command_list.thunk import Thunk

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


@dataclass(frozen=True, slots=True)
class CommandList:
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

    def __len__(self) -> int:
        return len(self.thunks)

    def counts(self) -> dict[str, int]:
        """Thunks by label, most frequent first."""
        return dict(Counter(t.label for t in self.thunks).most_common())

    @property
    def dispatches(self) -> int:
        """Thunks that do something."""
        return sum(t.where != "none" for t in self.thunks)

    def __str__(self) -> str:
        head = (f"command list {self.name!r}: {self.dispatches} dispatches, arena {self.arena_size} B, "
                f"weights {self.weights_size} B, scratch {self.scratch_bytes} B")
        width = len(str(max(len(self.thunks) - 1, 0)))
        lines = [f"  {i:>{width}}  {t}  ; {self.node_names[n]}"
                 for i, (t, n) in enumerate(zip(self.thunks, self.node_of, strict=True))]
        return "\n".join([head, *lines])
