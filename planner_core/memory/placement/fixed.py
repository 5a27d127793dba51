"""Owns the check of fixed offsets: ones that contradict each other, their alignment or the capacity are refused
before any strategy runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner_core.errors import PlanError
from planner_core.memory.placement.validate import meeting_rows
from planner_core.memory.problem import Problem

__all__ = ["require_consistent"]


def require_consistent(problem: Problem, capacity: int | None = None, names: Sequence[str] | None = None) -> None:
    """Raise ``PlanError`` that names the buffers (``names``, or their numbers) whose fixed offsets can't be kept."""
    ids = np.flatnonzero(problem.fixed >= 0)
    if not len(ids):
        return

    def text(i: int) -> str:
        end = int(problem.fixed[i] + problem.size[i] + problem.guard[i])
        name = repr(names[i]) if names is not None else str(i)
        return f"buffer {name} fixed at [{problem.fixed[i]}, {end}) live [{problem.birth[i]}, {problem.death[i]}]"

    start, end = problem.fixed[ids], (problem.fixed + problem.size + problem.guard)[ids]
    off = ids[start % problem.alignment[ids] != 0]
    if len(off):
        i = int(off[0])
        raise PlanError(f"{text(i)}: not a multiple of its alignment {problem.alignment[i]}; fix the offset, or free the "
                        "buffer (-1)")
    if capacity is not None and int(end.max()) > capacity:
        i = int(ids[end.argmax()])
        raise PlanError(f"{text(i)}: beyond the capacity of {capacity} bytes; fix the offset, or free the buffer (-1)")
    met = meeting_rows(start, end, problem.birth[ids], problem.death[ids])
    if met:
        a, b = min((min(p), max(p)) for p in met)
        raise PlanError(f"{text(int(ids[a]))} and {text(int(ids[b]))} overlap: no placement holds both; move one, or free "
                        "it (-1)")
