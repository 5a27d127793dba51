"""Owns ``Device``: where a session runs, and what can run in this version."""

from __future__ import annotations

import sys
from enum import Enum

from planner_core.errors import RlxError
from planner_core.memory import Target

__all__ = ["Device", "DeviceError", "resolve_device"]


class DeviceError(RlxError, RuntimeError):
    """A device that can't run here; never replaced silently."""


class Device(Enum):
    """Where a session runs. ``AUTO`` picks one and says what it picked."""

    CPU = "cpu"
    METAL = "metal"
    MLX = "mlx"
    ANE = "ane"
    GPU = "gpu"
    CUDA = "cuda"
    VULKAN = "vulkan"
    ROCM = "rocm"
    ONEAPI = "oneapi"
    DIRECTX = "directx"
    WEBGPU = "webgpu"
    TPU = "tpu"
    AUTO = "auto"

    @property
    def unified_memory(self) -> bool:
        """Shares the host's memory (CPU, Metal, MLX, ANE): keeping a whole ladder resident costs no second memory.
        ``AUTO`` is what it picks, the CPU."""
        return self in (Device.CPU, Device.METAL, Device.MLX, Device.ANE, Device.AUTO)

    @property
    def target(self) -> Target:
        """The compile target whose presets it takes."""
        return next((t for t in Target if t.profile.device == self.value), Target.CPU)




def resolve_device(device: Device | str) -> tuple[Device, str]:
    """(the device that runs, why). ``DeviceError`` for one that this version or this machine can't run on."""
    try:
        device = Device(device)
    except ValueError:
        raise DeviceError(f"no device {device!r}; wanted one of {', '.join(d.value for d in Device)}") from None
    if device is Device.CPU:
        return device, "asked for"
    if device is Device.AUTO:
        return Device.CPU, "auto: the host is the only device that this version runs on"
    reason = "has no executor in this version"
    if device is Device.METAL and sys.platform != "darwin":
        reason = f"needs an Apple GPU, and this is {sys.platform}"
    raise DeviceError(f"device {device.value} {reason}; use Device.CPU (host executor) or Device.AUTO. To see what "
                      f"{device.value} would plan, compile with CompileOptions.for_target({device.target.value!r})")
