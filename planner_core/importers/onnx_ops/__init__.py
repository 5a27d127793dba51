"""The ONNX op handlers, one module a family; importing this package fills the registry in ``onnx_call``."""

from planner_core.importers.onnx_ops import (  # noqa: F401
    control,
    convolution,
    elementwise,
    indexing,
    matmul,
    norm,
    pooling,
    quantised,
    reduction,
    resize,
    shapes,
    structure,
)
