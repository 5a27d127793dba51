"""Owns padded runs: inputs filled up to a bucket's extent, outputs cut back to the rows asked for.

An active run is exact. One that must be whole computes the padding too: where the rows asked for may depend on it
(softmax or a mean over rows, attention without a mask), ``PaddingWarning`` says why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from planner_core.ir import Array
from runtime.caches.rows import pad_rows, row_count, slice_rows
from runtime.errors import PaddingWarning, RunError
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
    """Pad, run, cut. ``ValueError`` for rows that don't fit; active only if every output is cut. ``PaddingWarning`` for a whole
    run whose padding the rows asked for may depend on."""
    if not 1 <= actual <= upper:
        raise ValueError(f"{actual} rows asked of a bucket of {upper}, wanted 1 to {upper}")
    slots = {b.name: b for b in compiled.commands.inputs}
    feed: dict[str, Array] = {}
    axes: dict[str, int] = {}
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
        axes[name] = _axis_of_rows(b.operand.shape, upper, inner)
    names = [b.name for b in compiled.commands.outputs]
    cuts = {name: _inner_of(inners, i, name) for i, name in enumerate(names)}
    uncut = next((name for name in names if not cuts[name]), None)
    with compiled.standing_still():
        found = compiled.run_active(feed, (actual, upper) if uncut is None else None,
                                    "" if uncut is None else f"output {uncut!r} is returned uncut")
        why = compiled.extent_reason
    if why and actual < upper:
        _warn(compiled, upper, actual, axes, why)
    return {name: _cut(found[name], cuts[name], actual) if cuts[name] else found[name] for name in found}


def _axis_of_rows(shape: Sequence[int], upper: int, inner: int) -> int:
    """The axis that the rows are counted on, -1 where none is theirs alone."""
    return next((i for i, d in enumerate(shape) if d == upper and math.prod(shape[i + 1 :]) == inner), -1)


def _warn(compiled: CompiledGraph, upper: int, actual: int, axes: Mapping[str, int], why: str) -> None:
    """Say so if a whole run's first rows may depend on the padding."""
    merged = next((name for name, axis in axes.items() if axis < 0), None)
    mixes = f"input {merged!r} has no axis of {upper} rows" if merged is not None else compiled.padding_reason(axes)
    if mixes:
        warnings.warn(f"run_padded of {compiled.commands.name!r}: {actual} rows ran with {upper - actual} zero rows behind them, which "
                      f"they may depend on ({mixes}). The run was whole: {why}. Compile for {actual} rows, mask the padding "
                      "within the graph, or, where attention without a mask is all that mixes rows, name their axis with bucket_dim "
                      "and cut every output", PaddingWarning, stacklevel=5)
