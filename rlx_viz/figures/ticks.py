"""Owns axes of bytes: ticks at whole binary steps, written as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner_core.units import bytes_text

if TYPE_CHECKING:
    from matplotlib.axis import Axis

__all__ = ["byte_ticks"]


def byte_ticks(axis: Axis, most: int) -> None:
    """Ticks from 0 to ``most`` bytes at steps of a power of two, three to six of them."""
    step = 1 << max(0, (most // 3).bit_length() - 1)
    ticks = range(0, most + 1, step)
    axis.set_ticks(list(ticks), labels=[bytes_text(t) for t in ticks])
