"""Owns the choice between compiled and plain inner loops: numba's ``njit`` where it is installed (extra
``fast``), the plain function elsewhere. Import ``kernels.py`` inside functions: numba takes a while to load."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["COMPILED", "cached", "kernel", "loaded"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

COMPILED = importlib.util.find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""Inner loops are compiled (numba's own ``NUMBA_DISABLE_JIT=1`` switches that off)."""


def loaded() -> bool:
    """Some compiled loop is in memory already: using it costs no import."""
    return "planner_core.memory.placement.kernels" in sys.modules


def cached() -> bool:
    """The compiled loops are on disk beside their source: they load in a fraction of a second, no compiler runs."""
    folder = Path(__file__).parent / "__pycache__"
    return COMPILED and any(folder.glob("tree_kernel.place_by_tree-*.nbi"))


def kernel(function: _Function) -> _Function:
    """Compiled once a machine (numba's cache), or the function itself."""
    if not COMPILED:
        return function
    import numba

    compiler: Any = numba
    made: _Function
    try:
        made = compiler.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # nowhere to keep a cache
        made = compiler.njit(nogil=True)(function)
    return made
