"""The thunk declarations, one module a family; importing this package fills the registry."""

from runtime.command_list.thunks import (
    attention,
    conv,
    decode,
    elementwise,
    fused,
    host,
    matmul,
    packed,
    reduce,
    region,
    structure,
)

__all__ = [
    "attention", "conv", "decode", "elementwise", "fused", "host", "matmul", "packed", "reduce", "region", "structure",
]
