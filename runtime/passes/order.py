"""Owns the order of the passes. Clusters come last: they would swallow the slices that other passes look for."""

from __future__ import annotations

from runtime.passes.base import CommandPass
from runtime.passes.clusters import NARROW_CLUSTERS
from runtime.passes.dense import DENSE_BROADCAST
from runtime.passes.depthwise import DEPTHWISE_CONV
from runtime.passes.gated_norm import GATED_NORM
from runtime.passes.mlp_combined import DECODE_MLP_COMBINED
from runtime.passes.mlp_separate import DECODE_MLP_SEPARATE
from runtime.passes.narrow_rope import NARROW_ROPE
from runtime.passes.regions import REGION_REWRITE
from runtime.passes.residual_norm import RESIDUAL_RMS_NORM

__all__ = ["PASSES"]

PASSES: tuple[CommandPass, ...] = (
    REGION_REWRITE, DENSE_BROADCAST, DECODE_MLP_COMBINED, DECODE_MLP_SEPARATE, RESIDUAL_RMS_NORM, GATED_NORM,
    DEPTHWISE_CONV, NARROW_ROPE, NARROW_CLUSTERS,
)
