"""Owns ``Trait``: what is true of an op whatever its attributes, said once in its declaration and asked by ``op.has``."""

from __future__ import annotations

from enum import Enum

__all__ = ["Trait"]


class Trait(Enum):
    """A property of an op's class. The value is its meaning."""

    BOUNDARY = "its bytes come from outside the schedule: a run neither computes nor overwrites them"
    NAMED = "its node's name is a key that callers use: not empty, and no other node's"
    STORED = "its value is known before any run"
    STATIC = "of stored operands alone its value is stored, too: a backend may run it once, before the first run"
    STATEFUL = "two of the same operands aren't interchangeable: it writes, draws, or runs code of its own"
    APPEND = "it writes rows into its first operand's bytes and shows them"
    HOST_INDEXING = "a backend may run it on the host, out of order with its own commands (spec planner §7)"
    MANY_RESULTS = "further results than its own are read through ``Result`` nodes"
    PRODUCT = "a product or convolution, which a mixed precision policy computes in half"
