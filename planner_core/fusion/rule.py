"""Owns the rule declaration. A rule is a pure function of a draft and one of its nodes (the anchor): it answers
None (does not apply), ``Refused`` or a ``Rewrite``; ``pipeline.py`` logs and commits.

A declaration::

    @rule(anchors=(Binary,), group="matmul", reasons=(Refusal.SHARED, Refusal.OUTPUT))
    def matmul_bias_act(g: Draft, n: NodeId, limits: Limits) -> Outcome:
        '''A product, its bias and its activation become one kernel.'''

The function's name is the option's name, its docstring's first line the tooltip.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.ir import NodeId, Op
from planner_core.target import Target, TargetProfile

__all__ = ["LAST", "PATTERNS", "REGIONS", "RULES", "Limits", "Outcome", "Rule", "rule", "rules_of"]

Outcome = Refused | Rewrite | None
PATTERNS, REGIONS, LAST = 1, 2, 3
"""Phases: patterns to a fixed point, then chains of what is left, then what can be computed ahead."""
Match = Callable[[Draft, NodeId, "Limits"], Outcome]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a pipeline's rules keep to: the target's profile, and options."""

    target: Target = Target.CPU
    decode_forms: bool = True
    """Take the one-row forms that a command pass would own on this target."""
    most_folded: int = 1 << 20
    """Bytes: the largest constant that folding makes."""

    @property
    def profile(self) -> TargetProfile:
        return self.target.profile




@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule. ``reasons``: every refusal it can give; ``targets``: where it is on by default."""

    name: str
    doc: str
    group: str
    anchors: tuple[type[Op], ...]
    reasons: frozenset[Refusal]
    targets: frozenset[Target]
    match: Match
    phase: int = PATTERNS


ANY: tuple[type[Op], ...] = (Op,)
"""Anchors of a rule that looks at every node."""
RULES: dict[str, Rule] = {}
"""Every rule by name, in the order in which a pipeline runs them."""


def rule(*, anchors: tuple[type[Op], ...], group: str, reasons: tuple[Refusal, ...] = (),
         targets: frozenset[Target] = frozenset(Target), phase: int = PATTERNS) -> Callable[[Match], Match]:
    """Declare a rule. Fails at import on a missing doc, a taken name or no anchors."""

    def register(fn: Match) -> Match:
        name, doc = fn.__name__, inspect.getdoc(fn) or ""
        if not doc or not anchors:
            raise TypeError(f"rule {name}: a docstring and at least one anchor are required")
        if name in RULES:
            raise TypeError(f"rule {name} is declared twice")
        first = doc.partition("\n")[0]
        RULES[name] = Rule(name, first.strip(), group, anchors, frozenset(reasons), targets, fn, phase)
        return fn

    return register


def rules_of(target: Target) -> Mapping[str, Rule]:
    """The rules that are on by default for a target, in order."""
    return {name: r for name, r in RULES.items() if target in r.targets}
