"""The memory planner: live ranges, slots, placement, self-check, explanations.

Start at ``plan_memory`` or ``plan_graph``; the contract's parts are one module each.
"""

from planner_core.ir.folds import (
    SMALL_M_GROUPED,
    is_elidable_bank_transpose,
    is_elidable_folded_transpose,
    is_elidable_matmul_transpose,
)
from planner_core.ir.views import is_pure_view, is_view
from planner_core.memory.bounds import lower_bound
from planner_core.memory.conv3d import Conv3dFold, conv3d_epilogue_folds
from planner_core.memory.diff import PlanDiff, TensorChange, diff_plans, match_nodes
from planner_core.memory.elide import elided_transposes
from planner_core.memory.entry import (
    plan_memory,
    plan_memory_aligned,
    plan_memory_backward,
    plan_memory_f32_uniform,
    plan_memory_f32_uniform_no_params,
    plan_memory_hybrid,
    plan_memory_native,
    plan_memory_native_in_order,
    plan_memory_with_options,
    plan_memory_with_policy,
)
from planner_core.memory.explain import (
    AliveReason,
    Headline,
    HereReason,
    Peak,
    PeakTensor,
    Saving,
    headline,
    last_rule,
    live_curve,
    naive_bytes,
)
from planner_core.memory.facts import collect_view_aliases, facts_of, resolve_view_root
from planner_core.memory.holders import Holder, LargestStep, holders, largest_step
from planner_core.memory.liveness import Extension, ExtensionTable, LiveRanges, Rule
from planner_core.memory.options import PlanOptions, has_host_indexing, static_weight_pack_skip_enabled
from planner_core.memory.placement import STRATEGIES, first_fit, first_fit_scan
from planner_core.memory.plan import ARENA, NO_SLOT, SPACES, WEIGHTS, MemoryPlan, Slot
from planner_core.memory.planner import BodyPlan, body_plans, native_width_nodes, plan_graph
from planner_core.memory.problem import Budget, Problem, Strategy
from planner_core.memory.rules import RULES, is_static_weight_tensor, live_ranges
from planner_core.memory.shared import SharedWeightLayout
from planner_core.memory.verify import Violation, ViolationKind, require_sound, verify_plan
from planner_core.memory.widths import ArenaWidthPolicy, Target, arena_width_policy, storage_dtype


def slot_is_exclusive(plan: MemoryPlan, node: int) -> bool:
    """No other buffer ever uses any byte of the node's slot, at any step: what a pin alone doesn't prove."""
    import numpy as np

    root = int(plan.root[node])
    if plan.space[root] == NO_SLOT:
        return False
    others = plan.buffers(int(plan.space[root]))
    others = others[others != root]
    hit = (plan.offset[others] < plan.offset[root] + plan.size[root]) & (
        plan.offset[root] < plan.offset[others] + plan.size[others])
    return not bool(np.any(hit))


__all__ = [
    "ARENA", "NO_SLOT", "RULES", "SMALL_M_GROUPED", "SPACES", "STRATEGIES", "WEIGHTS",
    "AliveReason", "ArenaWidthPolicy", "BodyPlan", "Budget", "Conv3dFold", "Extension", "ExtensionTable", "Headline", "HereReason", "Holder", "LargestStep",
    "LiveRanges", "MemoryPlan", "Peak", "PeakTensor", "PlanDiff", "PlanOptions", "Problem", "Rule", "Saving",
    "SharedWeightLayout", "Slot", "Strategy", "Target", "TensorChange", "Violation", "ViolationKind",
    "arena_width_policy", "body_plans", "collect_view_aliases", "conv3d_epilogue_folds", "diff_plans", "elided_transposes",
    "facts_of", "first_fit", "first_fit_scan", "has_host_indexing", "headline", "holders", "is_elidable_bank_transpose",
    "is_elidable_folded_transpose", "is_elidable_matmul_transpose", "is_pure_view", "is_static_weight_tensor",
    "is_view", "largest_step", "last_rule", "live_curve", "live_ranges", "lower_bound", "match_nodes", "naive_bytes",
    "native_width_nodes", "plan_graph", "plan_memory", "plan_memory_aligned", "plan_memory_backward",
    "plan_memory_f32_uniform", "plan_memory_f32_uniform_no_params", "plan_memory_hybrid", "plan_memory_native",
    "plan_memory_native_in_order", "plan_memory_with_options", "plan_memory_with_policy", "require_sound",
    "resolve_view_root", "slot_is_exclusive", "static_weight_pack_skip_enabled", "storage_dtype", "verify_plan",
]
