"""Owns the runtime's errors; their base and the planner's are in ``planner_core.errors``."""

from __future__ import annotations

from planner_core.errors import RlxError

__all__ = ["LoweringError", "PaddingWarning", "RunError", "SanitizeError"]


class LoweringError(RlxError, ValueError):
    """A planned graph that can't become a command list."""


class RunError(RlxError, ValueError):
    """A run that got wrong inputs, or that needs a kernel nobody registered."""


class PaddingWarning(UserWarning):
    """A padded run that was whole, of a graph whose first rows may depend on the padding."""


class SanitizeError(RlxError, RuntimeError):
    """An audited run in which a thunk, a slot or the plan broke its contract.

    What is known is also given by itself: ``thunk`` (index in the list) with its ``label``, ``node`` and the ``field`` of
    the operand; ``space`` and ``offset`` of the first bad byte; ``owner``, whose that byte is; ``blame``, the rule, pass or
    lowering to look at.
    """

    def __init__(self, message: str, *, thunk: int | None = None, label: str = "", node: str = "", field: str = "",
                 space: str = "arena", offset: int | None = None, owner: str = "", blame: str = "") -> None:
        super().__init__(message)
        self.thunk, self.label, self.node, self.field = thunk, label, node, field
        self.space, self.offset, self.owner, self.blame = space, offset, owner, blame
