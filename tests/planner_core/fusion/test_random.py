"""Random graphs, and every rule's own cases: the whole pipeline equals plain float64 evaluation, and changes nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner_core.fusion import FusionTarget, fusion_for_target
from planner_core.ir import Graph
from tests.planner_core.fusion.harness import Applied, Refused, case_id, only, same
from tests.planner_core.fusion.test_registry import APPLIED, REFUSED
from tests.runtime.test_property import graphs

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
RTOL = 1e-5
"""What is computed ahead is rounded once to the weights' own width."""


def check(g: Graph, target: FusionTarget, seed: int) -> None:
    same(g, target=target, seed=seed, rtol=RTOL, options=fusion_for_target(target))
    same(g, target=target, seed=seed, rtol=RTOL, options=only())


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(graphs(), st.sampled_from(FusionTarget), st.integers(0, 99))
def test_every_pipeline_equals_plain_evaluation(g: Graph, target: FusionTarget, seed: int) -> None:
    check(g, target, seed)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=SLOW)
@given(graphs(), st.sampled_from(FusionTarget), st.integers(0, 99))
def test_every_pipeline_equals_plain_evaluation_at_length(g: Graph, target: FusionTarget, seed: int) -> None:
    check(g, target, seed)


@pytest.mark.parametrize("case", [*APPLIED, *(c for c in REFUSED if c.evaluate)], ids=case_id)
def test_rules_meet(case: Applied | Refused) -> None:
    """What one rule leaves, others find: the whole pipeline over each rule's own cases."""
    rtol = max(RTOL, getattr(case, "rtol", RTOL))
    g = case.build()
    same(g, target=case.target, rtol=rtol, options=fusion_for_target(case.target))
    same(g, target=FusionTarget.CUDA, rtol=rtol, options=only())
