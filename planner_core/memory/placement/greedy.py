"""Owns the greedy family: first and best fit in several orders, and what well-known stacks do with the same
buffers. Every order breaks its ties in schedule order, so that equal input gives equal output.

The stacks are followed as their sources and papers describe them, on our live ranges; what they do beside
placing (in-place reuse, several pools) is left out:

- XLA's ``GlobalDecreasingSizeBestFitHeap`` by size and by duration, the better of the two.
- TensorFlow Lite's ``ArenaPlanner``: buffers of the whole run first, then by size; smallest gap.
- TensorFlow Lite Micro's ``GreedyMemoryPlanner``: by size, lowest gap.
- TVM's USMP ``greedy_by_size`` and ``greedy_by_conflicts``: always above the highest buffer in the way.
- ExecuTorch's ``greedy``: buffers share *objects*, as wide as their widest (Pisarchyk and Lee, "Efficient Memory
  Management for Deep Neural Net Inference", 2020, "greedy by size for shared objects").
- ONNX Runtime's memory pattern planner and ggml's graph allocator: in execution order, smallest gap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner_core.memory.placement import first_fit  # noqa: F401 - the reference is the first choice
from planner_core.memory.placement.fit import Placer, place
from planner_core.memory.placement.registry import strategy
from planner_core.memory.placement.structure import cliques_of, degrees
from planner_core.memory.problem import I64, Budget, Offsets, Problem

__all__ = ["ORDERS", "order_of"]


def _duration(p: Problem) -> I64:
    return np.asarray(p.death - p.birth + 1, dtype=np.int64)


def _breadth(p: Problem) -> I64:
    """Steps by live bytes, most first; a buffer comes with the first such step that it lives at."""
    c = cliques_of(p)
    if not c.count:
        return np.zeros(0, dtype=np.int64)
    total = c.sums(p.size + p.guard)
    rank = np.empty(c.count, dtype=np.int64)
    rank[np.argsort(-total, kind="stable")] = np.arange(c.count, 0, -1)
    return c.highest(rank)


_KEYS: dict[str, tuple[str, Callable[[Problem], tuple[I64, ...]]]] = {
    # most important key first; larger goes first
    "size": ("largest first", lambda p: (p.size,)),
    "duration": ("longest-lived first, then largest", lambda p: (_duration(p), p.size)),
    "area": ("largest bytes × steps first, then largest",
             lambda p: (np.multiply((p.size + p.guard).astype(np.float64), _duration(p)), p.size)),
    "birth": ("in order of birth, then largest", lambda p: (-p.birth, p.size)),
    "breadth": ("most crowded step first, then largest", lambda p: (_breadth(p), p.size)),
    "conflicts": ("most neighbours in time first, then largest", lambda p: (degrees(p), p.size)),
}
ORDERS = tuple(_KEYS)


def order_of(problem: Problem, name: str) -> I64:
    """Buffers in one of ``ORDERS``; ties in schedule order."""
    keys = [-k for k in _KEYS[name][1](problem)]
    return np.lexsort((np.arange(len(problem)), *reversed(keys)))


def _member(name: str, fit: str) -> Callable[[Problem, Budget], Offsets]:
    def run(problem: Problem, budget: Budget) -> Offsets:
        return place(problem, order_of(problem, name), fit)

    return run


for _fit, _gap in (("first", "the lowest gap that fits"), ("best", "the smallest gap that fits, the lowest of equals")):
    for _name, (_text, _) in _KEYS.items():
        if (_fit, _name) != ("first", "size"):  # the reference has its own file
            strategy(f"{_fit}_fit" + (f"_{_name}" if _name != "size" else ""),
                     f"{_text[0].upper()}{_text[1:]}; each at {_gap}.")(_member(_name, _fit))


@strategy("xla", "XLA: best fit by size and by duration (then size), the smaller arena of the two.")
def xla(problem: Problem, budget: Budget) -> Offsets:
    placer = Placer(problem)
    by_size = np.lexsort((np.arange(len(problem)), -_duration(problem), -problem.size))
    found = [placer.place(order, "best") for order in (by_size, order_of(problem, "duration"))]
    return min(found, key=problem.height)


@strategy("tflite", "TensorFlow Lite: buffers of the whole run first, then largest; each at the smallest gap.")
def tflite(problem: Problem, budget: Budget) -> Offsets:
    if not len(problem):
        return problem.birth.copy()
    whole = (problem.birth == problem.birth.min()) & (problem.death == problem.death.max())
    return place(problem, np.lexsort((np.arange(len(problem)), problem.birth, -problem.size, ~whole)), "best")


@strategy("tflm", "TensorFlow Lite Micro: largest first, ties by birth; each at the lowest gap that fits.")
def tflm(problem: Problem, budget: Budget) -> Offsets:
    return place(problem, np.lexsort((np.arange(len(problem)), problem.birth, -problem.size)))


@strategy("usmp_size", "TVM USMP greedy_by_size: largest first, each above the highest buffer in the way.")
def usmp_size(problem: Problem, budget: Budget) -> Offsets:
    return place(problem, np.lexsort((np.arange(len(problem)), -degrees(problem), -problem.size)), "top")


@strategy("usmp_conflicts", "TVM USMP greedy_by_conflicts: most neighbours first, each above the highest in the way.")
def usmp_conflicts(problem: Problem, budget: Budget) -> Offsets:
    return place(problem, order_of(problem, "conflicts"), "top")


@strategy("executorch", "ExecuTorch greedy: largest first, each in the first shared object that is free all its life.")
def executorch(problem: Problem, budget: Budget) -> Offsets:
    # a free object is a free row: first fit of buffers one byte high finds it
    busy = np.flatnonzero((problem.size + problem.guard > 0) & (problem.fixed < 0))
    out = np.maximum(problem.fixed, 0)
    base = problem.height(out) if bool((problem.fixed >= 0).any()) else 0
    if len(busy):
        row = place(Problem.of(problem.birth[busy], problem.death[busy], np.ones(len(busy), dtype=np.int64)),
                    np.lexsort((busy, -problem.size[busy])))
        high, align = np.zeros(int(row.max()) + 1, dtype=np.int64), np.ones(int(row.max()) + 1, dtype=np.int64)
        np.maximum.at(high, row, (problem.size + problem.guard)[busy])
        np.maximum.at(align, row, problem.alignment[busy])
        start = np.empty(len(high), dtype=np.int64)
        at = base
        for k, (h, a) in enumerate(zip(high.tolist(), align.tolist(), strict=True)):
            start[k] = at = -(-at // a) * a
            at += h
        out[busy] = start[row]
    return out


@strategy("onnxruntime", "ONNX Runtime's memory pattern: in execution order, the smallest free gap, lowest of equals.")
def onnxruntime(problem: Problem, budget: Budget) -> Offsets:
    return place(problem, np.lexsort((np.arange(len(problem)), problem.birth)), "best")


@strategy("ggml", "ggml's graph allocator: in execution order, the smallest free gap, highest of equals.")
def ggml(problem: Problem, budget: Budget) -> Offsets:
    return place(problem, np.lexsort((np.arange(len(problem)), problem.birth)), "last_best")
