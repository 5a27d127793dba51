"""Owns what holds an arena up: each rule or option in force that costs a share of it, with the figure without it; and
what the order itself costs at least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from planner_core.ir import Graph, NodeId
from planner_core.memory.facts import NOT_BOUNDARY, facts_of
from planner_core.memory.options import PlanOptions
from planner_core.memory.plan import ARENA, MemoryPlan
from planner_core.memory.planner import arena_bound, plan_graph
from planner_core.memory.rules import RULES, static_mask
from planner_core.memory.widths import ArenaWidthPolicy
from planner_core.units import bytes_text

__all__ = ["SHARE", "Holder", "LargestStep", "holders", "largest_step"]

SHARE = 0.05
"""Part of the arena from which on a headline names what holds it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One reason why an arena is as large as it is: ``arena_without`` bytes are enough without ``name``.

    ``options``: the changes that switch it off, empty for a rule that is always on. ``doc`` says what it is for.
    """

    name: str
    doc: str
    options: tuple[tuple[str, Any], ...]
    arena: int
    arena_without: int

    @property
    def held(self) -> int:
        """Bytes of the arena that it holds."""
        return self.arena - self.arena_without

    def __str__(self) -> str:
        """``pin_output_ancestors holds 42.5 MiB of the arena (91%): 4.16 MiB without it.``"""
        several = " + " in self.name
        always = "" if self.options else " (a rule, always on)"
        return (f"{self.name}{always} {'hold' if several else 'holds'} {bytes_text(self.held)} of the arena "
                f"({100 * self.held / self.arena:.0f}%): {bytes_text(self.arena_without)} without {'them' if several else 'it'}.")


class LargestStep(NamedTuple):
    """The bytes that some step needs at once in any order, and the node of that step (None: the outputs together)."""

    nbytes: int
    node: NodeId | None


class _Candidate(NamedTuple):
    name: str
    doc: str
    options: tuple[tuple[str, Any], ...] = ()
    rules: frozenset[str] = frozenset()


def holders(plan: MemoryPlan, share: float = SHARE) -> list[Holder]:
    """Every rule and option in force that holds more than ``share`` of the arena, largest first: planned again without
    it, all else equal. Where several hold it together, so that none of them alone frees it, one row names them all.

    Empty for a plan without its graph, or of nothing. Costs a pass over the graph a candidate, and a plan for each that
    may pass the share.
    """
    graph = plan.graph
    if graph is None or not plan.arena_size:
        return []
    return list(plan.derived(_holders, share))


def _holders(plan: MemoryPlan, share: float) -> list[Holder]:
    graph, found = plan.graph, list[Holder]()
    if graph is None:
        return found
    singles = list(_candidates(plan))
    for c in (*singles, *_together(singles)):
        without = _arena_without(plan, graph, c, (1 - share) * plan.arena_size)
        alone = max((h.held for h in found), default=0)
        if plan.arena_size - without > share * plan.arena_size and (
                " + " not in c.name or plan.arena_size - without > alone + share * plan.arena_size):
            found.append(Holder(c.name, c.doc, c.options, plan.arena_size, without))
    found.sort(key=lambda h: (-h.held, h.name))
    return found


def _candidates(plan: MemoryPlan) -> Iterator[_Candidate]:
    """What is in force: rules that extended a range or forbade reuse, then options that aren't at their least."""
    o = plan.options
    fired = set(np.unique(plan.extensions.rule).tolist())
    for k, rule in enumerate(RULES):
        if rule.option:
            if getattr(o, rule.option) and (k in fired or plan.no_reuse):
                yield _Candidate(rule.option, rule.doc, ((rule.option, False),))
        elif k in fired:
            yield _Candidate(rule.name, rule.doc, (), frozenset({rule.name}))
    if o.arena_no_reuse:
        yield _Candidate("arena_no_reuse", "Every buffer has its own bytes.", (("arena_no_reuse", False),))
    if o.width_policy is not ArenaWidthPolicy.NATIVE:
        yield _Candidate(f"width_policy={o.width_policy.value}", "Values are stored wider than their type.",
                         (("width_policy", ArenaWidthPolicy.NATIVE),))
    if o.alignment > 64:
        yield _Candidate(f"alignment={o.alignment}", "Every slot starts at a multiple of it.", (("alignment", 64),))
    if o.placement != "auto" and not plan.is_optimal and not plan.no_reuse:
        yield _Candidate(f"placement={o.placement}", "A search places the same live ranges lower.", (("placement", "auto"),))


def _together(singles: list[_Candidate]) -> list[_Candidate]:
    """All that options can switch off among liveness and reuse, as one candidate, where they are several."""
    pins = [c for c in singles if c.options and isinstance(c.options[0][1], bool)]
    if len(pins) < 2:
        return []
    return [_Candidate(" + ".join(c.name for c in pins), "Together: each of them alone frees less.",
                       tuple(o for c in pins for o in c.options))]


def _arena_without(plan: MemoryPlan, graph: Graph, c: _Candidate, most: float) -> int:
    """The arena without a candidate; the plan's own where a bound shows that it would stay above ``most``."""
    options: PlanOptions = plan.options.replace(**dict(c.options))
    if not c.name.startswith("placement=") and arena_bound(graph, options, c.rules) >= most:
        return plan.arena_size
    return plan_graph(graph, options, without=c.rules).arena_size


def largest_step(plan: MemoryPlan) -> LargestStep:
    """The most bytes of the arena that one command's operands and results, with all that lives for the whole run, need
    at once: no order of the same commands does with less, guards included.

    ``max_n Σ size(root)`` over the roots that node ``n`` reads and writes, or over all outputs, plus boundaries and
    static packs. 0 for a plan without its graph.
    """
    graph = plan.graph
    if graph is None or not len(graph):
        return LargestStep(0, None)
    count, f = len(graph), facts_of(graph)
    in_arena = (plan.space == ARENA) & (plan.root == np.arange(count))
    whole = in_arena & ((f.boundary != NOT_BOUNDARY) | np.asarray(static_mask(graph), dtype=bool))
    need = np.where(in_arena & ~whole, plan.size + plan.guard, 0)
    always = int((plan.size + plan.guard)[whole].sum())
    ptr, flat = graph.edges
    reader = np.repeat(np.arange(count, dtype=np.int64), np.diff(ptr))
    read = flat.copy()
    through = plan.elided[flat]
    read[through] = flat[ptr[flat[through]]]
    touched = np.unique(np.concatenate([reader * count + plan.root[read], np.arange(count) * count + plan.root]))
    who, what = touched // count, touched % count
    runs = ~plan.elided[who] & (f.parent[who] < 0)
    load = np.zeros(count, dtype=np.int64)
    np.add.at(load, who[runs], need[what[runs]])
    if plan.options.in_place:  # in another order its result might take an operand's bytes
        largest = np.zeros(count, dtype=np.int64)
        operand = runs & (what != who)
        np.maximum.at(largest, who[operand], need[what[operand]])
        load -= np.minimum(largest, need)
    node = int(load.argmax())
    leave = int(need[np.unique(plan.root[np.asarray(graph.outputs, dtype=np.int64)])].sum()) if graph.outputs else 0
    if leave > int(load[node]):
        return LargestStep(always + leave, None)
    return LargestStep(always + int(load[node]), node)
