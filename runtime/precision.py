"""Owns ``PrecisionPolicy``: which floats a graph computes its products in."""

from __future__ import annotations

from enum import Enum

from planner_core.ir import DType

__all__ = ["PrecisionPolicy"]


class PrecisionPolicy(Enum):
    """``F32``: as the graph says. The mixed ones compute f32 products and convolutions in half, and keep reductions,
    norms, softmax (attention's too) and losses in f32."""

    F32 = "f32"
    AUTO_MIXED = "auto_mixed"
    AUTO_MIXED_BF16 = "auto_mixed_bf16"

    @property
    def half(self) -> DType | None:
        """The narrow type, or None."""
        return {"auto_mixed": DType.F16, "auto_mixed_bf16": DType.BF16}.get(self.value)
