"""Owns the runtime's errors; their base and the planner's are in ``planner_core.errors``."""

from __future__ import annotations

from planner_core.errors import RlxError

__all__ = ["LoweringError", "RunError", "SanitizeError"]


class LoweringError(RlxError, ValueError):
    """A planned graph that can't become a command list."""


class RunError(RlxError, ValueError):
    """A run that got wrong inputs, or that needs a kernel nobody registered."""


class SanitizeError(RlxError, RuntimeError):
    """An audited run in which a thunk, a slot or the plan broke its contract."""
