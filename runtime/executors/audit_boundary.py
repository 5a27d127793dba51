"""Owns what an audit checks before the first thunk: that slots, params, inputs and constants lie where they may, and that
no append spoils what is read later or outlives the run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from planner_core.ir.overwrites import overwrite_reasons
from runtime.command_list import CommandList, SlotLife
from runtime.command_list.provenance import Provenance
from runtime.errors import SanitizeError
from runtime.executors.blame import blame_of_slot, blame_of_thunk

__all__ = ["check_appends", "check_boundary", "check_slots"]


def _of(s: SlotLife) -> str:
    return f"%{s.node} {s.op} {s.name!r} [{s.offset}, {s.offset + s.size})"


def check_slots(commands: CommandList) -> None:
    """Slots lie in their region, where the plan has them and at its alignment; no two in the weights overlap.

    (In the arena, overlaps are found at the write that would do harm.)
    """
    known: Provenance | None = commands.provenance
    sizes = {"arena": commands.arena_size, "weights": commands.weights_size}
    for s in commands.slots:
        bad = ""
        if not (s.offset >= 0 and s.offset + s.size <= sizes[s.space]):
            bad = f"ends beyond the {s.space}'s {sizes[s.space]} bytes"
        elif known is not None:
            start, size = int(known.plan.offset[s.node]), int(known.plan.size[s.node])
            if not (start <= s.offset and s.offset + s.size <= start + size):
                bad = f"is not where the plan has it: [{start}, {start + size})"
            elif start % known.plan.options.alignment:
                bad = f"starts off the plan's alignment of {known.plan.options.alignment}"
        if bad:
            _refuse(commands, s, f"slot of {_of(s)} in {s.space} {bad}", s.offset)
    weights = sorted((s for s in commands.slots if s.space == "weights" and s.size), key=lambda s: s.offset)
    for a, b in pairwise(weights):
        if b.offset < a.offset + a.size:
            _refuse(commands, b, f"slots of {_of(a)} and {_of(b)} overlap in the weights at byte {b.offset}", b.offset)


def check_boundary(commands: CommandList) -> None:
    """Params, inputs and constants are each inside a slot that is alive at the start, and share no byte."""
    rows = sorted([(*b.operand.span, f"{kind} {b.name!r}") for kind, side in (("param", commands.params), ("input", commands.inputs))
                   for b in side if b.operand.nbytes] +
                  [(*c.operand.span, f"constant {k}") for k, c in enumerate(commands.constants) if c.operand.nbytes])
    for (space, _, end, one), (other, start, _, two) in pairwise(rows):
        if space == other and start < end:
            by = _slot_at(commands, space, start)
            _refuse(commands, by, f"{one} and {two} overlap in {space} at byte {start}: the one loaded later destroys the other", start, space)
    for space, start, end, name in rows:
        slots = [s for s in commands.slots if s.space == space]
        if not any(s.offset <= start and end <= s.offset + s.size and s.birth <= 0 for s in slots) and (slots or space == "arena"):
            _refuse(commands, _slot_at(commands, space, start), f"{name} at {space} [{start}, {end}) is not inside one slot that "
                    "is alive at the start", start, space)


def check_appends(commands: CommandList) -> None:
    """No thunk stands for a node that an append makes unrunnable (``planner_core/ir/overwrites.py``). Constants and params
    are loaded anew for an audit, so that only the graph tells."""
    known: Provenance | None = commands.provenance
    if known is None:
        return
    for node, why in overwrite_reasons(known.graph, np.flatnonzero(known.plan.elided).tolist()).items():
        for i in (k for k, of in enumerate(commands.node_of) if of == node):
            label, name, blame = commands.thunks[i].trace_label, commands.node_names[node], blame_of_thunk(commands, i)
            raise SanitizeError(f"thunk {i} {label} of {name}: {why}. To blame: {blame}", thunk=i, label=label, node=name, blame=blame)


def _slot_at(commands: CommandList, space: str, at: int) -> SlotLife | None:
    return next((s for s in commands.slots if s.space == space and s.offset <= at < s.offset + s.size), None)


def _refuse(commands: CommandList, s: SlotLife | None, what: str, at: int, space: str = "") -> None:
    blame = blame_of_slot(commands, s) if s is not None else "lowering: no slot of the plan is there"
    raise SanitizeError(f"before the first thunk: {what}. To blame: {blame}", space=space or (s.space if s else "arena"), offset=at,
                        owner=_of(s) if s is not None else "no slot", blame=blame)
