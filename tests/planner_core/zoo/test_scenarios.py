"""Every plan of every scenario is sound, and shows what its story says; the figures of spec §11."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from planner_core import zoo
from planner_core.errors import GraphError, OptionError
from planner_core.fusion import FusionOptions
from planner_core.memory import MemoryPlan, PlanOptions, Target, elided_transposes, plan_graph
from tests.planner_core.memory.checker import checked

ALL = [(name, s.name) for name in zoo.names() for s in zoo.scenarios(name)]


@cache
def plans(model: str, name: str) -> tuple[MemoryPlan, ...]:
    s = next(s for s in zoo.scenarios(model) if s.name == name)
    return tuple(checked(p, f.graph) for p, f in zip(s.plans(), s.fusions(), strict=True))


def arena(model: str, name: str) -> int:
    return plans(model, name)[0].arena_size


@pytest.mark.parametrize(("model", "name"), ALL, ids=[f"{m}-{n}" for m, n in ALL])
def test_every_plan_is_sound(model: str, name: str) -> None:
    """Both checkers; and the options say the same over every target's preset as over the defaults."""
    for plan in plans(model, name):
        assert plan.lower_bound <= plan.arena_size
    s = next(s for s in zoo.scenarios(model) if s.name == name)
    for target in Target:
        assert PlanOptions.for_target(target, s.build(), environ={}).replace(**s.plan) == s.options()
    assert isinstance(s.fusion_options(), FusionOptions)


def test_every_model_has_stories() -> None:
    for name in zoo.names():
        found = zoo.scenarios(name)
        assert len(found) >= 2 and len({s.name for s in found}) == len(found)
        assert all(s.story.endswith(".") and s.model == name for s in found)
        assert len({str((s.settings, s.params)) for s in found}) == len(found)
    with pytest.raises(GraphError, match="no zoo graph 'bert'"):
        zoo.scenarios("bert")


# figure of the original system, what ours comes to when pinned (within 10 %), and reused
FIGURES = [
    ("hifigan", "pinned", "reused", 5.0e9, 0.21e9),
    ("llama-prefill", "packed-8k-pinned", "packed-8k-reused", 61.9e9, 4.8e9),
]


@pytest.mark.parametrize(("model", "pinned", "reused", "figure", "most"), FIGURES, ids=[f[0] for f in FIGURES])
def test_figures(model: str, pinned: str, reused: str, figure: float, most: float) -> None:
    assert arena(model, pinned) == pytest.approx(figure, rel=0.1)
    assert arena(model, reused) < most


def test_a_mamba_training_graph_has_as_many_buffers() -> None:
    pinned, reused = plans("mamba-train", "pinned")[0], plans("mamba-train", "reused")[0]
    assert len(pinned.buffers()) == len(reused.buffers()) == 2375 == pytest.approx(2378, rel=0.1)
    assert reused.arena_size < 0.4 * pinned.arena_size
    assert reused.arena_size < 1.001 * reused.lower_bound


def test_an_expert_bank_carries_one_dead_copy() -> None:
    """1.88 GB a bank, three banks a layer, 32 layers; elision drops each exactly once."""
    copies = 3 * 32
    saved = arena("moe", "dead-copies") - arena("moe", "elided")
    assert saved / copies == pytest.approx(1.88e9, rel=0.01)
    assert arena("moe", "small-m") == arena("moe", "elided")
    elided = plans("moe", "elided")[0]
    assert elided.graph is not None and len(elided_transposes(elided.graph, elided.options)) == copies
    assert not plans("moe", "prompt-small-m")[0].elided.any()
    assert arena("moe", "prompt-small-m") - arena("moe", "elided") > copies * 1.87e9


LESS = [
    ("bert-base", "reused", "host-gathers"), ("minilm", "weights-apart", "reused"), ("resnet50", "reused", "no-reuse"),
    ("unet3d", "reused", "folds"), ("unet3d", "folds", "pinned"), ("sam-attention", "reused", "host-structure"),
    ("llama-prefill", "packed-8k-mlp-pinned", "packed-8k-pinned"), ("llama-prefill", "packed-8k-mlp", "packed-8k-mlp-pinned"),
    ("llama-prefill", "half-native", "half-widened"), ("llama-prefill", "half-widened", "half-uniform"),
    ("llama-decode", "half-widened", "half-uniform"), ("llama-decode", "quantised", "pinned"),
    ("mamba", "reused", "pinned"), ("mamba", "embeddings-apart", "reused"),
    ("mamba-train", "reused", "pinned"), ("mamba-train", "weights-apart", "reused"), ("dit-block", "weights-apart", "reused"),
    ("albert-onnx", "host-matmuls", "kernels"), ("matmul-train", "shared-weights", "own-weights"),
]


@pytest.mark.parametrize(("model", "less", "more"), LESS, ids=[f"{m}-{a}" for m, a, _ in LESS])
def test_stories_hold(model: str, less: str, more: str) -> None:
    assert arena(model, less) < arena(model, more)


def test_fusion_options_are_checked() -> None:
    s = zoo.Scenario("minilm", "x", "y.", {}, fusion={"target": "metal", "no_such_rule": True})
    with pytest.raises(OptionError, match="no_such_rule"):
        s.fusion_options()
    off = zoo.scenarios("minilm")[0]
    assert off.target is Target.CPU and not off.fusion_options().fusion
    assert off.settings == {**off.plan, **off.fusion} and off.fusions()[0].graph == off.build()


def test_fusion_tells_its_story() -> None:
    """A scenario that fuses applies what it names, and nothing else."""
    def fused(model: str, name: str) -> dict[str, int]:
        s = next(s for s in zoo.scenarios(model) if s.name == name)
        return Counter(d.rule for d in s.fusions()[0].log if d.applied)

    assert fused("hifigan", "regions") == {"elementwise_region": 4}
    assert arena("hifigan", "regions") > 1.2 * arena("hifigan", "reused")
    assert fused("unet3d", "regions") == {"elementwise_region": 14}
    assert arena("unet3d", "regions") == arena("unet3d", "reused")
    assert fused("resnet50", "regions") == {"elementwise_region": 16}
    assert fused("dit-block", "shared-silu").keys() == {"common_subexpressions"}
    for name in zoo.names():
        for s in zoo.scenarios(name):
            assert not s.fusion_options().fusion or fused(name, s.name)


def test_an_int64_output_stops_reuse() -> None:
    plan = plans("tts-duration", "int64-output")[0]
    assert plan.no_reuse and plan.graph is not None
    g = zoo.scenarios("tts-duration")[0].build()
    g.set_outputs(g.outputs[0], names=["mel"])
    free = checked(plan_graph(g, plan.options), g)
    assert not free.no_reuse and free.arena_size < 0.6 * plan.arena_size
