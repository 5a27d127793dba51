"""Model graphs made here, by name: ``build("bert-base", seq=384)``. One module a family.

Weights are params without data: planning needs none, ``random_weights`` makes seeded ones to run.
"""

from planner_core.zoo import bert, decoder, hifigan, llama, resnet
from planner_core.zoo.registry import build, describe, names, zoo
from planner_core.zoo.weights import flops, param_count, random_weights

__all__ = [
    "bert", "build", "decoder", "describe", "flops", "hifigan", "llama", "names", "param_count", "random_weights", "resnet",
    "zoo",
]
