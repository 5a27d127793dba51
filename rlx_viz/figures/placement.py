"""Owns the comparison of placement strategies on one problem, as a frame and a figure, and the picture of an arena."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from planner_core.errors import PlanError
from planner_core.ir import Graph
from planner_core.memory import MemoryPlan, PlanOptions, lower_bound, plan_graph
from planner_core.memory.placement import Failure, Problem, Solution, compare
from planner_core.memory.placement.structure import cliques_of
from planner_core.units import bytes_text
from runtime.compile import Compilation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["arena_figure", "compare_placements", "fragmentation", "placement_figure", "problem_of"]

MOST_RECTANGLES = 20_000


def problem_of(what: Graph | Problem | MemoryPlan | Compilation, options: PlanOptions | None = None) -> Problem:
    """The placement problem of a graph (planned with ``options``), a plan or a compilation: its arena's buffers."""
    if isinstance(what, Problem):
        return what
    if isinstance(what, Graph):
        what = plan_graph(what, options or PlanOptions.for_target("cpu", what))
    plan = what.plan if isinstance(what, Compilation) else what
    return plan.problem()


def fragmentation(problem: Problem, offsets: Any) -> float:
    """The share of the arena that lies free below a live buffer, on average over the crowded steps (those after whose
    births something dies); 0 where nothing ever does."""
    need = problem.size + problem.guard
    arena = problem.height(offsets)
    c = cliques_of(problem)
    if not arena or not c.count:
        return 0.0
    top = np.zeros(c.count, dtype=np.int64)
    end = offsets + need
    for first, last, at in zip(c.first.tolist(), (c.last + 1).tolist(), end.tolist(), strict=True):
        np.maximum(top[first:last], at, out=top[first:last])
    return float((top - c.sums(need)).mean() / arena)


def compare_placements(
    what: Graph | Problem | MemoryPlan | Compilation,
    strategies: Iterable[str] | None = None,
    *,
    seconds: float | None = None,
    work: int | None = None,
    seed: int = 0,
    title: str = "",
) -> pd.DataFrame:
    """One row a strategy (all that can run here without), smallest arena first: ``strategy``, ``arena`` and
    ``lower_bound`` in bytes, ``ratio`` of the two, ``fragmentation``, ``seconds``, ``proven``, ``error``. Every placement
    is checked; the bound is the best that any of them proved. A strategy that fails comes last, with its error and no
    arena. ``placement_figure`` draws it."""
    problem = problem_of(what)
    found = compare(problem, strategies, seconds=seconds, seed=seed, work=work)
    bound = max((s.lower_bound for s in found if isinstance(s, Solution)), default=lower_bound(problem)[0])
    frame = pd.DataFrame([_row(problem, s, bound) for s in found], columns=[
        "strategy", "arena", "lower_bound", "ratio", "fragmentation", "seconds", "proven", "error"])
    if any(isinstance(s, Failure) for s in found):
        frame["arena"] = frame["arena"].astype("Int64")
    frame = frame.sort_values(["arena", "seconds"], kind="stable", ignore_index=True)
    name = title or (what.source.name if isinstance(what, Compilation) else what.name if isinstance(what, Graph) else "")
    frame.attrs.update(title=name, buffers=len(problem))
    return frame


def _row(problem: Problem, s: Solution | Failure, bound: int) -> dict[str, Any]:
    if isinstance(s, Failure):
        return {"strategy": s.strategy, "arena": None, "lower_bound": bound, "ratio": float("nan"),
                "fragmentation": float("nan"), "seconds": s.seconds, "proven": False, "error": s.error}
    return {"strategy": s.strategy, "arena": s.arena_size, "lower_bound": s.lower_bound, "ratio": s.ratio,
            "fragmentation": fragmentation(problem, s.offsets), "seconds": s.seconds, "proven": s.proven,
            "error": ""}


def placement_figure(*frames: pd.DataFrame) -> Figure:
    """Arena over lower bound, a bar a strategy, a panel a frame of ``compare_placements``: a green dot where that is proven optimal,
    milliseconds at the bar's end. Belongs to no pyplot state; save it or let a notebook show it."""
    from matplotlib.figure import Figure

    frames = tuple(f[f["error"] == ""] for f in frames)  # what failed has no arena to draw
    if not frames or any(f.empty for f in frames):
        raise PlanError("nothing to draw: give placement_figure a frame with at least one strategy that placed it")
    rows = max(len(f) for f in frames)
    figure = Figure(figsize=(1.5 + 4.2 * len(frames), 1.2 + 0.26 * rows), layout="constrained")
    for axes, frame in zip(figure.subplots(1, len(frames), squeeze=False)[0], frames, strict=True):
        f = frame.iloc[::-1]
        above = (f["ratio"] - 1) * 100
        axes.barh(f["strategy"], above, color=["#2a9d5c" if p else "#8a94a6" for p in f["proven"]])
        most = float(max(above.max(), 1.0))
        proved = [k for k, p in enumerate(f["proven"]) if p]
        axes.plot([0] * len(proved), proved, "o", color="#2a9d5c", markersize=5, clip_on=False)
        for k, (gap, seconds, proven) in enumerate(zip(above, f["seconds"], f["proven"], strict=True)):
            text = "optimal, proven" if proven else (f"+{gap:.3g}%" if gap >= 0.01 else "+<0.01%")
            axes.text(gap + most * 0.03, k, f"{text}  {seconds * 1e3:.3g} ms", va="center", fontsize=7)
        axes.set_xlim(0, most * 1.5)
        axes.set_ylim(-0.6, len(f) - 0.4)
        axes.tick_params(labelsize=7)
        axes.set_xlabel("arena above the lower bound, %", fontsize=8)
        bound = bytes_text(int(frame["lower_bound"].iloc[0]))
        name, count = frame.attrs.get("title", ""), frame.attrs.get("buffers")
        axes.set_title(f"{name}\n{count:,} buffers, bound {bound}" if count is not None else name, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def arena_figure(problem: Problem, solution: Solution, title: str = "") -> Figure:
    """Offset over steps: a rectangle a buffer, coloured by size, with the bound as a line. The largest
    ``MOST_RECTANGLES`` buffers are drawn."""
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    ids = np.argsort(-problem.size, kind="stable")[:MOST_RECTANGLES]
    ids = ids[problem.size[ids] > 0]
    left, right = problem.birth[ids], problem.death[ids] + 1
    low, high = solution.offsets[ids], (solution.offsets + problem.size)[ids]
    corners = np.stack([np.stack(pair, axis=-1) for pair in ((left, low), (right, low), (right, high), (left, high))], axis=1)
    shade = np.log2(problem.size[ids] + 1.0)
    shade = (shade - shade.min(initial=np.inf)) / max(float(np.ptp(shade)) if len(ids) else 1.0, 1e-9)
    axes.add_collection(PolyCollection(list(corners), facecolors=colormaps["viridis"](shade), edgecolors="white",
                                       linewidths=0.3))
    axes.axhline(solution.lower_bound, color="black", linestyle=":", linewidth=1, label="lower bound")
    if len(ids):
        axes.set_xlim(int(left.min()), int(right.max()))
    axes.set_ylim(0, max(solution.arena_size, 1) * 1.03)
    axes.set_xlabel("step")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(round(value))))
    axes.set_title(title or f"{solution.strategy}: {bytes_text(solution.arena_size)}, optimal: {solution.optimal}")
    axes.legend(loc="upper right")
    return figure
