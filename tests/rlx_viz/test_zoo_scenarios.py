"""Every scenario of the zoo opens: compiled with its settings and put into the document that report and explorer show."""

from __future__ import annotations

import pytest

import rlx_viz
from planner_core import zoo

MODELS = zoo.names()


@pytest.mark.parametrize("name", MODELS)
def test_scenarios_open(name: str) -> None:
    for s in zoo.scenarios(name):
        compiled = rlx_viz.compile(s.build(), **s.settings)
        head = rlx_viz.snapshot(compiled).meta["headline"]
        assert int(head["arena"]) == compiled.plan.arena_size == s.plans()[0].arena_size


def applied(model: str, scenario: str, rule: str) -> tuple[int, int]:
    """(times the pass applied, times it refused) in a scenario."""
    s = next(s for s in zoo.scenarios(model) if s.name == scenario)
    found = [d for d in rlx_viz.compile(s.build(), **s.settings).pass_log if d.rule == rule]
    return sum(d.applied for d in found), sum(not d.applied for d in found)


def test_decode_passes_tell_their_story() -> None:
    """Every layer's MLP, as each scenario says."""
    assert applied("llama-decode", "mlp-refused", "decode_mlp_separate") == (0, 32)
    assert applied("llama-decode", "mlp-kept-rows", "decode_mlp_separate") == (32, 0)
    assert applied("llama-decode", "packed-mlp-list", "decode_mlp_combined") == (0, 0)
    assert applied("llama-decode", "packed-mlp-fused", "decode_mlp_combined") == (32, 0)
    off, on = (next(s for s in zoo.scenarios("llama-decode") if s.name == n) for n in ("packed-mlp-list", "packed-mlp-fused"))
    assert off.plans()[0].arena_size == on.plans()[0].arena_size


def test_a_modulations_slices_are_one_dispatch() -> None:
    assert applied("dit-block", "clusters", "narrow_clusters") == (29, 0)
    assert len(zoo.build("dit-block").of("Narrow")) == 170
