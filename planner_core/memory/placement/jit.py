"""Owns the choice between compiled and plain inner loops: numba's ``njit`` where it is installed (extra ``fast``), the
plain functions elsewhere. Both give the same placements for the same work; only the time differs.

Compiling them all takes tens of seconds, once a machine (numba keeps them on disk); loading what is kept takes about
one. So callers ask ``loops(seconds)`` and say what the plain ones would take: compiled ones come once they pay. A search that has time for it says ``prepare`` first, which compiles what is missing.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from planner_core.environment import foreign

__all__ = ["COMPILED", "Loops", "kernel", "loaded", "loops", "prepare", "preparing", "ready"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PACKAGE = "planner_core.memory.placement"
_MODULES = ("kernels", "tree_kernel")
_log = logging.getLogger(__name__)

COMPILED = importlib.util.find_spec("numba") is not None and foreign("NUMBA_DISABLE_JIT", "0") == "0"
"""Inner loops can be compiled (numba's own ``NUMBA_DISABLE_JIT=1`` switches that off)."""
LOADING, COMPILING = 1.0, 60.0
"""Seconds that loading kept loops takes, and compiling them: what plain loops may cost before that pays."""

_plain: ContextVar[bool] = ContextVar("plain", default=False)
_copy: ModuleType | None = None
_spent = 0.0
_prepared = _preparing = False


def loaded() -> bool:
    """Compiled loops are in memory already: using them costs no import."""
    return f"{_PACKAGE}.kernels" in sys.modules


def preparing() -> bool:
    """``prepare`` is running: everything is to be compiled, however small."""
    return _preparing


def ready() -> bool:
    """Every compiled loop is in memory or on disk: no compiler runs when it is called."""
    return COMPILED and (_prepared or _stamp().exists())


def _stamp() -> Path:
    """The file that says that the loops as they are now were all compiled here: named by their sources as numba
    checks them (time and size), and by the versions of Python and numba."""
    folder = Path(__file__).parent
    facts = [sys.version, str(importlib.util.find_spec("numba"))]
    for name in _MODULES:
        stat = (folder / f"{name}.py").stat()
        facts += [name, str(stat.st_mtime_ns), str(stat.st_size)]
    cache = Path(foreign("NUMBA_CACHE_DIR", str(folder / "__pycache__")))
    return cache / f"loops-{hashlib.sha256(' '.join(facts).encode()).hexdigest()[:16]}.ready"


class Loops(NamedTuple):
    """The functions of ``kernels.py``, and whether they are the compiled ones."""

    kernels: Any
    compiled: bool


def loops(seconds: float) -> Loops:
    """The inner loops, compiled or plain. ``seconds``: about what the plain ones would take for what the caller does
    next; what they took so far in this process counts too."""
    global _spent
    if COMPILED:
        kept = ready()
        if _preparing or (kept and loaded()) or _spent + seconds > (LOADING if kept else COMPILING):
            return Loops(importlib.import_module(f"{_PACKAGE}.kernels"), True)
    _spent += seconds
    return Loops(_plain_loops(), False)


def _plain_loops() -> ModuleType:
    """A second copy of ``kernels.py`` whose functions are left as they are written."""
    global _copy
    if not COMPILED:
        return importlib.import_module(f"{_PACKAGE}.kernels")
    if _copy is None:
        spec = importlib.util.spec_from_file_location(f"{_PACKAGE}._plain_kernels", Path(__file__).parent / "kernels.py")
        if spec is None or spec.loader is None:
            raise ImportError(f"{_PACKAGE}.kernels: its source can't be found")
        module = importlib.util.module_from_spec(spec)
        token = _plain.set(True)
        try:
            spec.loader.exec_module(module)
        finally:
            _plain.reset(token)
        _copy = module
    return _copy


def prepare() -> float:
    """Compile (once a machine) or load every loop, and return the seconds that took; 0 where there is nothing to do.
    What a search calls before its clock starts to count: see ``Clock.prepare``."""
    global _prepared, _preparing
    if not COMPILED or _preparing or (_prepared and loaded()):
        return 0.0
    start = time.monotonic()
    if not ready():
        _log.info("compiling the placement search's inner loops, once on this machine: about half a minute")
    from planner_core.memory.placement.warm import run_every_loop

    _preparing = True
    try:
        run_every_loop()
    finally:
        _preparing = False
    _prepared = True
    try:
        stamp = _stamp()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except OSError:  # nowhere to keep it: the next process compiles again
        pass
    return time.monotonic() - start


def kernel(function: _Function) -> _Function:
    """Compiled once a machine (numba's cache), or the function itself."""
    if not COMPILED or _plain.get():
        return function
    import numba

    compiler: Any = numba
    made: _Function
    try:
        made = compiler.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # nowhere to keep a cache
        made = compiler.njit(nogil=True)(function)
    return made
