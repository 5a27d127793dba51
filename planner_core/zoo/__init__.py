"""Model graphs made here, by name: ``build("decoder-stack", layers=8)``. One module a family."""

from planner_core.zoo import decoder
from planner_core.zoo.registry import build, describe, names, zoo

__all__ = ["build", "decoder", "describe", "names", "zoo"]
