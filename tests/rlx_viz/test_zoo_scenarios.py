"""Every scenario of the zoo opens: compiled with its plan and put into the document that report and explorer show."""

from __future__ import annotations

import pytest

import rlx_viz
from planner_core import zoo
from planner_core.memory import plan_graph

MODELS = zoo.names()


@pytest.mark.parametrize("name", MODELS)
def test_scenarios_open(name: str) -> None:
    for s in zoo.scenarios(name):
        compiled = rlx_viz.compile(s.build(), **s.plan)
        head = rlx_viz.snapshot(compiled).meta["headline"]
        assert int(head["arena"]) == compiled.plan.arena_size == plan_graph(compiled.legal, s.options()).arena_size
