"""Owns element types: names, widths and NumPy equivalents. Shapes carry one (``shape.py``)."""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from planner_core.errors import GraphError

__all__ = ["DType", "QuantScheme"]


class DType(Enum):
    """An element type. Value: ``(text name, bits per element, NumPy scalar type)``.

    Sub-byte types hold one element per byte in NumPy and pack in storage: ``n`` elements take
    ``ceil(n * bits / 8)`` bytes.
    """

    F64 = ("f64", 64, np.float64)
    F32 = ("f32", 32, np.float32)
    F16 = ("f16", 16, np.float16)
    BF16 = ("bf16", 16, ml_dtypes.bfloat16)
    F8E4M3 = ("f8e4m3", 8, ml_dtypes.float8_e4m3fn)
    F8E5M2 = ("f8e5m2", 8, ml_dtypes.float8_e5m2)
    I64 = ("i64", 64, np.int64)
    I32 = ("i32", 32, np.int32)
    I16 = ("i16", 16, np.int16)
    I8 = ("i8", 8, np.int8)
    I4 = ("i4", 4, ml_dtypes.int4)
    U64 = ("u64", 64, np.uint64)
    U32 = ("u32", 32, np.uint32)
    U16 = ("u16", 16, np.uint16)
    U8 = ("u8", 8, np.uint8)
    U4 = ("u4", 4, ml_dtypes.uint4)
    BOOL = ("bool", 8, np.bool_)
    C64 = ("c64", 64, np.complex64)

    def __init__(self, text: str, bits: int, scalar: type[Any]) -> None:
        self.text = text
        self.bits = bits
        self.numpy: np.dtype[Any] = np.dtype(scalar)
        self.is_float = text[0] in "fb" and text != "bool"
        self.is_int = text[0] in "iu"
        self.is_half = text in ("f16", "bf16")

    def nbytes(self, elements: int) -> int:
        """``ceil(elements * bits / 8)``."""
        return -(-elements * self.bits // 8)

    @classmethod
    def parse(cls, text: str) -> DType:
        """The member whose text name is ``text``; ``GraphError`` lists the names otherwise."""
        found = _BY_TEXT.get(text)
        if found is None:
            raise GraphError(f"unknown dtype {text!r}; wanted one of {', '.join(_BY_TEXT)}")
        return found

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> DType:
        """The member equal to a NumPy dtype; ``GraphError`` where there is none."""
        found = _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
        if found is None:
            raise GraphError(f"no IR dtype for NumPy's {dtype}; wanted one of {', '.join(_BY_TEXT)}")
        return found

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.text


_BY_TEXT = {d.text: d for d in DType}
_BY_NUMPY = {d.numpy: d for d in DType}


class QuantScheme(Enum):
    """A packed weight format. Value: ``(text name, elements per block, bytes per block)``.

    Source: the GGUF type table (ggml); Q1_0 and Q2_0 are this project's 128-element blocks.
    Packed weights are ``u8`` params of ``elements / block * bytes`` bytes.
    """

    Q4_0 = ("q4_0", 32, 18)
    Q4_1 = ("q4_1", 32, 20)
    Q5_0 = ("q5_0", 32, 22)
    Q5_1 = ("q5_1", 32, 24)
    Q8_0 = ("q8_0", 32, 34)
    Q2_K = ("q2_k", 256, 84)
    Q3_K = ("q3_k", 256, 110)
    Q4_K = ("q4_k", 256, 144)
    Q5_K = ("q5_k", 256, 176)
    Q6_K = ("q6_k", 256, 210)
    Q1_0 = ("q1_0", 128, 18)
    Q2_0 = ("q2_0", 128, 34)

    def __init__(self, text: str, block: int, block_bytes: int) -> None:
        self.text = text
        self.block = block
        self.block_bytes = block_bytes

    def row_bytes(self, k: int) -> int:
        """Bytes of one packed row of ``k`` elements: ``ceil(k / block) * block_bytes``."""
        return -(-k // self.block) * self.block_bytes

    def __repr__(self) -> str:
        return f"QuantScheme.{self.name}"

    def __str__(self) -> str:
        return self.text
