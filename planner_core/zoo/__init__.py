"""Model graphs made here, by name: ``build("bert-base", seq=384)``. One module a family.

Weights are params without data: planning needs none, ``random_weights`` makes seeded ones to run.
"""

from planner_core.zoo import (
    albert,
    bert,
    decoder,
    dit,
    hifigan,
    llama,
    mamba,
    moe,
    resnet,
    sam,
    training,
    tts,
    unet3d,
)
from planner_core.zoo.registry import build, describe, graphs_of, names, zoo
from planner_core.zoo.scenarios import Scenario, scenarios
from planner_core.zoo.sweep import SweepRow, sweep
from planner_core.zoo.weights import flops, param_count, random_weights

__all__ = [
    "Scenario", "SweepRow", "albert", "bert", "build", "decoder", "describe", "dit", "flops", "graphs_of", "hifigan", "llama",
    "mamba", "moe", "names", "param_count", "random_weights", "resnet", "sam", "scenarios", "sweep", "training", "tts",
    "unet3d", "zoo",
]
