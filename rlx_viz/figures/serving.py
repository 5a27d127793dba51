"""Owns the figure of ``serving_cost``: resident bytes by ladder, padding, compile seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner_core.units import bytes_text
from rlx_viz.figures.ticks import byte_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlx_viz.serving import ServingCost

__all__ = ["serving_figure"]

WEIGHTS = "#4a6fa5"
ARENA = ("#d9a441", "#e8c98a")
"""Turn by turn, so that neighbours are told apart."""
_LETTER = 0.011
"""Width of a small letter, as a share of the axes."""


def serving_figure(cost: ServingCost) -> Figure:
    """Three panels over one list of ladders: resident bytes as weights and then each bucket's arena and scratch (its longest
    length written in it where it fits), padding as a share of computed tokens, seconds to compile. Belongs to no pyplot state."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = [c.ladder for c in cost.ladders]
    figure = Figure(figsize=(11, 1.5 + 0.55 * len(names)), layout="constrained")
    resident, padding, seconds = figure.subplots(1, 3, sharey=True, width_ratios=[3, 1.2, 1.2])
    most = max(c.resident_bytes for c in cost.ladders) or 1
    for row, total in enumerate(cost.ladders):
        buckets = [b for b in cost.buckets if b.ladder == total.ladder]
        resident.barh(row, total.weights_bytes, color=WEIGHTS, label="weights" if not row else None)
        left = total.weights_bytes
        for k, b in enumerate(buckets):
            own = b.arena_bytes + b.scratch_bytes
            resident.barh(row, own, left=left, color=ARENA[k % 2], label="arena + scratch of a bucket" if not row and not k else None)
            if own / most > _LETTER * (len(str(b.longest)) + 1):
                resident.text(left + own / 2, row, str(b.longest), ha="center", va="center", fontsize=7)
            left += own
        resident.text(left + most * 0.01, row, bytes_text(total.resident_bytes), va="center", fontsize=8)
        padding.text(100 * total.padding_waste + 1, row, f"{100 * total.padding_waste:.1f}%", va="center", fontsize=8)
        seconds.text(total.compile_seconds, row, f" {total.compile_seconds:.3g} s", va="center", fontsize=8)
    padding.barh(names, [100 * c.padding_waste for c in cost.ladders], color="0.6")
    seconds.barh(names, [c.compile_seconds for c in cost.ladders], color="0.6")
    resident.set_xlim(0, most * 1.15)
    byte_ticks(resident.xaxis, most)
    resident.set_yticks(range(len(names)), names)
    resident.invert_yaxis()
    resident.set_title("resident", fontsize=9)
    resident.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1.08), ncols=2, frameon=False, borderpad=0)
    padding.set_xlim(0, 119)
    padding.set_xticks([0, 50, 100])
    padding.set_title("padding, % of tokens computed", fontsize=9)
    seconds.set_xlim(0, max(c.compile_seconds for c in cost.ladders) * 1.6 or 1)
    seconds.xaxis.set_major_locator(MaxNLocator(3))
    seconds.set_title("compile, seconds", fontsize=9)
    for axes in (resident, padding, seconds):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{cost.name} by {cost.dim}, {cost.target}", fontsize=10)
    return figure
