"""Owns ``rlx-viz plan problem.csv``: a bare placement problem, planned and told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner_core.errors import OptionError
from planner_core.memory.placement import Problem, Solution
from planner_core.memory.placement.fixed import require_consistent
from planner_core.memory.placement.problem_csv import read_problem, write_problem
from planner_core.memory.placement.solve import solve
from planner_core.units import bytes_text
from rlx_viz.columns import Column, ColumnDocument, StringTable, Tables, exact_int
from rlx_viz.figures.placement import fragmentation
from rlx_viz.snapshot_tables.claims import optimal_text
from rlx_viz.version import VERSION

__all__ = ["plan_problem", "problem_document"]

_NUMBERS = {"capacity": int, "seconds": float, "seed": int, "work": int}


def _solved(path: str, options: Mapping[str, str]) -> tuple[str, Problem, list[str], Solution, bool]:
    """(summary, problem, ids, solution, whether it is above the capacity)."""
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
    require_consistent(problem, given.get("capacity"), ids)
    s = solve(problem, options.get("placement", "auto"), **given)
    holes = fragmentation(problem, s.offsets)
    too_large = s.arena_size > given.get("capacity", s.arena_size)
    over = f", above the capacity of {given['capacity']:,} B" if too_large else ""
    name = Path(path).name
    lines = [
        f"{name}: {len(problem)} buffers",
        f"  {'arena':<14}{bytes_text(s.arena_size):>14}  {s.arena_size:>16,} B{over}",
        f"  {'lower bound':<14}{bytes_text(s.lower_bound):>14}  {s.lower_bound:>16,} B  {_optimal(s)}",
        f"  {'fragmentation':<14}{100 * holes:>13.2f}%  of the arena lies free below a live buffer, on average",
        f"  placed by {s.strategy} in {s.seconds:.3f} s",
    ]
    return "\n".join(lines), problem, list(ids), s, too_large


def _optimal(s: Solution) -> str:
    return optimal_text(s.arena_size, s.lower_bound, s.proven, conditions="for these live ranges")


def plan_problem(path: str, options: Mapping[str, str]) -> tuple[str, str, str, bool]:
    """(summary, JSON, CSV with offsets, whether the arena is above the capacity) of a problem file. ``options``:
    placement (default ``auto``), capacity, seconds, seed, work. ``PlanError`` where it is proven that none fits."""
    from rlx_viz.summary import summary_dict

    solved = summary, problem, ids, s, too_large = _solved(path, options)
    data = summary_dict(_document(path, options, *solved[:4])) | {"fragmentation": fragmentation(problem, s.offsets)}
    return (summary, json.dumps(data, indent=1, ensure_ascii=False) + "\n",
            write_problem(problem, offsets=s.offsets, ids=ids), too_large)


def problem_document(path: str, options: Mapping[str, str]) -> tuple[ColumnDocument, str]:
    """(the document of a problem file's placement, its summary): live ranges, arena and occupancy, with no graph behind.

    Steps are the file's; where they are far more than events, their ranks, and a note says so.
    """
    summary, problem, ids, s, _ = _solved(path, options)
    return _document(path, options, summary, problem, ids, s), summary


def _document(path: str, options: Mapping[str, str], summary: str, problem: Problem, ids: list[str], s: Solution) -> ColumnDocument:
    k, name = len(problem), Path(path).name
    birth, death, notes = problem.birth - min(0, int(problem.birth.min(initial=0))), problem.death, []
    death = death - min(0, int(problem.birth.min(initial=0)))
    if int(death.max(initial=0)) > 4 * k + 1000:
        events = np.unique(np.concatenate([birth, death]))
        birth, death = np.searchsorted(events, birth), np.searchsorted(events, death)
        notes.append(f"steps are ranks of the file's {len(events):,} distinct times")
    last = int(death.max(initial=0)) + 1
    live = np.zeros(last + 2)
    np.add.at(live, birth, problem.size)
    np.add.at(live, death + 1, -problem.size)
    live = np.cumsum(live)[: last + 1]
    peak = int(live.argmax()) if len(live) else 0
    strings = StringTable()
    small, u4, nothing = np.zeros(k, np.uint8), np.uint32, np.zeros(0, np.uint32)
    tensors: dict[str, Column] = {
        "name": strings.intern_all(ids), "op": strings.intern_all(["buffer"] * k),
        "shape": strings.intern_all([f"u8[{n}]" for n in problem.size.tolist()]), "source": strings.intern_all([""] * k),
        "dtype": small, "kind": small, "space": small, "family": small, "rule": small, "flags": small,
        "birth": birth.astype(u4), "death": death.astype(u4), "last_read": death.astype(u4),
        "offset": s.offsets.astype(np.float64), "size": problem.size.astype(np.float64), "guard": problem.guard.astype(u4),
        "root": np.arange(k, dtype=u4),
    }
    head = {"allocate": s.arena_size, "weights": 0, "activations": int(live.max(initial=0)), "scratch": 0,
            "padding": s.arena_size - int(live.max(initial=0)), "arena": s.arena_size,
            "naive": int((problem.size + problem.guard).sum()), "lower_bound": s.lower_bound,
            "peak_bytes": int(live.max(initial=0))}
    head["saved"] = max(0, head["naive"] - head["arena"])
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    meta: dict[str, Any] = {
        "kind": "problem", "placement": s.strategy, "claims": {"optimal": _optimal(s)},
        "model": {"name": name, "hash": digest, "nodes": k, "inputs": [], "outputs": []},
        "headline": {n: exact_int(v) for n, v in head.items()} | {
            "peak_step": peak, "unknown": 0, "unknown_names": [], "optimal": s.proven},
        "classes": ["buffers"], "kinds": ["activation"], "spaces": ["arena"], "dtypes": ["u8"],
        "rules": [{"name": "read", "doc": "As the file gives it."}], "families": ["buffer"], "options": [],
        "unsupported": {}, "notes": notes, "source_is_tensors": True,
        "footer": {"model_hash": digest, "version": VERSION, "command": f"rlx-viz report {name}",
                   "options": ", ".join([f"placement={s.strategy}", *(f"{n}={v}" for n, v in options.items() if n != "placement")])},
    }
    tables: Tables = {
        "tensors": tensors, "edges": {"src": nothing, "dst": nothing}, "occupancy": {"live": live, "buffers": live.copy()},
        "extensions": {"node": nothing, "rule": nothing.astype(np.uint8), "cause": nothing, "old": nothing, "new": nothing},
    }
    return ColumnDocument(meta, strings.strings(), tables)
