"""Owns the figure of a sweep: bytes over a size. Rows come from ``planner_core.zoo.sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner_core.errors import PlanError
from planner_core.zoo import SweepRow
from rlx_viz.figures.ticks import byte_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sweep_figure"]

STYLES = {"allocate": "-", "arena": "--", "bound": ":"}
"""Line style by quantity: the bound, dotted, lies under the arena wherever the arena is optimal."""
MOST_TICKS = 8
"""Sizes up to which each has a tick of its own."""


def sweep_figure(rows: Sequence[SweepRow], x: str = "", title: str = "") -> Figure:
    """Bytes to allocate, arena and bound over the swept name ``x`` ("": the first); a colour for each
    combination of the others. Belongs to no pyplot state; save it or let a notebook show it.

    Raises ``PlanError`` without rows, or for a name that was not swept.
    """
    from matplotlib.figure import Figure

    if not rows:
        raise PlanError("a sweep without rows has no figure; give sweep() at least one value a dim")
    swept = [name for name, _ in rows[0].binding]
    x = x or (swept[0] if swept else "")
    if x not in swept:
        raise PlanError(f"no swept name {x!r}; this sweep has: {', '.join(swept) or 'none'}")
    series: dict[str, list[SweepRow]] = {}
    varying = [n for n in swept if n != x and len({r[n] for r in rows}) > 1]
    for r in rows:
        series.setdefault(", ".join(f"{n}={r[n]}" for n in varying), []).append(r)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for i, (label, points) in enumerate(series.items()):
        at: list[Any] = [p[x] if isinstance(p[x], int) else str(p[x]) for p in points]
        for name, style in STYLES.items():
            axes.plot(at, [getattr(p, name) for p in points], style, marker=".", color=f"C{i}",
                      label=f"{label} {name}".strip())
    axes.set_xlabel(x)
    axes.set_ylabel("bytes")
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    byte_ticks(axes.yaxis, max(max(getattr(r, q) for q in STYLES) for r in rows))
    whole = sorted({r[x] for r in rows if isinstance(r[x], int)})
    if 0 < len(whole) <= MOST_TICKS:
        axes.set_xticks(whole)
    axes.legend()
    return figure
