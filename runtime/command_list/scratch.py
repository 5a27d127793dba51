"""Owns scratch: the bytes beyond the arena that a thunk declares, and the cutter that hands them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.errors import RunError

__all__ = ["CHUNK_BYTES", "Scratch", "scratch_for"]

CHUNK_BYTES = 1 << 20
"""Kernels that can work piece by piece keep a piece's scratch near this size (it stays in cache)."""
_ALIGN = 64


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def scratch_for(*pieces: tuple[int, np.dtype[Any]]) -> int:
    """Bytes that taking these (elements, dtype) pieces one after another needs."""
    return sum(_aligned(count * dtype.itemsize) for count, dtype in pieces)


class Scratch:
    """One buffer, cut from the front; ``reset`` before each thunk."""

    __slots__ = ("_limit", "_used", "buffer")

    def __init__(self, buffer: Array) -> None:
        self.buffer = buffer
        self._used = 0
        self._limit = buffer.nbytes

    def reset(self, limit: int) -> None:
        """Start over with ``limit`` bytes (what the next thunk declared)."""
        self._used, self._limit = 0, limit

    def take(self, shape: int | Sequence[int], dtype: np.dtype[Any] | type[Any] = np.float32) -> Array:
        """An uninitialised array; ``RunError`` when a thunk takes more than it declared."""
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(dims) * np.dtype(dtype).itemsize
        start, end = self._used, self._used + nbytes
        if end > self._limit:
            raise RunError(f"scratch: a kernel takes {end} bytes, its thunk declared {self._limit}")
        self._used = start + _aligned(nbytes)
        return self.buffer[start:end].view(dtype).reshape(dims)

    @property
    def mark(self) -> int:
        return self._used

    def release(self, mark: int) -> None:
        """Give back all that was taken since ``mark``."""
        self._used = mark
