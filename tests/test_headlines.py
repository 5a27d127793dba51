"""The headline numbers of the four real models, as written and fused: golden tables, and the same from an independent script."""

from __future__ import annotations

import pytest

import rlx_viz
from planner_core.memory import headline, verify_plan
from tests.independent_headline import headline as independent
from tests.models import NAMES, model

GOLDEN: dict[str, tuple[int, int, int, int, int, int]] = {
    # nodes, weights, naive, arena, arena with pinned ancestors, lower bound
    "magika": (96, 3137920, 23024900, 3129472, 23024900, 3129472),
    "det": (567, 4686464, 695626756, 44257412, 695626756, 44257412),
    "cls": (449, 534512, 13386564, 620996, 13386564, 596420),
    "rec": (645, 10760436, 201293188, 3156356, 201293188, 3156356),
}


FUSED: dict[str, tuple[int, int, int, int, int, int]] = {
    "magika": (43, 3137920, 7339864, 2640000, 7339864, 2640000),
    "det": (297, 4685984, 245869124, 37641476, 245869124, 37641476),
    "cls": (203, 508880, 3346824, 467072, 3346824, 443296),
    "rec": (261, 10750164, 48820484, 2315204, 48820484, 2315204),
}


@pytest.mark.parametrize("fused", [False, True], ids=["as written", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_headline(name: str, fused: bool) -> None:
    path, shapes = model(name)
    best = rlx_viz.compile(path, shapes=shapes, fusion=fused)
    plain = best.with_options(placement="first_fit")
    pinned = plain.with_options(pin_output_ancestors=True)
    for c in (best, plain, pinned):
        assert verify_plan(c.legal, c.plan) == []
    h, p = headline(plain.plan), headline(pinned.plan)
    golden = (FUSED if fused else GOLDEN)[name]
    assert best.plan.arena_size == best.plan.lower_bound == h.lower_bound
    assert (len(plain.legal), h.weights, h.naive, h.arena, p.arena, h.lower_bound) == golden
    mine, mine_pinned = independent(plain.legal), independent(plain.legal, pinned=True)
    assert (mine["nodes"], mine["weights"], mine["naive"], mine["arena"], mine_pinned["arena"]) == golden[:5]
    assert mine["peak"] - 64 < h.lower_bound <= mine["peak"]
