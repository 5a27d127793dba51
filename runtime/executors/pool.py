"""Owns ``ExecutorPool``: one executor for runs that take turns, twins with arenas of their own for runs at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runtime.executors.host import HostExecutor

__all__ = ["MOST_IDLE", "ExecutorPool"]

MOST_IDLE = 4
"""Executors that a pool keeps between runs, the first included; further ones, made for more runs at once, are let go."""


class ExecutorPool:
    """Executors of one command list over one weight buffer, each lent to one run at a time.

    A run never waits: where all are lent, to other threads or to a run that this one is nested in, it gets a new twin,
    which costs another arena. Without contention that is always ``first``.
    """

    __slots__ = ("_idle", "first")

    def __init__(self, first: HostExecutor) -> None:
        self.first = first
        self._idle = [first]

    def take(self) -> HostExecutor:
        """An executor that nobody else has until it is given back. (One ``list`` call each way: atomic.)"""
        first = self.first
        while True:
            try:
                found = self._idle.pop()
            except IndexError:
                return first.twin()
            if found is first or found.stands_with(first):
                return found  # else: made before the first one took over another weight buffer

    def give(self, executor: HostExecutor) -> None:
        """Give one back."""
        if executor is self.first:
            self._idle.append(executor)
        elif len(self._idle) < MOST_IDLE:
            self._idle.insert(0, executor)  # the first one is the next to be lent

    @contextmanager
    def lent(self) -> Iterator[HostExecutor]:
        """An executor for the length of a ``with``."""
        executor = self.take()
        try:
            yield executor
        finally:
            self.give(executor)
