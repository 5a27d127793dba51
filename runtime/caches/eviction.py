"""Owns ``EvictionPolicy``: which large buckets leave when a large one comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner_core.environment import Environ, flag, number, path, variable
from planner_core.log import tell

__all__ = ["DEBUG_VARIABLE", "LARGE_BYTES", "MAX_RESIDENT_VARIABLE", "NO_EVICT_VARIABLE", "EvictionPolicy", "max_resident"]

LARGE_BYTES = 256 << 20
MAX_RESIDENT_VARIABLE = variable("RLX_KV_CACHE_MAX_RESIDENT", "number", "Large buckets that stay resident, the newest included.")
NO_EVICT_VARIABLE = variable("RLX_KV_CACHE_NO_EVICT", "flag", "No bucket leaves a cache.")
DEBUG_VARIABLE = variable("RLX_KV_CACHE_DBG", "flag", "Log what caches evict and keep.")


def max_resident(environ: Environ = None) -> int:
    """How many large buckets may stay, the incoming one included: 1 unless the variable says a whole number above."""
    return max(1, number(MAX_RESIDENT_VARIABLE, environ) or 1)


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """Large means ``large_bytes`` of weights of its own. On unified memory the whole ladder stays, unless
    ``RLX_KV_CACHE_MAX_RESIDENT`` is set; the flag ``RLX_KV_CACHE_NO_EVICT`` keeps it everywhere."""

    unified_memory: bool
    large_bytes: int = LARGE_BYTES

    @property
    def applies(self) -> bool:
        """As the environment says now."""
        return not flag(NO_EVICT_VARIABLE) and (not self.unified_memory or bool(path(MAX_RESIDENT_VARIABLE)))

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
        if flag(DEBUG_VARIABLE):
            tell("caches", f"kv cache: {text}")
