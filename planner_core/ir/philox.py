"""Owns counter-based random numbers: element i of a key's stream depends on the key and i alone (Salmon et al. 2011)."""

from __future__ import annotations

import struct

import numpy as np

from planner_core.ir.op import Array

__all__ = ["key_words", "normal", "uniform"]

_MASK = (1 << 64) - 1


def key_words(key: int, op_seed: float | None) -> tuple[int, int]:
    """The Philox key: ``key``, and the f32 bits of ``op_seed`` (0 where there is none)."""
    bits = 0 if op_seed is None else int.from_bytes(struct.pack("<f", op_seed), "little") + (1 << 32)
    return key & _MASK, bits


def _raw(words: tuple[int, int], start: int, count: int) -> Array:
    """u64 of elements [start, start + count): Philox4x64-10 gives four a counter."""
    first, skip = divmod(start, 4)
    draws = np.random.Philox(counter=first, key=np.asarray(words, dtype=np.uint64)).random_raw(-(-(skip + count) // 4) * 4)
    return np.asarray(draws[skip : skip + count])


def uniform(words: tuple[int, int], start: int, count: int) -> Array:
    """f64 in [0, 1), multiples of 2⁻²⁴ (exact in f32): the top 24 bits of each element's word."""
    return np.asarray((_raw(words, start, count) >> np.uint64(40)) * 2.0**-24)


def normal(words: tuple[int, int], start: int, count: int) -> Array:
    """f64 standard normal by Box-Muller: ``sqrt(-2 log u) cos(2π v)``, u in (0, 1] from the word's top 24 bits, v from
    the next 24."""
    raw = _raw(words, start, count)
    u = ((raw >> np.uint64(40)) + np.uint64(1)) * 2.0**-24
    v = (raw >> np.uint64(16) & np.uint64((1 << 24) - 1)) * 2.0**-24
    return np.asarray(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v))
