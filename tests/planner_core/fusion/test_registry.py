"""Rules as a set: each has a doc, an example where it applies, and one for every reason it may refuse with."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from planner_core.errors import FusionError
from planner_core.fusion import RULES, FusionOptions, FusionTarget, Refusal, fuse_graph, fusion_for_target
from planner_core.fusion.pipeline import PIPELINE_REASONS
from planner_core.ir import DType, Graph
from planner_core.options import options_of
from tests.planner_core.fusion.harness import Applied, Refused, case_id, check_applied, check_refused, same

MODULES = [importlib.import_module(f"tests.planner_core.fusion.{p.stem}")
           for p in sorted(Path(__file__).parent.glob("cases_*.py"))]
APPLIED: list[Applied] = [c for m in MODULES for c in m.APPLIED]
REFUSED: list[Refused] = [c for m in MODULES for c in m.REFUSED]
MOVES = {Refusal.OVERWRITTEN, Refusal.LASTING}
"""What the pipeline refuses for any rule, beside a kernel's shapes and order."""


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
    assert {(c.rule, c.reason) for c in REFUSED} <= declared | {(r, p) for r in RULES for p in (Refusal.SHAPE, *MOVES)}
    assert {c.reason for c in REFUSED} >= MOVES


def test_every_reason_is_some_rules() -> None:
    used = {reason for r in RULES.values() for reason in r.reasons}
    assert set(Refusal) == used | PIPELINE_REASONS


def test_options_are_the_rules() -> None:
    infos = {o.name: o for o in options_of(FusionOptions)}
    assert set(infos) == {"fusion", "decode_forms", *RULES}
    assert all(infos[r.name].help == r.doc and r.doc.endswith(".") for r in RULES.values())


@pytest.mark.parametrize("target", FusionTarget)
def test_presets(target: FusionTarget) -> None:
    preset = fusion_for_target(target)
    assert {n for n in RULES if getattr(preset, n)} == {n for n, r in RULES.items() if target in r.targets}


def sum_of(count: int) -> Graph:
    """Inputs added one after the other."""
    g = Graph("sum")
    first, *rest = (g.input(f"x{i}", (4,)) for i in range(count))
    for r in rest:
        first = g.add(first, r)
    return g.set_outputs(first)


@pytest.mark.parametrize(("target", "most"), [(t, 7 if t is FusionTarget.WGPU else 16) for t in FusionTarget])
def test_a_region_reads_as_many_inputs_as_the_target_binds(target: FusionTarget, most: int) -> None:
    whole, over = (same(sum_of(n), "elementwise_region", target=target) for n in (most, most + 1))
    assert len(whole.graph.of("ElementwiseRegion")) == 1
    assert [len(n.inputs) for n in over.graph.nodes if n.op.name == "ElementwiseRegion"] == [most]


@pytest.mark.parametrize(("target", "operands"), [(FusionTarget.CUDA, 8), (FusionTarget.WGPU, 6)])
def test_a_batch_reads_as_many_inputs_as_the_target_binds(target: FusionTarget, operands: int) -> None:
    """Four equal chains of two inputs: all in one launch, or three and one by itself."""
    g = Graph("batch")
    x = g.input("x", (4,))
    outs = [g.tanh(g.add(x, g.input(f"y{i}", (4,)))) for i in range(4)]
    f = same(g.set_outputs(*outs), "elementwise_region", "batch_elementwise_region", target=target)
    assert [len(n.inputs) for n in f.graph.nodes if n.op.name == "BatchElementwiseRegion"] == [operands]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda d: d.text)
@pytest.mark.parametrize("target", FusionTarget)
def test_kernels_fuse_in_what_the_target_computes_in(target: FusionTarget, dtype: DType) -> None:
    g = Graph("product")
    x, w, b = g.input("x", (2, 4), dtype), g.param("w", (4, 3), dtype), g.param("b", (3,), dtype)
    g.set_outputs(g.relu(g.add(g.mm(x, w), b)))
    f = same(g, "matmul_bias_act", target=target)
    refused = [d.reason for d in f.log.refused()]
    knows = {FusionTarget.WGPU: {"f32"}, FusionTarget.TPU: {"f32", "bf16"}}.get(
        target, {"f32", "f16"} if target in (FusionTarget.CPU, FusionTarget.METAL) else {"f32", "f16", "bf16"})
    assert bool(f.log.applied()) == (dtype.text in knows)
    assert (Refusal.DTYPE in refused) == (dtype.text not in knows)


def test_bad_arguments_are_one_clear_error() -> None:
    g = sum_of(2)
    for args in ((g, "nope"), (g, 3), (None,), (g, "cpu", "x")):
        with pytest.raises(FusionError, match="wanted"):
            fuse_graph(*args)  # type: ignore[arg-type]
    for node in (-1, 99):
        with pytest.raises(FusionError, match=r"wanted 0 to 2"):
            fuse_graph(g).why_not(node)
