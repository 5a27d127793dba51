"""Four real models, from every entry point: sound plans, and first fit equal to the plain scan (spec §8)."""

from __future__ import annotations

from functools import lru_cache

import pytest

from planner_core.importers import import_onnx
from planner_core.ir import Graph
from planner_core.memory import (
    MemoryPlan,
    PlanOptions,
    Target,
    headline,
    plan_graph,
    plan_memory,
    plan_memory_f32_uniform,
    plan_memory_native,
    plan_memory_native_in_order,
)
from tests.models import OCR, model
from tests.planner_core.memory.checker import checked

MODELS = (*OCR, "magika")


@lru_cache
def graph_of(name: str) -> Graph:
    path, shapes = model(name)
    return import_onnx(path, shapes=shapes)


@pytest.mark.parametrize("entry", [plan_memory, plan_memory_native, plan_memory_native_in_order, plan_memory_f32_uniform])
@pytest.mark.parametrize("name", MODELS)
def test_entry_points_on_real_models(name: str, entry, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """§8: with ``RLX_PLAN_VERIFY`` every offset is derived a second time; §10: both checkers pass."""
    monkeypatch.setenv("RLX_PLAN_VERIFY", "1")
    g = graph_of(name)
    plan = checked(entry(g), g)
    assert plan.options.verify_placement and plan.lower_bound <= plan.arena_size
    assert MemoryPlan.from_json(plan.to_json(), g) == plan


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("name", MODELS)
def test_targets_on_real_models(name: str, target: Target) -> None:
    """§6: what compilation starts from, for every target; the waterfall ends at its bytes."""
    g = graph_of(name)
    plan = checked(plan_graph(g, PlanOptions.for_target(target, g, {})), g)
    h = headline(plan)
    assert h.allocate == h.weights + h.activations + h.scratch + h.padding
    if target is Target.METAL:
        assert sum(s.delta for s in plan.savings()) == plan.arena_size + plan.weights_size
