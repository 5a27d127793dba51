"""Owns padded runs: inputs filled up to a bucket's extent, outputs cut back to the rows asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from planner_core.ir import Array
from runtime.caches.rows import pad_rows, row_count, slice_rows
from runtime.errors import RunError
from runtime.session import CompiledGraph

__all__ = ["Inners", "run"]

Inners = Mapping[str, int] | Sequence[int]


def _inner_of(inners: Inners, i: int, name: str) -> int:
    if isinstance(inners, Mapping):
        return inners.get(name, 0)
    return inners[i] if i < len(inners) else 0


def _cut(array: Array, inner: int, actual: int) -> Array:
    """The first ``actual`` rows, under the array's own axes where one of them is the rows, else ``[actual, inner]``."""
    flat = slice_rows(array, inner, actual)
    for axis in range(array.ndim):
        if math.prod(array.shape[axis + 1 :]) == inner and math.prod(array.shape[:axis]) == 1:
            return flat.reshape(*array.shape[:axis], actual, *array.shape[axis + 1 :])
    return flat.reshape(actual, inner)


def run(compiled: CompiledGraph, upper: int, actual: int, inputs: Sequence[tuple[str, Array, int, bool]],
        inners: Inners) -> dict[str, Array]:
    """Pad, run, cut. ``ValueError`` for rows that don't fit; active only if every output is cut."""
    if not 1 <= actual <= upper:
        raise ValueError(f"{actual} rows asked of a bucket of {upper}, wanted 1 to {upper}")
    slots = {b.name: b for b in compiled.commands.inputs}
    feed: dict[str, Array] = {}
    for name, data, inner, pad in inputs:
        b = slots.get(name)
        if b is None:
            raise RunError(f"{compiled.commands.name!r} has no input {name!r}; it has {', '.join(slots) or 'none'}")
        if not pad:
            feed[name] = np.asarray(data)
            continue
        if row_count(data, inner) != actual:
            raise ValueError(f"input {name!r} has {row_count(data, inner)} rows of {inner}, the run has {actual}")
        if b.operand.numel != upper * inner:
            raise ValueError(f"input {name!r} takes {b.operand.numel} elements, not {upper} rows of {inner}")
        feed[name] = pad_rows(data, inner, upper).reshape(b.operand.shape)
    names = [b.name for b in compiled.commands.outputs]
    cuts = {name: _inner_of(inners, i, name) for i, name in enumerate(names)}
    whole = not all(cuts.values())
    found = compiled.run_active(feed, None if whole else (actual, upper))
    return {name: _cut(found[name], cuts[name], actual) if cuts[name] else found[name] for name in found}
