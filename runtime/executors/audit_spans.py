"""Owns what the audit knows about bytes: the two poisons, filling and comparing, and ``SpanMap``, who wrote what."""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from planner_core.ir import Array

__all__ = ["FILL", "POISON", "SpanMap", "equal_bytes", "first_element_of", "poison", "poisoned"]

POISON = 0x7FF5
"""Each half-word of bytes that a thunk does not declare, in the audit's second run of it. Read as f16, bf16, f32 or f64
from any even address it is NaN; as a signed index of 16, 32 or 64 bits it is near the type's largest. Bytes read alone
(u8, i8, bool) are 0xF5 and 0x7F, values like any other: there, only the comparison of the two runs tells."""
FILL = 0xFFFA
"""The same for the real arena: dead bytes, and results before they are written. NaN again, a negative index, and
different from ``POISON`` in every byte."""


def poison(buffer: Array, start: int, end: int, word: int = FILL) -> None:
    """Fill bytes [start, end) with the half-word, in phase with the buffer's first byte."""
    if start >= end:
        return
    for i in {start, end - 1}:
        buffer[i] = word >> 8 * (i % 2) & 0xFF
    a, b = -(-start // 2) * 2, end // 2 * 2
    if a < b:
        buffer[a:b].view(np.uint16)[...] = word


def poisoned(flat: Array, start: int, word: int) -> Any:
    """Per element of ``flat`` (contiguous, its first byte at address ``start``): all its bytes are the half-word's."""
    pattern = np.frombuffer(word.to_bytes(2, "little"), dtype=np.uint8)
    size = flat.dtype.itemsize
    want = np.resize(np.roll(pattern, start % 2), size * (1 + size % 2))[:size]
    if size == 1:  # neighbours differ
        phase = (np.arange(len(flat)) + start) % 2
        return flat.view(np.uint8) == pattern[phase]
    return flat.view(f"u{size}") == want.view(f"u{size}")[0] if size in (2, 4, 8) else (
        flat.view(np.uint8).reshape(-1, size) == want).all(axis=1)


def first_element_of(hit: Any) -> int | None:
    """Index of the first True."""
    return int(hit.argmax()) if hit.size and hit.any() else None


def _c_memcmp() -> Any:
    """The C library's, where ctypes finds one: several times as fast as a comparison that makes an array."""
    try:
        found = ctypes.CDLL(None).memcmp
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return found


_MEMCMP = _c_memcmp()


def equal_bytes(a: Array, b: Array) -> bool:
    """Two contiguous byte arrays of one length are equal."""
    if _MEMCMP is None:
        return bool(np.array_equal(a, b))
    return bool(_MEMCMP(a.ctypes.data, b.ctypes.data, a.nbytes) == 0)


class SpanMap:
    """Disjoint spans [start, end) with a value each; a later ``put`` wins. What no span covers is undefined."""

    __slots__ = ("_ends", "_starts", "_values")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[Any] = []

    def put(self, start: int, end: int, value: Any) -> None:
        """Bytes [start, end) hold ``value`` from now on."""
        if start < end:
            self._replace(start, end, [(start, end, value)])

    def clear(self, start: int, end: int) -> None:
        """Bytes [start, end) hold nothing."""
        if start < end:
            self._replace(start, end, [])

    def _replace(self, start: int, end: int, new: list[tuple[int, int, Any]]) -> None:
        i, j = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if i < j:
            if self._starts[i] < start:
                new.insert(0, (self._starts[i], start, self._values[i]))
            if self._ends[j - 1] > end:
                new.append((end, self._ends[j - 1], self._values[j - 1]))
        self._starts[i:j] = [a for a, _, _ in new]
        self._ends[i:j] = [b for _, b, _ in new]
        self._values[i:j] = [v for _, _, v in new]

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int, Any]]:
        """(start, end, value) one after another over [start, end); value None where undefined."""
        at = start
        for k in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            if at < self._starts[k]:
                yield at, self._starts[k], None
            at = max(at, self._starts[k])
            yield at, min(self._ends[k], end), self._values[k]
            at = min(self._ends[k], end)
        if at < end:
            yield at, end, None

    def undefined(self, start: int, end: int) -> int | None:
        """The first byte of [start, end) that holds nothing."""
        return next((a for a, _, v in self.pieces(start, end) if v is None), None)
