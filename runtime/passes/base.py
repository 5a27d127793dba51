"""Owns what a command pass is: a named object with a pure function per candidate.

The function answers None (does not apply), raises ``Refused`` (reason, cause), or returns ``Applied``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtime.command_list import Thunk
from runtime.passes.flow import Flow
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["Applied", "CommandPass", "Find"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What to put where, and which positions become ``Nop``. Several thunks at one place split it."""

    put: tuple[tuple[int, tuple[Thunk, ...]], ...]
    gone: tuple[int, ...] = ()
    facts: tuple[tuple[str, object], ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """Every position that changes, ascending."""
        return tuple(sorted({*self.gone, *(i for i, _ in self.put)}))


Find = Callable[[Flow, int, PassOptions], Applied | None]


@dataclass(frozen=True, slots=True)
class CommandPass:
    """One pass. ``switches``: options that must all be on; ``anchors``: labels of thunks where a candidate starts."""

    name: str
    doc: str
    switches: tuple[str, ...]
    anchors: frozenset[str]
    reasons: frozenset[Refusal]
    find: Find

    def enabled(self, options: PassOptions) -> bool:
        """Its option and those over it are on."""
        return all(getattr(options, s) for s in self.switches)
