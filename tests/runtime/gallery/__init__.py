"""Graphs with inputs and independently computed outputs, at least one for every thunk; one module a family."""

from tests.runtime.gallery import attention, elementwise, fused, norms, products, structure
from tests.runtime.gallery.base import CASES, Array, Case, case, one, ort, rand

__all__ = ["CASES", "Array", "Case", "attention", "case", "elementwise", "fused", "norms", "one", "ort", "products", "rand", "structure"]
