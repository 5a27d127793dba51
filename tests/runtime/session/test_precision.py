"""Precision policies: where the casts go, and how far results may be off. References in f64 with plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.ir.traits import Trait
from planner_core.zoo import build, random_weights
from runtime import CompileOptions
from runtime.legalise import apply_precision
from runtime.session import PrecisionPolicy, Session

HALF = {PrecisionPolicy.AUTO_MIXED: (DType.F16, 2.0**-11), PrecisionPolicy.AUTO_MIXED_BF16: (DType.BF16, 2.0**-8)}
"""The type and its rounding error."""
K = 32


def product(n: int = 2) -> Graph:
    g = Graph("product")
    x = g.input("x", (5, K))
    for i in range(n):
        x = g.mm(x, g.param(f"w{i}", (K, K)))
    return random_weights(g.set_outputs(x, names=["y"]))


def run(g: Graph, policy: PrecisionPolicy | None, feed: dict[str, np.ndarray], fused: bool = True) -> dict[str, np.ndarray]:
    options = CompileOptions() if fused else CompileOptions(fusion=no_fusion())
    return Session("cpu", policy).compile(g, options).run(feed, sanitize=True)


def test_f32_changes_nothing() -> None:
    g = product()
    assert apply_precision(g, PrecisionPolicy.F32) is g
    feed = {"x": np.random.default_rng(0).standard_normal((5, K)).astype(np.float32)}
    np.testing.assert_array_equal(run(g, PrecisionPolicy.F32, feed)["y"], run(g, None, feed)["y"])


@pytest.mark.parametrize("policy", HALF)
def test_casts_stand_around_products_only(policy: PrecisionPolicy) -> None:
    """Inserts casts; a half result that a product reads isn't widened in between; the boundary keeps its types."""
    half, _ = HALF[policy]
    g = product(2)
    m = apply_precision(g, policy)
    assert [n.op.name for n in m.nodes] == ["Input", "Param", "Cast", "Cast", "MatMul", "Param", "Cast", "MatMul", "Cast"]
    assert all(n.dtype is half for n in m.nodes if n.op.has(Trait.PRODUCT))
    assert all(m[i].dtype is DType.F32 for i in (*m.inputs, *m.params, *m.outputs))
    assert m.output_names == g.output_names
    assert m.find(f"x.{half}").source == g.find("x").source


@pytest.mark.parametrize("policy", HALF)
def test_reductions_norms_softmax_and_losses_stay_f32(policy: PrecisionPolicy) -> None:
    """"keeps reductions and losses in f32"."""
    g = Graph("kept")
    x = g.input("x", (1, 6, 8))
    h = g.rms_norm(g.mm(x, g.param("w", (8, 8))), g.param("gamma", (8,)))
    a = g.attention(h, h, h, num_heads=2, head_dim=4, mask_kind="causal")
    s = g.softmax(g.mm(a, g.param("v", (8, 8))))
    loss = g.soft_max_cross_entropy(s, g.input("t", (1, 6), DType.I64)) if hasattr(g, "soft_max_cross_entropy") else s
    g.set_outputs(g.reduce(s, kind="sum", axes=(2,)), loss, names=["r", "l"])
    half, _ = HALF[policy]
    for n in apply_precision(g, policy).nodes:
        assert n.dtype is not half or n.op.has(Trait.PRODUCT) or n.op.name == "Cast", n


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("policy", HALF)
def test_products_are_within_the_roundings_of_their_operands(policy: PrecisionPolicy, fused: bool) -> None:
    """|error| ≤ (2u + u² + accumulation) Σ|x||w| + u|y| for one product of rounded operands, rounded once."""
    _, u = HALF[policy]
    g = product(1)
    x = np.random.default_rng(1).standard_normal((5, K)).astype(np.float32)
    w = g.weights["w0"].astype(np.float64)
    want = x.astype(np.float64) @ w
    got = run(g, policy, {"x": x}, fused)["y"]
    bound = (2 * u + u * u + K * u / 8) * (np.abs(x) @ np.abs(w)) + u * np.abs(want)
    assert (np.abs(got - want) <= bound).all()
    assert np.abs(got - want).max() > u * u, "it really was rounded"


@pytest.mark.parametrize("policy", HALF)
def test_a_decoder_stays_near_its_f32_self(policy: PrecisionPolicy) -> None:
    _, u = HALF[policy]
    g = random_weights(build("decoder-stack", layers=2, hidden=32, heads=2, seq=8, vocab=40))
    feed = {"x": np.random.default_rng(2).standard_normal((1, 8, 32)).astype(np.float32)}
    want = run(g, None, feed)["logits"]
    got = run(g, policy, feed)["logits"]
    error = np.abs(got - want).max() / np.abs(want).max()
    assert 0 < error < 24 * u


def test_half_values_are_stored_as_half() -> None:
    g = product(3)
    wide = Session("cpu").compile(g, CompileOptions(fusion=no_fusion()))
    c = Session("cpu", "auto_mixed").compile(g, CompileOptions(fusion=no_fusion()))
    half = [n.id for n in c.graph.nodes if n.dtype is DType.F16]
    assert half
    assert all(c.plan.assignments[i].storage is DType.F16 for i in half)
    assert wide.plan.arena_size != c.plan.arena_size


def test_packs_of_weights_are_made_once() -> None:
    g = product(2)
    c = Session("cpu", "auto_mixed").compile(g, CompileOptions(fusion=no_fusion()))
    assert c.commands.setup_dispatches == 2
    x = np.ones((5, K), np.float32)
    first = c.run({"x": x})["y"]
    np.testing.assert_array_equal(c.run({"x": x})["y"], first)
    c.set_param("w0", np.zeros((K, K), np.float32))
    assert not c.run({"x": x})["y"].any()


def test_halves_that_are_there_already_stay() -> None:
    g = Graph("half")
    x = g.input("x", (2, K), DType.F16)
    g.set_outputs(g.mm(x, g.param("w", (K, 3), DType.F16)))
    assert apply_precision(g, PrecisionPolicy.AUTO_MIXED_BF16) is g


def test_another_target_keeps_the_policy() -> None:
    c = Session("cpu", "auto_mixed").compile(product(2), CompileOptions(fusion=no_fusion()))
    assert c.compilation is not None
    metal = c.compilation.with_options(target="metal")
    assert metal.options.precision is PrecisionPolicy.AUTO_MIXED
    assert any(n.dtype is DType.F16 for n in metal.legal.nodes)
    x = np.ones((5, K), np.float32)
    np.testing.assert_allclose(metal.run({"x": x})["y"], c.run({"x": x})["y"], rtol=1e-2, atol=1e-2)
