"""Owns ``EvictionPolicy``: which large buckets leave when a large one comes in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DEBUG_VARIABLE", "LARGE_BYTES", "MAX_RESIDENT_VARIABLE", "NO_EVICT_VARIABLE", "EvictionPolicy", "max_resident"]

LARGE_BYTES = 256 << 20
MAX_RESIDENT_VARIABLE = "RLX_KV_CACHE_MAX_RESIDENT"
NO_EVICT_VARIABLE = "RLX_KV_CACHE_NO_EVICT"
DEBUG_VARIABLE = "RLX_KV_CACHE_DBG"


def max_resident(environ: Mapping[str, str] | None = None) -> int:
    """How many large buckets may stay, the incoming one included: 1 unless the variable says a whole number above."""
    text = (os.environ if environ is None else environ).get(MAX_RESIDENT_VARIABLE, "").strip()
    readable = text.isascii() and text.isdigit() and len(text) < 19
    return max(1, int(text)) if readable else 1


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """Large means ``large_bytes`` of weights of its own. On unified memory the whole ladder stays, unless
    ``RLX_KV_CACHE_MAX_RESIDENT`` is set; ``RLX_KV_CACHE_NO_EVICT`` (any value) keeps it everywhere."""

    unified_memory: bool
    large_bytes: int = LARGE_BYTES

    @property
    def applies(self) -> bool:
        """As the environment says now."""
        return NO_EVICT_VARIABLE not in os.environ and (not self.unified_memory or MAX_RESIDENT_VARIABLE in os.environ)

    def victims(self, incoming: int, nbytes: int, sizes: Mapping[int, int], used: Mapping[int, int]) -> list[int]:
        """Buckets that leave for ``incoming`` of ``nbytes``, in order; ``sizes`` are the compiled ones' own bytes, ``used``
        their last use."""
        if nbytes < self.large_bytes:
            return []
        large = sorted((i for i, size in sizes.items() if i != incoming and size >= self.large_bytes),
                       key=lambda i: used.get(i, 0))
        over = max(0, len(large) + 1 - max_resident())
        if over and not self.applies:
            self.say(f"keep {len(large)} large buckets beside {incoming}: eviction is off")
            return []
        return large[:over]

    def say(self, text: str) -> None:
        """Log a decision where ``RLX_KV_CACHE_DBG`` asks for it."""
        if DEBUG_VARIABLE in os.environ:
            print(f"kv cache: {text}", file=sys.stderr)
