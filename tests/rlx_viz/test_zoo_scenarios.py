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
