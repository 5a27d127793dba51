"""Graphs with inputs and independently computed outputs, at least one for every thunk; one module a family."""

from tests.runtime.gallery import (
    attention,
    backward,
    elementwise,
    fused,
    norms,
    products,
    signal,
    structure,
    weights,
    widened,
)
from tests.runtime.gallery.base import AS_WRITTEN, CASES, Array, Case, as_written, case, one, ort, rand

__all__ = [
    "AS_WRITTEN", "CASES", "Array", "Case", "as_written", "attention", "backward", "case", "elementwise", "fused", "norms", "one",
    "ort", "products", "rand", "signal", "structure", "weights", "widened",
]
