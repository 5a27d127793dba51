"""Owns the step axis: time in commands that run. A plan counts nodes; params, inputs and views among them take no time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["birth_steps", "death_steps"]

I64 = npt.NDArray[np.int64]


def birth_steps(node_of: Sequence[int] | I64, birth: I64) -> I64:
    """Node indices of births as steps: how many commands stand before. ``node_of``: the node of each command, in order."""
    return np.searchsorted(np.asarray(node_of, dtype=np.int64), birth, side="left").astype(np.int64)


def death_steps(node_of: Sequence[int] | I64, birth: I64, death: I64, last: int) -> I64:
    """Node indices of deaths as steps, inclusive: the last command up to that node, at least the birth's step; the number
    of commands for what lives to the end (``last``, the number of nodes)."""
    nodes = np.asarray(node_of, dtype=np.int64)
    found = np.searchsorted(nodes, death, side="right").astype(np.int64) - 1
    return np.where(death >= last, len(nodes), np.maximum(found, birth_steps(nodes, birth)))
