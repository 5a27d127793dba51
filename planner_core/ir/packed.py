"""Owns the packed weight formats' numbers: blocks to floats, floats to blocks, random valid blocks.

The GGUF formats are read by the ``gguf`` package (extra ``gguf``). Q1_0 and Q2_0 are this project's, 128 elements a
block, little-endian, element i of a block in order:

- Q1_0, 18 bytes: bytes 0–1 the scale d as f16; element i is bit ``i % 8`` (0 = least significant) of byte
  ``2 + i // 8``. Bit 1 is ``+d``, bit 0 is ``-d``.
- Q2_0, 34 bytes: bytes 0–1 the scale d as f16; element i is the 2-bit code in bits ``2 (i % 4)`` and above of byte
  ``2 + i // 4``. Code c is ``(c - 1) d``: −d, 0, d, 2d.

Rows are packed one by one; the last block of a row whose length is no multiple of the block is padded, and the
padding is never read as a weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.errors import GraphError, MissingExtraError
from planner_core.ir.dtype import QuantScheme
from planner_core.ir.op import Array

__all__ = ["OURS", "dequantize", "quantize", "random_blocks"]

OURS = frozenset({QuantScheme.Q1_0, QuantScheme.Q2_0})

_SCALES: dict[QuantScheme, tuple[int, int | None, float, float]] = {
    QuantScheme.Q4_0: (0, None, 0, 4.6),
    QuantScheme.Q4_1: (0, 2, -7.5, 4.6),
    QuantScheme.Q5_0: (0, None, 0, 9.2),
    QuantScheme.Q5_1: (0, 2, -15.5, 9.2),
    QuantScheme.Q8_0: (0, None, 0, 74),
    QuantScheme.Q2_K: (80, 82, 1.5, 14),
    QuantScheme.Q3_K: (108, None, 0, 43),
    QuantScheme.Q4_K: (0, 2, 7.5, 270),
    QuantScheme.Q5_K: (0, 2, 15.5, 545),
    QuantScheme.Q6_K: (208, None, 0, 1370),
    QuantScheme.Q1_0: (0, None, 0, 1),
    QuantScheme.Q2_0: (0, None, 0, 1.22),
}
"""Where a block's f16 scale is, and its f16 minimum; the minimum over the scale that makes random codes' mean about
zero, and the deviation that they then have in units of the scale."""


def _gguf(scheme: QuantScheme) -> tuple[Any, Any]:
    try:
        import gguf
    except ImportError:
        raise MissingExtraError(f"{scheme} blocks are read by the package gguf, which is not installed; "
                                "install it with: pip install 'rlx-viz[gguf]'") from None
    return gguf.quants, gguf.GGMLQuantizationType[scheme.name]


def _blocks(packed: Array, scheme: QuantScheme) -> Array:
    if packed.dtype != np.uint8 or packed.shape[-1] % scheme.block_bytes:
        raise GraphError(f"{scheme}: rows of u8 in blocks of {scheme.block_bytes} bytes wanted, got "
                         f"{packed.dtype}{list(packed.shape)}")
    return packed.reshape(-1, scheme.block_bytes)


def _ours(packed: Array, scheme: QuantScheme) -> Array:
    blocks = _blocks(packed, scheme)
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    bits = 1 if scheme is QuantScheme.Q1_0 else 2
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (blocks[:, 2:, None] >> shifts & (1 << bits) - 1).reshape(len(blocks), scheme.block).astype(np.int8)
    return np.multiply(codes * 2 - 1 if bits == 1 else codes - 1, d, dtype=np.float32)


def dequantize(packed: Array, scheme: QuantScheme, k: int) -> Array:
    """f32 ``[.., k]`` of u8 rows ``[.., row_bytes(k)]``. ``MissingExtraError`` without the package gguf."""
    if packed.shape[-1] != scheme.row_bytes(k):
        raise GraphError(f"{scheme}: a row of {k} elements is {scheme.row_bytes(k)} bytes, got {list(packed.shape)}")
    if scheme in OURS:
        wide = _ours(packed, scheme)
    else:
        quants, kind = _gguf(scheme)
        wide = quants.dequantize(np.ascontiguousarray(packed), kind)
    return np.asarray(wide.reshape(*packed.shape[:-1], -1)[..., :k], np.float32)


def quantize(values: Array, scheme: QuantScheme) -> Array:
    """u8 rows of f32 ``[.., k]``, padded with zeros to whole blocks.

    Q1_0: d is the mean magnitude. Q2_0: the largest magnitude becomes code 3. ``GraphError`` for K-quants, for which
    the package gguf has no quantiser, and for values whose scale is beyond f16.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        packed = _quantize(np.asarray(values, np.float32), scheme)
    at = _SCALES[scheme][0]
    scales = np.ascontiguousarray(packed.reshape(-1, scheme.block_bytes)[:, at : at + 2]).view("<f2")
    if not (np.isfinite(scales).all() and np.isfinite(values).all()):
        raise GraphError(f"{scheme}: the largest magnitude is {np.abs(values).max():g}; wanted finite values whose block "
                         "scales fit f16 (65,504): rescale the weights, or keep them in f32")
    return packed


def _quantize(values: Array, scheme: QuantScheme) -> Array:
    k = values.shape[-1]
    pad = -k % scheme.block
    x = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, pad)])
    if scheme not in OURS:
        quants, kind = _gguf(scheme)
        try:
            return np.asarray(quants.quantize(x, kind), np.uint8)
        except NotImplementedError:
            raise GraphError(f"{scheme}: the package gguf reads these blocks and has no quantiser for them; "
                             "use q4_0, q4_1, q5_0, q5_1, q8_0, q1_0 or q2_0") from None
    blocks = x.reshape(-1, scheme.block)
    if scheme is QuantScheme.Q1_0:
        held = np.full((*x.shape[:-1], x.shape[-1] // scheme.block, 1), scheme.block)  # the padding is no weight
        held[..., -1, :] -= pad
        d = np.abs(blocks).sum(1, keepdims=True) / held.reshape(-1, 1)
        codes, bits = (blocks >= 0).astype(np.uint8), 1
    else:
        top = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
        d = (top / 2).astype("<f2").astype(np.float32)
        steps = np.divide(blocks, d, out=np.zeros_like(blocks), where=d != 0)
        codes, bits = (np.clip(np.rint(steps), -1, 2) + 1).astype(np.uint8), 2
    per_byte = 8 // bits
    shifted = codes.reshape(len(blocks), -1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8)
    packed = np.concatenate([d.astype("<f2").view(np.uint8), np.bitwise_or.reduce(shifted, axis=2)], axis=1)
    return np.asarray(packed.reshape(*values.shape[:-1], -1), np.uint8)


def random_blocks(rng: np.random.Generator, scheme: QuantScheme, rows: int, k: int, deviation: float = 1.0) -> Array:
    """u8 ``[rows, row_bytes(k)]`` of valid blocks: random codes, finite scales such that weights have about mean zero
    and the deviation."""
    packed = rng.integers(0, 256, (rows, scheme.row_bytes(k)), dtype=np.uint8)
    blocks = packed.reshape(-1, scheme.block_bytes)
    at, least, ratio, spread = _SCALES[scheme]
    d = (deviation / spread * rng.uniform(0.8, 1.2, (len(blocks), 1))).astype("<f2")
    blocks[:, at : at + 2] = d.view(np.uint8)
    if least is not None:
        blocks[:, least : least + 2] = (d.astype(np.float32) * ratio).astype("<f2").view(np.uint8)
    return packed
