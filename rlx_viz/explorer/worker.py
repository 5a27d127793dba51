"""Owns work behind the picture: one job at a time in a thread, the latest wins, results come back in the kernel's loop.

Traits are set from one thread only: where the kernel runs an asyncio loop, results are handed to it; elsewhere (plain
Python, tests) the worker hands them over itself, one at a time.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from rlx_viz.whatif import Stop, Stopped

__all__ = ["Worker"]

_T = TypeVar("_T")
_NAME = "rlx-viz"
_GRACE = 5.0
"""Seconds that the end of the process waits for a job to stop."""


class Worker:
    """Runs jobs. A job gets `stop`, to be asked between two pieces of work; a newer job makes it true and drops what
    the older one returns."""

    def __init__(self) -> None:
        self._ticket = 0
        _WORKERS.add(self)
        self._thread: threading.Thread | None = None
        self._ready: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._turn = threading.RLock()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def cancel(self) -> None:
        """Whatever runs now is stale: it stops at its next question and its result is dropped."""
        self._ticket += 1

    def submit(self, job: Callable[[Stop], _T], done: Callable[[_T | Exception], None], *, patience: float = 0.0,
               late: Callable[[], None] | None = None, delay: float = 0.0) -> None:
        """Start a job over any older one. If it is finished within `patience` seconds, `done` has been called when
        this returns; else `late` is, and `done` comes later. `delay`: seconds to wait before the start."""
        self.cancel()
        mine = self._ticket
        gate, finished = threading.Lock(), threading.Event()
        waiting = patience > 0

        def stale() -> bool:
            return mine != self._ticket

        def work() -> None:
            result: Any = None
            try:
                if delay:
                    _sleep(delay, stale)
                if not stale():
                    result = job(stale)
            except Stopped:
                pass
            except Exception as error:
                result = error
            self._ready.put(lambda: None if stale() else done(result))
            with gate:
                finished.set()
                hand_over = not waiting
            if hand_over:
                self._hand_over()

        self._thread = threading.Thread(target=work, name=_NAME, daemon=True)
        self._thread.start()
        if not waiting:
            return
        if not finished.wait(patience) and late is not None:
            late()  # before the gate: what `done` sets comes after what `late` sets
        with gate:
            waiting = False
        if finished.is_set():
            self.drain()

    def report(self, part: Callable[[], None]) -> None:
        """Called in a job: hand over something on the way, where results are handed over."""
        self._ready.put(part)
        self._hand_over()

    def wait(self, seconds: float | None = None) -> bool:
        """Block until nothing runs and every result has been handed over; False if that took too long."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
            if thread.is_alive():
                return False
        self.drain()
        return True

    def drain(self) -> None:
        """Hand over every result that is ready, here and now."""
        with self._turn:
            while True:
                try:
                    ready = self._ready.get_nowait()
                except queue.Empty:
                    return
                ready()

    def _hand_over(self) -> None:
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self.drain)
        else:
            self.drain()


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


def _stop_all() -> None:
    """At the end of the process: a thread that is killed within a library's C++ takes the process down with an abort."""
    for worker in list(_WORKERS):
        worker.cancel()
    end = time.monotonic() + _GRACE
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join(max(0.0, end - time.monotonic()))


atexit.register(_stop_all)


def _sleep(seconds: float, stale: Stop) -> None:
    """In short naps, so that a job called off meanwhile does not linger."""
    end = time.monotonic() + seconds
    while not stale() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
