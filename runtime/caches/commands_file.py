"""Owns the compact file form of a command list: operands and slots as columns, a row a thunk, constants as bytes.

JSON and raw bytes only: reading builds nothing but the declared classes. Inverse functions: ``commands_to_parts`` and
``commands_from_parts``; who checks that the bytes are whole is ``aot.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import typing
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from planner_core.ir import DType, TensorData
from runtime.command_list import CommandList, Operand, Thunk
from runtime.command_list.commands import Binding, Constant, SlotLife
from runtime.command_list.thunk import _decode, _encode, registry

__all__ = ["commands_from_parts", "commands_to_parts"]

_Value = TypeVar("_Value", Operand, SlotLife)
_SPACES = ("arena", "weights")
_SLOT_NUMBERS = ("node", "offset", "size", "guard", "birth", "death")


class _Table:
    """Values numbered in the order they are first seen."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.index.setdefault(value, len(self.index))


_COLUMNS: dict[str, tuple[tuple[str, str, Any], ...]] = {}


def _columns(cls: type[Thunk]) -> tuple[tuple[str, str, Any], ...]:
    """(field, what it holds, its type): ``one`` operand, ``many``, ``plain`` JSON, or ``coded``."""
    if cls.name in _COLUMNS:
        return _COLUMNS[cls.name]
    hints = typing.get_type_hints(cls)
    operands = {f.name: "many" if f.many else "one" for f in cls.operand_fields}
    made = tuple((f.name, operands.get(f.name) or ("plain" if hints[f.name] in (int, bool, str) else "coded"), hints[f.name])
                 for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    return _COLUMNS.setdefault(cls.name, made)


def commands_to_parts(c: CommandList) -> tuple[bytes, bytes]:
    """(JSON, the constants' bytes)."""
    operands, shapes, names = _Table(), _Table(), _Table()
    thunks = []
    for t in c.thunks:
        row: list[Any] = [t.name]
        for name, kind, _ in _columns(type(t)):
            v = getattr(t, name)
            row.append(None if v is None else operands(v) if kind == "one" else [operands(o) for o in v] if kind == "many"
                       else _encode(v))
        thunks.append(row)
    sides = {side: [[b.name, operands(b.operand), b.dtype.text] for b in getattr(c, side)]
             for side in ("inputs", "outputs", "params")}
    blobs, constants, at = [], [], 0
    for k in c.constants:
        raw = np.ascontiguousarray(k.data.array).tobytes()
        constants.append([operands(k.operand), k.data.dtype.text, list(k.data.array.shape), at, len(raw)])
        blobs.append(raw)
        at += len(raw)
    slots = {n: [getattr(s, n) for s in c.slots] for n in _SLOT_NUMBERS}
    slots |= {"name": [names(s.name) for s in c.slots], "op": [names(s.op) for s in c.slots],
              "space": [_SPACES.index(s.space) for s in c.slots]}
    found = list(operands.index)
    value = {
        "name": c.name, "sizes": [c.arena_size, c.weights_size, c.scratch_bytes],
        "operands": {
            "space": [_SPACES.index(o.space) for o in found], "offset": [o.offset for o in found],
            "nbytes": [o.nbytes for o in found], "storage": [o.storage.text for o in found],
            "axis": [o.bucket_axis for o in found], "shape": [shapes(o.shape) for o in found]},
        "shapes": [list(s) for s in shapes.index], "thunks": thunks, "node_of": list(c.node_of), **sides,
        "constants": constants, "slots": slots, "names": list(names.index), "node_names": list(c.node_names),
        "static_nodes": sorted(c.static_nodes),
    }
    return json.dumps(value, separators=(",", ":")).encode(), b"".join(blobs)


def _reader(cls: type[Thunk], operands: list[Operand]) -> list[Callable[[Any], Any] | None]:
    """How each column of a thunk's row becomes its field; None: as it is."""
    out: list[Callable[[Any], Any] | None] = []
    for _, kind, hint in _columns(cls):
        if kind == "one":
            out.append(lambda v: None if v is None else operands[v])
        elif kind == "many":
            out.append(lambda v: None if v is None else tuple([operands[i] for i in v]))
        elif kind == "plain":
            out.append(None)
        else:
            out.append(float if hint is float else functools.partial(_decode, hint))
    return out


def commands_from_parts(text: bytes, blob: bytes | memoryview) -> CommandList:
    """Inverse of ``commands_to_parts``. ``KeyError``, ``ValueError`` and the like for bytes that are something else."""
    on = gc.isenabled()
    gc.disable()  # thousands of small values, none of them garbage
    try:
        return _read(json.loads(text), blob)
    finally:
        if on:
            gc.enable()


def _bulk(cls: type[_Value], *columns: list[Any]) -> list[_Value]:
    """One frozen value a row, its fields in order, filled column by column: a third of the time of as many calls."""
    count = len(columns[0])
    made = [cls.__new__(cls) for _ in range(count)]
    for f, column in zip(dataclasses.fields(cls), columns, strict=True):
        if len(column) != count:
            raise ValueError(f"{cls.__name__}.{f.name}: {len(column)} values of {count}")
        deque(map(cls.__dict__[f.name].__set__, made, column), maxlen=0)
    return made


def _read(v: dict[str, Any], blob: bytes | memoryview) -> CommandList:
    shapes = [tuple(s) for s in v["shapes"]]
    types = {d.text: d for d in DType}
    o = v["operands"]
    operands = _bulk(Operand, [_SPACES[i] for i in o["space"]], o["offset"], o["nbytes"],
                     [types[t] for t in o["storage"]], o["axis"], [shapes[i] for i in o["shape"]])
    classes = registry()
    readers: dict[str, list[Callable[[Any], Any] | None]] = {}
    thunks = []
    for name, *row in v["thunks"]:
        reader = readers.get(name)
        if reader is None:
            reader = readers[name] = _reader(classes[name], operands)
        thunks.append(classes[name](*[x if f is None else f(x) for f, x in zip(reader, row, strict=True)]))
    sides = {side: tuple([Binding(n, operands[i], types[t]) for n, i, t in v[side]]) for side in ("inputs", "outputs", "params")}
    constants = tuple([
        Constant(operands[i], TensorData(np.frombuffer(blob[at : at + size], types[t].numpy).reshape(shape)))
        for i, t, shape, at, size in v["constants"]])
    s, names = v["slots"], v["names"]
    slots = tuple(_bulk(SlotLife, s["node"], [names[i] for i in s["name"]], [names[i] for i in s["op"]],
                        [_SPACES[i] for i in s["space"]], s["offset"], s["size"], s["guard"], s["birth"], s["death"]))
    arena, weights, scratch = v["sizes"]
    return CommandList(name=v["name"], thunks=tuple(thunks), node_of=tuple(v["node_of"]), arena_size=arena,
                       weights_size=weights, scratch_bytes=scratch, constants=constants, slots=slots,
                       node_names=tuple(v["node_names"]), static_nodes=frozenset(v["static_nodes"]),
                       inputs=sides["inputs"], outputs=sides["outputs"], params=sides["params"])
