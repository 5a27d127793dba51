"""Every pair of buffers live together on the same bytes is named, against a check pair by pair."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.memory.placement import Problem
from planner_core.memory.placement.validate import Overlap, overlaps
from tests.planner_core.memory.placement.problems import problems


@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_all_pairs_are_found(p: Problem, data: st.DataObject) -> None:
    offsets = np.asarray(data.draw(st.lists(st.integers(0, 60), min_size=len(p), max_size=len(p))), dtype=np.int64)
    wanted = []
    for i, j in itertools.combinations(range(len(p)), 2):
        steps = set(range(p.birth[i], p.death[i] + 1)) & set(range(p.birth[j], p.death[j] + 1))
        nbytes = set(range(offsets[i], offsets[i] + p.size[i] + p.guard[i])) & set(
            range(offsets[j], offsets[j] + p.size[j] + p.guard[j]))
        if steps and nbytes:
            wanted.append(Overlap(i, j, min(steps), max(steps), min(nbytes), max(nbytes) + 1))
    assert overlaps(p, offsets) == wanted
    assert overlaps(p, offsets, most=2) == wanted[:2]
