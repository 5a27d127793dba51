"""Norms, reductions, softmax."""

from __future__ import annotations

import numpy as np
import scipy.special

from tests.runtime.gallery.base import Array, Case, case, one, ort, rand


def _moments(x: Array, axis: int) -> tuple[Array, Array]:
    x = x.astype(np.float64)
    return x.mean(axis, keepdims=True), x.var(axis, keepdims=True)


def _layer_norm(dims: tuple[int, ...]) -> Case:
    x, g, b = rand(*dims) * 3 + 1, rand(dims[-1], seed=1), rand(dims[-1], seed=2)
    mean, var = _moments(x, -1)
    return one(lambda gr, *i: gr.layer_norm(*i, eps=1e-3), [x, g, b], (x - mean) / np.sqrt(var + 1e-3) * g + b)


case(_layer_norm, [(1, 1), (3, 7), (2, 5, 129)])


def _rms_norm(dims: tuple[int, ...], shift: bool) -> Case:
    x, g, b = rand(*dims), rand(dims[-1], seed=1), rand(dims[-1], seed=2)
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3) * g + (b if shift else 0)
    return one(lambda gr, *i: gr.rms_norm(*i, eps=1e-3), [x, g, b][: 3 if shift else 2], want)


case(_rms_norm, [(1, 1), (3, 7), (2, 5, 129)], [False, True])


def _layer_norm2d(dims: tuple[int, ...]) -> Case:
    x, g, b = rand(*dims) * 2 + 1, rand(dims[1], seed=1), rand(dims[1], seed=2)
    mean, var = _moments(x, 1)
    want = (x - mean) / np.sqrt(var + 1e-3) * g[:, None, None] + b[:, None, None]
    return one(lambda gr, *i: gr.layer_norm2d(*i, eps=1e-3), [x, g, b], want)


case(_layer_norm2d, [(1, 1, 1, 1), (2, 5, 3, 7), (1, 401, 13, 11)])


def _batch_norm(dims: tuple[int, ...]) -> Case:
    x, (g, b, m), v = rand(*dims), (rand(dims[1], seed=i) for i in (1, 2, 3)), np.abs(rand(dims[1], seed=4)) + 0.5
    return one(lambda gr, *i: gr.batch_norm(*i, eps=1e-3), [x, g, b, m, v.astype(np.float32)],
               ort("BatchNormalization", [x, g, b, m, v.astype(np.float32)], epsilon=1e-3))


case(_batch_norm, [(2, 5), (2, 3, 7), (1, 5, 70, 101)])


def _reduce(kind: str, axes: tuple[int, ...], keep: bool) -> Case:
    x = rand(2, 3, 5, 7)
    x = np.exp(x / 9) if kind == "prod" else x
    fn = {"sum": np.sum, "mean": np.mean, "max": np.amax, "min": np.amin, "prod": np.prod}[kind]
    return one(lambda g, i: g.reduce(i, kind=kind, axes=axes, keepdims=keep), [x],
               np.asarray(fn(x.astype(np.float64), axis=axes, keepdims=keep)))


case(_reduce, ["sum", "mean", "max", "min", "prod"], [(3,), (0,), (1, 2), (0, 1, 2, 3), (-1,), (0, 2), ()], [False, True])


def _softmax(axis: int, dims: tuple[int, ...]) -> Case:
    x = rand(*dims) * 5
    return one(lambda g, i: g.softmax(i, axis=axis), [x], scipy.special.softmax(x.astype(np.float64), axis=axis))


case(_softmax, [-1, 0, 1], [(3, 7), (2, 5, 1), (1, 1)])


def _arg(kind: str, axis: int, keep: bool) -> Case:
    x = np.round(rand(3, 5, 7) * 2)
    return one(lambda g, i: g.arg_reduce(i, kind=kind, axis=axis, keepdims=keep), [x],
               ort("ArgMax" if kind == "max" else "ArgMin", [x], axis=axis, keepdims=int(keep)))


case(_arg, ["max", "min"], [0, 1, -1], [False, True])


def _arg_in_pieces(dims: tuple[int, ...], kind: str) -> Case:
    x = np.round(rand(*dims) * 3)
    x[0, -1, 0] = np.nan  # is found first, as NumPy has it
    return one(lambda g, i: g.arg_reduce(i, kind=kind, axis=1), [x], (np.argmax if kind == "max" else np.argmin)(x, axis=1))


case(_arg_in_pieces, [(2, 70, 941), (41, 30, 40), (2, 40_000, 3)], ["max", "min"])


def _topk(k: int, largest: bool, values: bool) -> Case:
    x = np.round(rand(3, 11) * 3)
    rows = [sorted(range(11), key=lambda j, r=r: (-r[j] if largest else r[j], j))[:k] for r in x]
    want = np.asarray([[r[j] for j in o] if values else o for r, o in zip(x, rows, strict=True)])
    return one(lambda g, i: g.top_k(i, k=k, largest=largest, values=values), [x], want)


case(_topk, [1, 4, 11], [False, True], [False, True])


def _cumsum(exclusive: bool, dims: tuple[int, ...]) -> Case:
    x = rand(*dims)
    return one(lambda g, i: g.cumsum(i, exclusive=exclusive), [x],
               ort("CumSum", [x, np.asarray(-1, np.int64)], exclusive=int(exclusive)))


case(_cumsum, [False, True], [(1,), (3, 7), (2, 2, 1)])
