"""Where convolutions take batch norm, bias, residual and activation, and where they don't."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph
from tests.planner_core.fusion.harness import Applied, Refused

PLAIN = {1: {"strides": (1,), "pads": (1, 1), "dilations": (1,)}, 2: {"strides": (1, 2), "pads": (1, 0, 1, 0), "dilations": (1, 1)},
         3: {"strides": (1,) * 3, "pads": (0,) * 6, "dilations": (1,) * 3}}


def conv(g: Graph, space: int = 2, dtype: DType = DType.F32, static: bool = True, **fused: Any) -> int:
    """A convolution of 3 to 4 channels; ``fused`` makes it one with bias."""
    x = g.input("x", (2, 3, *(5, 4, 3)[:space]), dtype)
    w = (g.param if static else g.input)("w", (4, 3, *(3, 2, 1)[:space]), dtype)
    how: dict[str, Any] = PLAIN[space]
    if fused:
        return g.fused_conv_bias_act(x, w, g.param("bias", (4,), dtype), **how, **{k: v for k, v in fused.items() if k != "biased"})
    return g.conv3d(x, w, **how) if space == 3 else g.conv(x, w, **how)


def known(g: Graph) -> None:
    """Data for every param: what is computed ahead has to be known."""
    rng = np.random.default_rng(0)
    for p in g.params:
        n = g[p]
        g.weights[n.name] = rng.uniform(0.5, 1.5, n.shape.sizes).astype(n.dtype.numpy)


def batch_norm(space: int = 2, *, shared: bool = False, output: bool = False, live: bool = False, dtype: DType = DType.F32,
               data: bool = True, **fused: Any) -> Graph:
    g = Graph("norm")
    y = conv(g, space, dtype, **fused)
    vectors = [(g.input if live and v == "mean" else g.param)(f"bn.{v}", (4,), dtype) for v in ("gamma", "beta", "mean", "var")]
    z = g.relu(g.batch_norm(y, *vectors, eps=1e-3))
    if data:
        known(g)
    return g.set_outputs(z, *([y] if output else [g.reduce_max(y, axes=(0,))] if shared else []))


def decomposed() -> Graph:
    """A factor, a quotient a channel and a plain number, as some exporters write batch norm."""
    g = Graph("decomposed")
    y = g.div(g.mul(conv(g), g.param("scale", (1, 4, 1, 1))), g.param("by", (4, 1, 1)))
    known(g)
    return g.set_outputs(g.mul(g.constant(np.full((1, 1), 3, np.float32)), y))


def bias(space: int = 2, dims: tuple[int, ...] | None = None, kind: str = "add", activation: str = "", *, live: bool = False,
         shared: bool = False, output: bool = False, static: bool = True, dtype: DType = DType.F32, **fused: Any) -> Graph:
    g = Graph("bias")
    y = conv(g, space, dtype, static, **fused)
    b = (g.input if live else g.param)("b", (1, 4) + (1,) * space if dims is None else dims, dtype)
    z = g.binary(y, b, kind=kind)
    if activation:
        z = g.activation(z, kind=activation)
    return g.set_outputs(z, *([y] if output else [g.reduce_max(y, axes=(0,))] if shared else []))


def activated(kind: str, **fused: Any) -> Graph:
    g = Graph("activated")
    return g.set_outputs(g.activation(conv(g, **fused), kind=kind))


def residual(first: bool = False, late: str = "") -> Graph:
    """conv + bias, plus the block's input, then ReLU; ``late``: an activation before the sum."""
    g = Graph("residual")
    x = g.input("x", (2, 4, 5, 3))
    how: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = g.fused_conv_bias_act(x, g.param("w", (4, 4, 3, 3)), g.param("b", (4,)), **how, activation=late)
    return g.set_outputs(g.relu(g.add(y, x) if first else g.add(x, y)))


def two_convs() -> Graph:
    """A shortcut that is a convolution too: the later one takes the sum."""
    g = Graph("two")
    x = g.input("x", (2, 4, 5, 3))
    how: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    a, b = (g.conv(x, g.param(n, (4, 4, 1, 1)), **how) for n in ("wa", "wb"))
    return g.set_outputs(g.relu(g.add(a, b)))


def leaky(slope: float = 0.25, shared: bool = False) -> Graph:
    g = Graph("leaky")
    y = conv(g, 3, activation="")
    scaled = g.mul(g.constant(np.float32(slope)), y)
    return g.set_outputs(g.max(y, scaled), *([g.reduce_max(scaled, axes=(0,))] if shared else []))


def depthwise(*, silu: bool = False, biased: bool = False, pads: tuple[int, int] = (0, 0), steps: int = 5, shared: str = "",
              activation: str = "", plain: bool = False, dtype: DType = DType.F32) -> Graph:
    g = Graph("depthwise")
    k, c = 3, 4
    x = g.input("x", (2, steps + k - 1 - sum(pads), c) if not plain else (2, c, steps + k - 1), dtype)
    t = x if plain else g.transpose(x, perm=(0, 2, 1))
    w, how = g.param("w", (c, 1, k), dtype), {"strides": (1,), "pads": pads, "dilations": (1,), "groups": c}
    y = g.fused_conv_bias_act(t, w, g.param("b", (c,), dtype), activation=activation, **how) if biased else g.conv(t, w, **how)
    z = g.transpose(y, perm=(0, 2, 1))
    more = [y] if shared == "output" else [g.reduce_max(y, axes=(0,))] if shared else []
    return g.set_outputs(g.silu(z) if silu else z, *more)


METAL = FusionTarget.METAL
APPLIED = [
    *(Applied("conv_batch_norm", lambda s=s: batch_norm(s), made=("FusedConvBiasAct",), gone=("BatchNorm",), id=f"{s}-D")
      for s in (1, 2, 3)),
    Applied("conv_batch_norm", lambda: batch_norm(activation=""), gone=("BatchNorm",), id="with bias"),
    Applied("conv_batch_norm", decomposed, made=("Conv",), times=3, id="decomposed"),
    *(Applied("conv_bias_act", lambda s=s: bias(s, activation="relu"), made=("FusedConvBiasAct",), gone=("Activation(relu)",),
              times=2, id=f"{s}-D") for s in (1, 2, 3)),
    Applied("conv_bias_act", lambda: bias(kind="sub"), made=("FusedConvBiasAct",), gone=("Binary(sub)",), id="minus"),
    Applied("conv_bias_act", lambda: bias(dims=(1,)), made=("FusedConvBiasAct",), id="one number"),
    Applied("conv_bias_act", lambda: bias(live=True), made=("FusedConvBiasAct",), id="computed bias"),
    Applied("conv_bias_act", lambda: bias(activation="relu", biased=True), gone=("Activation(relu)",), times=2, id="second bias"),
    Applied("conv_bias_act", lambda: activated("gelu"), made=("FusedConvBiasAct",), id="no bias"),
    Applied("conv_bias_act", residual, gone=("Binary(add)", "Activation(relu)"), times=2, id="residual"),
    Applied("conv_bias_act", lambda: residual(first=True), gone=("Binary(add)",), times=2, id="residual behind"),
    Applied("conv_bias_act", two_convs, gone=("Binary(add)",), times=2, id="two convolutions"),
    Applied("conv_bias_act", leaky, gone=("Binary(max)", "Binary(mul)"), id="leaky"),
    Applied("depthwise_conv1d", depthwise, made=("DepthwiseConv1dBsc",), gone=("Transpose",)),
    Applied("depthwise_conv1d", lambda: depthwise(silu=True, pads=(2, 0)), made=("DepthwiseConv1dBsc", "Pad"),
            gone=("Activation(silu)",), id="silu, padded"),
    Applied("depthwise_conv1d", lambda: depthwise(silu=True, biased=True, pads=(2, 0)), gone=("Transpose",), id="bias"),
    Applied("depthwise_conv1d", lambda: depthwise(biased=True, activation="silu"), gone=("Transpose",), id="silu inside"),
    Applied("depthwise_conv1d", lambda: depthwise(steps=1), gone=("Transpose",), target=METAL, id="one step, asked for"),
    Applied("depthwise_conv1d", lambda: depthwise(steps=4), gone=("Transpose",), target=METAL, decode_forms=False, id="many steps"),
]
REFUSED = [
    Refused("conv_batch_norm", Refusal.SHARED, lambda: batch_norm(shared=True)),
    Refused("conv_batch_norm", Refusal.OUTPUT, lambda: batch_norm(output=True)),
    Refused("conv_batch_norm", Refusal.NOT_CONSTANT, lambda: batch_norm(live=True)),
    Refused("conv_batch_norm", Refusal.NO_DATA, lambda: batch_norm(data=False)),
    Refused("conv_batch_norm", Refusal.EPILOGUE, lambda: batch_norm(activation="relu")),
    Refused("conv_batch_norm", Refusal.DTYPE, lambda: batch_norm(dtype=DType.F64)),
    Refused("conv_bias_act", Refusal.SHARED, lambda: bias(shared=True)),
    Refused("conv_bias_act", Refusal.SHARED, lambda: leaky(shared=True), id="leaky"),
    Refused("conv_bias_act", Refusal.OUTPUT, lambda: bias(output=True)),
    Refused("conv_bias_act", Refusal.EPILOGUE, lambda: residual(late="silu")),
    Refused("conv_bias_act", Refusal.ACTIVATION, lambda: activated("sin")),
    Refused("conv_bias_act", Refusal.BROADCAST, lambda: bias(dims=(2,))),
    Refused("conv_bias_act", Refusal.DTYPE, lambda: bias(dtype=DType.F64)),
    Refused("conv_bias_act", Refusal.NOT_CONSTANT, lambda: bias(live=True, biased=True)),
    Refused("depthwise_conv1d", Refusal.SHARED, lambda: depthwise(shared="yes")),
    Refused("depthwise_conv1d", Refusal.OUTPUT, lambda: depthwise(shared="output")),
    Refused("depthwise_conv1d", Refusal.COMMAND_PASS, lambda: depthwise(steps=1), target=METAL, decode_forms=False),
    Refused("depthwise_conv1d", Refusal.EPILOGUE, lambda: depthwise(biased=True, activation="relu")),
    Refused("depthwise_conv1d", Refusal.DTYPE, lambda: depthwise(dtype=DType.F64)),
    Refused("depthwise_conv1d", Refusal.LAYOUT, lambda: depthwise(plain=True)),
]
