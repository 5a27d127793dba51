"""Traits stand on the op's declaration: nothing asks an op by its name's text, and a misspelt name is an error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import planner_core
import rlx_viz
import runtime
from planner_core.errors import GraphError
from planner_core.fusion import DEVICES
from planner_core.ir import Graph, registry
from planner_core.ir.ops import Activation, Binary, MatMul
from planner_core.ir.traits import Trait
from planner_core.target import Target
from runtime.device import Device

PACKAGES = [Path(m.__file__).parent for m in (planner_core, runtime, rlx_viz) if m.__file__]


def texts(node: ast.expr) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            yield n.value


def compared_by_name(source: str) -> list[int]:
    """Lines that compare ``x.op.name`` or ``op(x).name`` with the text of an op's name."""
    names, found = set(registry()), []
    for node in ast.walk(ast.parse(source)):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        asked = [s.value for s in sides if isinstance(s, ast.Attribute) and s.attr == "name"]
        if any(ast.unparse(a).endswith(("op", ")", "]")) for a in asked) and names & {t for s in sides for t in texts(s)}:
            found.append(node.lineno)
    return found


def test_no_op_is_asked_by_its_name() -> None:
    assert compared_by_name('if n.op.name == "MatMul" or g.op(i).name in ("Cast", "Expand"):\n    pass') == [1, 1]
    found = {str(p): lines for root in PACKAGES for p in root.rglob("*.py") if (lines := compared_by_name(p.read_text(encoding="utf-8")))}
    assert found == {}


def test_every_trait_is_some_ops() -> None:
    for trait in Trait:
        assert any(c.has(trait) for c in registry().values()), trait
    with pytest.raises(AttributeError):
        MatMul.has(Trait.STATEFULL)  # type: ignore[attr-defined]


def test_nodes_are_found_by_class_or_by_a_name_that_an_op_has() -> None:
    g = Graph("g")
    x = g.input("x", (2, 2))
    y = g.relu(g.mm(x, x))
    g.set_outputs(y)
    assert g.of(MatMul) == g.of("MatMul") == [1]
    assert g.of(MatMul, Activation) == [1, 2]
    assert g.of(Binary) == []
    with pytest.raises(GraphError, match="no op is named 'MatMull'; near: MatMul"):
        g.of("MatMull")


@pytest.mark.parametrize("target", Target)
def test_a_profile_names_what_there_is(target: Target) -> None:
    p = target.profile
    assert Device(p.device).target is target
    assert p.cost_model in DEVICES
    assert p.region_dtypes <= p.dtypes
