"""Owns the pipeline: rules in order, to a fixed point, with a log of everything they did and refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from planner_core.decision import Decision, DecisionLog, Verdict
from planner_core.errors import FusionError, GraphError
from planner_core.fusion.draft import Committed, Draft, Refused, Rewrite
from planner_core.fusion.moves import append_refusal
from planner_core.fusion.options import FusionOptions, fusion_for_target
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import ANY, RULES, Limits, Rule
from planner_core.ir import Graph, NodeId
from planner_core.ir.folds import folded_transposes
from planner_core.ir.traits import Trait
from planner_core.show import Facts, Shown
from planner_core.target import Target

__all__ = ["PIPELINE_REASONS", "Fusion", "fuse_graph", "limits_of"]

MOST_ROUNDS = 12
"""Rounds of one phase; a pipeline that still changes something then is a rule's mistake."""
PIPELINE_REASONS = frozenset({Refusal.SHAPE, Refusal.ORDER, Refusal.OVERWRITTEN, Refusal.LASTING})
"""Refusals that the pipeline itself gives to a rewrite that does not fit."""


@dataclass(frozen=True, slots=True, repr=False)
class Fusion(Shown):
    """What the fusion stage made of a graph.

    ``fused_of[i]`` is the node of ``graph`` that stands for node i of ``source`` (-1: nothing needs it);
    ``origins[j]`` are the source nodes that node j stands for. ``frozen`` names params whose values a rule read:
    setting them afterwards would not be seen.
    """

    source: Graph
    graph: Graph
    log: DecisionLog
    target: Target
    options: FusionOptions
    origins: tuple[tuple[NodeId, ...], ...]
    fused_of: tuple[int, ...]
    frozen: frozenset[str] = frozenset()
    rounds: int = 0
    _by_node: dict[NodeId, list[Decision]] = field(default_factory=dict, repr=False, compare=False)

    def _facts(self) -> Facts:
        return (f"Fusion of {self.source.name!r} for {self.target.value}", (
            ("nodes before", f"{len(self.source):,}"), ("after", f"{len(self.graph):,}"), ("applied", len(self.log.applied())),
            ("refused", len(self.log.refused()))), "fusion.log.to_frame() lists every decision")

    def node(self, node: NodeId | str) -> NodeId:
        """The source node's id, by id or name."""
        return self.source.find(node).id if isinstance(node, str) else int(node)

    def at(self, node: NodeId | str) -> list[Decision]:
        """Every decision that node of the source takes part in, in order."""
        if not self._by_node:
            for d in self.log:
                for i in {d.anchor, *d.nodes}:
                    self._by_node.setdefault(i, []).append(d)
        found = self.node(node)
        if not 0 <= found < len(self.source):
            raise FusionError(f"no node {found} in {self.source.name!r}; wanted 0 to {len(self.source) - 1}, or a name")
        return self._by_node.get(found, [])

    def why_not(self, node: NodeId | str) -> list[Decision]:
        """Every rule that looked at that node of the source and stopped, and why."""
        return [d for d in self.at(node) if not d.applied]

    def clusters(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """Fused node -> the source nodes it stands for, where there are several."""
        return {j: o for j, o in enumerate(self.origins) if len(o) > 1}

    def to_frame(self) -> Any:
        """The log as a pandas frame."""
        return self.log.to_frame()


def limits_of(target: Target, options: FusionOptions) -> Limits:
    """The target's profile, and whether the decode forms are the graph's."""
    return Limits(target, decode_forms=options.decode_forms)


def fuse_graph(graph: Graph, target: Target | str = Target.CPU, options: FusionOptions | None = None) -> Fusion:
    """Run the rules that ``options`` switch on (default: the target's) to a fixed point.

    Inputs, outputs and their names stay. Deterministic. ``FusionError`` names a rule that breaks its contract.
    """
    try:
        target = Target(target)
    except ValueError:
        raise FusionError(f"target {target!r}: wanted one of {', '.join(t.value for t in Target)}") from None
    given: tuple[object, object] = graph, options
    if not isinstance(given[0], Graph) or not isinstance(given[1], FusionOptions | None):
        raise FusionError(f"fuse_graph of {type(graph).__name__} with {type(options).__name__}: wanted a Graph, and "
                          "FusionOptions or None (fusion_for_target makes them from names)")
    options = options if options is not None else fusion_for_target(target)
    folds = target.profile.folds
    draft = Draft(graph, frozenset(folded_transposes(graph, folds.small_banks_only)) if folds else frozenset())
    run = _Run(draft, limits_of(target, options))
    if options.fusion:
        chosen = [r for r in RULES.values() if getattr(options, r.name)]
        phases = [[r for r in chosen if r.phase == p] for p in sorted({r.phase for r in chosen})]
        for _ in range(MOST_ROUNDS):  # what a later phase did may open a pattern of an earlier one
            for phase in phases[:1]:
                run.to_fixed_point(phase)
            done = len(run.applied)
            for phase in phases[1:]:
                run.to_fixed_point(phase)
            if len(run.applied) == done:
                break
    return _result(run, graph, target, options)


def _result(run: _Run, graph: Graph, target: Target, options: FusionOptions) -> Fusion:
    draft = run.draft
    fused_of = [-1] * len(graph)
    if draft.changed:
        made, at = draft.emit()
        origins: list[tuple[NodeId, ...]] = [()] * len(made)
        for i, j in at.items():
            origins[j] = draft.origins[i] or ()
        for j, ids in enumerate(origins):
            for i in ids:
                fused_of[i] = j
    else:
        made, origins, fused_of = graph, [(i,) for i in range(len(graph))], list(range(len(graph)))
    log = DecisionLog(run.decisions(), {d.anchor: graph[d.anchor].label for d in run.decisions()})
    return Fusion(graph, made, log, target, options, tuple(origins), tuple(fused_of), frozenset(draft.frozen),
                  run.rounds)


class _Run:
    """One pipeline run: decisions so far, the last refusal of each rule at each anchor."""

    def __init__(self, draft: Draft, limits: Limits) -> None:
        self.draft, self.limits, self.rounds = draft, limits, 0
        self.applied: list[Decision] = []
        self.refused: dict[tuple[str, NodeId], Decision] = {}

    def decisions(self) -> tuple[Decision, ...]:
        return (*self.applied, *self.refused.values())

    def to_fixed_point(self, rules: list[Rule]) -> None:
        for _ in range(MOST_ROUNDS):
            self.rounds += 1
            changed = [self._sweep(r) for r in rules]
            if not any(changed):
                return
        raise FusionError(f"{self.draft.source.name!r}: rules {', '.join(r.name for r in rules)} still change the graph "
                          f"after {MOST_ROUNDS} rounds; switch some off and report the graph")

    def _sweep(self, rule: Rule) -> bool:
        g, changed = self.draft, False
        anchors: Iterable[NodeId] = (
            (i for i in list(g.walk()) if not g.op(i).has(Trait.BOUNDARY)) if rule.anchors == ANY else g.nodes(*rule.anchors))
        for n in anchors:
            if not g.alive(n):
                continue
            try:
                found = rule.match(g, n, self.limits)
            except GraphError as e:  # the fused op's own shape rule
                found = Refused(Refusal.SHAPE, n, facts=(("says", str(e)),))
            if isinstance(found, Rewrite):
                changed |= self._apply(rule, found)
            elif found is not None:
                self._refuse(rule, n, found)
        return changed

    def _apply(self, rule: Rule, r: Rewrite) -> bool:
        g = self.draft
        anchor = self._source(r.anchor)
        done = append_refusal(g, r) or g.commit(r)
        if isinstance(done, Refused):
            self._refuse(rule, r.anchor, done)
            return False
        self._log(rule, anchor, done, r)
        self.refused.pop((rule.name, anchor), None)
        return True

    def _log(self, rule: Rule, anchor: NodeId, done: Committed, r: Rewrite) -> None:
        g = self.draft
        nodes = tuple(sorted({o for i in done.gone for o in g.origins[i]} | {anchor}))
        gone, made = [g.costs(i) for i in done.gone], [g.costs(i) for i in done.made]
        facts = list(r.facts)
        flops = sum(_flops(g, i) for i in done.gone), sum(_flops(g, i) for i in done.made)
        traffic = sum(_traffic(g, i) for i in done.gone), sum(_traffic(g, i) for i in done.made)
        if any(flops) and all(traffic):
            facts += [("flops_before", flops[0]), ("flops_after", flops[1]), ("traffic_before", traffic[0]),
                      ("traffic_after", traffic[1]), ("intensity_before", round(flops[0] / traffic[0], 4)),
                      ("intensity_after", round(flops[1] / traffic[1], 4))]
        self.applied.append(Decision(
            "fusion", rule.name, Verdict.APPLIED, anchor, nodes, None, tuple(facts),
            sum(b for b, _ in gone) - sum(b for b, _ in made), sum(d for _, d in gone) - sum(d for _, d in made)))

    def _refuse(self, rule: Rule, n: NodeId, found: Refused) -> None:
        if found.reason not in rule.reasons and found.reason not in PIPELINE_REASONS:
            raise FusionError(f"rule {rule.name} refuses with {found.reason.name}, which it does not declare")
        g, anchor = self.draft, self._source(n)
        culprit = self._source(found.at)
        nodes = tuple(sorted({o for i in (n, found.at, *found.nodes) for o in g.origins[i]} | {anchor}))
        self.refused[rule.name, anchor] = Decision(
            "fusion", rule.name, Verdict.REFUSED, anchor, nodes, found.reason,
            (("culprit", g.source[culprit].label), *found.facts))

    def _source(self, node: NodeId) -> NodeId:
        """A source node that stands for a draft node: itself, or the last it was made of."""
        origins = self.draft.origins[node]
        return origins[-1] if origins else min(node, len(self.draft.source) - 1)


def _flops(g: Draft, node: NodeId) -> int:
    op, out, ins = g.op(node), g.shape(node), [g.shape(i) for i in g.inputs(node)]
    if op.has(Trait.BOUNDARY) or not out.is_static or not all(s.is_static for s in ins):
        return 0
    return op.flops(out, *ins)


def _traffic(g: Draft, node: NodeId) -> int:
    """Bytes read and written by a node that does work; views and boundaries move none."""
    if not g.costs(node)[1]:
        return 0
    shapes = [g.shape(i) for i in g.inputs(node)] + [g.shape(node)]
    return sum(s.dtype.nbytes(s.numel) for s in shapes if s.is_static)
