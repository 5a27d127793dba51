"""Owns ``Target``: what a graph is compiled for. Width policies, fusion pipelines and presets hang on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["FOLDS", "Folds", "Target"]


class Target(Enum):
    """What a graph is compiled for."""

    CPU = "cpu"
    METAL = "metal"
    MLX = "mlx"
    CUDA = "cuda"
    ROCM = "rocm"
    WGPU = "wgpu"
    TPU = "tpu"


@dataclass(frozen=True, slots=True)
class Folds:
    """Transposes that a target's products read as they are stored (spec §2): expert banks and plain matrices, or
    with ``small_banks_only`` just banks read with few rows."""

    small_banks_only: bool


FOLDS = {Target.CPU: Folds(small_banks_only=False), Target.METAL: Folds(small_banks_only=True)}
"""By target (spec §6); one that is missing folds none."""
