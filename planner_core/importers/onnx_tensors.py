"""Owns ONNX element types and tensors: their DTypes, their data, memory-mapped where it is external."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.errors import ImportModelError
from planner_core.ir import Array, DType

if TYPE_CHECKING:
    import onnx

__all__ = ["STRING", "TensorReader", "dtype_of", "elem_type_of"]

STRING = 8  # TensorProto.STRING

_DTYPES: dict[int, DType] = {
    1: DType.F32, 2: DType.U8, 3: DType.I8, 4: DType.U16, 5: DType.I16, 6: DType.I32, 7: DType.I64,
    9: DType.BOOL, 10: DType.F16, 11: DType.F64, 12: DType.U32, 13: DType.U64, 14: DType.C64,
    16: DType.BF16, 17: DType.F8E4M3, 19: DType.F8E5M2, 21: DType.U4, 22: DType.I4,
}
_ELEM = {d: e for e, d in _DTYPES.items()}
_STAND_IN: dict[int, DType] = {18: DType.U8, 20: DType.U8, 23: DType.U4, 24: DType.U8, 25: DType.U4, 26: DType.U4,
                               27: DType.U8, 28: DType.U8, 15: DType.C64}


def dtype_of(elem: int) -> tuple[DType, bool]:
    """(DType, exact) of a TensorProto element type; inexact: the nearest width stands in, f32 where unknown."""
    found = _DTYPES.get(elem)
    return (found, True) if found is not None else (_STAND_IN.get(elem, DType.F32), False)


def elem_type_of(dtype: DType) -> int:
    """TensorProto element type of a DType."""
    return _ELEM[dtype]


class TensorReader:
    """Reads tensors of one model; external files are mapped once each and never copied."""

    def __init__(self, what: str, folder: Path | None) -> None:
        self.what = what
        self.folder = folder
        self._files: dict[Path, Any] = {}

    def array(self, t: onnx.TensorProto) -> Array | None:
        """The data; None for element types that have no DType here (strings, 2-bit…)."""
        from onnx import numpy_helper

        dtype, exact = dtype_of(t.data_type)
        if not exact:
            return None
        try:
            if t.data_location == 1:
                return self._external(t, dtype)
            array = numpy_helper.to_array(t)
        except ImportModelError:
            raise
        except Exception as e:  # numpy_helper raises whatever its parser meets
            raise ImportModelError(
                f"{self.what}: tensor {t.name!r} ({dtype}{list(t.dims)}) can't be read: {e}; "
                "the file is damaged, export or copy it again"
            ) from e
        return np.asarray(array, dtype=dtype.numpy)

    def _external(self, t: onnx.TensorProto, dtype: DType) -> Array:
        where = {e.key: e.value for e in t.external_data}
        location = where.get("location", "")
        if self.folder is None:
            raise ImportModelError(
                f"{self.what}: tensor {t.name!r} has its data in {location!r} beside the model file, and this model "
                "was given as bytes or an object; pass the file's path, or load the data first"
            )
        path = (self.folder / location).resolve()
        if not location or not path.is_relative_to(self.folder.resolve()):
            raise ImportModelError(
                f"{self.what}: tensor {t.name!r} names {location!r} as its data file; "
                "wanted a file in the model's folder"
            )
        if path not in self._files:
            if not path.is_file():
                raise ImportModelError(
                    f"{self.what}: external data file {location!r} is missing (tensor {t.name!r} is in it); "
                    f"put it beside the model, in {self.folder}"
                )
            self._files[path] = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        data = self._files[path]
        count = int(np.prod([int(d) for d in t.dims], dtype=np.int64))
        size, offset = dtype.nbytes(count), int(where.get("offset") or 0)
        if int(where.get("length") or size) != size or offset + size > len(data):
            raise ImportModelError(
                f"{self.what}: tensor {t.name!r} ({dtype}{list(t.dims)}, {size} bytes) wants bytes {offset} to "
                f"{offset + size} of {location!r}, which has {len(data)}; the data file is cut short or another model's"
            )
        raw = np.asarray(data[offset : offset + size])
        if dtype.bits == 4:
            raw = np.stack([raw & 0xF, raw >> 4], axis=-1).reshape(-1)[:count]
            if dtype is DType.I4:
                raw = (raw ^ 8).astype(np.int8) - np.int8(8)
            return raw.astype(dtype.numpy).reshape(tuple(t.dims))
        return raw.view(dtype.numpy).reshape(tuple(t.dims))

    def sparse(self, t: onnx.SparseTensorProto) -> Array | None:
        """A sparse tensor written out."""
        values, indices = self.array(t.values), self.array(t.indices)
        if values is None or indices is None:
            return None
        out = np.zeros(tuple(t.dims), values.dtype)
        out[np.unravel_index(indices, out.shape) if indices.ndim == 1 else tuple(indices.T)] = values
        return out
