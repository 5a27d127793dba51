"""Owns slot widths: which element type a tensor is stored as under each ``ArenaWidthPolicy``."""

from __future__ import annotations

from enum import Enum

from planner_core.ir import DType
from planner_core.target import Target

__all__ = ["MIN_GUARD", "ArenaWidthPolicy", "Target", "arena_width_policy", "storage_dtype"]

MIN_GUARD = 128
"""Bytes behind a boundary slot that nothing else may use (spec §5), unless the alignment is larger."""


class ArenaWidthPolicy(Enum):
    """How wide activations are stored; params other than f32 are native under every policy."""

    F32_UNIFORM = "f32_uniform"
    NATIVE = "native"
    HYBRID = "hybrid"
    NATIVE_HALF_WIDENED = "native_half_widened"
    NATIVE_BF16_WIDENED = "native_bf16_widened"

    @property
    def widens_half(self) -> bool:
        """One of the two policies that keep custom ops and KV appends native (spec §5)."""
        return self in (ArenaWidthPolicy.NATIVE_HALF_WIDENED, ArenaWidthPolicy.NATIVE_BF16_WIDENED)


_POLICY = {
    Target.CPU: ArenaWidthPolicy.NATIVE_HALF_WIDENED,
    Target.METAL: ArenaWidthPolicy.NATIVE_BF16_WIDENED,
    Target.MLX: ArenaWidthPolicy.NATIVE,
    Target.CUDA: ArenaWidthPolicy.NATIVE,
    Target.ROCM: ArenaWidthPolicy.NATIVE,
    Target.WGPU: ArenaWidthPolicy.F32_UNIFORM,
    Target.TPU: ArenaWidthPolicy.F32_UNIFORM,
}


def arena_width_policy(target: Target) -> ArenaWidthPolicy:
    """The policy a target's kernels want (spec §5)."""
    return _POLICY[target]


def storage_dtype(policy: ArenaWidthPolicy, dtype: DType, is_param: bool) -> DType:
    """The stored element type: f32 where the policy widens, never narrower than ``dtype`` itself.

    f8 is no half float: outside ``F32_UNIFORM`` it stays native. Source: spec §5's table.
    """
    if is_param or dtype.bits > 32 or policy is ArenaWidthPolicy.NATIVE:
        return dtype
    if policy is ArenaWidthPolicy.F32_UNIFORM:
        return DType.F32
    if dtype.is_float:
        if policy is ArenaWidthPolicy.NATIVE_HALF_WIDENED and dtype.is_half:
            return DType.F32
        if policy is ArenaWidthPolicy.NATIVE_BF16_WIDENED and dtype is DType.BF16:
            return DType.F32
        return dtype
    return DType.F32 if policy is ArenaWidthPolicy.HYBRID else dtype
