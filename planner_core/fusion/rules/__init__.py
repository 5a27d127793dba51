"""Owns the fusion rules, one family a file, imported in the order in which a pipeline runs them."""

# isort: off
from planner_core.fusion.rules import cleanup
from planner_core.fusion.rules import recognise
from planner_core.fusion.rules import recognise_activations
from planner_core.fusion.rules import norm
from planner_core.fusion.rules import rope
from planner_core.fusion.rules import attention
from planner_core.fusion.rules import packed_qkv
from planner_core.fusion.rules import mlp
from planner_core.fusion.rules import conv
from planner_core.fusion.rules import matmul
from planner_core.fusion.rules import weights
from planner_core.fusion.rules import region
from planner_core.fusion.rules import ahead
# isort: on

__all__ = [
    "ahead", "attention", "cleanup", "conv", "matmul", "mlp", "norm", "packed_qkv", "recognise", "recognise_activations", "region",
    "rope", "weights",
]
