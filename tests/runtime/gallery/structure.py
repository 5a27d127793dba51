"""Thunks that move elements, or read and write by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.runtime.gallery.base import Case, case, one, ort, rand


# --- structure -----------------------------------------------------------------------------------------
def _transpose(perm: tuple[int, ...], dtype: str) -> Case:
    x = (rand(2, 3, 5, 1)[(..., *(0,) * (4 - len(perm)))] * 9).astype(dtype)
    return one(lambda g, i: g.transpose(i, perm=perm), [x], ort("Transpose", [x], perm=perm))


case(_transpose, [(1, 0), (2, 0, 1), (0, 2, 1), (3, 1, 0, 2)], ["float32", "int64", "bool"])


def _expand(dims: tuple[int, ...], to: tuple[int, ...]) -> Case:
    x = rand(*dims)
    return one(lambda g, i: g.expand(i, dims=to), [x], ort("Expand", [x, np.asarray(to, np.int64)]))


case(_expand, [(3, 1), (1,), (3, 5)], [(3, 5), (2, 3, 5)])


def _narrow(axis: int, start: int, length: int) -> Case:
    x = rand(3, 5, 7)
    # a unary op around it makes sure that a view of axis 0 is read where it lies
    return one(lambda g, i: g.neg(g.narrow(i, axis=axis, start=start, len=length)), [x],
               -np.take(x, range(start, start + length), axis=axis))


case(_narrow, [0, 1, 2], [0, 1], [1, 2])


def _slice(starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> Case:
    x = rand(6, 7)
    end = tuple(s if s >= 0 else -100 for s in stops)
    want = ort("Slice", [x, *(np.asarray(v, np.int64) for v in (starts, end, (0, 1), steps))])
    return one(lambda g, i: g.slice(i, axes=(0, 1), starts=starts, stops=stops, steps=steps), [x], want)


for _args in [((0, 1), (6, 7), (1, 2)), ((5, 6), (-1, 0), (-2, -3)), ((1, 0), (5, 7), (3, 1))]:
    case(_slice, *[[v] for v in _args])


def _concat(axis: int, count: int) -> Case:
    parts = [rand(*(k + 1 if a == axis else 3 for a in range(3)), seed=k) for k in range(count)]
    return one(lambda g, *i: g.concat(*i, axis=axis), parts, ort("Concat", parts, axis=axis))


case(_concat, [0, 1, 2], [1, 2, 5])


def _reverse(axes: tuple[int, ...]) -> Case:
    x = rand(3, 5, 2)
    index = tuple(slice(None, None, -1) if a in axes else slice(None) for a in range(3))
    return one(lambda g, i: g.reverse(i, axes=axes), [x], x[index])


case(_reverse, [(0,), (1, 2), ()])


def _pad(mode: str, before: tuple[int, ...], after: tuple[int, ...]) -> Case:
    x = rand(4, 5, 3)
    widths = [np.asarray([*before, *after], np.int64)] + ([np.float32(1.5).reshape(())] if mode == "constant" else [])
    return one(lambda g, i: g.pad(i, before=before, after=after, mode=mode, value=1.5 if mode == "constant" else 0.0),
               [x], ort("Pad", [x, *widths], mode=mode))


case(_pad, ["constant", "edge", "reflect"], [(0, 0, 0), (2, 1, 0), (3, 4, 2)], [(1, 0, 2), (0, 3, 0)])
case(_pad, ["constant"], [(-1, 2, 0)], [(1, -2, 0)])


def _kv_append(start: int, dynamic: bool) -> Case:
    cache, rows, at = rand(2, 7, 3), rand(2, 2, 3, seed=1), np.asarray([start], np.int64)
    want = cache.copy()
    want[:, start : start + 2] = rows
    if dynamic:
        return one(lambda g, c, r, p: g.kv_append(c, r, p, axis=1), [cache, rows, at], want)
    return one(lambda g, c, r: g.kv_append(c, r, axis=1, start=start), [cache, rows], want)


case(_kv_append, [0, 3, 5], [False, True])

# --- by index ------------------------------------------------------------------------------------------
def _gather(axis: int, idx: Any, dtype: str) -> Case:
    x, i = rand(4, 5, 3), np.asarray(idx, dtype=dtype)
    return one(lambda g, a, b: g.gather(a, b, axis=axis), [x, i], ort("Gather", [x, i], axis=axis))


case(_gather, [0, 1, 2], [0, [2, -1, 0], [[1], [-2]]], ["int32", "int64"])


def _gather_elements(axis: int) -> Case:
    x, i = rand(3, 4), np.random.default_rng(0).integers(-3, 3, (3, 2) if axis == 1 else (5, 4))
    return one(lambda g, a, b: g.gather_elements(a, b, axis=axis), [x, i], ort("GatherElements", [x, i], axis=axis))


case(_gather_elements, [0, 1])


def _gather_nd(idx: Any) -> Case:
    x, i = rand(3, 4, 2), np.asarray(idx, np.int64)
    return one(lambda g, a, b: g.gather_nd(a, b), [x, i], ort("GatherND", [x, i]))


case(_gather_nd, [[[0, 1], [2, -1]], [[[1]], [[-3]]], [[2, 3, 1]]])


def _scatter_nd() -> Case:
    x, i, u = rand(4, 3), np.asarray([[2], [-4]], np.int64), rand(2, 3, seed=1)
    return one(lambda g, a, b, c: g.scatter_nd(a, b, c), [x, i, u], ort("ScatterND", [x, i, u]))


case(_scatter_nd)


def _scatter_elements(axis: int, reduction: str) -> Case:
    x, u = rand(3, 4), rand(2, 3, seed=1)
    i = np.asarray([[0, 1, 2], [2, 0, 1]], np.int64) if reduction == "none" or axis else np.asarray([[1, 1, 0], [1, -1, 0]])
    return one(lambda g, a, b, c: g.scatter_elements(a, b, c, axis=axis, reduction=reduction), [x, i, u],
               ort("ScatterElements", [x, i, u], opset=18, axis=axis, **({"reduction": reduction} if reduction != "none" else {})))


case(_scatter_elements, [0, 1], ["none", "add", "mul", "max", "min"])


def _scatter_add() -> Case:
    u, i = rand(5, 3), np.asarray([1, 3, 1, 0, 1], np.int64)
    want = np.zeros((4, 3), np.float32)
    for row, at in zip(u, i, strict=True):
        want[at] += row
    return one(lambda g, a, b: g.scatter_add(a, b, out_dim=4), [u, i], want)


case(_scatter_add)
