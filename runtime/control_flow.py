"""Owns how bodies run: each nested graph is compiled once and called from its op's ``HostOp``.

A body has an arena of its own, outside the plan of the graph around it; bodies that run at the same time, one each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from planner_core.ir import Array, Graph, Op
from planner_core.ir.ops import If, Loop, Scan
from runtime.command_list.thunks.host import body_runner
from runtime.compile import Compilation, CompileOptions, compile_graph

__all__ = ["run_body"]

_COMPILED: WeakKeyDictionary[Any, Compilation] = WeakKeyDictionary()
_LOCK = threading.RLock()


class _Key:
    """A graph's identity as a weak key (graphs compare by content and don't hash)."""

    __slots__ = ("__weakref__",)


def _key(body: Graph) -> _Key:
    return _Key()


def _compiled(body: Graph) -> Compilation:
    """The body's compilation, made by one thread and used by all."""
    with _LOCK:
        key = body.derived(_key)
        found = _COMPILED.get(key)
        if found is None:
            found = _COMPILED[key] = compile_graph(body, CompileOptions())
        return found


def run_body(body: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The body's outputs for its inputs in order."""
    compiled = _compiled(body)
    feed = {body[i].name: np.asarray(x, dtype=body[i].dtype.numpy).reshape(body[i].shape.sizes)
            for i, x in zip(body.inputs, inputs, strict=True)}
    found = compiled.run(feed)
    return [found[name] for name in compiled.legal.output_names]


def _stacked(body: Graph, rows: list[list[Array]], count: int) -> list[Array]:
    """The last ``count`` outputs of each iteration, stacked; empty arrays where there was none."""
    if rows:
        return [np.stack(column) for column in zip(*rows, strict=True)]
    last = [body[o] for o in body.outputs[len(body.outputs) - count :]]
    return [np.empty((0, *n.shape.sizes), dtype=n.dtype.numpy) for n in last]


def _if(op: Op, inputs: Sequence[Array]) -> Sequence[Array]:
    taken = op.bodies()[0] if bool(inputs[0].reshape(-1)[0]) else op.bodies()[1]
    return run_body(taken, inputs[1:])


def _loop(op: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    states = [np.array(x) for x in inputs[2 : 2 + op.carried]]
    captures = inputs[2 + op.carried :]
    stacked: list[list[Array]] = []
    keep, i = bool(inputs[1].reshape(-1)[0]), 0
    while keep and i < int(inputs[0].reshape(-1)[0]):
        keep_now, *made = run_body(op.body, [np.asarray(i), np.asarray(keep), *states, *captures])
        states, rows = made[: op.carried], made[op.carried :]
        stacked.append(rows)
        keep, i = bool(keep_now.reshape(-1)[0]), i + 1
    return [*states, *_stacked(op.body, stacked, len(op.body.outputs) - 1 - op.carried)]


def _scan(op: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    states = [np.array(x) for x in inputs[: op.carried]]
    sequences = [_outermost(x, *how) for x, how in
                 zip(inputs[op.carried : op.carried + op.scanned], _ways(op.input_axes, op.input_reversed, op.scanned), strict=True)]
    captures = inputs[op.carried + op.scanned :]
    stacked: list[list[Array]] = []
    for i in range(len(sequences[0]) if sequences else 0):
        made = run_body(op.body, [*states, *(s[i] for s in sequences), *captures])
        states = made[: op.carried]
        stacked.append(made[op.carried :])
    count = len(op.body.outputs) - op.carried
    rows = _stacked(op.body, stacked, count)
    ways = _ways(op.output_axes, op.output_reversed, count)
    return [*states, *(np.moveaxis(x[::-1] if back else x, 0, axis) for x, (axis, back) in zip(rows, ways, strict=True))]


def _ways(axes: Sequence[int], back: Sequence[bool], count: int) -> list[tuple[int, bool]]:
    """(axis, whether last to first) of each of ``count`` sequences or scan outputs."""
    return list(zip(axes or (0,) * count, back or (False,) * count, strict=True))


def _outermost(x: Array, axis: int, back: bool) -> Array:
    """The slices of x along ``axis`` in the order in which they are scanned."""
    lead = np.moveaxis(x, axis, 0)
    return lead[::-1] if back else lead


for _op, _fn in ((If, _if), (Loop, _loop), (Scan, _scan)):
    body_runner(_op, _fn)
