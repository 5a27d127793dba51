"""Owns the figure of a cache: its ladder, what happened on it, its resident bytes, its padding. Reads the cache's own
reports (``entry_stats``, ``timeline``) and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner_core.units import bytes_text
from runtime.caches import CacheEvent, EntryStats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["cache_figure", "cache_text"]

MARKS = {"miss": ("s", "compiled"), "hit": (".", "hit"), "share": ("v", "took over weights"), "upload": ("^", "uploaded weights"),
         "evict": ("x", "evicted"), "run": ("|", "padded run"), "clear": ("_", "cleared")}
"""Marker and words of each kind of event: told apart without colour."""


def _ladder(axes: Axes, entries: Sequence[EntryStats], events: Sequence[CacheEvent]) -> None:
    """Events over time, on the rows of their entries; a bar where an entry was resident."""
    events = [e for e in events if not e.kind.startswith("disk")]
    slots = sorted({e.entry for e in events})
    buckets = any(s.end - s.start > 1 for s in entries)
    rows = {slot: i for i, slot in enumerate(range(len(entries)) if buckets else slots)}
    names = [f"{s.start} … {s.end - 1}" for s in entries] if buckets else [f"key {slot}" for slot in slots]
    end = max((e.seconds for e in events), default=0.0) or 1e-3
    since: dict[int, float] = {}
    for e in events:
        if e.kind == "miss":
            since[e.entry] = e.seconds
        elif e.kind in ("evict", "clear") and e.entry in since:
            begin = since.pop(e.entry)
            axes.barh(rows[e.entry], e.seconds - begin, left=begin, height=0.7, color="0.88")
    for slot, begin in since.items():
        axes.barh(rows[slot], end - begin, left=begin, height=0.7, color="0.88")
    for i, (kind, (marker, words)) in enumerate(MARKS.items()):
        at = [(e.seconds, rows[e.entry]) for e in events if e.kind == kind]
        if at:
            axes.scatter([x for x, _ in at], [y for _, y in at], marker=marker, color=f"C{i}", s=30, label=f"{words} ({len(at)})", zorder=3)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylabel("bucket" if buckets else "entry")
    axes.margins(y=0.15)
    if events:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def cache_figure(entries: Sequence[EntryStats], events: Sequence[CacheEvent], title: str = "") -> Figure:
    """Three pictures over one clock and one ladder: events a bucket, resident weight bytes, padding waste.

    ``cache_figure(cache.entry_stats(), cache.timeline())``. Belongs to no pyplot state.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    waste = [s for s in entries if s.rows]
    figure = Figure(figsize=(9, 5 if not waste else 6.5), layout="constrained")
    parts = figure.subplots(3 if waste else 2, 1, height_ratios=[2, 1.2, 1] if waste else [2, 1.2])
    _ladder(parts[0], entries, events)
    parts[0].set_title(title)
    held = [e for e in events if e.kind not in ("hit", "disk_hit", "disk_miss")]
    parts[1].step([0.0, *[e.seconds for e in held]], [0, *[e.resident_bytes for e in held]], where="post")
    parts[1].sharex(parts[0])
    parts[1].set_ylim(bottom=0)
    parts[1].set_ylabel("weights resident")
    most = max((e.resident_bytes for e in held), default=0)
    step = 1 << max(0, (most // 2).bit_length() - 1)  # ticks at whole binary steps, three or four of them
    parts[1].set_yticks(range(0, most + step if most else 1, step))
    parts[1].yaxis.set_major_formatter(FuncFormatter(lambda v, _: bytes_text(round(v))))
    parts[1].set_xlabel("seconds since the cache was made")
    if waste:
        parts[2].bar(range(len(waste)), [100 * s.padding_waste for s in waste], color="0.6")
        parts[2].set_xticks(range(len(waste)), [f"{s.start} … {s.end - 1}" for s in waste])
        parts[2].set_ylim(0, 100)
        parts[2].set_ylabel("padding, % of rows")
    return figure


def cache_text(entries: Sequence[EntryStats], events: Sequence[CacheEvent]) -> str:
    """The figure's text twin: a row an entry, then the events in order without hits."""
    lines = ["range            hits misses evictions resident  state"]
    for s in entries:
        state = "donor" if s.donor else "shares" if s.shares else "compiled" if s.compiled else "-"
        lines.append(f"{f'{s.start} … {s.end - 1}':<16} {s.hits:>4} {s.misses:>6} {s.evictions:>9} "
                     f"{bytes_text(s.resident_bytes):>8}  {state}"
                     + (f", {100 * s.padding_waste:.0f}% padding" if s.rows else ""))
    hits = sum(e.kind == "hit" for e in events)
    lines += [f"{e.kind} {e.key} -> {bytes_text(e.resident_bytes)} resident" for e in events if e.kind != "hit"]
    return "\n".join([*lines, f"{hits} hits"])
