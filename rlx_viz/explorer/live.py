"""Owns a compilation under changing options: plans again from what is there, so that only what must runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlx_viz.columns import ColumnDocument
from rlx_viz.snapshot import snapshot
from runtime.compile import Compilation

__all__ = ["Live", "Picture"]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A document and the compilation that it shows (None for a document made by hand)."""

    document: ColumnDocument
    compilation: Compilation | None = None


class Live:
    """Called with the options that differ from the start's; returns the picture under them.

    Stages are reused from the last picture, so a plan option after a fusion option does not fuse again.
    """

    def __init__(self, start: Compilation, name: str = "", redact: bool = False) -> None:
        self.start, self.name, self.redact = start, name, redact
        self._base = {start.options.target.value: _values(start)}
        self._last = start

    def first(self) -> Picture:
        """The start's picture."""
        return Picture(snapshot(self.start, name=self.name, redact=self.redact), self.start)

    def __call__(self, options: Mapping[str, object]) -> Picture:
        made = self.compile(options)
        self._last = made
        return Picture(snapshot(made, name=self.name, redact=self.redact), made)

    def compile(self, options: Mapping[str, object]) -> Compilation:
        """The start under those options, equal to ``start.with_options(**options)``."""
        last, wanted = self._last, dict(options)
        target = str(getattr(wanted.pop("target", ""), "value", "") or options.get("target", "")) or self.start.options.target.value
        if target != last.options.target.value or target not in self._base:
            made = self.start.with_options(**dict(options))
            if target not in self._base:
                self._base[target] = _values(self.start.with_options(target=target))
            return made
        now, then = _values(last), {**self._base[target]}
        delta = {k: then[k] for k in now if k not in wanted and now[k] != then[k]}
        return last.with_options(**delta, **wanted)


def _values(c: Compilation) -> dict[str, Any]:
    return {row.info.name: row.value for row in c.option_rows()}
