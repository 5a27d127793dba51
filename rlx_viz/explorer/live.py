"""Owns a compilation under changing options: plans again from what is there, so that only what must runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner_core.ir import DType
from planner_core.memory import Target
from planner_core.options import options_of
from rlx_viz.columns import ColumnDocument
from rlx_viz.snapshot import snapshot
from rlx_viz.snapshot_tables.caches import with_cache
from runtime.caches.base import CacheBase
from runtime.compile import Compilation, CompileOptions

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

    def __init__(self, start: Compilation, name: str = "", redact: bool = False, cache: CacheBase | None = None) -> None:
        self.start, self.name, self.redact, self.cache = start, name, redact, cache
        self._base = {_presets(start): _values(start)}
        self._last = start

    def renew(self) -> None:
        """Start from what a cache's largest entry is now."""
        if self.cache is not None and (now := self.cache.largest()) is not self.start:
            self.start = self._last = now
            self._base = {_presets(now): _values(now)}

    def first(self) -> Picture:
        """The start's picture."""
        return self._picture(self.start)

    def __call__(self, options: Mapping[str, object]) -> Picture:
        made = self.compile(options)
        self._last = made
        return self._picture(made)

    def _picture(self, made: Compilation) -> Picture:
        """The compilation's document; its target counts as changed if it isn't the start's."""
        doc = snapshot(made, name=self.name, redact=self.redact)
        for row in doc.meta["options"]:
            if row["name"] == "target":
                row["default"] = self.start.options.target.value
                row["changed"] = row["value"] != row["default"]
        return Picture(doc if self.cache is None else with_cache(doc, self.cache), made)

    def compile(self, options: Mapping[str, object]) -> Compilation:
        """The start under those options, equal to ``start.with_options(**options)``."""
        last, wanted = self._last, dict(options)
        whole = {o.name: wanted.pop(o.name) for o in options_of(CompileOptions) if o.name in wanted}
        asked = self.start.options.changed(self.start.legal, **whole)
        key = asked.target, asked.half
        if key != _presets(last) or key not in self._base:
            made = self.start.with_options(**dict(options))
            if key not in self._base:
                self._base[key] = _values(self.start.with_options(**whole))
            return made
        now, then = _values(last), {**self._base[key]}
        delta = {k: then[k] for k in now if k not in wanted and now[k] != then[k]}
        return last.with_options(**delta, **wanted)


def _presets(c: Compilation) -> tuple[Target, DType | None]:
    """What the other options' defaults hang on."""
    return c.options.target, c.options.half


def _values(c: Compilation) -> dict[str, Any]:
    return {row.info.name: row.value for row in c.option_rows() if row.stage != "compile"}
