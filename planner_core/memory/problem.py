"""Owns ``Problem``: a placement problem as arrays, and the types that strategies share.

Files: ``placement/problem_csv.py``. Strategies: ``placement/``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from planner_core.errors import PlanError
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text

__all__ = ["Budget", "Offsets", "Problem", "Strategy"]

MOST_BYTES = 1 << 62
"""Of all buffers together, and of an offset: so that every end fits 64 bits."""
LAST_STEP = (1 << 63) - 1
"""The end of time: a death is below it (nanosecond stamps are)."""
I64 = npt.NDArray[np.int64]
Offsets = I64


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Problem(Shown):
    """Buffers to place. Live ranges are inclusive at both ends; ``fixed`` is an offset or -1 (free).

    All columns int64 of one length; sizes and guards in bytes, alignments powers of two.
    """

    birth: I64
    death: I64
    size: I64
    alignment: I64
    guard: I64
    fixed: I64

    def _facts(self) -> Facts:
        last = int(self.death.max(initial=-1)) + 1
        return ("Problem", (("buffers", f"{len(self):,}"), ("steps", f"{last - min(0, int(self.birth.min(initial=0))):,}"),
                            ("bytes", bytes_text(int(self.size.sum()))), ("fixed", int((self.fixed >= 0).sum()))),
                "planner_core.memory.placement.solve(problem)")

    def __post_init__(self) -> None:
        n = len(self.birth)
        for name in ("birth", "death", "size", "alignment", "guard", "fixed"):
            column = np.asarray(getattr(self, name), dtype=np.int64)
            if column.shape != (n,):
                raise PlanError(f"problem column {name}: got {column.shape}, wanted ({n},)")
            object.__setattr__(self, name, column)
        if n:
            a = self.alignment
            bad = np.flatnonzero((self.death < self.birth) | (self.size < 0) | (self.guard < 0) | (a < 1)
                                 | ((a & (a - 1)) != 0))
            if len(bad):
                i = int(bad[0])
                raise PlanError(f"buffer {i}: live [{self.birth[i]}, {self.death[i]}], size {self.size[i]}, guard "
                                f"{self.guard[i]}, alignment {a[i]}; wanted birth ≤ death, sizes ≥ 0, a power of two")
            odd = np.flatnonzero((self.fixed < -1) | (self.fixed > MOST_BYTES))
            if len(odd):
                i = int(odd[0])
                raise PlanError(f"buffer {i}: fixed at {self.fixed[i]}; wanted an offset from 0 to {MOST_BYTES}, or -1 (free)")
            first, last = int(self.birth.min()), int(self.death.max())
            if last >= LAST_STEP or last - first >= LAST_STEP:
                raise PlanError(f"buffers live from {first} to {last}; wanted a last step below {LAST_STEP}, and as short a "
                                "span, so that the step after each fits 64 bits")
            total = float((self.size.astype(np.float64) + self.guard + a).sum())
            if total > MOST_BYTES:
                raise PlanError(f"{n} buffers of {total:.3g} bytes with guards and alignment: more than {MOST_BYTES}, so that "
                                "offsets would not fit 64 bits; check the sizes' unit")

    def __len__(self) -> int:
        return len(self.birth)

    @classmethod
    def of(cls, birth: Any, death: Any, size: Any, *, alignment: int = 1, guard: Any = 0) -> Problem:
        """Free buffers with one alignment; ``guard`` one number or a column."""
        n = len(birth)
        return cls(np.asarray(birth, np.int64), np.asarray(death, np.int64), np.asarray(size, np.int64),
                   np.full(n, alignment, np.int64), np.broadcast_to(np.asarray(guard, np.int64), (n,)).copy(),
                   np.full(n, -1, np.int64))

    @classmethod
    def from_csv(cls, source: str | PathLike[str]) -> Problem:
        """Read an ``id,lower,upper,size[,offset]`` file (lifetimes half-open); ``PlanError`` names the line.

        ``source`` is a path, or the text itself where it holds a line break. An ``offset`` fixes a buffer;
        columns ``alignment`` and ``guard`` may follow (1 and 0 without).
        """
        from planner_core.memory.placement.problem_csv import read_problem

        return read_problem(source)[0]

    def to_csv(self, path: str | PathLike[str] | None = None, offsets: Offsets | None = None) -> str:
        """The text of that file, written to ``path`` if one is given; ``offsets`` fills the offset column."""
        from planner_core.memory.placement.problem_csv import write_problem

        return write_problem(self, path, offsets)

    def height(self, offsets: Offsets) -> int:
        """Furthest end, guard included."""
        return int((offsets + self.size + self.guard).max()) if len(self) else 0


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search: wall seconds, deterministic work units, a seed, a callable that says stop."""

    seconds: float | None = None
    work: int | None = None
    seed: int = 0
    cancel: Callable[[], bool] | None = None


Strategy = Callable[[Problem, Budget], Offsets]
