"""Owns ``rlx-viz plan problem.csv``: a bare placement problem, planned and told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner_core.errors import OptionError
from planner_core.memory.placement.problem_csv import read_problem, write_problem
from planner_core.memory.placement.solve import solve
from rlx_viz.figures.placement import fragmentation
from rlx_viz.units import bytes_text

__all__ = ["plan_problem"]

_NUMBERS = {"capacity": int, "seconds": float, "seed": int, "work": int}


def plan_problem(path: str, options: Mapping[str, str]) -> tuple[str, str, str]:
    """(summary, JSON, CSV with offsets) of a problem file. ``options``: placement (default ``auto``), capacity,
    seconds, seed, work."""
    given: dict[str, Any] = {}
    for name, text in options.items():
        if name == "placement":
            continue
        if name not in _NUMBERS:
            raise OptionError(f"a problem file has no option {name!r}; wanted placement, {', '.join(_NUMBERS)}")
        try:
            given[name] = _NUMBERS[name](text)
        except ValueError:
            raise OptionError(f"option {name}: got {text!r}, wanted a number") from None
    problem, ids = read_problem(path)
    s = solve(problem, options.get("placement", "auto"), **given)
    holes = fragmentation(problem, s.offsets)
    over = f", above the capacity of {given['capacity']:,} B" if s.arena_size > given.get("capacity", s.arena_size) else ""
    name = Path(path).name
    lines = [
        f"{name}: {len(problem)} buffers",
        f"  {'arena':<14}{bytes_text(s.arena_size):>14}  {s.arena_size:>16,} B{over}",
        f"  {'lower bound':<14}{bytes_text(s.lower_bound):>14}  {s.lower_bound:>16,} B",
        f"  {'optimal':<14}{s.optimal:>14}  {'no placement is smaller' if s.proven else 'unproven'}",
        f"  {'fragmentation':<14}{100 * holes:>13.2f}%  of the arena lies free below a live buffer, on average",
        f"  placed by {s.strategy} in {s.seconds:.3f} s",
    ]
    data = {"problem": name, "buffers": len(problem), "strategy": s.strategy, "arena": s.arena_size,
            "lower_bound": s.lower_bound, "proven": s.proven, "optimal": s.optimal, "fragmentation": holes}
    return ("\n".join(lines), json.dumps(data, indent=1, ensure_ascii=False) + "\n",
            write_problem(problem, offsets=s.offsets, ids=ids))
