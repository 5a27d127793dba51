"""Rules as a set: each has a doc, an example where it applies, and one for every reason it may refuse with."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from planner_core.fusion import RULES, FusionOptions, FusionTarget, Refusal, fusion_for_target
from planner_core.options import options_of
from tests.planner_core.fusion.harness import Applied, Refused, case_id, check_applied, check_refused

MODULES = [importlib.import_module(f"tests.planner_core.fusion.{p.stem}")
           for p in sorted(Path(__file__).parent.glob("cases_*.py"))]
APPLIED: list[Applied] = [c for m in MODULES for c in m.APPLIED]
REFUSED: list[Refused] = [c for m in MODULES for c in m.REFUSED]


@pytest.mark.parametrize("case", APPLIED, ids=case_id)
def test_applied(case: Applied) -> None:
    check_applied(case)


@pytest.mark.parametrize("case", REFUSED, ids=case_id)
def test_refused(case: Refused) -> None:
    check_refused(case)


def test_every_rule_has_an_example() -> None:
    assert {c.rule for c in APPLIED} == set(RULES)


def test_every_reason_of_every_rule_has_an_example() -> None:
    declared = {(r.name, reason) for r in RULES.values() for reason in r.reasons}
    assert {(c.rule, c.reason) for c in REFUSED} >= declared
    assert {(c.rule, c.reason) for c in REFUSED} <= declared | {(r, Refusal.SHAPE) for r in RULES}


def test_every_reason_is_some_rules() -> None:
    used = {reason for r in RULES.values() for reason in r.reasons}
    assert set(Refusal) == used | {Refusal.SHAPE, Refusal.ORDER}


def test_options_are_the_rules() -> None:
    infos = {o.name: o for o in options_of(FusionOptions)}
    assert set(infos) == {"fusion", "decode_forms", *RULES}
    assert all(infos[r.name].help == r.doc and r.doc.endswith(".") for r in RULES.values())


@pytest.mark.parametrize("target", FusionTarget)
def test_presets(target: FusionTarget) -> None:
    preset = fusion_for_target(target)
    assert {n for n in RULES if getattr(preset, n)} == {n for n, r in RULES.items() if target in r.targets}
