"""Fourier transforms, codebooks, im2col, sampling, random fills, scans with a body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import torch
import torch.nn.functional as F

from planner_core.ir import DType, Graph, Shape
from planner_core.ir.ops import Scan
from tests.runtime.gallery.base import Array, Case, case, one, rand


def _fft(dims: tuple[int, ...], inverse: bool, norm: str, real: bool, dtype: str) -> Case:
    re, im = rand(*dims), np.zeros(dims, np.float32) if real else rand(*dims, seed=1)
    y = (scipy.fft.ifft if inverse else scipy.fft.fft)(re + 1j * im.astype(np.float64), norm=norm)
    x = re if real else np.concatenate([re, im], -1)
    return one(lambda g, i: g.fft(i, inverse=inverse, norm=norm, real_input=real), [x.astype(dtype)],
               np.concatenate([y.real, y.imag], -1))


case(_fft, [(1,), (8,), (3, 15), (2, 3, 64)], [False, True], ["backward", "ortho", "forward"], [False, True], ["float32"])
case(_fft, [(3, 15), (2, 40009)], [False], ["backward"], [False, True], ["float32"])
case(_fft, [(3, 15)], [True], ["ortho"], [False, True], ["float64"])


def _vq(dims: tuple[int, ...], k: int, metric: str, custom: bool) -> Case:
    x, cb = rand(*dims), rand(k, dims[-1], seed=1)
    cb[k // 2] = cb[0]  # an equal entry: the first wins
    tx, tc = torch.tensor(x).double().reshape(-1, dims[-1]), torch.tensor(cb).double()
    want = {"l2": lambda: torch.cdist(tx, tc).argmin(1), "dot": lambda: (tx @ tc.T).argmax(1),
            "cosine": lambda: F.cosine_similarity(tx[:, None], tc[None], dim=2).argmax(1)}[metric]()
    out = (want.numpy() % k).reshape(dims[:-1])
    out = np.where(out == k // 2, 0, out)
    if custom:
        return one(lambda g, *i: g.custom(*i, op_name="rlx.vq_assign", shape=Shape.of(dims[:-1], DType.I32),
                                          attrs=f'{{"metric": "{metric}"}}'), [x, cb], out)
    return one(lambda g, *i: g.vq_assign(*i, metric=metric), [x, cb], out)


case(_vq, [(1, 3), (5, 7), (2, 3, 4)], [1, 13], ["l2", "dot", "cosine"], [False])
case(_vq, [(901, 5)], [1001], ["l2"], [False, True])


def _im2col(kernel: tuple[int, int], strides: tuple[int, int], pad: tuple[int, int], dilations: tuple[int, int]) -> Case:
    x = rand(2, 3, 11, 7)
    want = F.unfold(torch.tensor(x), kernel, dilations, pad, strides).numpy()
    return one(lambda g, i: g.im2col(i, kernel=kernel, strides=strides, pads=(*pad, *pad), dilations=dilations), [x], want)


case(_im2col, [(1, 1), (3, 2)], [(1, 1), (2, 3)], [(0, 0), (1, 2)], [(1, 1), (2, 1)])

# --- random numbers -----------------------------------------------------------------------------------
# Philox4x64-10 in Python's integers (Salmon et al. 2011), a counter at a time; NumPy's own counts up before it draws.

_M = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_W = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = (1 << 64) - 1


def _philox(counter: int, key: tuple[int, int]) -> list[int]:
    c, k = [counter, 0, 0, 0], list(key)
    for _ in range(10):
        a, b = _M[0] * c[0], _M[1] * c[2]
        c = [b >> 64 ^ c[1] ^ k[0], b & _LOW, a >> 64 ^ c[3] ^ k[1], a & _LOW]
        k = [(k[0] + _W[0]) & _LOW, (k[1] + _W[1]) & _LOW]
    return c


def _words(key: int, seed: float | None, count: int) -> Array:
    bits = 0 if seed is None else int(np.float32(seed).view(np.uint32)) + (1 << 32)
    found = [w for i in range(-(-count // 4)) for w in _philox(i + 1, (key, bits))]
    return np.asarray(found[:count], dtype=np.uint64)


def _fill(kind: str, dims: tuple[int, ...], key: int, seed: float | None, dtype: DType) -> Case:
    count = int(np.prod(dims))
    raw = [int(w) for w in _words(key, seed, count)]
    u = np.asarray([w >> 40 for w in raw]) / 2**24
    v = np.asarray([w >> 16 & 0xFFFFFF for w in raw]) / 2**24
    shape = Shape.of(dims, dtype)
    if kind == "uniform":
        return one(lambda g: g.rng_uniform(shape=shape, low=-2.0, high=3.0, key=key, op_seed=seed), [],
                   (-2 + 5 * u).reshape(dims), width_policy="native")
    z = np.sqrt(-2 * np.log(u + 2**-24)) * np.cos(2 * np.pi * v)
    return one(lambda g: g.rng_normal(shape=shape, mean=0.5, scale=2.0, key=key, op_seed=seed), [],
               (0.5 + 2 * z).reshape(dims), width_policy="native")


case(_fill, ["uniform", "normal"], [(1,), (3, 7)], [0, 12345678901234567], [None, 0.25], [DType.F32])
case(_fill, ["uniform", "normal"], [(40009,)], [7], [None], [DType.F32])
case(_fill, ["uniform", "normal"], [(3, 7)], [7], [1.5], [DType.F16, DType.F64])


def _sample(top_k: int, top_p: float, temperature: float) -> Case:
    x, seed = np.round(rand(5, 23) * 3), 11
    draws = [int(w) >> 40 for w in _words(seed, None, 5)]
    out = []
    for row, draw in zip(x.astype(np.float64), draws, strict=True):
        order = sorted(range(23), key=lambda i: (-row[i], i))[: top_k or None]
        if temperature == 0:
            out.append(order[0])
            continue
        weight = [float(np.exp((row[i] - row[order[0]]) / temperature)) for i in order]
        total, kept = 0.0, []
        for i, w in zip(order, weight, strict=True):
            kept.append((i, w))
            total += w
            if total / sum(weight) >= top_p:
                break
        at, below = draw / 2**24 * total, 0.0
        for token, w in kept:
            below += w
            out.append(token)
            if at < below:
                break
            out.pop()
    return one(lambda g, i: g.sample(i, top_k=top_k, top_p=top_p, temperature=temperature, seed=seed), [x], np.asarray(out))


case(_sample, [0, 1, 4, 99], [1.0, 0.6, 0.05], [0.0, 0.7, 2.0])

# --- bodies -------------------------------------------------------------------------------------------


def _scan() -> Case:
    """Running sums of rows."""
    body = Graph("body")
    s, x = body.input("s", (3,)), body.input("x", (3,))
    total = body.binary(s, x, kind="add")
    body.set_outputs(total, total)
    build: Callable[..., Any] = lambda g, a, b: g.result(g.add(Scan(Shape.of((3,)), body, 1, 1), a, b), index=1,  # noqa: E731
                                                         shape=Shape.of((5, 3)))
    first, rows = rand(3), rand(5, 3, seed=1)
    return one(build, [first, rows], first + np.cumsum(rows, 0))


case(_scan)
