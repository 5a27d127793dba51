"""Owns the switches that force host forms: which thunks a GPU executor must run on the host.

On the host executor every thunk runs on the host already, so there they change nothing but which passes apply.
"""

from __future__ import annotations

from runtime.command_list import CommandList
from runtime.passes.options import PassOptions

__all__ = ["FORCED", "host_forced"]

FORCED: dict[str, frozenset[str]] = {
    "host_fallback": frozenset({"narrow", "split_lastax"}),
    "gdn_host_fallback": frozenset({"gated_delta_net"}),
    "dequant_gpu_disable": frozenset({"dequant_matmul_gguf", "dequant_grouped_matmul_gguf"}),
}
"""Option -> labels of the thunks that it sends to the host."""


def host_forced(commands: CommandList, options: PassOptions) -> frozenset[int]:
    """Indices of the thunks that the options send to the host."""
    labels = frozenset[str]().union(*(v for k, v in FORCED.items() if getattr(options, k)))
    return frozenset(i for i, t in enumerate(commands.thunks) if t.label in labels)
