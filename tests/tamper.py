"""A plan whose columns a test may write, to see it caught."""

from __future__ import annotations

import dataclasses

import numpy as np

from planner_core.memory import MemoryPlan


def writable(plan: MemoryPlan) -> MemoryPlan:
    """A copy with columns of its own."""
    columns = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan) if f.init}
    return dataclasses.replace(plan, **{k: v.copy() for k, v in columns.items() if isinstance(v, np.ndarray)})
