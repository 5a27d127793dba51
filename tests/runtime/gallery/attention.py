"""Attention, rotary embedding, SwiGLU."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.special

from tests.runtime.gallery.base import Case, case, one, rand


def _attention(layout: str, mask: str, kv_heads: int, softcap: float) -> Case:
    b, s, t, h, d = 2, 5, 7, 4, 3
    q, k, v = rand(b, h, s, d), rand(b, kv_heads, t, d, seed=1), rand(b, kv_heads, t, d, seed=2)
    extra = {"custom": [(np.arange(s)[:, None] + 2 >= np.arange(t)).astype(np.float32)],
             "bias": [rand(1, h, s, t, seed=3)]}.get(mask, [])
    want = np.zeros((b, h, s, d))
    for n, head, i in itertools.product(range(b), range(h), range(s)):
        kk, vv = (x[n, head // (h // kv_heads)].astype(np.float64) for x in (k, v))
        score = kk @ q[n, head, i] * 0.4
        score = softcap * np.tanh(score / softcap) if softcap else score
        p = i + t - s
        for j in range(t):
            hidden = {"causal": j > p, "sliding_window": j > p or j < p - 2, "custom": extra and extra[0][i, j] == 0 if mask == "custom" else False}
            if hidden.get(mask):
                score[j] = -np.inf
        if mask == "bias":
            score = score + extra[0][0, head, i]
        want[n, head, i] = scipy.special.softmax(score) @ vv
    if layout == "bshd":
        q, k, v, want = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v, want))
    return one(lambda g, *x: g.attention(*x, num_heads=h, head_dim=d, kv_heads=kv_heads, mask_kind=mask, window=2,
                                         score_scale=0.4, softcap=softcap, layout=layout), [q, k, v, *extra], want)


case(_attention, ["bshd", "bhsd"], ["none", "causal", "custom", "bias", "sliding_window"], [4, 2], [0.0, 1.5])


def _rope(n_rot: int, interleaved: bool) -> Case:
    b, s, h, d = 2, 3, 2, 6
    x, angle = rand(b, s, h * d), np.random.default_rng(1).random((s, n_rot // 2)) * 3
    want = x.reshape(b, s, h, d).astype(np.float64)
    for i in range(n_rot // 2):
        p, q = (2 * i, 2 * i + 1) if interleaved else (i, i + n_rot // 2)
        z = (want[..., p] + 1j * want[..., q]) * np.exp(1j * angle[:, i])[:, None]
        want[..., p], want[..., q] = z.real, z.imag
    return one(lambda g, *i: g.rope(*i, head_dim=d, n_rot=n_rot, interleaved=interleaved),
               [x, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)], want.reshape(x.shape))


case(_rope, [2, 4, 6], [False, True])


def _swiglu(first: bool) -> Case:
    x = rand(3, 14)
    a, b = np.split(x.astype(np.float64), 2, axis=1)
    gate, up = (a, b) if first else (b, a)
    g_name = "swi_g_l_u"
    return one(lambda g, i: getattr(g, g_name)(i, gate_first=first), [x], up * gate * scipy.special.expit(gate))


case(_swiglu, [False, True])
