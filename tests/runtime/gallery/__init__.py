"""Graphs with inputs and independently computed outputs, at least one for every thunk; one module a family."""

from tests.runtime.gallery import attention, backward, elementwise, fused, norms, products, structure
from tests.runtime.gallery.base import CASES, Array, Case, case, one, ort, rand

__all__ = ["CASES", "Array", "Case", "attention", "backward", "case", "elementwise", "fused", "norms", "one", "ort", "products", "rand", "structure"]
