"""Owns ``Target`` and its ``TargetProfile``: what a graph is compiled for, and everything that hangs on it, said once.

Width policies, fusion limits, folds, presets, command passes, estimates and pictures read the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner_core.ir.dtype import DType

__all__ = ["ArenaWidthPolicy", "Folds", "Target", "TargetProfile"]


class ArenaWidthPolicy(Enum):
    """Widths that activations are stored in; params other than f32 are native under every policy."""

    F32_UNIFORM = "f32_uniform"
    NATIVE = "native"
    HYBRID = "hybrid"
    NATIVE_HALF_WIDENED = "native_half_widened"
    NATIVE_BF16_WIDENED = "native_bf16_widened"

    @property
    def widens_half(self) -> bool:
        """One of the two policies that keep custom ops and KV appends native (spec §5)."""
        return self in (ArenaWidthPolicy.NATIVE_HALF_WIDENED, ArenaWidthPolicy.NATIVE_BF16_WIDENED)


class Target(Enum):
    """What a graph is compiled for."""

    CPU = "cpu"
    METAL = "metal"
    MLX = "mlx"
    CUDA = "cuda"
    ROCM = "rocm"
    WGPU = "wgpu"
    TPU = "tpu"

    @property
    def profile(self) -> TargetProfile:
        """What is known of the target."""
        return _PROFILES[self]


@dataclass(frozen=True, slots=True)
class Folds:
    """Transposes that a target's products read as they are stored (spec §2): expert banks and plain matrices, or
    with ``small_banks_only`` just banks read with few rows."""

    small_banks_only: bool


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """One target. Extents count operands or steps; sizes are in bytes."""

    device: str
    """Name of the ``runtime.device.Device`` that runs it."""
    widths: ArenaWidthPolicy
    """How wide its kernels want activations stored (spec §5)."""
    dtypes: frozenset[DType]
    """Element types that its fused kernels compute in."""
    cost_model: str
    """The ``DeviceProfile`` of estimates."""
    region_inputs: int = 16
    """Operands of a fused elementwise region (command-list.md)."""
    region_steps: int = 32
    """Steps of a fused elementwise region (command-list.md)."""
    batch_inputs: int = 64
    """Operands of all slices of one batch of regions together."""
    region_dtypes: frozenset[DType] = frozenset({DType.F32})
    """Element types of fused regions."""
    folds: Folds | None = None
    """Transposes that its products fold away (spec §6); None: none."""
    command_passes: bool = False
    """Passes over the command list own the one-row forms, and move reads later."""
    dispatch_bound: bool = False
    """A launch costs more than a small kernel's work: batches of small regions pay."""

    @property
    def on_gpu(self) -> bool:
        """Commands that may run on an accelerator do."""
        return self.device != "cpu"


_F32, _HALVES = frozenset({DType.F32}), frozenset({DType.F32, DType.F16})
_ALL = frozenset({DType.F32, DType.F16, DType.BF16})
_PROFILES: dict[Target, TargetProfile] = {
    Target.CPU: TargetProfile("cpu", ArenaWidthPolicy.NATIVE_HALF_WIDENED, _HALVES, "cpu", folds=Folds(small_banks_only=False)),
    Target.METAL: TargetProfile("metal", ArenaWidthPolicy.NATIVE_BF16_WIDENED, _HALVES, "m2-max",
                                folds=Folds(small_banks_only=True), command_passes=True, dispatch_bound=True),
    Target.MLX: TargetProfile("mlx", ArenaWidthPolicy.NATIVE, _ALL, "m2-max", dispatch_bound=True),
    Target.CUDA: TargetProfile("cuda", ArenaWidthPolicy.NATIVE, _ALL, "a100", dispatch_bound=True),
    Target.ROCM: TargetProfile("rocm", ArenaWidthPolicy.NATIVE, _ALL, "m2-max", dispatch_bound=True),
    # a WebGPU stage binds 8 storage buffers by default: 7 inputs beside the result; f32 alone without an extension
    Target.WGPU: TargetProfile("webgpu", ArenaWidthPolicy.F32_UNIFORM, _F32, "m2-max", region_inputs=7, batch_inputs=7,
                               dispatch_bound=True),
    Target.TPU: TargetProfile("tpu", ArenaWidthPolicy.F32_UNIFORM, frozenset({DType.F32, DType.BF16}), "m2-max"),
}
