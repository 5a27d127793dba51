"""Owns ``resnet50``."""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.zoo.blocks import linear, require
from planner_core.zoo.registry import zoo

__all__ = ["resnet50"]

STAGES = (3, 4, 6, 3)
"""Bottleneck blocks in each of the four stages."""
EXPANSION = 4
"""A bottleneck's output channels over its inner ones."""


def _conv(g: Graph, x: NodeId, name: str, cin: int, cout: int, kernel: int, stride: int, relu: bool = True) -> NodeId:
    pad = kernel // 2
    y = g.conv(x, g.param(name + ".w", (cout, cin, kernel, kernel)), strides=(stride, stride), pads=(pad,) * 4,
               dilations=(1, 1), name=name)
    y = g.batch_norm(y, *[g.param(f"{name}.bn.{p}", (cout,)) for p in ("gamma", "beta", "mean", "var")], name=name + ".bn")
    return g.relu(y, name=name + ".relu") if relu else y


@zoo("resnet50")
def resnet50(size: int = 224, batch: int = 1, width: int = 64, blocks: int = 0, classes: int = 1000) -> Graph:
    """ResNet-50 for ImageNet: 16 bottleneck blocks, 25.56 M parameters, 4.09 GMACs at 224².

    He et al., "Deep Residual Learning for Image Recognition" (2015), with the stride on the 3×3 convolution
    as torchvision has it ("v1.5": 25,557,032 parameters, 4.09 G multiply-adds). Batch norms are not folded;
    their running means and variances are params too
    (not counted). ``blocks`` cuts each stage to that many.
    """
    require("resnet50", size_of_at_least_32=size >= 32, width_of_at_least_1=width >= 1)
    g = Graph("resnet50")
    x = _conv(g, g.input("image", (batch, 3, size, size)), "stem", 3, width, 7, 2)
    x = g.pool2d(x, kind="max", kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), name="stem.pool")
    cin = width
    for stage, count in enumerate(STAGES):
        inner = width << stage
        for i in range(min(count, blocks) if blocks else count):
            at, stride = f"stages.{stage}.{i}.", 2 if stage and not i else 1
            y = _conv(g, x, at + "a", cin, inner, 1, 1)
            y = _conv(g, y, at + "b", inner, inner, 3, stride)
            y = _conv(g, y, at + "c", inner, inner * EXPANSION, 1, 1, relu=False)
            short = x if i else _conv(g, x, at + "short", cin, inner * EXPANSION, 1, stride, relu=False)
            x = g.relu(g.add(y, short, name=at + "sum"), name=at + "out")
            cin = inner * EXPANSION
    x = g.reshape(g.global_pool(x, kind="mean", name="pool"), dims=(batch, cin), name="features")
    return g.set_outputs(linear(g, x, "fc", cin, classes), names=["logits"])
