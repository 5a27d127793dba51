"""Products with blockwise integer and narrow float weights, against the weights written out element by element."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from tests.runtime.gallery.base import Case, case, one, rand


def _block_weights(bits: int, zeros: bool, lead: tuple[int, ...], n: int, k: int, block: int) -> Case:
    rng, blocks = np.random.default_rng(k), -(-k // block)
    x, scale = rand(*lead, k), (rng.random((n, blocks)) / 50 + 0.01).astype(np.float32)
    codes, zero = ((rng.integers(-128, 128, (n, k)), rng.integers(-9, 9, (n, blocks))) if bits == 8 else
                   (rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, blocks))))
    of = np.arange(k) // block
    dense = (codes - (zero[:, of] if zeros else 8 * (bits == 4))) * scale[:, of].astype(np.float64)
    packed = np.pad(codes, [(0, 0), (0, k % 2)])
    w = codes.astype(np.int8) if bits == 8 else (packed[:, 0::2] + 16 * packed[:, 1::2]).astype(np.uint8)
    more = [zero.astype(w.dtype)] if zeros else []
    return one(lambda g, *i: g.dequant_mat_mul_blocked(*i, bits=bits, block_size=block), [x, w, scale, *more],
               x.astype(np.float64) @ dense.T)


case(_block_weights, [8, 4], [False, True], [(1,), (2, 3)], [5], [64, 33], [32])
case(_block_weights, [8, 4], [True], [(3,)], [1027], [515], [128])


def _fp8(e5m2: bool, lead: tuple[int, ...], n: int, k: int, per_row: bool) -> Case:
    x, w = rand(*lead, k), rand(n, k, seed=1).astype(ml_dtypes.float8_e5m2 if e5m2 else ml_dtypes.float8_e4m3fn)
    scale = (np.abs(rand(n if per_row else 1, seed=2)) + 0.5).astype(np.float32)
    kind = torch.float8_e5m2 if e5m2 else torch.float8_e4m3fn
    dense = torch.tensor(w.view(np.uint8)).view(kind).double().numpy() * scale[:, None]
    return one(lambda g, *i: g.dequant_mat_mul_fp8(*i), [x, w, scale], x.astype(np.float64) @ dense.T)


case(_fp8, [False, True], [(1,), (2, 3), ()], [5], [7, 64], [False, True])
case(_fp8, [False], [(3,)], [1027], [515], [True])


def _nvfp4(lead: tuple[int, ...], n: int, k: int) -> Case:
    rng = np.random.default_rng(k)
    x, codes = rand(*lead, k), rng.integers(0, 16, (n, k))
    scale, total = (rng.random((n, k // 16)) + 0.5).astype(ml_dtypes.float8_e4m3fn), np.asarray([0.03], np.float32)
    dense = np.zeros((n, k))
    for i in range(n):
        for j in range(k):
            sign, exponent, fraction = codes[i, j] >> 3, codes[i, j] >> 1 & 3, codes[i, j] & 1
            value = (1 + fraction / 2) * 2.0 ** (exponent - 1) if exponent else fraction / 2
            dense[i, j] = (-1) ** sign * value * float(scale[i, j // 16])
    w = (codes[:, 0::2] + 16 * codes[:, 1::2]).astype(np.uint8)
    return one(lambda g, *i: g.dequant_mat_mul_nvfp4(*i), [x, w, scale, total], x.astype(np.float64) @ dense.T * float(total[0]))


case(_nvfp4, [(1,), (2, 3)], [5], [16, 48])
case(_nvfp4, [(3,)], [601], [512])
