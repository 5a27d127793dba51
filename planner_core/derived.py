"""Owns ``Derived``: what is worked out of a graph or a plan once and kept with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["Derived"]

_T = TypeVar("_T")


class Derived:
    """Base of what keeps results derived from it in ``_cache``; its owner clears that where it changes."""

    __slots__ = ()
    _cache: dict[Hashable, Any]

    def derived(self, fn: Callable[..., _T], *args: Hashable) -> _T:
        """``fn(self, *args)``, worked out once and kept as long as this doesn't change. ``fn`` and ``args`` are the key."""
        key = (fn, *args)
        if key not in self._cache:
            self._cache[key] = fn(self, *args)
        found: _T = self._cache[key]
        return found
