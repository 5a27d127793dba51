"""Owns the text of ``plan --fit``: yes or no, what is over, what is live at the peak, what would make it fit."""

from __future__ import annotations

from planner_core.units import bytes_text
from rlx_viz.fit import Fit, Region

__all__ = ["fit_text"]

_MOST = 5


def fit_text(f: Fit, name: str) -> str:
    """The answer as lines; the first is a sentence with yes or no."""
    both = f"{bytes_text(f.needed)} ({f.needed:,} B)"
    parts = " + ".join(f"{part} {bytes_text(n)}" for part, n in f.parts)
    if f.fits:
        return f"fits: yes, {name} needs {both} of {f.budget}, {bytes_text(-f.over)} free\n  compared: {f.region.words}: {parts}"
    out = [f"fits: no, {name} needs {both} of {f.budget}, {bytes_text(f.over)} over", f"  compared: {f.region.words}: {parts}",
           f"  live at the peak (node {f.peak_step}), largest first:"]
    out += [f"    {bytes_text(t.nbytes):>10}  {t.name}{'' if t.rule == 'read' else f', kept by {t.rule}'}" for t in f.top]
    if f.remedies:
        out.append("  options that lower it:")
        out += [f"    {bytes_text(r.needed):>10}  {r}{'  fits' if r.fits else ''}" for r in f.remedies[:_MOST]]
    else:
        out.append("  no option lowers it")
    if f.best is not None and len(f.best.options) > 1:
        out.append(f"  best together: {bytes_text(f.best.needed)} with {f.best}: {'fits' if f.best.fits else 'still over'}")
    if f.region is Region.TOTAL and f.without_weights <= f.budget.nbytes:
        out.append(f"  with the weights elsewhere (in flash, say) it fits: {bytes_text(f.without_weights)}; --fit-region arena")
    if not f.remedies or f.best is None or not f.best.fits:
        out.append(f"  with these options no placement needs less than {bytes_text(f.least)}: smaller inputs, or a smaller model")
    return "\n".join(out)
