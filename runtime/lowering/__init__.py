"""Planned graph to command list. Frame: ``core.py``; one module a family of ops."""

from runtime.lowering import backward, compute, control, conv, elementwise, fused, packed, signal, structure, transposed
from runtime.lowering.core import Lowering, how_lowered, lower_graph, lowers
from runtime.lowering.options import LowerOptions

__all__ = ["LowerOptions", "Lowering", "backward", "compute", "control", "conv", "elementwise", "fused", "how_lowered", "lower_graph",
           "lowers", "packed", "signal", "structure", "transposed"]
