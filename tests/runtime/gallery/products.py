"""Matrix products, convolution, pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.runtime.gallery.base import Case, case, one, ort, rand
from tests.runtime.gallery.elementwise import ACTS


# --- matrix products -----------------------------------------------------------------------------------
def _matmul(a: tuple[int, ...], b: tuple[int, ...]) -> Case:
    x, y = rand(*a), rand(*b, seed=1)
    return one(lambda g, i, j: g.mm(i, j), [x, y], ort("MatMul", [x, y]))


case(_matmul, [(3, 5), (1, 5), (2, 3, 5), (5,), (2, 1, 3, 5)], [(5, 7), (5, 1), (5,)])
case(_matmul, [(2, 3, 5), (1, 3, 5), (3, 5), (5,)], [(2, 5, 7), (1, 5, 7)])


def _elided_matmul() -> Case:
    x, y = rand(3, 5), rand(7, 5, seed=1)
    return one(lambda g, i, j: g.mm(i, g.transpose(j, perm=(1, 0))), [x, y], x @ y.T, elide_bank_transposes=True)


def _elided_left(both: bool) -> Case:
    x, y = rand(5, 3), rand(7, 5, seed=1) if both else rand(5, 7, seed=1)
    return one(lambda g, i, j: g.mm(g.transpose(i, perm=(1, 0)), g.transpose(j, perm=(1, 0)) if both else j), [x, y],
               x.T @ (y.T if both else y), elide_bank_transposes=True)




def _transposed(a: tuple[int, ...], b: tuple[int, ...], trans_a: bool, trans_b: bool) -> Case:
    x, y = rand(*a), rand(*b, seed=1)
    want = np.matmul(x.swapaxes(-1, -2) if trans_a else x, y.swapaxes(-1, -2) if trans_b else y)
    return one(lambda g, i, j: g.transposed_mat_mul(i, j, trans_a=trans_a, trans_b=trans_b), [x, y], want)


def _transposed_bank() -> Case:
    x, w, idx = rand(5, 3), rand(4, 7, 3, seed=1), np.asarray([2, 2, 0, 3, 2], dtype=np.int64)
    return one(lambda g, i, j, k: g.transposed_grouped_mat_mul(i, j, k), [x, w, idx],
               np.stack([x[i] @ w[e].T for i, e in enumerate(idx)]))


case(_transposed, [(5, 3)], [(7, 5), (2, 7, 5)], [True], [True])
case(_transposed, [(3, 5), (2, 3, 5), (1, 3, 5)], [(7, 5), (2, 7, 5), (1, 7, 5)], [False], [True])
case(_transposed, [(2, 5, 3)], [(5, 7), (3, 1, 5, 7)], [True], [False])
case(_transposed_bank)
case(_elided_matmul)
case(_elided_left, [False, True])


def _grouped(elide: bool) -> Case:
    x, w, idx = rand(5, 3), rand(4, 3, 7, seed=1), np.asarray([2, 2, 0, 3, 2], dtype=np.int64)
    want = np.stack([x[i] @ w[e] for i, e in enumerate(idx)])
    if elide:
        return one(lambda g, i, j, k: g.grouped_mat_mul(i, g.transpose(j, perm=(0, 2, 1)), k),
                   [x, np.ascontiguousarray(w.swapaxes(1, 2)), idx], want, elide_bank_transposes=True)
    return one(lambda g, i, j, k: g.grouped_mat_mul(i, j, k), [x, w, idx], want)


case(_grouped, [False, True])

# --- convolution and pooling ---------------------------------------------------------------------------
def _conv(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...],
          dilations: tuple[int, ...], groups: int) -> Case:
    a, b = rand(*x), rand(*w, seed=1)
    attrs: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations}
    build = "conv3d" if len(x) == 5 else "conv"
    return one(lambda g, i, j: getattr(g, build)(i, j, groups=groups, **attrs), [a, b],
               ort("Conv", [a, b], group=groups, **attrs))


for _args in [
    ((1, 3, 7, 5), (4, 3, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
    ((2, 4, 7, 5), (6, 2, 1, 1), (1, 1), (0,) * 4, (1, 1), 2),
    ((2, 3, 11, 13), (5, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 3, 11, 13), (5, 3, 3, 3), (2, 2), (1, 0, 2, 1), (1, 1), 1),
    ((1, 4, 9, 9), (6, 2, 3, 2), (1, 2), (0, 1, 1, 0), (2, 3), 2),
    ((1, 3, 7, 5), (4, 3, 1, 1), (2, 3), (0,) * 4, (1, 1), 1),
    ((2, 5, 11, 7), (5, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    ((1, 5, 11, 7), (10, 1, 5, 5), (2, 1), (2, 2, 2, 2), (1, 1), 5),
    ((1, 3, 13, 11), (3, 1, 3, 3), (2, 2), (0, 1, 2, 3), (2, 2), 3),
    ((1, 2, 300, 301), (2, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 2, 300, 301), (2, 1, 5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 2),
    ((1, 40, 60, 61), (3, 40, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
    ((1, 1, 1, 1), (2, 1, 3, 3), (1, 1), (1,) * 4, (1, 1), 1),
    ((2, 3, 17), (4, 3, 5), (2,), (2, 1), (1,), 1),
    ((1, 4, 17), (4, 1, 3), (1,), (2, 0), (1,), 4),
    ((1, 2, 5, 6, 7), (3, 2, 3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 0), (1, 1, 2), 1),
    ((1, 2, 5, 6, 7), (2, 1, 3, 3, 3), (1, 1, 1), (1,) * 6, (1, 1, 1), 2),
]:
    case(_conv, *[[v] for v in _args])


def _conv_act(rank: int, activation: str, residual: bool) -> Case:
    x, w, b = rand(2, 3, *(7, 6, 5)[:rank]), rand(4, 3, *(3,) * rank, seed=1), rand(4, seed=2)
    attrs: dict[str, Any] = {"strides": (1,) * rank, "pads": (1,) * (2 * rank), "dilations": (1,) * rank}
    want = ort("Conv", [x, w, b], **attrs)
    arrays = [x, w, b]
    if residual:
        arrays.append(rand(*want.shape, seed=3))
        want = want + arrays[3]
    if activation:
        want = ACTS[activation][0](want)
    return one(lambda g, *i: g.fused_conv_bias_act(*i, activation=activation, **attrs), arrays, want)


case(_conv_act, [1, 2, 3], ["", "relu", "silu"], [False, True])


def _conv_transpose(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, int], pads: tuple[int, ...],
                    dilations: tuple[int, int], extra: tuple[int, int], groups: int) -> Case:
    a, b = rand(*x), rand(*w, seed=1)
    want = ort("ConvTranspose", [a, b], strides=strides, pads=pads, dilations=dilations, output_padding=extra,
               group=groups)
    return one(lambda g, i, j: g.conv_transpose2d(i, j, strides=strides, pads=pads, dilations=dilations,
                                                  output_padding=extra, groups=groups), [a, b], want)


for _args in [
    ((1, 3, 5, 7), (3, 4, 2, 2), (2, 2), (0,) * 4, (1, 1), (0, 0), 1),
    ((2, 4, 5, 3), (4, 3, 3, 3), (2, 1), (1, 0, 1, 2), (1, 1), (1, 0), 2),
    ((1, 1, 1, 1), (1, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (0, 0), 1),
    ((1, 2, 5, 5), (2, 2, 3, 2), (1, 2), (2, 1, 0, 0), (2, 1), (0, 1), 1),
    ((1, 8, 90, 91), (8, 16, 2, 2), (2, 2), (0,) * 4, (1, 1), (0, 0), 1),
]:
    case(_conv_transpose, *[[v] for v in _args])


def _pool(kind: str, kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, ...], ceil: bool,
          include: bool) -> Case:
    x = rand(2, 3, 11, 7)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": int(ceil)}
    if kind == "mean":
        attrs["count_include_pad"] = int(include)
    want = ort("MaxPool" if kind == "max" else "AveragePool", [x], **attrs)
    return one(lambda g, i: g.pool2d(i, kind=kind, kernel=kernel, strides=strides, pads=pads, ceil_mode=ceil,
                                     count_include_pad=include), [x], want)


case(_pool, ["max", "mean"], [(2, 2), (3, 2)], [(1, 1), (2, 3)], [(0,) * 4, (1, 0, 1, 1)], [False], [False, True])
case(_pool, ["max", "mean"], [(3, 3)], [(2, 2)], [(1, 1, 1, 1)], [True], [False])


def _global_pool(kind: str, space: tuple[int, ...]) -> Case:
    x = rand(2, 3, *space)
    return one(lambda g, i: g.global_pool(i, kind=kind), [x],
               ort("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", [x]))


case(_global_pool, ["max", "mean"], [(7,), (5, 3), (2, 3, 1)])


def _resize(dims: tuple[int, ...], factors: tuple[int, ...]) -> Case:
    x = rand(*dims)
    return one(lambda g, i: g.resize_nearest(i, factors=factors), [x], np.kron(x, np.ones(factors, np.float32)))


case(_resize, [(2, 3, 5, 7)], [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 8, 8), (2, 1, 1, 3), (1, 1, 1, 1)])
