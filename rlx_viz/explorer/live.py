"""Owns a compilation under changing options: plans again from what is there, so that only what must runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlx_viz.columns import ColumnDocument
from rlx_viz.snapshot_tables.caches import with_cache
from rlx_viz.snapshots import snapshot
from runtime.caches.base import CacheBase
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

    def __init__(self, start: Compilation, name: str = "", redact: bool = False, cache: CacheBase | None = None) -> None:
        self.start, self.name, self.redact, self.cache = start, name, redact, cache
        self._last = start

    def renew(self) -> None:
        """Start from what a cache's largest entry is now."""
        if self.cache is not None and (now := self.cache.largest()) is not self.start:
            self.start = self._last = now

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
        return self._last.under(self.start.options.changed(self.start.legal, **options))
