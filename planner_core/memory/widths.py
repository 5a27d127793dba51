"""Owns slot widths: which element type a tensor is stored as under each ``ArenaWidthPolicy``."""

from __future__ import annotations

from planner_core.ir import DType
from planner_core.target import ArenaWidthPolicy, Target

__all__ = ["MIN_GUARD", "ArenaWidthPolicy", "Target", "arena_width_policy", "storage_dtype"]

MIN_GUARD = 128
"""Bytes behind a boundary slot that nothing else may use (spec §5), unless the alignment is larger."""


def arena_width_policy(target: Target) -> ArenaWidthPolicy:
    """The policy a target's kernels want (spec §5)."""
    return target.profile.widths


def storage_dtype(policy: ArenaWidthPolicy, dtype: DType, is_param: bool) -> DType:
    """The stored element type: four bytes where the policy widens, never narrower than ``dtype`` itself.

    Floats and bools widen to f32, short integers to i32 (their sums and products are exact there, modulo any power of two up
    to 2³²), integers of four bytes to themselves (f32 holds no more than 24 bits of one). Source: spec §5's table.
    """
    if is_param or dtype.bits > 32 or not _widens(policy, dtype):
        return dtype
    if dtype.is_int:
        return dtype if dtype.bits == 32 else DType.I32
    return DType.F32


def _widens(policy: ArenaWidthPolicy, dtype: DType) -> bool:
    match policy:
        case ArenaWidthPolicy.F32_UNIFORM:
            return True
        case ArenaWidthPolicy.HYBRID:
            return not dtype.is_half
        case ArenaWidthPolicy.NATIVE_HALF_WIDENED:
            return dtype.is_half
        case ArenaWidthPolicy.NATIVE_BF16_WIDENED:
            return dtype is DType.BF16
        case ArenaWidthPolicy.NATIVE:
            return False
