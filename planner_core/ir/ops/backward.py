"""Owns the backward ops of activations, softmax, norms, indexing, slices, scans and grouped products.

``dy`` is the gradient of the forward op's output. Convolution: ``conv_backward.py``; attention:
``attention_backward.py``; losses: ``losses.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.attention import SwiGLU
from planner_core.ir.ops.elementwise import _erf, _sigmoid
from planner_core.ir.ops.indexing import _wrap
from planner_core.ir.ops.operands import wanted
from planner_core.ir.ops.scan import SelectiveScan
from planner_core.ir.ops.structure import Slice
from planner_core.ir.shape import Dim, Shape


def same_dims(what: str, a: Shape, b: Shape) -> Shape:
    """``a``, if ``b`` has its dims and dtype; ``GraphError`` otherwise."""
    if a.rank != b.rank or a.dtype is not b.dtype or not all(p.same(q) for p, q in zip(a.dims, b.dims, strict=True)):
        raise GraphError(f"{what}: {a} and {b} must have the same shape and dtype")
    return a


def one_of(what: str, wrt: str, *names: str) -> None:
    if wrt not in names:
        raise GraphError(f"{what} wrt {wrt!r}: wanted one of {', '.join(names)}")


def _gelu_tanh_slope(x: Array) -> Array:
    k = math.sqrt(2 / math.pi)
    t = np.tanh(k * (x + 0.044715 * x * x * x))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x))


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return np.asarray(s * (1 + x * (1 - s)))


SLOPE: dict[str, Callable[[Array, float, float], Array]] = {
    "gelu": lambda x, a, b: 0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_approx": lambda x, a, b: _gelu_tanh_slope(x),
    "silu": lambda x, a, b: _silu_slope(x),
    "relu": lambda x, a, b: x > 0,
    "sigmoid": lambda x, a, b: _sigmoid(x) * (1 - _sigmoid(x)),
    "tanh": lambda x, a, b: 1 - np.tanh(x) ** 2,
    "exp": lambda x, a, b: np.exp(x),
    "log": lambda x, a, b: 1 / x,
    "sqrt": lambda x, a, b: 0.5 / np.sqrt(x),
    "rsqrt": lambda x, a, b: -0.5 / (x * np.sqrt(x)),
    "neg": lambda x, a, b: -np.ones_like(x),
    "abs": lambda x, a, b: np.sign(x),
    "leaky_relu": lambda x, a, b: np.where(x > 0, 1, a),
    "elu": lambda x, a, b: np.where(x > 0, 1, a * np.exp(np.minimum(x, 0))),
    "erf": lambda x, a, b: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "sin": lambda x, a, b: np.cos(x),
    "cos": lambda x, a, b: -np.sin(x),
    "softplus": lambda x, a, b: _sigmoid(x),
    "hardsigmoid": lambda x, a, b: np.where((a * x + b > 0) & (a * x + b < 1), a, 0),
    "hardswish": lambda x, a, b: np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5)),
    "clip": lambda x, a, b: (x >= a) & (x <= b),
    "reciprocal": lambda x, a, b: -1 / (x * x),
}
"""Derivative of each activation over (x, alpha, beta). At a kink the value is PyTorch's. Kinds that are not
here (floor, ceil, round, sign, not) are flat: no gradient flows through them."""


@op(family="backward", operands="x dy", rows=rows.aligned)
class ActivationBackward(Op):
    """``dy · kind'(x)`` per element; x is the activation's operand, dy and the result have its shape.

    ``alpha``, ``beta`` as in ``Activation``.
    """

    kind: str
    alpha: float = 0.0
    beta: float = 0.0

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        if self.kind not in SLOPE:
            raise GraphError(f"ActivationBackward {self.kind!r}: wanted one of {', '.join(SLOPE)}")
        return same_dims("ActivationBackward", x, dy)

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        return np.asarray(dy * SLOPE[self.kind](x, self.alpha, self.beta), dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 2 * out.numel


@op(family="backward", operands="y dy")
class SoftmaxBackward(Op):
    """``y · (dy - Σ dy·y)``, the sum along ``axis``; y is the softmax's output, all three have its shape."""

    axis: int = -1

    def infer(self, y: Shape, dy: Shape, *_: Shape) -> Shape:
        y.axis(self.axis)
        return same_dims("SoftmaxBackward", y, dy)

    def evaluate(self, y: Array, dy: Array, *_: Array) -> Array:
        return np.asarray(y * (dy - (dy * y).sum(self.axis, keepdims=True)), dtype=y.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 4 * out.numel


@op(family="backward", operands="x dy", builders={"swiglu_backward": {}})
class SwiGLUBackward(Op):
    """Gradient of the packed row: ``d_up = dy·silu(gate)``, ``d_gate = dy·up·silu'(gate)``; x ``[.., 2n]``,
    dy ``[.., n]``, result ``[.., 2n]``."""

    gate_first: bool = True

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        same_dims(f"SwiGLUBackward x {x}", dy, SwiGLU(self.gate_first).infer(x))
        return x

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        a, b = np.split(x, 2, axis=-1)
        gate, up = (a, b) if self.gate_first else (b, a)
        d_gate, d_up = dy * up * _silu_slope(gate), dy * gate * _sigmoid(gate)
        return np.concatenate((d_gate, d_up) if self.gate_first else (d_up, d_gate), axis=-1, dtype=x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 6 * out.numel


# --- norms --------------------------------------------------------------------------------------------


def _normal(x: Array, eps: float, centre: bool) -> tuple[Array, Array]:
    """(x̂, 1/deviation) over the last axis."""
    d = x - x.mean(-1, keepdims=True) if centre else x
    r = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
    return d * r, r


def _norm_input(x: Array, dxhat: Array, eps: float, centre: bool) -> Array:
    """``r · (dx̂ - mean dx̂ - x̂ · mean(dx̂·x̂))``; the first mean only when centred."""
    xhat, r = _normal(x, eps, centre)
    out = dxhat - xhat * (dxhat * xhat).mean(-1, keepdims=True)
    if centre:
        out = out - dxhat.mean(-1, keepdims=True)
    return np.asarray(r * out, dtype=x.dtype)


def _rows_sum(x: Array) -> Array:
    return np.asarray(x.reshape(-1, x.shape[-1]).sum(0), dtype=x.dtype)


def _gain(what: str, x: Shape, gamma: Shape, dy: Shape) -> Shape:
    if gamma.rank != 1 or not gamma.dims[0].same(x.dims[-1]):
        raise GraphError(f"{what}: gamma {gamma} doesn't fit the last axis of {x}")
    return same_dims(what, x, dy)


@op(family="backward", operands="x gamma dy")
class LayerNormBackwardInput(Op):
    """``r·(d - mean d - x̂·mean(d·x̂))`` with ``d = dy·gamma``, ``x̂ = (x - mean)·r``, ``r = 1/√(var + eps)``;
    x, dy and the result ``[.., h]``, gamma ``[h]``."""

    eps: float = 1e-5

    def infer(self, x: Shape, gamma: Shape, dy: Shape, *_: Shape) -> Shape:
        return _gain("LayerNormBackwardInput", x, gamma, dy)

    def evaluate(self, x: Array, gamma: Array, dy: Array, *_: Array) -> Array:
        return _norm_input(x, dy * gamma, self.eps, True)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 14 * out.numel


@op(family="backward", operands="dy")
class LayerNormBackwardBeta(Op):
    """Gradient of LayerNorm's beta: ``sum over rows of dy``; dy ``[.., h]``, result ``[h]``."""

    def infer(self, dy: Shape, *_: Shape) -> Shape:
        return Shape((dy.dims[dy.axis(-1)],), dy.dtype)

    def evaluate(self, dy: Array, *_: Array) -> Array:
        return _rows_sum(dy)

    def flops(self, out: Shape, dy: Shape, *_: Shape) -> int:
        return dy.numel


@op(family="backward", operands="x gamma dy")
class RmsNormBackwardInput(Op):
    """``r·(d - x̂·mean(d·x̂))`` with ``d = dy·gamma``, ``x̂ = x·r``, ``r = 1/√(mean x² + eps)``;
    x, dy and the result ``[.., h]``, gamma ``[h]``."""

    eps: float = 1e-6

    def infer(self, x: Shape, gamma: Shape, dy: Shape, *_: Shape) -> Shape:
        return _gain("RmsNormBackwardInput", x, gamma, dy)

    def evaluate(self, x: Array, gamma: Array, dy: Array, *_: Array) -> Array:
        return _norm_input(x, dy * gamma, self.eps, False)

    def flops(self, out: Shape, *ins: Shape) -> int:
        return 10 * out.numel


@op(family="backward", operands="x dy")
class RmsNormBackwardGamma(Op):
    """Gradient of RmsNorm's gamma: ``sum over rows of dy·x/√(mean x² + eps)``; x, dy ``[.., h]``, result ``[h]``."""

    eps: float = 1e-6

    def infer(self, x: Shape, dy: Shape, *_: Shape) -> Shape:
        same_dims("RmsNormBackwardGamma", x, dy)
        return Shape((x.dims[-1],), x.dtype)

    def evaluate(self, x: Array, dy: Array, *_: Array) -> Array:
        return _rows_sum(dy * _normal(x, self.eps, False)[0])

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 5 * x.numel


@op(family="backward", operands="dy")
class RmsNormBackwardBeta(Op):
    """Gradient of RmsNorm's beta: ``sum over rows of dy``; dy ``[.., h]``, result ``[h]``."""

    def infer(self, dy: Shape, *_: Shape) -> Shape:
        return Shape((dy.dims[dy.axis(-1)],), dy.dtype)

    def evaluate(self, dy: Array, *_: Array) -> Array:
        return _rows_sum(dy)

    def flops(self, out: Shape, dy: Shape, *_: Shape) -> int:
        return dy.numel


@op(family="backward", operands="x scale dy")
class AdaLayerNormBackward(Op):
    """Gradient of AdaLayerNorm wrt ``input`` (the norm's, with gain ``1 + scale``) or ``scale`` (``Σ_s dy·x̂``);
    x, dy ``[B, S, H]``, scale ``[B, H]``. The shift's is ``Σ_s dy``, a Reduce."""

    wrt: str
    eps: float = 1e-6
    layer_norm: bool = True

    def infer(self, x: Shape, scale: Shape, dy: Shape, *_: Shape) -> Shape:
        one_of("AdaLayerNormBackward", self.wrt, "input", "scale")
        same_dims("AdaLayerNormBackward", x, dy)
        wanted("AdaLayerNormBackward", "scale", scale, (*x.dims[:1], *x.dims[2:]), f"[B, H] of x {x}")
        return x if self.wrt == "input" else scale

    def evaluate(self, x: Array, scale: Array, dy: Array, *_: Array) -> Array:
        if self.wrt == "input":
            return _norm_input(x, dy * (1 + scale[:, None]), self.eps, self.layer_norm)
        return np.asarray((dy * _normal(x, self.eps, self.layer_norm)[0]).sum(1), dtype=x.dtype)

    def flops(self, out: Shape, x: Shape, *_: Shape) -> int:
        return 14 * x.numel


@op(family="backward", operands="other dy")
class GatedResidualBackward(Op):
    """Gradient of ``x + gate·y`` wrt ``y`` (``gate·dy``, other = gate ``[B, H]``) or ``gate`` (``Σ_s y·dy``,
    other = y ``[B, S, H]``); dy ``[B, S, H]``."""

    wrt: str

    def infer(self, other: Shape, dy: Shape, *_: Shape) -> Shape:
        one_of("GatedResidualBackward", self.wrt, "y", "gate")
        rows = Shape((dy.dims[0], dy.dims[-1]), dy.dtype)
        same_dims("GatedResidualBackward", other, rows if self.wrt == "y" else dy)
        return dy if self.wrt == "y" else rows

    def evaluate(self, other: Array, dy: Array, *_: Array) -> Array:
        return np.asarray(other[:, None] * dy if self.wrt == "y" else (other * dy).sum(1), dtype=dy.dtype)

    def flops(self, out: Shape, other: Shape, dy: Shape, *_: Shape) -> int:
        return dy.numel * (1 if self.wrt == "y" else 2)


# --- indexing, slices, scans, grouped products --------------------------------------------------------


@op(family="backward", operands="dy indices")
class GatherBackward(Op):
    """Zeros with each slice of ``dy`` added where Gather took it: ``dx[.., indices[i], ..] += dy[.., i, ..]``.

    dy: dims before ``axis``, the indices' dims, dims after; the result has ``extent`` at ``axis``.
    """

    axis: int
    extent: Dim

    def infer(self, dy: Shape, idx: Shape, *_: Shape) -> Shape:
        if not 0 <= self.axis <= dy.rank - idx.rank:
            raise GraphError(f"GatherBackward axis {self.axis}: dy {dy} with indices {idx} has no such axis")
        wanted("GatherBackward", "dy", dy, (*dy.dims[: self.axis], *idx.dims, *dy.dims[self.axis + idx.rank :]),
               f"indices {idx} from axis {self.axis} on")
        return Shape((*dy.dims[: self.axis], self.extent, *dy.dims[self.axis + idx.rank :]), dy.dtype)

    def evaluate(self, dy: Array, idx: Array, *_: Array) -> Array:
        (extent,) = Shape((self.extent,)).sizes
        before, after = dy.shape[: self.axis], dy.shape[self.axis + idx.ndim :]
        out = np.zeros((extent, *before, *after), dtype=dy.dtype)
        rows = np.moveaxis(dy.reshape(*before, idx.size, *after), self.axis, 0)
        np.add.at(out, _wrap(idx.reshape(-1), extent), rows)
        return np.asarray(np.moveaxis(out, 0, self.axis), order="C")

    def flops(self, out: Shape, dy: Shape, *_: Shape) -> int:
        return dy.numel


@op(family="backward", operands="dy")
class SliceBackward(Op):
    """Zeros of ``dims`` with ``dy`` written at the elements that Slice took."""

    axes: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]
    dims: tuple[Dim, ...]

    def infer(self, dy: Shape, *_: Shape) -> Shape:
        if len(self.dims) != dy.rank:
            raise GraphError(f"SliceBackward: dy {dy} is no slice of {Shape(self.dims, dy.dtype)}")
        x = Shape(self.dims, dy.dtype)
        made = Slice(self.axes, self.starts, self.stops, self.steps).infer(x)
        wanted("SliceBackward", "dy", dy, made.dims, f"the slice of x {x}")
        return x

    def evaluate(self, dy: Array, *_: Array) -> Array:
        out = np.zeros(Shape(self.dims).sizes, dtype=dy.dtype)
        index: list[slice] = [slice(None)] * out.ndim
        for axis, start, stop, step in zip(self.axes, self.starts, self.stops, self.steps, strict=True):
            index[axis] = slice(start, None if stop < 0 else stop, step)
        out[tuple(index)] = dy
        return out


@op(family="backward", operands="dy")
class CumsumBackward(Op):
    """``dx_i = Σ_{j ≥ i} dy_j`` along the last axis (``j > i`` when exclusive); shapes as dy."""

    exclusive: bool = False

    def infer(self, dy: Shape, *_: Shape) -> Shape:
        dy.axis(-1)
        return dy

    def evaluate(self, dy: Array, *_: Array) -> Array:
        out = np.cumsum(dy[..., ::-1], axis=-1, dtype=dy.dtype)[..., ::-1]
        return np.asarray(out - dy if self.exclusive else out, order="C")

    def flops(self, out: Shape, *ins: Shape) -> int:
        return out.numel


@op(family="backward", operands="x dy expert_idx")
class GroupedMatMulBackwardWeight(Op):
    """``dw[e] = Σ x[i]ᵀ dy[i]`` over the rows i of expert e; x ``[m, k]``, dy ``[m, n]``, result
    ``[experts, k, n]``."""

    experts: int

    def infer(self, x: Shape, dy: Shape, idx: Shape, *_: Shape) -> Shape:
        if x.rank != 2 or dy.rank != 2 or not x.dims[0].same(dy.dims[0]):
            raise GraphError(f"GroupedMatMulBackwardWeight: x {x} and dy {dy}: wanted [m, k] and [m, n]")
        wanted("GroupedMatMulBackwardWeight", "expert_idx", idx, x.dims[:1], f"one expert a row of x {x}")
        return Shape.of((self.experts, x.dims[1], dy.dims[1]), x.dtype)

    def evaluate(self, x: Array, dy: Array, idx: Array, *_: Array) -> Array:
        at = _wrap(idx, self.experts)
        return np.stack([x[at == e].T @ dy[at == e] for e in range(self.experts)])

    def flops(self, out: Shape, x: Shape, dy: Shape, *_: Shape) -> int:
        return 2 * x.numel * dy.sizes[1]


@op(family="backward", operands="x delta a b c dy")
class SelectiveScanBackward(Op):
    """Gradient of SelectiveScan wrt one operand, by the scan run again and then backwards:
    ``g_t = dy_t c_t + exp(Δ_{t+1} a) g_{t+1}`` is the state's gradient (Gu & Dao 2023).

    ``dx = Σ_n g Δ b; dΔ = Σ_n g (h' e a + x b); da = Σ_{B,t} g h' e Δ; db = Σ_d g Δ x; dc = Σ_d dy h`` with
    ``e = exp(Δ a)``, ``h' = h_{t-1}``. Shapes as in SelectiveScan; the result has that of ``wrt``.
    """

    wrt: str

    def infer(self, x: Shape, delta: Shape, a: Shape, b: Shape, c: Shape, dy: Shape, *_: Shape) -> Shape:
        names = ("x", "delta", "a", "b", "c")
        one_of("SelectiveScanBackward", self.wrt, *names)
        same_dims("SelectiveScanBackward", x, dy)
        SelectiveScan().infer(x, delta, a, b, c)
        return dict(zip(names, (x, delta, a, b, c), strict=True))[self.wrt]

    def evaluate(self, x: Array, delta: Array, a: Array, b: Array, c: Array, dy: Array, *_: Array) -> Array:
        steps = x.shape[1]
        h = np.zeros((steps + 1, x.shape[0], *a.shape), dtype=x.dtype)
        for t in range(steps):
            step = delta[:, t, :, None]
            h[t + 1] = np.exp(step * a) * h[t] + step * x[:, t, :, None] * b[:, t, None]
        g = np.zeros(h.shape[1:], dtype=x.dtype)
        out = np.zeros_like({"x": x, "delta": delta, "a": a, "b": b, "c": c}[self.wrt])
        for t in reversed(range(steps)):
            step, xt, bt, dyt = delta[:, t, :, None], x[:, t, :, None], b[:, t, None], dy[:, t, :, None]
            e = np.exp(step * a)
            g = g + dyt * c[:, t, None]
            if self.wrt == "x":
                out[:, t] = (g * step * bt).sum(-1)
            elif self.wrt == "delta":
                out[:, t] = (g * (h[t] * e * a + xt * bt)).sum(-1)
            elif self.wrt == "a":
                out += (g * h[t] * e * step).sum(0)
            elif self.wrt == "b":
                out[:, t] = (g * step * xt).sum(1)
            else:
                out[:, t] = (dyt * h[t + 1]).sum(1)
            g = g * e
        return out

    def flops(self, out: Shape, x: Shape, delta: Shape, a: Shape, *_: Shape) -> int:
        return 16 * x.numel * a.sizes[1]
