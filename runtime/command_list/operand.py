"""Owns ``Operand``: the bytes a thunk reads or writes, and the roles that its fields can have.

Roles are written as field types (``In``, ``Out``, ``InOut``); ``thunk.py`` derives everything from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from planner_core.ir import DType

__all__ = ["In", "InOut", "Operand", "Out", "Role", "is_weight_off", "raw_off", "tag_weight_off"]

_WEIGHT_BIT = 1 << 63


@dataclass(frozen=True, slots=True)
class Operand:
    """``nbytes`` bytes at ``offset`` of a space (``arena`` or ``weights``), seen as ``storage[shape]``.

    ``bucket_axis``: the axis that scales with the active extent, if any; ``shape`` is the thunk's view of
    the value (often with axes merged), row-major.
    """

    space: str
    offset: int
    nbytes: int
    storage: DType
    bucket_axis: int | None
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> tuple[str, int, int]:
        """(space, first byte, one past the last)."""
        return self.space, self.offset, self.offset + self.nbytes

    def viewed(self, *shape: int) -> Operand:
        """The same bytes under other axes; the bucket axis stays only where it is outermost in both."""
        if shape == self.shape:
            return self
        keep = 0 if self.bucket_axis == 0 and shape and self.shape and shape[0] == self.shape[0] else None
        return Operand(self.space, self.offset, self.nbytes, self.storage, keep, shape)

    def overlaps(self, other: Operand) -> bool:
        """Some byte belongs to both."""
        return (self.space == other.space and self.offset < other.offset + other.nbytes
                and other.offset < self.offset + self.nbytes)

    @property
    def tagged_offset(self) -> int:
        """The offset as a backend with one number per operand sees it."""
        return tag_weight_off(self.offset) if self.space == "weights" else self.offset

    def __str__(self) -> str:
        place = "" if self.space == "arena" else "w:"
        return f"{place}{self.offset}+{self.nbytes}:{self.storage}[{','.join(map(str, self.shape))}]"


class Role(Enum):
    """What a thunk does with an operand's bytes. ``Out``: writes every byte, reads none."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


In = Annotated[Operand, Role.IN]
Out = Annotated[Operand, Role.OUT]
InOut = Annotated[Operand, Role.INOUT]


def tag_weight_off(offset: int) -> int:
    """The offset with bit 63 set: it counts from the weight buffer's base."""
    return offset | _WEIGHT_BIT


def is_weight_off(offset: int) -> bool:
    """Bit 63 is set."""
    return bool(offset & _WEIGHT_BIT)


def raw_off(offset: int) -> int:
    """The offset without its tag."""
    return offset & ~_WEIGHT_BIT
