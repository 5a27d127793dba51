"""Owns ``unet3d``: the model whose convolutions absorb their activations and read through concats."""

from __future__ import annotations

from planner_core.ir import Graph, NodeId
from planner_core.zoo.blocks import require
from planner_core.zoo.registry import zoo

__all__ = ["unet3d"]

SLOPE = 0.01


def _conv(g: Graph, x: NodeId, name: str, cin: int, cout: int, kernel: int = 3) -> NodeId:
    return g.fused_conv_bias_act(
        x, g.param(name + ".w", (cout, cin, kernel, kernel, kernel)), g.param(name + ".b", (cout,)), strides=(1, 1, 1),
        pads=(kernel // 2,) * 6, dilations=(1, 1, 1), name=name)


def _act(g: Graph, x: NodeId, name: str) -> NodeId:
    """Leaky ReLU as exporters write it: ``max(x, x · 0.01)``."""
    return g.max(x, g.mul(x, g.constant(SLOPE, name=name + ".slope"), name=name + ".scaled"), name=name + ".act")


def _halve(g: Graph, x: NodeId, name: str) -> NodeId:
    """Max pooling by two: a reduction over a reshape."""
    n, c, *space = g[x].shape.sizes
    cut = g.reshape(x, dims=(n, c, *(e for s in space for e in (s // 2, 2))), name=name + ".cut")
    return g.reduce_max(cut, axes=(3, 5, 7), name=name)


def _double(g: Graph, x: NodeId, name: str) -> NodeId:
    """Nearest upsampling by two: ``Reshape(Expand(Reshape(x)))``."""
    n, c, *space = g[x].shape.sizes
    y = g.reshape(x, dims=(n, c, *(e for s in space for e in (s, 1))), name=name + ".split")
    y = g.expand(y, dims=(n, c, *(e for s in space for e in (s, 2))), name=name + ".spread")
    return g.reshape(y, dims=(n, c, *(2 * s for s in space)), name=name)


@zoo("unet3d")
def unet3d(size: int = 128, depth: int = 64, channels: int = 1, base: int = 32, levels: int = 4, classes: int = 3,
           batch: int = 1) -> Graph:
    """3-D U-Net for dense segmentation: four levels, skips by concat, 16.3 M parameters.

    Çiçek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation" (2016), whose
    19,069,955 parameters include 2,752,512 + 896 of up-convolutions: here, as often since, nearest upsampling
    takes their place, convolutions are padded, and leaky ReLU follows each with batch norm folded in.
    """
    step = 1 << (levels - 1)
    require("unet3d", at_least_two_levels=levels > 1, size_and_depth_that_halve_at_every_level=(
        size > 0 and depth > 0 and size % step == 0 and depth % step == 0))
    g = Graph("unet3d")
    x = g.input("volume", (batch, channels, depth, size, size))
    skips: list[tuple[NodeId, int]] = []
    cin = channels
    for i in range(levels):
        a, b = base << i, base << (i + 1)
        x = _act(g, _conv(g, x, f"down.{i}.a", cin, a), f"down.{i}.a")
        x = _act(g, _conv(g, x, f"down.{i}.b", a, b), f"down.{i}.b")
        cin = b
        if i < levels - 1:
            skips.append((x, b))
            x = _halve(g, x, f"down.{i}.pool")
    for i, (skip, c) in reversed(list(enumerate(skips))):
        x = g.concat(_double(g, x, f"up.{i}.double"), skip, axis=1, name=f"up.{i}.joined")
        x = _act(g, _conv(g, x, f"up.{i}.a", cin + c, c), f"up.{i}.a")
        x = _act(g, _conv(g, x, f"up.{i}.b", c, c), f"up.{i}.b")
        cin = c
    return g.set_outputs(_conv(g, x, "head", cin, classes, 1), names=["logits"])
