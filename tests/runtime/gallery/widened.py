"""Cases of ops whose kernel takes f32 alone, on halves: f32 copies in scratch, rounded once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import scipy.special
import torch

from planner_core.ir import DType, Graph
from tests.runtime.gallery.base import Array, Case, case, one, rand

BF16 = np.dtype(ml_dtypes.bfloat16)
NATIVE = {"width_policy": "native"}


def _half(*shape: int, seed: int = 0, dtype: np.dtype = BF16) -> tuple[Array, Array]:  # type: ignore[type-arg]
    """(halves, the same values in f64)."""
    x = rand(*shape, seed=seed).astype(dtype)
    return x, x.astype(np.float64)


def _gated(first: bool) -> Case:
    x, wide = _half(3, 14)
    a, b = np.split(wide, 2, axis=1)
    gate, up = (a, b) if first else (b, a)
    return one(lambda g, i: g.swi_g_l_u(i, gate_first=first), [x], up * gate * scipy.special.expit(gate), **NATIVE)


case(_gated, [False, True])


def _pooled(kind: str) -> Case:
    x, wide = _half(2, 3, 6, 7)
    fn = torch.nn.functional.max_pool2d if kind == "max" else torch.nn.functional.avg_pool2d
    want = fn(torch.from_numpy(wide), (2, 3), (2, 2)).numpy()
    return one(lambda g, i: g.pool2d(i, kind=kind, kernel=(2, 3), strides=(2, 2), pads=(0, 0, 0, 0)), [x], want, **NATIVE)


case(_pooled, ["max", "mean"])


def _rotated(width: str) -> Case:
    """Half tables beside activations that are stored as f32: params keep their width."""
    dtype = BF16 if width == "bf16" else np.dtype(width)
    x, wide = _half(2, 5, 8, dtype=dtype)
    cos, sin = (_half(5, 2, seed=k, dtype=dtype) for k in (1, 2))
    a, b = wide.reshape(2, 5, 2, 4)[..., :2], wide.reshape(2, 5, 2, 4)[..., 2:]
    c, s = cos[1][:, None], sin[1][:, None]
    want = np.concatenate([a * c - b * s, b * c + a * s], axis=-1).reshape(2, 5, 8)
    g = Graph("case")
    half = DType.of(dtype)
    tables = [g.param(n, (5, 2), half, data=t[0]) for n, t in (("cos", cos), ("sin", sin))]
    g.set_outputs(g.rope(g.input("x", x.shape, half), *tables, head_dim=4, n_rot=4))
    return Case(g, {"x": x}, [want], (("width_policy", "native_half_widened"),))


case(_rotated, ["float16", "bf16"])
