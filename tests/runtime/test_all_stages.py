"""The zoo's runnable models and the real ones with every rule and every pass on: sanitised, and equal to nothing on."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core import zoo
from planner_core.fusion import no_fusion
from planner_core.importers import import_onnx
from planner_core.ir import Array, Graph
from planner_core.memory import Target
from runtime import Compilation, CompileOptions, PassOptions, compile_graph
from tests.models import NAMES, feed, model
from tests.planner_core.memory.checker import checked
from tests.planner_core.zoo.test_numeric import TINY


def plain(target: Target) -> CompileOptions:
    """The target's plan, with no rule and no pass."""
    return CompileOptions(target=target, fusion=no_fusion(), passes=PassOptions.none())


def random_feed(g: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {g[i].name: rng.standard_normal(g[i].shape.sizes).astype(g[i].dtype.numpy) if g[i].dtype.is_float
            else rng.integers(0, 2, g[i].shape.sizes).astype(g[i].dtype.numpy) for i in g.inputs}


def full_against_plain(g: Graph, inputs: dict[str, Array], target: Target, rtol: float) -> Compilation:
    """Compiled for the target with all that it has, after checks that it computes what the plain graph does."""
    full, bare = compile_graph(g, CompileOptions(target=target)), compile_graph(g, plain(target))
    checked(full.plan, full.legal)
    want, got = bare.run(inputs), full.run(inputs, sanitize=True)
    assert list(got) == list(want)
    for name in want:
        a, b = got[name].astype(np.float64), want[name].astype(np.float64)
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=name)
    saved = bare.commands.dispatches - full.commands_before.dispatches
    assert full.fusion_log.dispatches_saved == saved, "the log counts other dispatches than the list has"
    assert full.pass_log.dispatches_saved == full.commands_before.dispatches - full.commands.dispatches
    return full


@pytest.mark.parametrize("target", [Target.CPU, Target.METAL], ids=lambda t: t.value)
@pytest.mark.parametrize(("name", "params"), TINY, ids=[n for n, _ in TINY])
def test_zoo(name: str, params: dict[str, object], target: Target) -> None:
    for g in zoo.graphs_of(name, **params):
        zoo.random_weights(g)
        full_against_plain(g, random_feed(g), target, 2e-4)


@pytest.mark.parametrize("target", [Target.CPU, Target.METAL], ids=lambda t: t.value)
@pytest.mark.parametrize("name", NAMES)
def test_real(name: str, target: Target) -> None:
    arrays = feed(name)
    g = import_onnx(model(name)[0], shapes={k: v.shape for k, v in arrays.items()})
    full = full_against_plain(g, arrays, target, 1e-4)
    assert full.commands.dispatches < compile_graph(g, plain(target)).commands.dispatches


@pytest.mark.parametrize("target", list(Target), ids=lambda t: t.value)
@pytest.mark.parametrize("quant", ["f16", "bf16"])
@pytest.mark.parametrize(("name", "sizes"), [("llama-prefill", {"seq": 6}), ("llama-decode", {"past": 5})])
def test_half_decoders_run_on_every_target(name: str, sizes: dict[str, int], quant: str, target: Target) -> None:
    """Each width policy rounds elsewhere; all stay within a few units of the half type's precision of f32."""
    params = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 48, "vocab": 40, **sizes}
    g = zoo.random_weights(zoo.build(name, quant=quant, **params))
    wide = zoo.build(name, **params)
    wide.weights = {k: v.astype(np.float32) for k, v in g.weights.items()}
    inputs = random_feed(g)
    got = compile_graph(g, CompileOptions(target=target)).run(inputs, sanitize=True)["logits"].astype(np.float64)
    want = compile_graph(wide, plain(target)).run(
        {k: v.astype(np.float32) if wide.find(k).dtype.is_float else v for k, v in inputs.items()})["logits"]
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8}[quant]
    assert np.abs(got - want).max() <= 16 * unit * np.abs(want).max()
