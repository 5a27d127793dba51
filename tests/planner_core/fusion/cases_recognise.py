"""Norms, activations and softmax as exporters write them, and near misses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner_core.fusion import Refusal
from planner_core.ir import DType, Graph
from tests.planner_core.fusion.harness import Applied, Refused

Build = Callable[..., int]


def const(g: Graph, value: float, dtype: DType = DType.F32) -> int:
    return g.constant(value, dtype)


def kept(g: Graph, n: int, how: str) -> list[int]:
    """More outputs: the value itself, or something that reads it."""
    return [n] if how == "output" else [g.relu(n)] if how == "shared" else []


# --- norms --------------------------------------------------------------------------------------------


def mean(g: Graph, x: int, axes: tuple[int, ...], how: str = "mean") -> int:
    """``mean``; ``sum``: a sum over the count; ``flat``: without the axes, which a reshape puts back."""
    if how == "mean":
        return g.reduce_mean(x, axes=axes, keepdims=True)
    dims, dtype = g[x].shape.sizes, g[x].dtype
    count = math.prod(dims[a] for a in axes)
    if how == "sum":
        return g.div(g.reduce_sum(x, axes=axes, keepdims=True), const(g, count, dtype))
    y = g.mul(const(g, 1 / count, dtype), g.reduce_sum(x, axes=axes))
    return g.reshape(y, dims=tuple(1 if i in axes else d for i, d in enumerate(dims)))


def layer_norm(dims: tuple[int, ...] = (2, 3, 8), axes: tuple[int, ...] = (-1,), *, how: str = "mean", square: str = "pow",
               root: str = "div", affine: str = "full", two_pass: bool = True, dtype: DType = DType.F32, twice: bool = False,
               keep: str = "", other: str = "") -> Graph:
    g = Graph("layer_norm")
    x = g.input("x", dims, dtype)
    axes = tuple(a % len(dims) for a in axes)
    m = mean(g, x, axes, how)
    d = g.sub(x, m)
    e = g.sub(x, m) if twice else d
    if two_pass:
        v = mean(g, g.pow(e, const(g, 2, dtype)) if square == "pow" else g.mul(e, e), axes, how)
    else:
        v = g.max(const(g, 0, dtype), g.sub(mean(g, g.mul(x, x), axes, how), g.mul(m, m)))
    y = standardised(g, d, v, root, gamma(g, dims, axes, dtype) if affine == "early" else None)
    if affine == "full":
        y = g.mul(y, gamma(g, dims, axes, dtype))
    if affine in ("full", "early"):
        y = g.add(gamma(g, dims, axes, g[y].dtype, "beta"), y)
    more = [{"d": d, "variance": v}[keep]] if keep else []
    return g.set_outputs(g.neg(y), *([g.relu(d)] if other == "shared" else []), *more)


def gamma(g: Graph, dims: tuple[int, ...], axes: tuple[int, ...], dtype: DType, name: str = "gamma") -> int:
    first = min(axes)
    return g.param(name, tuple(dims[i] if i in axes else 1 for i in range(first, len(dims))), dtype)


def standardised(g: Graph, d: int, v: int, root: str, scale: int | None = None) -> int:
    dtype = g[v].dtype
    v = v if root == "no eps" else g.add(v, const(g, 2.0**-10, dtype))
    if root in ("div", "no eps"):
        return g.div(d, g.sqrt(v))
    if root == "power":
        return g.div(d, g.pow(v, const(g, 0.5, dtype)))
    inverse = {"rsqrt": lambda: g.rsqrt(v), "reciprocal": lambda: g.reciprocal(g.sqrt(v)),
               "one over": lambda: g.div(const(g, 1, dtype), g.sqrt(v)),
               "negative": lambda: g.pow(v, const(g, -0.5, dtype))}[root]()
    return g.mul(g.mul(inverse, scale), d) if scale is not None else g.mul(d, inverse)


def rms_norm(dims: tuple[int, ...] = (2, 3, 8), *, axes: tuple[int, ...] = (-1,), how: str = "mean", root: str = "rsqrt",
             cast: str = "", dtype: DType = DType.F32, beta: bool = False, bare: bool = False) -> Graph:
    """``cast``: computed in f32, cast back before the gain (``early``)."""
    g = Graph("rms_norm")
    x = g.input("x", dims, DType.F16 if cast else dtype)
    axes = tuple(a % len(dims) for a in axes)
    h = g.cast(x, to=DType.F32) if cast else x
    square = g.mul(h, h)
    y = standardised(g, h, mean(g, square, axes, how), root)
    if cast == "early":
        y = g.cast(y, to=DType.F16)
    if not bare:
        y = g.mul(gamma(g, dims, axes, g[y].dtype), y)
    if beta:
        y = g.add(y, gamma(g, dims, axes, g[y].dtype, "beta"))
    return g.set_outputs(g.neg(y))


def mixed(centred: bool) -> Graph:
    """Computed in f32 from f16, cast back after a gain in f32."""
    g = Graph("mixed")
    x = g.input("x", (2, 8), DType.F16)
    h = g.cast(x, to=DType.F32)
    d = g.sub(h, mean(g, h, (1,))) if centred else h
    y = g.mul(standardised(g, d, mean(g, g.mul(d, d), (1,)), "rsqrt"), g.param("gamma", (8,)))
    return g.set_outputs(g.cast(y, to=DType.F16))


# --- activations --------------------------------------------------------------------------------------

ROOT_TWO = math.sqrt(2)
LINE = math.sqrt(2 / math.pi)


def gelu(kind: str, order: str, *, half: float = 0.5, slope: float = 1.0, keep: str = "") -> Graph:
    g = Graph("gelu")
    x = g.mul(g.input("x", (2, 3, 5)), g.input("by", (5,)))
    if kind == "erf":
        inner = g.div(x, const(g, ROOT_TWO / slope))
    elif kind == "erf by":
        inner = g.mul(const(g, slope / ROOT_TWO), x)
    elif kind == "pow":
        cube = g.mul(const(g, 0.044715), g.pow(x, const(g, 3)))
        inner = g.mul(const(g, LINE * slope), g.add(x, cube))
    elif kind == "chain":  # as JAX writes it
        inner = g.mul(const(g, LINE * slope), g.add(x, g.mul(x, g.mul(x, g.mul(const(g, 0.044715), x)))))
    else:  # factored
        bracket = g.add(g.mul(g.mul(x, x), const(g, 0.044715)), const(g, 1))
        inner = g.mul(g.mul(x, const(g, LINE * slope)), bracket)
    t = g.erf(inner) if kind.startswith("erf") else g.tanh(inner)
    if order == "line":
        return g.set_outputs(g.neg(g.mul(g.add(g.mul(t, const(g, half)), const(g, half)), x)))
    one = g.add(t, const(g, 1))
    if order == "x half":
        y = g.mul(g.mul(x, one), const(g, half))
    elif order == "half first":
        y = g.mul(g.mul(const(g, half), x), one)
    elif order == "over two":
        y = g.mul(g.div(x, const(g, 1 / half)), one)
    else:  # cdf
        y = g.mul(x, g.mul(const(g, half), one))
    return g.set_outputs(g.neg(y), *kept(g, t, keep))


def silu(how: str = "sigmoid", *, slope: float = 1.0, keep: str = "") -> Graph:
    g = Graph("silu")
    x = g.input("x", (2, 3))
    if how.startswith("sigmoid"):
        arg = x if how == "sigmoid" and slope == 1 else g.mul(x, g.constant(np.full((1,), slope, np.float32)))
        s = g.sigmoid(arg)
        y = g.mul(s, x)
    else:
        minus = g.neg(x) if how != "times -1" else g.mul(const(g, -slope), x)
        s = g.add(const(g, 1), g.exp(minus))
        if how == "over" or how == "times -1":
            y = g.div(x, s)
        elif how == "reciprocal":
            y = g.mul(x, g.reciprocal(s))
        else:
            y = g.mul(g.div(const(g, 1), s), x)
    return g.set_outputs(g.neg(y), *kept(g, s, keep))


def hardswish(how: str = "late", *, six: float = 6.0, keep: str = "") -> Graph:
    g = Graph("hardswish")
    x = g.add(g.input("x", (2, 3)), const(g, 1))
    shifted = x if how == "hardsigmoid" else g.add(x, const(g, 3))
    if how == "hardsigmoid":
        c = g.hardsigmoid(x, alpha=1 / six, beta=0.5)
    elif how == "min max":
        c = g.min(g.max(shifted, const(g, 0)), const(g, 6))
    else:
        c = g.clip(shifted, alpha=0.0, beta=6.0)
    if how == "hardsigmoid":
        y = g.mul(x, c)
    elif how == "early":
        y = g.mul(g.div(c, const(g, six)), x)
    elif how == "scaled":
        y = g.mul(c, g.mul(x, const(g, 1 / six)))
    else:
        y = g.div(g.mul(x, c), const(g, six))
    return g.set_outputs(g.neg(y), *kept(g, c, keep))


# --- softmax ------------------------------------------------------------------------------------------


def softmax(axes: tuple[int, ...] = (2,), *, top: bool = True, flat: bool = False, by: str = "div", keep: str = "") -> Graph:
    g = Graph("softmax")
    x = g.input("x", (2, 3, 4))
    kept = tuple(1 if i in axes else d for i, d in enumerate((2, 3, 4)))

    def reduced(kind: str, v: int) -> int:
        y = g.reduce(v, kind=kind, axes=axes, keepdims=not flat)
        if flat and kind == "max":
            y = g.max(const(g, -np.inf), y)
        return g.reshape(y, dims=kept) if flat else y

    e = g.exp(g.sub(x, reduced("max", x)) if top else x)
    s = reduced("sum", e)
    y = g.div(e, s) if by == "div" else g.mul(g.reciprocal(s), e)
    more: dict[str, Any] = {"output": lambda: [e], "shared": lambda: [g.relu(e)]}
    return g.set_outputs(g.neg(y), *(more[keep]() if keep else []))


DECOMPOSED = ("Reduce(mean)", "Reduce(sum)", "Activation(sqrt)", "Activation(rsqrt)", "Binary(pow)", "Binary(div)", "Binary(mul)")
LN, RMS = "recognise_layer_norm", "recognise_rms_norm"
GELU, SILU, HARD, SOFT = "recognise_gelu", "recognise_silu", "recognise_hardswish", "recognise_softmax"

APPLIED = [
    Applied(LN, layer_norm, ("LayerNorm",), DECOMPOSED),
    *(Applied(LN, lambda r=r: layer_norm(root=r), ("LayerNorm",), DECOMPOSED, id=r)  # type: ignore[misc]
      for r in ("no eps", "power", "rsqrt", "reciprocal", "one over", "negative")),
    Applied(LN, lambda: layer_norm(square="mul", twice=True), ("LayerNorm",), DECOMPOSED, id="difference twice"),
    Applied(LN, lambda: layer_norm(how="sum"), ("LayerNorm",), DECOMPOSED, id="sum over count"),
    Applied(LN, lambda: layer_norm((1, 8), how="flat", two_pass=False, root="reciprocal", affine="early"), ("LayerNorm",),
            DECOMPOSED, id="as JAX writes it", rtol=1e-6),
    Applied(LN, lambda: layer_norm((2, 8, 5), (1,), how="flat", two_pass=False, root="reciprocal", affine="early"),
            ("LayerNorm2d",), DECOMPOSED, id="channels, rank 3", rtol=1e-6),
    Applied(LN, lambda: layer_norm((2, 6, 4, 3), (1,)), ("LayerNorm2d",), DECOMPOSED, id="channels, rank 4"),
    Applied(LN, lambda: layer_norm((2, 3, 4), (1, 2)), ("LayerNorm",), DECOMPOSED, id="two axes"),
    Applied(LN, lambda: layer_norm(affine=""), ("LayerNorm",), DECOMPOSED, id="no affine"),
    Applied(LN, lambda: layer_norm(keep="variance"), ("LayerNorm",), ("Binary(mul)",), id="statistics read elsewhere"),
    Applied(RMS, rms_norm, ("RmsNorm",), DECOMPOSED),
    Applied(RMS, lambda: rms_norm(how="sum", root="div"), ("RmsNorm",), DECOMPOSED, id="sum over count"),
    Applied(RMS, lambda: rms_norm(how="flat", root="negative", beta=True), ("RmsNorm",), DECOMPOSED, id="shift"),
    Applied(RMS, lambda: rms_norm(cast="early"), ("RmsNorm",), (*DECOMPOSED, "Cast"), id="cast back before the gain"),
    Applied(RMS, lambda: rms_norm(bare=True), ("RmsNorm",), DECOMPOSED, id="no gain"),
    *(Applied(GELU, lambda k=k, o=o: gelu(k, o), (f"Activation({'gelu' if k.startswith('erf') else 'gelu_approx'})",),  # type: ignore[misc]
              ("Activation(erf)", "Activation(tanh)"), id=f"{k}, {o}", rtol=1e-6)
      for k in ("erf", "erf by", "pow", "chain", "factored")
      for o in ("x half", "half first", "over two", "cdf", "line")),
    *(Applied(SILU, lambda h=h: silu(h), ("Activation(silu)",), ("Activation(exp)", "Activation(sigmoid)"), id=h)  # type: ignore[misc]
      for h in ("sigmoid", "sigmoid times 1", "over", "times -1", "reciprocal", "one over")),
    *(Applied(HARD, lambda h=h: hardswish(h), ("Activation(hardswish)",), ("Activation(clip)", "Binary(mul)"), id=h, rtol=1e-6)  # type: ignore[misc]
      for h in ("late", "early", "scaled", "hardsigmoid", "min max")),
    Applied(SOFT, softmax, ("Softmax",), ("Reduce(sum)", "Reduce(max)")),
    Applied(SOFT, lambda: softmax((1,), top=False), ("Softmax",), ("Reduce(sum)",), id="no maximum"),
    Applied(SOFT, lambda: softmax(flat=True, by="mul"), ("Softmax",), ("Reduce(sum)",), id="as JAX writes it"),
]
REFUSED = [
    Refused("recognise_layer_norm", Refusal.UNKNOWN_SHAPE, lambda: layer_norm((2, 3, "H")), evaluate=False),  # type: ignore[arg-type]
    Refused("recognise_rms_norm", Refusal.UNKNOWN_SHAPE, lambda: rms_norm((2, 3, "H")), evaluate=False),  # type: ignore[arg-type]
    Refused(LN, Refusal.SHARED, lambda: layer_norm(other="shared")),
    Refused(LN, Refusal.OUTPUT, lambda: layer_norm(keep="d")),
    Refused(LN, Refusal.DTYPE, lambda: layer_norm(dtype=DType.F64)),
    Refused(LN, Refusal.MIXED_DTYPES, lambda: mixed(True)),
    Refused(LN, Refusal.AXIS, lambda: layer_norm((2, 3, 4), (0,), affine="")),
    Refused(RMS, Refusal.DTYPE, lambda: rms_norm(dtype=DType.BF16, bare=True)),
    Refused(RMS, Refusal.MIXED_DTYPES, lambda: mixed(False)),
    Refused(RMS, Refusal.AXIS, lambda: rms_norm((2, 3, 4), axes=(1,), bare=True)),
    *(Refused(rule, reason, build) for rule, build in (
        (GELU, lambda k: gelu("erf", "cdf", keep=k)), (SILU, lambda k: silu(keep=k)), (HARD, lambda k: hardswish(keep=k)),
        (SOFT, lambda k: softmax(keep=k))) for reason, build in (
        (Refusal.SHARED, lambda b=build: b("shared")), (Refusal.OUTPUT, lambda b=build: b("output")))),
    Refused(GELU, Refusal.CONSTANT, lambda: gelu("erf", "cdf", half=0.25)),
    Refused(GELU, Refusal.CONSTANT, lambda: gelu("pow", "x half", slope=1.5), id="slope"),
    Refused(SILU, Refusal.CONSTANT, lambda: silu(slope=1.702)),
    Refused(SILU, Refusal.CONSTANT, lambda: silu("times -1", slope=2), id="exp"),
    Refused(HARD, Refusal.CONSTANT, lambda: hardswish(six=5.0)),
    Refused(SOFT, Refusal.AXIS, lambda: softmax((1, 2))),
]
