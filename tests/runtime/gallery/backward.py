"""Losses and the thunks of training graphs against PyTorch's autograd in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from planner_core.ir import Dim
from tests.runtime.gallery.base import Array, Case, case, one, rand

Torch = Callable[..., torch.Tensor]


def gradients(fn: Torch, arrays: Sequence[Array], dy: Array | None = None) -> tuple[list[Array], Array]:
    """(gradient of each array, dy): ``dy`` random where not given."""
    leaves = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    y = fn(*leaves)
    dy = rand(*y.shape, seed=77) if dy is None else dy
    y.backward(torch.tensor(dy.astype(np.float64)))
    return [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in leaves], dy


# --- losses -------------------------------------------------------------------------------------------


def _labels(rows: tuple[int, ...], c: int) -> Array:
    found = np.random.default_rng(c).integers(0, c, rows)
    found.reshape(-1)[::3] -= c  # negative ones count from the end
    return found


LOGITS = [(1, 1), (5, 7), (2, 3, 11), (3, 40009)]


def _loss_labels(dims: tuple[int, ...], dtype: str) -> Case:
    x, labels = rand(*dims) * 5, _labels(dims[:-1], dims[-1])
    want = F.cross_entropy(torch.tensor(x.astype(np.float64)).reshape(-1, dims[-1]), torch.tensor(labels % dims[-1]).reshape(-1),
                           reduction="none").numpy()
    return one(lambda g, *i: g.softmax_cross_entropy(*i), [x, labels.astype(dtype)], want.reshape(dims[:-1]))


def _loss_dense(dims: tuple[int, ...]) -> Case:
    x, t = rand(*dims) * 5, np.abs(rand(*dims, seed=1))
    want = -(torch.tensor(t).double() * F.log_softmax(torch.tensor(x).double(), -1)).sum(-1).numpy()
    return one(lambda g, *i: g.softmax_cross_entropy(*i), [x, t], want)


def _loss_backward(dims: tuple[int, ...], dense: bool) -> Case:
    x = rand(*dims) * 3
    if dense:
        labels: Array = np.abs(rand(*dims, seed=1))
        target = torch.tensor(labels.astype(np.float64))
    else:
        labels = _labels(dims[:-1], dims[-1])
        target = F.one_hot(torch.tensor(labels % dims[-1]), dims[-1]).double()
    (dx,), dy = gradients(lambda v: -(target * F.log_softmax(v, -1)).sum(-1), [x])
    return one(lambda g, *i: g.softmax_cross_entropy_backward(*i), [x, labels, dy], dx)


case(_loss_labels, LOGITS, ["int64", "int32"])
case(_loss_dense, LOGITS)
case(_loss_backward, LOGITS, [False, True])

# --- activations, softmax -----------------------------------------------------------------------------

SLOPES: dict[str, tuple[Torch, dict[str, float]]] = {
    "gelu": (F.gelu, {}), "gelu_approx": (lambda v: F.gelu(v, approximate="tanh"), {}), "silu": (F.silu, {}),
    "relu": (F.relu, {}), "tanh": (torch.tanh, {}), "elu": (lambda v: F.elu(v, 0.7), {"alpha": 0.7}),
    "clip": (lambda v: v.clamp(-0.5, 0.8), {"alpha": -0.5, "beta": 0.8}),
}


def _activation_backward(kind: str, dims: tuple[int, ...]) -> Case:
    x = rand(*dims)
    fn, attrs = SLOPES[kind]
    (dx,), dy = gradients(fn, [x])
    return one(lambda g, *i: g.activation_backward(*i, kind=kind, **attrs), [x, dy], dx)


case(_activation_backward, list(SLOPES), [(3, 7), (2, 30011)])


def _softmax_backward(axis: int) -> Case:
    x = rand(3, 5, 7)
    (dx,), dy = gradients(lambda v: v.softmax(axis), [x])
    y = torch.tensor(x).double().softmax(axis).numpy().astype(np.float32)
    return one(lambda g, *i: g.softmax_backward(*i, axis=axis), [y, dy], dx)


case(_softmax_backward, [0, 1, -1])

# --- norms --------------------------------------------------------------------------------------------

NORMS = [(1, 3), (3, 7), (2, 5, 129), (300, 131)]


def _norm_backward(kind: str, wrt: str, dims: tuple[int, ...]) -> Case:
    x, gamma, beta = rand(*dims) + 1, rand(dims[-1], seed=1), rand(dims[-1], seed=2)
    if kind == "layer":
        (dx, dg, db), dy = gradients(lambda v, g, b: F.layer_norm(v, v.shape[-1:], g, b, 1e-3), [x, gamma, beta])
    else:
        (dx, dg, db), dy = gradients(lambda v, g, b: F.rms_norm(v, v.shape[-1:], g, 1e-3) + b, [x, gamma, beta])
    if wrt == "input":
        return one(lambda g, *i: getattr(g, f"{kind}_norm_backward_input")(*i, eps=1e-3), [x, gamma, dy], dx)
    if wrt == "gamma":
        return one(lambda g, *i: getattr(g, f"{kind}_norm_backward_gamma")(*i, eps=1e-3), [x, dy], dg)
    return one(lambda g, i: getattr(g, f"{kind}_norm_backward_beta")(i), [dy], db)


case(_norm_backward, ["layer", "rms"], ["input", "gamma", "beta"], NORMS)


def _ada(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, layer: bool) -> torch.Tensor:
    y = F.layer_norm(x, x.shape[-1:], eps=1e-3) if layer else F.rms_norm(x, x.shape[-1:], eps=1e-3)
    return y * (1 + scale[:, None]) + shift[:, None]


MODULATED = [(1, 1, 3), (2, 5, 7), (3, 70, 501)]


def _ada_norm(dims: tuple[int, int, int], layer: bool, dtype: str) -> Case:
    arrays = [a.astype(dtype) for a in (rand(*dims) + 1, rand(dims[0], dims[2], seed=1), rand(dims[0], dims[2], seed=2))]
    want = _ada(*(torch.tensor(a).double() for a in arrays), layer=layer).numpy()
    return one(lambda g, *i: g.ada_layer_norm(*i, eps=1e-3, layer_norm=layer), arrays, want, width_policy="native")


def _ada_backward(dims: tuple[int, int, int], layer: bool, wrt: str) -> Case:
    x, scale, shift = rand(*dims) + 1, rand(dims[0], dims[2], seed=1), rand(dims[0], dims[2], seed=2)
    (dx, ds, _), dy = gradients(lambda *v: _ada(*v, layer=layer), [x, scale, shift])
    return one(lambda g, *i: g.ada_layer_norm_backward(*i, wrt=wrt, eps=1e-3, layer_norm=layer), [x, scale, dy],
               dx if wrt == "input" else ds)


def _gated(dims: tuple[int, int, int], dtype: str) -> Case:
    x, y, gate = (a.astype(dtype) for a in (rand(*dims), rand(*dims, seed=1), rand(dims[0], dims[2], seed=2)))
    return one(lambda g, *i: g.gated_residual(*i), [x, y, gate], x.astype(np.float64) + gate[:, None].astype(np.float64) * y,
               width_policy="native")


def _gated_backward(dims: tuple[int, int, int], wrt: str) -> Case:
    y, gate = rand(*dims), rand(dims[0], dims[2], seed=1)
    (d_y, d_gate), dy = gradients(lambda a, b: b[:, None] * a, [y, gate])
    return one(lambda g, *i: g.gated_residual_backward(*i, wrt=wrt), [gate if wrt == "y" else y, dy],
               d_y if wrt == "y" else d_gate)


case(_ada_norm, MODULATED, [False, True], ["float32"])
case(_ada_norm, [(2, 5, 7)], [False, True], ["float16"])
case(_ada_backward, MODULATED, [False, True], ["input", "scale"])
case(_gated, MODULATED, ["float32", "float16"])
case(_gated_backward, MODULATED, ["y", "gate"])

# --- attention ----------------------------------------------------------------------------------------


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, kind: str, cap: float) -> torch.Tensor:
    """[B, H, S, D], scores written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * 0.4
    if cap:
        s = cap * torch.tanh(s / cap)
    i = torch.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2]
    j = torch.arange(s.shape[3])
    if kind == "bias" and mask is not None:
        s = s + mask
    elif kind == "custom" and mask is not None:
        s = s.masked_fill(mask == 0, -torch.inf)
    elif kind in ("causal", "sliding_window"):
        s = s.masked_fill((j > i) | ((j < i - 2) if kind == "sliding_window" else False), -torch.inf)
    return s.softmax(-1) @ v


def _attention_backward(layout: str, kind: str, kv: int, cap: float, wrt: str, mask_dims: tuple[int, ...] = (1, 4, 5, 7)) -> Case:
    b, s, t, h, d = 2, 5, 7, 4, 3
    if wrt == "mask" and kind != "bias":
        kind = "bias"
    arrays = [rand(b, h, s, d), rand(b, kv, t, d, seed=1), rand(b, kv, t, d, seed=2)]
    if kind == "bias":
        arrays.append(rand(*mask_dims, seed=3))
    elif kind == "custom":
        arrays.append((np.arange(s)[:, None] + 2 >= np.arange(t)).astype(np.float32))
    found, dy = gradients(lambda q, k, v, *m: _sdpa(q, k, v, m[0] if m else None, kind, cap), arrays)
    want = dict(zip(("q", "k", "v", "mask"), found, strict=False))[wrt]
    flip = (lambda x: np.ascontiguousarray(x.swapaxes(1, 2))) if layout == "bshd" else (lambda x: x)
    feed = [*map(flip, arrays[:3]), flip(dy), *arrays[3:]]
    return one(lambda g, *i: g.attention_backward(*i, wrt=wrt, num_heads=h, head_dim=d, kv_heads=kv, mask_kind=kind, window=2,
                                                  score_scale=0.4, softcap=cap, layout=layout), feed,
               want if wrt == "mask" else flip(want))


case(_attention_backward, ["bshd", "bhsd"], ["none", "causal", "custom", "bias", "sliding_window"], [4, 2], [0.0, 1.5],
     ["q", "k", "v"])
case(_attention_backward, ["bshd", "bhsd"], ["bias"], [2], [0.0, 1.5], ["mask"],
     [(2, 4, 5, 7), (4, 5, 7), (1, 1, 5, 7), (5, 7), (2, 1, 1, 7)])


def _attention_backward_blocks(wrt: str) -> Case:
    """More query rows than one block of scores holds."""
    arrays = [rand(1, 1, 1201, 2), rand(1, 1, 1301, 2, seed=1), rand(1, 1, 1301, 2, seed=2)]
    found, dy = gradients(lambda q, k, v: _sdpa(q, k, v, None, "causal", 0.0), arrays)
    return one(lambda g, *i: g.attention_backward(*i, wrt=wrt, num_heads=1, head_dim=2, mask_kind="causal", score_scale=0.4,
                                                  layout="bhsd"), [*arrays, dy], dict(zip("qkv", found, strict=True))[wrt])


case(_attention_backward_blocks, ["q", "k", "v"])


def _rope_backward(n_rot: int, interleaved: bool, dims: tuple[int, ...]) -> Case:
    d, seq = 6, dims[-2]
    angle = np.random.default_rng(1).random((seq, n_rot // 2)) * 3
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + n_rot // 2) for i in range(n_rot // 2)]

    def turn(x: torch.Tensor) -> torch.Tensor:
        v = x.reshape(*x.shape[:-1], -1, d)
        y = list(v.unbind(-1))
        for i, (p, q) in enumerate(pairs):
            c, s = torch.tensor(np.cos(angle[:, i]))[:, None], torch.tensor(np.sin(angle[:, i]))[:, None]
            y[p], y[q] = v[..., p] * c - v[..., q] * s, v[..., q] * c + v[..., p] * s
        return torch.stack(y, -1).reshape(x.shape)

    (dx,), dy = gradients(turn, [rand(*dims)])
    return one(lambda g, *i: g.rope_backward(*i, head_dim=d, n_rot=n_rot, interleaved=interleaved),
               [dy, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)], dx)


case(_rope_backward, [2, 6], [False, True], [(2, 3, 12), (5, 6)])


def _packed_attention(rope: bool, kind: str, seq: int) -> Case:
    b, h, d = 2, 3, 4
    qkv = rand(b, seq, 3 * h * d)
    arrays, angle = [qkv], np.random.default_rng(1).random((seq, d // 2)) * 3
    q, k, v = (torch.tensor(x.astype(np.float64)).reshape(b, seq, h, d).transpose(1, 2) for x in np.split(qkv, 3, -1))
    if rope:
        arrays += [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
        turn = torch.polar(torch.ones(seq, d // 2, dtype=torch.float64), torch.tensor(angle))
        q, k = (torch.cat([z.real, z.imag], -1) for z in (torch.complex(x[..., :2], x[..., 2:]) * turn for x in (q, k)))
    extra = {"custom": [(np.arange(seq)[:, None] >= np.arange(seq)).astype(np.float32)], "bias": [rand(1, h, seq, seq, seed=3)]}
    arrays += extra.get(kind, [])
    mask = torch.tensor(arrays[-1]) if kind in extra else None
    want = _sdpa(q, k, v, mask, kind, 0.0).transpose(1, 2).reshape(b, seq, h * d).numpy()
    return one(lambda g, *i: g.fused_attention_block(*i, num_heads=h, head_dim=d, has_rope=rope, mask_kind=kind, score_scale=0.4),
               arrays, want)


case(_packed_attention, [False, True], ["none", "causal", "custom", "bias"], [1, 5])
case(_packed_attention, [True], ["causal"], [601])

# --- scans, indexing ----------------------------------------------------------------------------------


def _cumsum_backward(exclusive: bool, dims: tuple[int, ...]) -> Case:
    (dx,), dy = gradients(lambda v: v.cumsum(-1) - (v if exclusive else 0), [rand(*dims)])
    return one(lambda g, i: g.cumsum_backward(i, exclusive=exclusive), [dy], dx)


case(_cumsum_backward, [False, True], [(1,), (3, 7), (2, 2, 1)])


def _gather_backward(axis: int, idx: Any, dtype: str) -> Case:
    at = np.asarray(idx, dtype)
    x = rand(4, 5, 3)
    (dx,), dy = gradients(
        lambda v: v.index_select(axis, torch.tensor(at % x.shape[axis]).reshape(-1)).reshape(
            (*v.shape[:axis], *at.shape, *v.shape[axis + 1 :])), [x])
    return one(lambda g, *i: g.gather_backward(*i, axis=axis, extent=Dim(x.shape[axis])), [dy, at], dx)


case(_gather_backward, [0, 1, 2], [0, [2, -1, 2], [[1], [-2]]], ["int32", "int64"])


def _selective_scan(b: int, s: int, d: int, n: int) -> Case:
    x, delta, a = rand(b, s, d), np.abs(rand(b, s, d, seed=1)) / 5, -np.abs(rand(d, n, seed=2))
    bb, c = rand(b, s, n, seed=3), rand(b, s, n, seed=4)
    h, want = np.zeros((b, d, n)), np.zeros((b, s, d))
    for t in range(s):
        for i in range(b):
            h[i] = np.exp(np.outer(delta[i, t], np.ones(n)) * a) * h[i] + np.outer(delta[i, t] * x[i, t], bb[i, t])
            want[i, t] = h[i] @ c[i, t]
    return one(lambda g, *i: g.selective_scan(*i), [x, delta, a, bb, c], want)


case(_selective_scan, [1, 2], [1, 9], [1, 5], [3])

# --- pooling, convolution -----------------------------------------------------------------------------


def _max_pool_backward(kernel: tuple[int, int], strides: tuple[int, int], pad: tuple[int, int], ceil: bool, ties: bool) -> Case:
    x = rand(2, 3, 11, 7)
    x = np.round(x) if ties else x
    (dx,), dy = gradients(lambda v: F.max_pool2d(v, kernel, strides, pad, ceil_mode=ceil), [x])
    return one(lambda g, *i: g.max_pool2d_backward(*i, kernel=kernel, strides=strides, pads=(*pad, *pad), ceil_mode=ceil),
               [x, dy], dx)


case(_max_pool_backward, [(2, 2), (3, 2)], [(1, 1), (2, 3)], [(0, 0), (1, 1)], [False], [False, True])
case(_max_pool_backward, [(3, 3)], [(2, 2)], [(1, 1)], [True], [True])


def _conv_backward(wrt: str, x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...],
                   dilations: tuple[int, ...], groups: int) -> Case:
    a, b, space = rand(*x), rand(*w, seed=1), len(x) - 2
    sides = [p for i in reversed(range(space)) for p in (pads[i], pads[i + space])]
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[space]
    (dx, dw), dy = gradients(lambda u, v: conv(F.pad(u, sides), v, stride=strides, dilation=dilations, groups=groups), [a, b])
    how: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    if wrt == "input":
        return one(lambda g, *i: g.conv_backward_input(*i, **how, dims=x), [b, dy], dx)
    return one(lambda g, *i: g.conv_backward_weight(*i, **how, dims=w), [a, dy], dw)


for _args in [
    ((1, 3, 7, 5), (4, 3, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
    ((2, 3, 11, 13), (5, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 3, 11, 13), (5, 3, 3, 3), (2, 2), (1, 0, 2, 1), (1, 1), 1),
    ((1, 4, 9, 9), (6, 2, 3, 2), (1, 2), (0, 1, 1, 0), (2, 3), 2),
    ((2, 5, 11, 7), (5, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    ((1, 1, 1, 1), (2, 1, 3, 3), (1, 1), (1,) * 4, (1, 1), 1),
    ((2, 40, 60, 61), (3, 40, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    ((2, 3, 17), (4, 3, 5), (2,), (2, 1), (1,), 1),
    ((1, 4, 17), (4, 1, 3), (1,), (2, 0), (1,), 4),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 0), (1, 1, 2), 1),
]:
    case(_conv_backward, ["input", "weight"], *[[v] for v in _args])
