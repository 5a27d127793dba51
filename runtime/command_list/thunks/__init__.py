"""The thunk declarations, one module a family; importing this package fills the registry."""

from runtime.command_list.thunks import (
    adaln,
    attention,
    attention_backward,
    backward,
    blocked,
    conv,
    decode,
    elementwise,
    fused,
    host,
    losses,
    matmul,
    norm_backward,
    packed,
    packed_attention,
    pending,
    picks,
    random,
    reduce,
    region,
    scan,
    signal,
    structure,
    widened,
)

__all__ = [
    "adaln", "attention", "attention_backward", "backward", "blocked", "conv", "decode", "elementwise", "fused", "host", "losses",
    "matmul", "norm_backward", "packed", "packed_attention", "pending", "picks", "random", "reduce", "region", "scan", "signal",
    "structure", "widened",
]
