"""Owns the tables of the plan: ``tensors`` (at most 64 bytes a row), ``edges``, ``extensions``, ``occupancy``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner_core.ir import Graph
from planner_core.ir.ops import Custom
from planner_core.memory import ARENA, NO_SLOT, MemoryPlan, facts_of, last_rule, live_curve
from planner_core.memory.facts import CONSTANT, INPUT, NOT_BOUNDARY, PARAM
from planner_core.memory.rules import static_mask
from rlx_viz.columns import Column, StringTable
from rlx_viz.snapshot_tables.names import Names, text_columns
from runtime.compile import Compilation

__all__ = ["CLASSES", "KINDS", "NONE", "classes_of", "families_of", "family_codes", "plan_tables"]

KINDS = ("input", "param", "constant", "activation", "view", "elided")
CLASSES = ("inputs", "constants", "params", "packs", "activations")
OUTPUT_FLAG, OPAQUE_FLAG, UNKNOWN_FLAG, STATIC_FLAG = 1, 2, 4, 8
MOST_CURVES = 50_000
NONE = 0xFFFFFFFF
"""In a u4 column: points at nothing."""


def family_codes(graph: Graph, families: list[str]) -> Column:
    """Index into ``families`` of each node's op."""
    own, index = _families(graph)
    return np.asarray([families.index(f) for f in own], dtype=np.uint8)[index] if own else index


def families_of(*graphs: Graph) -> list[str]:
    """Op families that occur, sorted."""
    return sorted({f for g in graphs for f in _families(g)[0]})


def _families(graph: Graph) -> tuple[list[str], Column]:
    return graph.derived(_family_codes)


def _family_codes(graph: Graph) -> tuple[list[str], Column]:
    code: dict[str, int] = {}
    index = np.asarray([code.setdefault(n.op.family, len(code)) for n in graph.nodes], dtype=np.uint8)
    return list(code), index


def plan_tables(
    c: Compilation, names: Names, strings: StringTable, families: list[str], classes: Sequence[str]
) -> dict[str, dict[str, Column]]:
    """The four tables of a compilation's plan."""
    graph, plan, u4 = c.legal, c.plan, np.uint32
    static = np.asarray(static_mask(graph), dtype=bool)
    has = plan.space != NO_SLOT
    tensors = {
        **text_columns(graph, names, strings),
        "dtype": facts_of(graph).dtype.astype(np.uint8),
        "kind": _kinds(graph, plan),
        "space": plan.space.astype(np.uint8),
        "family": family_codes(graph, families),
        "rule": (last_rule(plan) + 1).astype(np.uint8),
        "flags": _flags(graph, plan, static),
        "birth": plan.birth.astype(u4),
        "death": plan.death.astype(u4),
        "last_read": plan.last_read.astype(u4),
        "offset": np.where(has, plan.offset, 0).astype(np.float64),
        "size": np.where(has, plan.size, 0).astype(np.float64),
        "guard": np.where(has, plan.guard, 0).astype(u4),
        "root": plan.root.astype(u4),
    }
    ptr, flat = graph.edges
    e = plan.extensions
    return {
        "tensors": tensors,
        "edges": {"src": flat.astype(u4), "dst": np.repeat(np.arange(len(graph), dtype=u4), np.diff(ptr))},
        "occupancy": _occupancy(graph, plan, static, classes),
        "extensions": {"node": e.node.astype(u4), "rule": (e.rule + 1).astype(np.uint8), "cause": e.cause.astype(u4),
                       "old": e.old.astype(u4), "new": e.new.astype(u4)},
    }


def classes_of(c: Compilation) -> list[str]:
    """Classes that occupancy is told by; above ``MOST_CURVES`` steps only those that occur."""
    if c.plan.last_step < MOST_CURVES:
        return list(CLASSES)
    facts, ids = facts_of(c.legal), c.plan.buffers(ARENA)
    kinds, static = facts.boundary[ids], np.asarray(static_mask(c.legal), dtype=bool)[ids]
    here = {INPUT: "inputs", CONSTANT: "constants", PARAM: "params"}
    found = {here[k] for k in np.unique(kinds).tolist() if k != NOT_BOUNDARY}
    found |= {"packs" if s else "activations" for s in np.unique(static[kinds == NOT_BOUNDARY]).tolist()}
    return [name for name in CLASSES if name in found]


def _kinds(graph: Graph, plan: MemoryPlan) -> Column:
    facts = facts_of(graph)
    kind = np.full(len(graph), KINDS.index("activation"), dtype=np.uint8)
    for code, name in ((INPUT, "input"), (PARAM, "param"), (CONSTANT, "constant")):
        kind[facts.boundary == code] = KINDS.index(name)
    kind[facts.parent >= 0] = KINDS.index("view")
    kind[plan.elided] = KINDS.index("elided")
    return kind


def _flags(graph: Graph, plan: MemoryPlan, static: np.ndarray[Any, Any]) -> Column:
    flags = np.zeros(len(graph), dtype=np.uint8)
    flags[graph.outputs] |= OUTPUT_FLAG
    flags[[op is Custom for op in facts_of(graph).ops]] |= OPAQUE_FLAG
    flags[plan.unknown] |= UNKNOWN_FLAG
    flags[static] |= STATIC_FLAG
    return flags


def _occupancy(graph: Graph, plan: MemoryPlan, static: np.ndarray[Any, Any], classes: Sequence[str]) -> dict[str, Column]:
    """Live arena bytes a step by class; one row a step, ``last_step`` included; classes sum to ``live``."""
    ids = plan.buffers(ARENA)
    kinds = facts_of(graph).boundary[ids]
    masks = {
        "inputs": kinds == INPUT, "constants": kinds == CONSTANT, "params": kinds == PARAM,
        "packs": (kinds == NOT_BOUNDARY) & static[ids], "activations": (kinds == NOT_BOUNDARY) & ~static[ids],
    }
    out = {"live": live_curve(plan).astype(np.float64)}
    for name in classes:
        out[name] = live_curve(plan, ids[masks[name]]).astype(np.float64)
    return out
