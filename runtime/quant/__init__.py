"""Packed weights at run time: blocks of rows dequantised into scratch, multiplied, forgotten.

The formats themselves, and their quantisers, are in ``planner_core.ir.packed``.
"""

from planner_core.ir.packed import OURS, dequantize, quantize, random_blocks
from runtime.quant.product import packed_matmul, packed_scratch

__all__ = ["OURS", "dequantize", "packed_matmul", "packed_scratch", "quantize", "random_blocks"]
