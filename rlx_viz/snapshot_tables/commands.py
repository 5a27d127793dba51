"""Owns ``commands``, ``commands_before``, ``spans`` and, after a run, ``profile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planner_core.memory import SPACES
from rlx_viz.columns import Column, StringTable
from rlx_viz.snapshot_tables.names import Names
from runtime.command_list import CommandList, Operand, Role, Thunk
from runtime.compile import Compilation
from runtime.profile import Profile

__all__ = ["MOST_WITH_SPANS", "command_tables", "profile_table"]

PLACES = ("none", "gpu", "host")
ROLES = (Role.IN, Role.OUT, Role.INOUT)
MOST_WITH_SPANS = 20_000
"""Commands above which ``spans`` is left out: a view then goes by the node's edges and slots."""


def command_tables(c: Compilation, names: Names, strings: StringTable) -> dict[str, dict[str, Column]]:
    """The list that runs, the list before passes, and each operand's bytes."""
    before, after, starts = c.commands_before, c.commands, c.passed.starts
    first = np.asarray(starts[:-1], dtype=np.uint32)
    return {
        "commands": _commands(after, names, strings, c.options.target.profile.on_gpu),
        "commands_before": {
            "label": _labels(before, names, strings), "node": np.asarray(before.node_of, dtype=np.uint32),
            "first": first, "count": np.diff(np.asarray(starts)).astype(np.uint32),
        },
        **({"spans": _spans(after)} if len(after) <= MOST_WITH_SPANS else {}),
    }


def profile_table(profile: Profile) -> dict[str, Column]:
    """Median time and FLOPs of each command of the list that ran."""
    return {"us": (np.asarray(profile.seconds) * 1e6).astype(np.float32), "flops": np.asarray(profile.flops, np.float64)}


def _labels(commands: CommandList, names: Names, strings: StringTable) -> Column:
    return strings.intern_all(names.command(t.trace_label) for t in commands.thunks)


def _commands(commands: CommandList, names: Names, strings: StringTable, has_gpu: bool) -> dict[str, Column]:
    places = [t.place if has_gpu or t.place == "none" else "host" for t in commands.thunks]
    traffic = [_traffic(t) for t in commands.thunks]
    return {
        "label": _labels(commands, names, strings),
        "node": np.asarray(commands.node_of, dtype=np.uint32),
        "where": np.asarray([PLACES.index(p) for p in places], np.uint8),
        "read": np.asarray([r for r, _ in traffic], np.float64),
        "written": np.asarray([w for _, w in traffic], np.float64),
        "scratch": np.asarray([t.scratch_bytes for t in commands.thunks], np.float64),
    }


_READERS: dict[type[Thunk], list[tuple[str, int, bool]]] = {}


def _operands(t: Thunk) -> list[tuple[int, Operand]]:
    """(role's code, operand) of each operand; a class's fields are looked up once."""
    fields = _READERS.get(type(t))
    if fields is None:
        fields = _READERS[type(t)] = [(f.name, ROLES.index(f.role), f.many) for f in t.operand_fields]
    out: list[tuple[int, Operand]] = []
    for name, role, many in fields:
        value: Any = getattr(t, name)
        if value is None:
            continue
        if many:
            out += [(role, o) for o in value]
        else:
            out.append((role, value))
    return out


def _traffic(t: Thunk) -> tuple[int, int]:
    if type(t).bytes_read is not Thunk.bytes_read:
        return t.bytes_read, t.bytes_written
    read = written = 0
    for role, o in _operands(t):
        if role != 1:
            read += o.nbytes
        if role != 0:
            written += o.nbytes
    return read, written


def _spans(commands: CommandList) -> dict[str, Column]:
    rows = [(i, role, o) for i, t in enumerate(commands.thunks) for role, o in _operands(t)]

    def column(of: Callable[[int, int, Operand], int], dtype: Any) -> Column:
        return np.asarray([of(*row) for row in rows], dtype)

    return {
        "command": column(lambda i, r, o: i, np.uint32), "role": column(lambda i, r, o: r, np.uint8),
        "space": column(lambda i, r, o: SPACES.index(o.space), np.uint8),
        "offset": column(lambda i, r, o: o.offset, np.float64), "bytes": column(lambda i, r, o: o.nbytes, np.float64),
    }
