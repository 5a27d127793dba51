"""Owns the named entry points of spec §7. They, and the presets, are all that reads the environment."""

from __future__ import annotations

from typing import Any

from planner_core.environment import flag, path, variable
from planner_core.ir import Graph
from planner_core.memory.options import PlanOptions, has_host_indexing
from planner_core.memory.plan import MemoryPlan
from planner_core.memory.planner import plan_graph
from planner_core.memory.shared import SharedWeightLayout
from planner_core.memory.verify import require_sound
from planner_core.memory.widths import ArenaWidthPolicy

__all__ = [
    "plan_memory", "plan_memory_aligned", "plan_memory_backward", "plan_memory_f32_uniform",
    "plan_memory_f32_uniform_no_params", "plan_memory_hybrid", "plan_memory_native",
    "plan_memory_native_in_order", "plan_memory_with_options", "plan_memory_with_policy",
]

DEFAULT_ALIGNMENT = 64

_PIN = variable("RLX_PIN_OUTPUT_ANCESTORS", "flag", "plan_memory_f32_uniform keeps everything an output was computed from alive to "
                "the end.")


def _plan(graph: Graph, alignment: int, policy: ArenaWidthPolicy, **explicit: Any) -> MemoryPlan:
    return plan_graph(graph, PlanOptions.inference(alignment=alignment, width_policy=policy, **explicit))


def plan_memory(graph: Graph) -> MemoryPlan:
    """Native widths, alignment 64, the conservative defaults."""
    return plan_memory_aligned(graph, DEFAULT_ALIGNMENT)


def plan_memory_aligned(graph: Graph, alignment: int) -> MemoryPlan:
    """``plan_memory`` with another alignment (a power of two, else ``PlanError``)."""
    return _plan(graph, alignment, ArenaWidthPolicy.NATIVE)


def plan_memory_with_options(graph: Graph, alignment: int, options: PlanOptions,
                             policy: ArenaWidthPolicy = ArenaWidthPolicy.NATIVE) -> MemoryPlan:
    """Exactly these options with this alignment and width policy; the environment is not read."""
    return plan_graph(graph, options.replace(alignment=alignment, width_policy=policy))


def plan_memory_f32_uniform(graph: Graph, alignment: int = DEFAULT_ALIGNMENT) -> MemoryPlan:
    """Four bytes an element; ancestors pinned only with host indexing, or by the flag ``RLX_PIN_OUTPUT_ANCESTORS``."""
    forced = flag(_PIN)
    return _plan(graph, alignment, ArenaWidthPolicy.F32_UNIFORM,
                 pin_output_ancestors=bool(forced) or has_host_indexing(graph),
                 **({} if forced is None else {"env": (*PlanOptions.inference().env, (_PIN, path(_PIN)))}))


def plan_memory_f32_uniform_no_params(graph: Graph, alignment: int = DEFAULT_ALIGNMENT) -> MemoryPlan:
    """``plan_memory_f32_uniform`` with params not allocated, and no environment flag for pinning."""
    return _plan(graph, alignment, ArenaWidthPolicy.F32_UNIFORM, allocate_params=False,
                 pin_output_ancestors=has_host_indexing(graph))


def plan_memory_native(graph: Graph, alignment: int = DEFAULT_ALIGNMENT) -> MemoryPlan:
    """Native widths; ancestors pinned only with host indexing."""
    return plan_memory_with_policy(graph, alignment, ArenaWidthPolicy.NATIVE)


def plan_memory_native_in_order(graph: Graph, alignment: int = DEFAULT_ALIGNMENT) -> MemoryPlan:
    """Half floats widened; for executors that run in order: no dequant host fallback, folded transposes dropped."""
    return _plan(graph, alignment, ArenaWidthPolicy.NATIVE_HALF_WIDENED,
                 pin_output_ancestors=has_host_indexing(graph), dequant_host_fallback=False,
                 elide_bank_transposes=True, elide_requires_small_m=False)


def plan_memory_hybrid(graph: Graph, alignment: int = DEFAULT_ALIGNMENT) -> MemoryPlan:
    """Floats native, integers and bools at four bytes."""
    return plan_memory_with_policy(graph, alignment, ArenaWidthPolicy.HYBRID)


def plan_memory_with_policy(graph: Graph, alignment: int, policy: ArenaWidthPolicy) -> MemoryPlan:
    """A given width policy; ancestors pinned only with host indexing."""
    return _plan(graph, alignment, policy, pin_output_ancestors=has_host_indexing(graph))


def plan_memory_backward(graph: Graph, alignment: int, shared_weights: SharedWeightLayout) -> MemoryPlan:
    """A backward graph: its activations alone in the arena, its params on the forward plan's weights.

    Raises ``PlanError`` listing both sides where names or sizes don't match.
    """
    options = PlanOptions.backward_activations_only(alignment=alignment, width_policy=ArenaWidthPolicy.NATIVE)
    plan = shared_weights.apply_to_plan(graph, plan_graph(graph, options))
    if options.verify_memory:
        require_sound(graph, plan)
    return plan
