"""PyTorch's value of each op of the random graphs that PyTorch has, in f64 rounded to the operands' type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Array = np.ndarray[Any, np.dtype[Any]]
T = torch.Tensor

UNARY: dict[str, Callable[[T], T]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "neg": torch.neg, "abs": torch.abs,
    "hardswish": F.hardswish, "sin": torch.sin, "cos": torch.cos, "softplus": F.softplus, "floor": torch.floor, "exp": torch.exp,
    "gelu_approx": lambda x: F.gelu(x, approximate="tanh"), "sqrt": torch.sqrt, "sign": torch.sign, "erf": torch.erf}
BINARY: dict[str, Callable[[T, T], T]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum, "div": torch.div}
COMPARE: dict[str, Callable[[T, T], T]] = {"lt": torch.lt, "ge": torch.ge, "ne": torch.ne, "eq": torch.eq, "gt": torch.gt, "le": torch.le}


def _reduce(o: Any, x: T) -> T:
    fn = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[o.kind]
    return fn(x, dim=tuple(o.axes), keepdim=o.keepdims)


def _pad(o: Any, x: T) -> T:
    widths = [n for b, a in zip(reversed(o.before), reversed(o.after), strict=True) for n in (b, a)]
    return F.pad(x, widths, value=o.value)


def _conv(o: Any, x: T, w: T, *more: T) -> T:
    space = x.ndim - 2
    x = F.pad(x, [n for i in reversed(range(space)) for n in (o.pads[i], o.pads[i + space])])
    fn = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[space]
    y = fn(x, w, more[0] if more else None, stride=o.strides, dilation=o.dilations, groups=o.groups)
    return UNARY[o.activation](y) if getattr(o, "activation", "") else y


def _pool(o: Any, x: T) -> T:
    pads = o.pads[:2]
    if o.kind == "max":
        return F.max_pool2d(x, o.kernel, o.strides, pads, ceil_mode=o.ceil_mode)
    return F.avg_pool2d(x, o.kernel, o.strides, pads, ceil_mode=o.ceil_mode, count_include_pad=o.count_include_pad)


def _top(o: Any, x: T) -> T:
    return torch.topk(x, o.k, dim=-1, largest=o.largest)[0 if o.values else 1]


def _scatter(o: Any, x: T, at: T, updates: T) -> T:
    return x.scatter_add(o.axis, at, updates) if o.reduction == "add" else x.scatter(o.axis, at, updates)


def _gather(o: Any, x: T, at: T) -> T:
    return torch.index_select(x, o.axis, torch.where(at < 0, at + x.shape[o.axis], at))


REFERENCES: dict[str, Callable[..., T]] = {
    "Activation": lambda o, x: UNARY[o.kind](x), "Binary": lambda o, a, b: BINARY[o.kind](a, b),
    "Compare": lambda o, a, b: COMPARE[o.kind](a, b), "Where": lambda o, c, a, b: torch.where(c != 0, a, b),
    "Fma": lambda o, a, b, c: torch.addcmul(c, a, b), "MatMul": lambda o, a, b: torch.matmul(a, b), "Reduce": _reduce, "Pad": _pad,
    "Reshape": lambda o, x: x.reshape([d.value for d in o.dims]), "Transpose": lambda o, x: x.permute(*o.perm),
    "Narrow": lambda o, x: x.narrow(o.axis, o.start, o.len), "Concat": lambda o, *xs: torch.cat(xs, o.axis),
    "Expand": lambda o, x: x.expand([d.value for d in o.dims]), "Reverse": lambda o, x: x.flip(o.axes), "Gather": _gather,
    "Softmax": lambda o, x: torch.softmax(x, o.axis), "Cumsum": lambda o, x: x.cumsum(-1) - (x if o.exclusive else 0),
    "ArgReduce": lambda o, x: torch.argmax(x, o.axis, o.keepdims), "TopK": _top, "Conv": _conv, "Conv3d": _conv, "FusedConvBiasAct": _conv,
    "Pool2D": _pool, "LayerNorm": lambda o, x, g, b: F.layer_norm(x, x.shape[-1:], g, b, o.eps), "ScatterElements": _scatter,
    "RmsNorm": lambda o, x, g: F.rms_norm(x, x.shape[-1:], g, o.eps),
    "GroupNorm": lambda o, x, g, b: F.group_norm(x, o.groups, g, b, o.eps),
    "BatchNorm": lambda o, x, g, b, m, v: F.batch_norm(x, m, v, g, b, eps=o.eps),
    "ConvTranspose2d": lambda o, x, w: F.conv_transpose2d(x, w, stride=o.strides, dilation=o.dilations, groups=o.groups),
}


def by_torch(o: Any, arrays: list[Array]) -> Array | None:
    """The op's value in the type of its ``evaluate``; None where PyTorch has no such op, or not this kind of it."""
    fn = REFERENCES.get(o.name)
    table = {"Activation": UNARY, "Binary": BINARY}.get(o.name)
    if fn is None or (table is not None and o.kind not in table) or (o.name == "ConvTranspose2d" and any((*o.pads, *o.output_padding))):
        return None
    wide = [torch.from_numpy(np.array(a, np.float64 if a.dtype.kind == "f" else a.dtype)) for a in arrays]
    made = fn(o, *wide).numpy()
    kind = next((a.dtype for a in arrays if a.dtype.kind == "f"), made.dtype)
    return np.asarray(made, dtype=kind) if made.dtype.kind == "f" else made
