"""Owns explanations: why a tensor is alive, why it sits where it does, the peak, what each option saved."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from planner_core.errors import PlanError
from planner_core.ir import Graph, NodeId
from planner_core.ir.ops import Result
from planner_core.memory.bounds import align_up
from planner_core.memory.facts import I64, PARAM, facts_of
from planner_core.memory.inplace import handed_over
from planner_core.memory.options import PlanOptions
from planner_core.memory.plan import ARENA, NO_SLOT, MemoryPlan
from planner_core.memory.planner import plan_graph
from planner_core.memory.rules import RULES
from planner_core.options import options_of

__all__ = ["AliveReason", "HereReason", "Peak", "PeakTensor", "Saving", "Headline", "headline", "last_rule", "live_curve", "naive_bytes"]


@dataclass(frozen=True, slots=True)
class AliveReason:
    """One reason for an end of a live range. ``rule`` is "produced", "last read" or a rule's name."""

    rule: str
    step: int
    cause: NodeId
    text: str


@dataclass(frozen=True, slots=True)
class HereReason:
    """An earlier-placed buffer, live together with the one asked about, in the way below it."""

    node: NodeId
    offset: int
    end: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class PeakTensor:
    node: NodeId
    label: str
    nbytes: int
    rule: str
    """The rule that set its death, "read" where only a read did."""


@dataclass(frozen=True, slots=True)
class Peak:
    """``nbytes`` live at ``step``, the sum of the residents' sizes (guards and alignment left out)."""

    step: int
    nbytes: int
    tensors: tuple[PeakTensor, ...]


@dataclass(frozen=True, slots=True)
class Saving:
    """One step of the waterfall: what changed, bytes before and after (``delta = after - before``)."""

    name: str
    before: int
    after: int

    @property
    def delta(self) -> int:
        return self.after - self.before


def _label(plan: MemoryPlan, node: NodeId) -> str:
    return plan.graph[node].label if plan.graph is not None else f"%{node}"


def why_alive(plan: MemoryPlan, node: NodeId) -> list[AliveReason]:
    """Birth, last read through any view, then each rule's extension with its cause; for a view also its root's."""
    root = int(plan.root[node])
    made = plan.graph[node] if plan.graph is not None else None
    step = _writer(plan.graph, node) if plan.graph is not None else node
    by = f" by {_label(plan, step)}" if made is not None and isinstance(made.op, Result) else ""
    out = [AliveReason("produced", step, step, f"{_label(plan, node)} is produced{by} at step {step}")]
    if plan.graph is not None:
        family = np.flatnonzero(plan.root == root).tolist()
        reads = [(r, v) for v in family for r in _readers(plan, plan.graph, v)]
        if reads:
            reader, via = max(reads)
            through = "" if via == root else f" through its view {_label(plan, via)}"
            out.append(AliveReason("last read", int(plan.last_read[root]), reader,
                                   f"last read{through} by {_label(plan, reader)} at step {plan.last_read[root]}"))
    seen = set()
    for n in dict.fromkeys((root, node)):
        for e in plan.extensions_of(n):
            if (e.rule, e.birth) in seen:
                continue
            seen.add((e.rule, e.birth))
            doc = next(r.doc for r in RULES if r.name == e.rule)
            what = "born" if e.birth else "kept"
            out.append(AliveReason(e.rule, e.new, e.cause,
                                   f"{what} {'from' if e.birth else 'to'} step {e.new} (was {e.old}) because of "
                                   f"{_label(plan, e.cause)}: {doc}"))
    return out


def _writer(graph: Graph, node: NodeId) -> NodeId:
    """The node at whose step ``node`` is written: itself, or the producer of a further result."""
    while isinstance(graph[node].op, Result):
        node = graph[node].inputs[0]
    return node


def _readers(plan: MemoryPlan, graph: Graph, node: NodeId) -> list[NodeId]:
    """Who reads the node's bytes; through an elided transpose, who reads that."""
    out: list[NodeId] = []
    for reader, _ in graph.uses.of(node):
        out += [r for r, _ in graph.uses.of(reader)] if plan.elided[reader] else [reader]
    return out


def why_here(plan: MemoryPlan, node: NodeId) -> list[HereReason]:
    """Derived on query: buffers before this one in placement order (size, then schedule), live at some step
    with it, that start below it; by offset."""
    root = int(plan.root[node])
    if plan.space[root] == NO_SLOT:
        return []
    ids = plan.buffers(int(plan.space[root]))
    earlier = (plan.size[ids] > plan.size[root]) | ((plan.size[ids] == plan.size[root]) & (ids < root))
    if plan.options.placement != "first_fit":  # placed all at once, or in an order of its own
        earlier = ids != root
    together = (plan.birth[ids] <= plan.death[root]) & (plan.birth[root] <= plan.death[ids])
    if plan.no_reuse:
        together[:] = True
    found = ids[earlier & together & (plan.offset[ids] < plan.offset[root])]
    found = found[np.argsort(plan.offset[found], kind="stable")]
    return [HereReason(i, int(plan.offset[i]), int(plan.offset[i] + plan.size[i] + plan.guard[i]),
                       int(plan.birth[i]), int(plan.death[i])) for i in found.tolist()]


def last_rule(plan: MemoryPlan) -> I64:
    """Per node: index of the rule that set its death, -1 where a read did."""
    out = np.full(len(plan.birth), -1, dtype=np.int64)
    e = plan.extensions
    death = ~e.birth
    out[e.node[death]] = e.rule[death]  # rows are in rule order, so the last extension wins
    return out


def live_curve(plan: MemoryPlan, ids: I64 | None = None) -> I64:
    """Bytes of tensors live in the arena at each step ``0..last_step``: their slots' sizes, guards left out."""
    ids = plan.buffers(ARENA) if ids is None else ids
    weight = plan.size[ids]
    steps = plan.last_step + 1
    delta = np.zeros(steps + 1, dtype=np.int64)
    np.add.at(delta, plan.birth[ids], weight)
    np.add.at(delta, handed_over(plan.inplace, plan.death)[ids] + 1, -weight)
    return np.cumsum(delta[:-1])


def peak(plan: MemoryPlan) -> Peak:
    """The first step at which most bytes are live."""
    curve = live_curve(plan)
    step = int(curve.argmax()) if len(curve) else 0
    ids = plan.buffers(ARENA)
    live = ids[(plan.birth[ids] <= step) & (handed_over(plan.inplace, plan.death)[ids] >= step)]
    live = live[np.lexsort((live, -plan.size[live]))]
    rules = last_rule(plan)
    return Peak(step, int(curve[step]) if len(curve) else 0, tuple(
        PeakTensor(i, _label(plan, i), int(plan.size[i]), RULES[rules[i]].name if rules[i] >= 0 else "read")
        for i in live.tolist()))


def naive_bytes(plan: MemoryPlan) -> int:
    """The arena with nothing reused, at the same widths, alignment and guards."""
    ids = plan.buffers(ARENA)
    end = plan.size[ids] + plan.guard[ids]
    if not len(ids):
        return 0
    spans = align_up(end, plan.options.alignment)
    last = np.lexsort((np.arange(len(ids)), -plan.size[ids]))[-1]  # only the last span is not rounded up
    return int(spans.sum() - spans[last] + end[last])


@dataclass(frozen=True, slots=True)
class Headline:
    """The numbers at the top, in bytes. ``allocate = weights + activations + scratch + padding`` exactly.

    weights: params' own bytes. activations: most bytes of other tensors live at one
    step. scratch: what kernels and control-flow bodies need beside. padding: the rest of both
    regions (alignment, guards, gaps). naive: the arena with nothing reused; saved: naive - arena.
    ``unknown`` tensors have sizes that nobody knows before the run: totals are then "at least".
    """

    allocate: int
    weights: int
    activations: int
    scratch: int
    padding: int
    arena: int
    naive: int
    saved: int
    lower_bound: int
    peak_step: int
    peak_bytes: int
    unknown: tuple[str, ...]
    held: tuple[str, ...] = ()
    """A sentence for everything that holds more than 5% of the arena (``Compilation.summary`` fills it)."""

    def __str__(self) -> str:
        least = "≥ " if self.unknown else ""
        rows = [(f.name.replace("_", " "), getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in ("unknown", "peak_step", "held")]
        return "\n".join([*(f"{name:<12} {least}{value:>18,} B" for name, value in rows), f"{'peak node':<12} {self.peak_step:>18,}",
                          *(f"held up: {text}" for text in self.held)])


def headline(plan: MemoryPlan, scratch: int = 0) -> Headline:
    """Sum up a plan; ``scratch`` is what the command list's kernels need (bodies' is in the plan)."""
    graph = _need_graph(plan)
    own = plan.root == np.arange(len(plan.root))
    is_param = facts_of(graph).boundary == PARAM
    weights = int(plan.size[own & is_param & (plan.space != NO_SLOT)].sum())
    rest = np.flatnonzero(own & ~is_param & (plan.space == ARENA))
    activations = int(live_curve(plan, rest).max(initial=0))
    extra = max(scratch, plan.scratch_size)
    regions = plan.arena_size + plan.weights_size
    naive = naive_bytes(plan)
    top = peak(plan)
    return Headline(regions + extra, weights, activations, extra, regions - weights - activations, plan.arena_size,
                    naive, naive - plan.arena_size, plan.lower_bound, top.step, top.nbytes,
                    tuple(graph[i].label for i in np.flatnonzero(plan.unknown).tolist()))


def _need_graph(plan: MemoryPlan) -> Graph:
    if plan.graph is None:
        raise PlanError("this plan was loaded without its graph; use MemoryPlan.from_json(text, graph=…)")
    return plan.graph


def savings(plan: MemoryPlan) -> list[Saving]:
    """Arena + weights from "every tensor its own bytes, views too" to this plan, one change at a time, in a
    fixed order: views, reuse, width policy, elided transposes, then each option that this plan sets. The start
    keeps nothing alive longer than its reads, so that reuse gets its credit and a pin shows what it costs. The deltas sum exactly to ``plan total - start``."""
    graph, final = _need_graph(plan), plan.options
    now = PlanOptions(arena_no_reuse=True, alignment=final.alignment)
    now = now.replace(**{o.name: False for o in options_of(PlanOptions) if o.group == "liveness"})
    start = plan_graph(graph, now, own_views=True)
    out = [Saving("every tensor its own bytes", 0, start.arena_size + start.weights_size)]

    def step(name: str, options: PlanOptions) -> None:
        p = plan_graph(graph, options)
        out.append(Saving(name, out[-1].after, p.arena_size + p.weights_size))

    step("views", now)
    elision = ("elide_bank_transposes", "elide_requires_small_m")
    for name, changes in (
        ("reuse", {"arena_no_reuse": final.arena_no_reuse}),
        ("width policy", {"width_policy": final.width_policy}),
        ("elided transposes", {k: getattr(final, k) for k in elision}),
    ):
        now = now.replace(**changes)
        step(name, now)
    for o in options_of(PlanOptions):
        value = getattr(final, o.name)
        if value != getattr(now, o.name) and o.group != "checks":
            now = now.replace(**{o.name: value})
            step(o.name, now)
            if value == o.default and not out[-1].delta:
                out.pop()  # nobody asked for it and nothing came of it
    total = plan.arena_size + plan.weights_size
    if out[-1].after != total:  # mapped onto another plan's weights after planning
        out.append(Saving("shared weights", out[-1].after, total))
    return out


