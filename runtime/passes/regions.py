"""Owns the region rewrite: a short dense elementwise region becomes plain thunks.

| chain | becomes |
|---|---|
| binary of two inputs | `BinaryFull` |
| binary, activation | `FusedBinaryActivation` |
| binary, binary (, binary) | two (three) `BinaryFull` through the destination |
| binary, binary, activation | `FusedTernaryActivation` |
| cast that changes nothing, binary | `BinaryFull` |
| activation, in place | `ActivationInPlace` |
"""

from __future__ import annotations

from planner_core.ir import DType
from planner_core.ir.ops.region import ACTIVATION_STEP, BINARY_STEP, CAST_STEP, REGION_STEP, result_of, step_name
from runtime.command_list import Operand, Thunk
from runtime.command_list.thunks.decode import FusedBinaryActivation, FusedTernaryActivation
from runtime.command_list.thunks.elementwise import ActivationInPlace, BinaryFull
from runtime.command_list.thunks.region import ElementwiseRegion
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, refuse, span_of
from runtime.passes.options import PassOptions
from runtime.passes.reasons import Refusal

__all__ = ["REGION_REWRITE"]

_A, _C, _B = ACTIVATION_STEP, CAST_STEP, BINARY_STEP
_FORMS = {(_B,), (_B, _A), (_B, _B), (_B, _B, _A), (_B, _B, _B), (_C, _B), (_A,)}


def _find(flow: Flow, i: int, options: PassOptions) -> Applied | None:
    t = flow.thunks[i]
    if not isinstance(t, ElementwiseRegion):
        return None
    if t.prologue:
        refuse(Refusal.HAS_PROLOGUE, i)
    if not t.is_dense or any(o.numel != t.len for o in t.inputs):
        refuse(Refusal.NOT_DENSE, i, scalar_input_mask=t.scalar_input_mask, input_modulus=t.input_modulus)
    for o in (*t.inputs, t.dst):
        if o.storage is not DType.F32:
            refuse(Refusal.NOT_F32, i, o)
    return Applied(((i, _plain(t, i)),))


def _plain(t: ElementwiseRegion, i: int) -> tuple[Thunk, ...]:
    kinds = tuple(s[0] for s in t.steps)
    if kinds not in _FORMS or (kinds == (_B,) and len(set(t.steps[0][2:])) < 2):
        refuse(Refusal.CHAIN_HAS_NO_FORM, i, steps=len(kinds))
    _check_order(t, i)
    names = [step_name(s) for s in t.steps]
    x = t.inputs[t.steps[0][2]]
    if kinds == (_A,):
        if span_of(x) != span_of(t.dst):
            refuse(Refusal.NOT_IN_PLACE, i, x)
        return (ActivationInPlace(t.dst, t.len, names[0]),)
    if kinds[0] == _C:
        if names[0] != "keep":
            refuse(Refusal.CAST_CHANGES_VALUES, i, cast=names[0])
        return (BinaryFull(x, t.inputs[t.steps[1][3]], t.dst, t.len, names[1]),)
    rights = [t.inputs[s[3]] for s in t.steps if s[0] == _B]
    if kinds == (_B, _A):
        return (FusedBinaryActivation(x, rights[0], t.dst, t.len, names[0], names[1]),)
    if kinds == (_B, _B, _A):
        return (FusedTernaryActivation(x, rights[0], rights[1], t.dst, t.len, names[0], names[1], names[2]),)
    for o in rights[1:]:
        if t.dst.overlaps(o):
            refuse(Refusal.SPLIT_OVERLAPS, i, o)
    lefts: list[Operand] = [x, *[t.dst] * (len(rights) - 1)]
    return tuple(BinaryFull(a, b, t.dst, t.len, op) for a, b, op in zip(lefts, rights, names, strict=True))


def _check_order(t: ElementwiseRegion, i: int) -> None:
    """The first step reads inputs; each later one the result before it and, a binary, an input on its right."""
    for k, s in enumerate(t.steps):
        left = not s[2] & REGION_STEP if k == 0 else s[2] == result_of(k - 1)
        if not left or (s[0] == _B and s[3] & REGION_STEP):
            refuse(Refusal.STEP_ORDER, i, step=k)


REGION_REWRITE = CommandPass(
    "region_rewrite", "An elementwise region of up to three dense steps becomes plain binaries and activations.",
    ("region_rewrite",), frozenset({ElementwiseRegion.label}),
    frozenset({Refusal.HAS_PROLOGUE, Refusal.NOT_DENSE, Refusal.NOT_F32, Refusal.CHAIN_HAS_NO_FORM, Refusal.STEP_ORDER,
               Refusal.CAST_CHANGES_VALUES, Refusal.SPLIT_OVERLAPS, Refusal.NOT_IN_PLACE}), _find)
