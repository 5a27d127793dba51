"""Owns ``PassOptions``: one switch per command pass, and those that force host forms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from planner_core.environment import Environ
from planner_core.options import coerce_option, env_overrides, option, options_of

__all__ = ["PassOptions"]

@dataclass(frozen=True, slots=True)
class PassOptions:
    """Options of the passes over one command list. Values given here are final: only ``for_environment`` reads
    the environment. ``env`` lists the variables that it read, for a view to show; it is no option."""

    region_rewrite: bool = option(
        True, group="passes", help="Replace short elementwise regions by plain thunks.")
    dense_broadcast: bool = option(
        True, group="passes", help="Replace a broadcast of equally shaped dense operands by a plain binary.")
    decode: bool = option(
        True, group="passes", env="RLX_METAL_FUSE_DECODE",
        help="Fuse for decoding: the packed MLPs, the two norms and the depthwise convolution. Off: none of them.")
    decode_mlp_combined: bool = option(
        True, group="passes", help="Fuse one-row MLPs whose gate and up are one packed matmul.")
    decode_mlp_separate: bool = option(
        True, group="passes", help="Fuse one-row MLPs with a packed matmul each for gate and up.")
    decode_gelu: bool = option(
        True, group="passes", env="RLX_METAL_FUSE_DECODE_GELU", help="Fuse one-row MLPs that gate with GELU.")
    residual_rms_norm: bool = option(
        True, group="passes", env="RLX_METAL_FUSE_RESIDUAL_RMS", help="Fuse a residual add into the RMSNorm behind it.")
    gated_norm: bool = option(
        True, group="passes", env="RLX_METAL_FUSE_GDN_NORM", help="Fuse RMSNorm times SiLU.")
    depthwise_conv: bool = option(
        True, group="passes", env="RLX_METAL_FUSE_DEPTHWISE",
        help="Fuse a one-step depthwise convolution with the transposes around it.")
    narrow_rope: bool = option(
        True, group="passes", help="Let a rotary embedding read its slice from the wide row.")
    narrow_clusters: bool = option(
        True, group="passes", help="Cut all slices of one row in one dispatch.")
    q2_0_fused_disable: bool = option(
        False, group="passes", env="RLX_METAL_Q2_0_FUSED_DISABLE",
        help="Leave one-row MLPs with separate gate and up alone where a weight is Q2_0.")
    host_fallback: bool = option(
        False, group="host", env="RLX_METAL_HOST_FALLBACK|RLX_METAL_HOST_SLICE",
        help="Run slices of the last axis on the host; no pass fuses them then: not the one-row MLP with gate and up in one, not a "
             "rotary embedding, not a cluster.")
    gdn_host_fallback: bool = option(
        False, group="host", env="RLX_METAL_GDN_HOST_FALLBACK", help="Run gated delta nets on the host.")
    dequant_gpu_disable: bool = option(
        False, group="host", env="RLX_METAL_DEQUANT_GPU_DISABLE",
        help="Run packed matmuls on the host; they are then not fused.")
    print_fused: bool = option(
        False, group="log", env="RLX_METAL_FUSE_DECODE_LOG", cache_key=False,
        help="Log each application of a decode pass (MLPs, norms, depthwise convolution).")
    verbose: bool = option(
        False, group="log", env="RLX_VERBOSE", cache_key=False, help="Log each application of any pass.")
    env: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)

    def replace(self, **changes: Any) -> PassOptions:
        """A copy with options changed; text values are read as their type, unknown names explained."""
        return dataclasses.replace(self, **{k: coerce_option(PassOptions, k, v) for k, v in changes.items()})

    @classmethod
    def none(cls) -> PassOptions:
        """Every pass off."""
        return cls().replace(**{o.name: False for o in options_of(cls)})

    @classmethod
    def for_environment(cls, environ: Environ = None, **explicit: bool) -> PassOptions:
        """The defaults; the environment over them, read now, once; ``explicit`` over both."""
        values, read = env_overrides(cls, environ)
        return cls(env=read).replace(**{**values, **explicit})
