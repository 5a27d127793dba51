"""Owns undo and redo over sets of changed options."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["History", "Options"]

Options = dict[str, object]
"""Values of the options that were changed, by name."""


@dataclass(slots=True)
class History:
    """Where the options have been. `step` after each success; `back` and `forth` answer where to go and move there
    only once `went` says that it worked."""

    undo: list[Options] = field(default_factory=list)
    redo: list[Options] = field(default_factory=list)

    def step(self, before: Options) -> None:
        """Options were changed from `before`: a new branch, so nothing can be redone."""
        self.undo.append(dict(before))
        self.redo.clear()

    def went(self, back: bool, before: Options) -> None:
        """An undo (or redo) from `before` succeeded."""
        here, there = (self.undo, self.redo) if back else (self.redo, self.undo)
        here.pop()
        there.append(dict(before))

    def target(self, back: bool) -> Options | None:
        """Options to go to, None at the end."""
        steps = self.undo if back else self.redo
        return dict(steps[-1]) if steps else None

    def counts(self) -> dict[str, int]:
        """For the picture."""
        return {"undo": len(self.undo), "redo": len(self.redo)}
