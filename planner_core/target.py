"""Owns ``Target``: what a graph is compiled for. Width policies, fusion pipelines and presets hang on it."""

from __future__ import annotations

from enum import Enum

__all__ = ["Target"]


class Target(Enum):
    """What a graph is compiled for."""

    CPU = "cpu"
    METAL = "metal"
    MLX = "mlx"
    CUDA = "cuda"
    ROCM = "rocm"
    WGPU = "wgpu"
    TPU = "tpu"
