"""Owns the rule declaration. A rule is a pure function of a draft and one of its nodes (the anchor): it answers
None (does not apply), ``Refused`` or a ``Rewrite``; ``pipeline.py`` logs and commits.

A declaration::

    @rule(anchors=("Binary",), group="matmul", reasons=(Refusal.SHARED, Refusal.OUTPUT))
    def matmul_bias_act(g: Draft, n: NodeId, limits: Limits) -> Outcome:
        '''A product, its bias and its activation become one kernel.'''

The function's name is the option's name, its docstring's first line the tooltip.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.ir import DType, NodeId
from planner_core.target import Target

__all__ = ["LAST", "LIMITS", "PATTERNS", "REGIONS", "RULES", "Limits", "Outcome", "Rule", "rule", "rules_of"]

Outcome = Refused | Rewrite | None
PATTERNS, REGIONS, LAST = 1, 2, 3
"""Phases: patterns to a fixed point, then chains of what is left, then what can be computed ahead."""
Match = Callable[[Draft, NodeId, "Limits"], Outcome]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a target's fused kernels take."""

    target: Target = Target.CPU
    region_inputs: int = 16
    region_steps: int = 32
    batch_inputs: int = 64
    """Of all slices of one batch together."""
    dtypes: frozenset[DType] = field(default_factory=lambda: frozenset({DType.F32, DType.F16}))
    """Element types that fused kernels compute in."""
    region_dtypes: frozenset[DType] = field(default_factory=lambda: frozenset({DType.F32}))
    decode_forms: bool = True
    """Take the one-row forms that a command pass would own on this target."""
    most_folded: int = 1 << 20
    """Bytes: the largest constant that folding makes."""


_F32, _HALVES = frozenset({DType.F32}), frozenset({DType.F32, DType.F16})
_ALL = frozenset({DType.F32, DType.F16, DType.BF16})

LIMITS: dict[Target, Limits] = {
    Target.CPU: Limits(Target.CPU, dtypes=_HALVES),
    Target.METAL: Limits(Target.METAL, dtypes=_HALVES),
    Target.MLX: Limits(Target.MLX, dtypes=_ALL),
    Target.CUDA: Limits(Target.CUDA, dtypes=_ALL),
    Target.ROCM: Limits(Target.ROCM, dtypes=_ALL),
    Target.WGPU: Limits(Target.WGPU, region_inputs=7, batch_inputs=7, dtypes=_F32),
    Target.TPU: Limits(Target.TPU, dtypes=frozenset({DType.F32, DType.BF16})),
}
"""What each target's kernels take. Regions: the command list's 16 inputs and 32 steps of f32 (command-list.md); a
WebGPU stage binds 8 storage buffers by default, so 7 inputs beside the result. Dtypes: what the target computes in: CPU
and Metal kernels know f32 and f16, WebGPU f32 alone without an extension, a TPU no f16, the others bf16 too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule. ``reasons``: every refusal it can give; ``targets``: where it is on by default."""

    name: str
    doc: str
    group: str
    anchors: tuple[str, ...]
    reasons: frozenset[Refusal]
    targets: frozenset[Target]
    match: Match
    phase: int = PATTERNS


RULES: dict[str, Rule] = {}
"""Every rule by name, in the order in which a pipeline runs them."""


def rule(*, anchors: tuple[str, ...], group: str, reasons: tuple[Refusal, ...] = (),
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
