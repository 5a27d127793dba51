"""Fused thunks: products and norms with what stands around them, regions, the short convolution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from planner_core.ir.ops import region_steps
from tests.runtime.gallery.base import Array, Case, case, one, rand


def _t(*arrays: Array) -> list[torch.Tensor]:
    return [torch.tensor(a.astype(np.float64)) for a in arrays]


def _mm_bias_act(lead: tuple[int, ...], activation: str) -> Case:
    a, w, b = rand(*lead, 7), rand(7, 5, seed=1), rand(5, seed=2)
    ta, tw, tb = _t(a, w, b)
    fn = {"": lambda y: y, "gelu": F.gelu, "silu": F.silu, "relu": F.relu, "leaky_relu": lambda y: F.leaky_relu(y, 0.1)}[activation]
    attrs = {"alpha": 0.1} if activation == "leaky_relu" else {}
    return one(lambda g, *i: g.fused_mat_mul_bias_act(*i, activation=activation, **attrs), [a, w, b], fn(ta @ tw + tb).numpy())


case(_mm_bias_act, [(1,), (3,), (2, 3), ()], ["", "gelu", "silu", "relu", "leaky_relu"])

NORM_DIMS = [(1, 1), (3, 7), (2, 5, 129), (1, 40009)]


def _residual_ln(dims: tuple[int, ...], bias: bool, dtype: str) -> Case:
    x, r = (rand(*dims, seed=i).astype(dtype) for i in (0, 1))
    vectors = [rand(dims[-1], seed=2 + i).astype(dtype) for i in range(3 if bias else 2)]
    tx, tr, g, b, *c = _t(x, r, *vectors)
    want = F.layer_norm(tx + tr + sum(c), dims[-1:], g, b, 1e-2).numpy()
    return one(lambda gr, *i: gr.residual_layer_norm(*i, eps=1e-2), [x, r, *vectors], want, width_policy="native")


def _residual_rms(dims: tuple[int, ...], bias: bool, beta: bool, dtype: str) -> Case:
    x, r = (rand(*dims, seed=i).astype(dtype) for i in (0, 1))
    vectors = [rand(dims[-1], seed=2 + i).astype(dtype) for i in range(1 + bias + beta)]
    tx, tr, g, *more = _t(x, r, *vectors)
    want = F.rms_norm(tx + tr + (more[0] if bias else 0), dims[-1:], g, 1e-2) + (more[-1] if beta else 0)
    return one(lambda gr, *i: gr.residual_rms_norm(*i, eps=1e-2, has_bias=bias, has_beta=beta), [x, r, *vectors], want.numpy(),
               width_policy="native")


def _gated_norm(dims: tuple[int, ...], beta: bool, dtype: str) -> Case:
    x, z = (rand(*dims, seed=i).astype(dtype) for i in (0, 1))
    vectors = [rand(dims[-1], seed=2 + i).astype(dtype) for i in range(1 + beta)]
    tx, tz, g, *b = _t(x, z, *vectors)
    want = (F.rms_norm(tx, dims[-1:], g, 1e-2) + sum(b)) * F.silu(tz)
    return one(lambda gr, *i: gr.rms_norm_mul_silu(*i, eps=1e-2), [x, vectors[0], z, *vectors[1:]], want.numpy(),
               width_policy="native")


case(_residual_ln, NORM_DIMS, [False, True], ["float32"])
case(_residual_ln, [(3, 7)], [False, True], ["float16"])
case(_residual_rms, NORM_DIMS, [False, True], [False, True], ["float32"])
case(_residual_rms, [(3, 7)], [False, True], [False, True], ["float16"])
case(_gated_norm, NORM_DIMS, [False, True], ["float32"])
case(_gated_norm, [(3, 7)], [False, True], ["float16"])


def _wide_half(kind: str) -> Case:
    """Half rows whose squares sum past f16's largest number."""
    h = 4099
    x, r, g = ((rand(2, h) * 9).astype(np.float16), (rand(2, h, seed=1) * 9).astype(np.float16), rand(h, seed=2).astype(np.float16))
    z = np.zeros(h, np.float16)
    tx, tg = _t(x, g)
    match kind:
        case "layer":
            want = F.layer_norm(tx, (h,), tg, None, 1e-5)
            return one(lambda gr, *i: gr.layer_norm(*i), [x, g, z], want.numpy(), width_policy="native")
        case "rms":
            return one(lambda gr, *i: gr.rms_norm(*i), [x, g], F.rms_norm(tx, (h,), tg, 1e-6).numpy(), width_policy="native")
        case "group":
            want = F.group_norm(tx[..., None], 1, tg, None, 1e-5)[..., 0]
            return one(lambda gr, *i: gr.group_norm(*i, groups=1), [x, g, z], want.numpy(), width_policy="native")
        case _:
            want = F.rms_norm(torch.tensor((x + r).astype(np.float64)), (h,), tg, 1e-6)
            return one(lambda gr, *i: gr.residual_rms_norm(*i), [x, r, g], want.numpy(), width_policy="native")


case(_wide_half, ["layer", "rms", "group", "residual"])


def _group_norm(dims: tuple[int, ...], groups: int, dtype: str) -> Case:
    x, g, b = (a.astype(dtype) for a in (rand(*dims) * 2 + 1, rand(dims[1], seed=1), rand(dims[1], seed=2)))
    tx, tg, tb = _t(x, g, b)
    return one(lambda gr, *i: gr.group_norm(*i, groups=groups, eps=1e-3), [x, g, b],
               F.group_norm(tx, groups, tg, tb, 1e-3).numpy(), width_policy="native")


case(_group_norm, [(2, 6, 3, 5), (1, 6, 7), (1, 12, 70, 61)], [1, 2, 6], ["float32"])
case(_group_norm, [(2, 6, 3, 5), (3, 6)], [1, 3], ["float16"])


def _geglu(first: bool, approximate: bool) -> Case:
    x = rand(3, 5, 14)
    a, b = _t(x)[0].chunk(2, -1)
    gate, up = (a, b) if first else (b, a)
    return one(lambda g, i: g.geglu(i, gate_first=first, approximate=approximate), [x],
               (up * F.gelu(gate, approximate="tanh" if approximate else "none")).numpy())


case(_geglu, [False, True], [False, True])


def _short_conv(dims: tuple[int, int, int], k: int, silu: bool, dtype: str) -> Case:
    x, w = rand(*dims).astype(dtype), rand(dims[2], 1, k, seed=1).astype(dtype)
    tx, tw = _t(x, w)
    want = F.conv1d(tx.transpose(1, 2), tw, groups=dims[2]).transpose(1, 2)
    return one(lambda g, *i: g.depthwise_conv1d_bsc(*i, silu=silu), [x, w], (F.silu(want) if silu else want).numpy(),
               width_policy="native")


case(_short_conv, [(1, 4, 5), (2, 9, 3), (2, 71, 1001)], [1, 4], [False, True], ["float32"])
case(_short_conv, [(2, 9, 3)], [3], [False, True], ["float16"])

# --- regions ------------------------------------------------------------------------------------------


def _region(which: str, dims: tuple[int, ...], dtype: str) -> Case:
    """s = (x · row + full) / (1 + |one|), then a step of its own; inputs full, trailing, full, scalar."""
    x, row, y, s = rand(*dims), rand(dims[-1], seed=1), rand(*dims, seed=2), np.asarray(rand(1, seed=3)[0])
    x, row, y, s = (a.astype(dtype) for a in (x, row, y, s))
    tx, trow, ty, ts = _t(x, row, y, s)
    base = (tx * trow + ty) / (ts.abs() + 1)
    last = {"gelu": F.gelu, "to_f16": lambda v: v.half().double(), "to_bf16": lambda v: v.float().bfloat16().double(),
            "trunc": torch.trunc, "keep": lambda v: v}[which]
    steps = region_steps(f"s0 = mul(x0, x1); s1 = add(s0, x2); s2 = abs(x3); s3 = sub(s2, x4); s4 = div(s1, s3); s5 = {which}(s4)")
    return one(lambda g, *i: g.elementwise_region(*i, steps=steps), [x, row, y, s, np.full((1,) * len(dims), -1, dtype)],
               last(base).numpy(), width_policy="native")


case(_region, ["gelu", "trunc", "keep"], [(1,), (7,), (3, 5), (2, 3, 20011)], ["float32"])
case(_region, ["gelu", "to_f16"], [(3, 5)], ["float16"])


def _rounded(which: str) -> Case:
    """Rounding to a narrower float and back, of values that are no ties in either."""
    x = rand(5, 9)
    tx = torch.tensor(x)
    want = (tx.half() if which == "to_f16" else tx.bfloat16()).float()
    return one(lambda g, i: g.elementwise_region(i, steps=region_steps(f"s0 = {which}(x0); s1 = keep(s0)")), [x], want.numpy())


case(_rounded, ["to_f16", "to_bf16"])


def _upsampled(dims: tuple[int, int, int, int], first: int) -> Case:
    n, c, h, w = dims
    small, full, row = rand(*dims), rand(n, c, 2 * h, 2 * w, seed=1), rand(2 * w, seed=2)
    up = F.interpolate(_t(small)[0], scale_factor=2, mode="nearest").numpy()
    arrays = [small, full, row]
    steps = region_steps("s0 = add(x0, x1); s1 = mul(s0, x2)")
    want = (up + full) * row
    if first:
        arrays = [full, small, row]
    return one(lambda g, *i: g.elementwise_region(*i, steps=steps, prologue="nearest2x", prologue_input=first), arrays, want)


case(_upsampled, [(1, 1, 1, 1), (2, 3, 5, 7), (1, 3, 91, 93)], [0, 1])


def _scalars_only() -> Case:
    """A chain that meets a full input only at its last step, and one whose first steps are of one element."""
    x, a, b = rand(3, 5), rand(1, seed=1), rand(1, 1, seed=2)
    steps = region_steps("s0 = mul(x1, x2); s1 = exp(s0); s2 = max(x0, s1)")
    return one(lambda g, *i: g.elementwise_region(*i, steps=steps), [x, a, b], np.maximum(x, np.exp(a * b)))


case(_scalars_only)


def _batch_region(dims: tuple[int, ...], count: int, dtype: str) -> Case:
    arrays: list[Array] = []
    want = []
    for s in range(count):
        x, row, one_ = rand(*dims, seed=s), rand(dims[-1], seed=50 + s), rand(1, seed=90 + s)
        arrays += [a.astype(dtype) for a in (x, row, one_)]
        tx, tr, to = _t(*arrays[-3:])
        want.append(torch.tanh(tx - tr) * to)
    steps = region_steps("s0 = sub(x0, x1); s1 = tanh(s0); s2 = mul(s1, x2)")
    return one(lambda g, *i: g.batch_elementwise_region(*i, steps=steps, num_batch=count), arrays, torch.stack(want).numpy(),
               width_policy="native")


case(_batch_region, [(7,), (3, 5), (3, 20011)], [1, 3], ["float32"])
case(_batch_region, [(3, 5)], [2], ["float16"])


def _every_step() -> Case:
    """Each activation sub-op after each binary one, summed."""
    x, y = np.abs(rand(5, 9)) + np.float32(0.5), np.abs(rand(5, 9, seed=1)) + np.float32(0.5)
    tx, ty = _t(x, y)
    binaries: dict[str, Any] = {"add": tx + ty, "sub": tx - ty, "mul": tx * ty, "div": tx / ty, "max": torch.maximum(tx, ty),
                                "min": torch.minimum(tx, ty), "pow": tx**ty}
    acts: dict[str, Any] = {"gelu": F.gelu, "gelu_approx": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu,
                            "relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp,
                            "abs": torch.abs, "neg": torch.neg, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt}
    text, total, at = [], 0, 0
    for (b, v), (a, f) in itertools.islice(zip(itertools.cycle(binaries.items()), acts.items(), strict=False), 9):
        v = v if a not in ("log", "sqrt", "rsqrt") else v.abs()
        text += [f"s{at} = {b}(x0, x1)", f"s{at + 1} = {a}(s{at})", f"s{at + 2} = add(s{at + 1}, {f's{at - 1}' if at else 'x0'})"]
        total, at = total + f(v), at + 3
    return one(lambda g, *i: g.elementwise_region(*i, steps=region_steps("; ".join(text))), [x, y], (total + tx).numpy())


case(_every_step)
