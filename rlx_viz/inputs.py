"""Owns what a run takes and gives: arrays in files, inputs and weights that nobody gave, the check that it fits."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping

import numpy as np

from planner_core.errors import RlxError
from planner_core.ir import Array, DType, Graph, write_atomically
from planner_core.units import bytes_text
from runtime.compile import Compilation
from runtime.executors import HostExecutor

__all__ = ["fill_params", "filled_inputs", "random_inputs", "read_arrays", "require_memory", "write_arrays"]


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Normal floats and integers 0 or 1 (any index is then in range) for every input."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for i in graph.inputs:
        n = graph[i]
        if n.dtype.is_float:
            out[n.name] = rng.standard_normal(n.shape.sizes).astype(n.dtype.numpy)
        else:
            out[n.name] = rng.integers(0, 2, n.shape.sizes).astype(n.dtype.numpy)
    return out


def filled_inputs(graph: Graph, given: Mapping[str, Array] | None, seed: int = 0) -> dict[str, Array]:
    """The given arrays, random ones for the inputs without."""
    return {**random_inputs(graph, seed), **(given or {})}


def fill_params(executor: HostExecutor, seed: int = 0) -> int:
    """Small random values (zeros for integers and packed weights) for every param without data; how many they were.

    Enough to time and audit a plan, whose bytes do not depend on values.
    """
    rng = np.random.default_rng(seed)
    missing = list(executor.weight_buffer.missing)
    params = {p.name: p for p in executor.commands.params}
    for name in missing:
        p = params[name]
        shape, dtype = p.operand.shape, p.dtype.numpy
        floats = p.dtype.is_float and np.dtype(dtype).itemsize > 1
        executor.set_param(name, (rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)).astype(dtype) if floats
                           else np.zeros(shape, dtype=dtype))
    return len(missing)


def read_arrays(path: str, graph: Graph) -> dict[str, Array]:
    """The arrays of an .npz by input name, each in its input's dtype.

    NumPy's files know no bf16, f8 or 4-bit type: their inputs may come as raw elements of the same width (what
    ``numpy.savez`` makes of them) or in another type that holds the same values (what ``write_arrays`` makes).
    ``RlxError`` names the file and the input whose values its dtype can't hold.
    """
    how = "wanted an .npz with one array an input (numpy.savez(path, name=array))"
    try:
        data = np.load(path, allow_pickle=False)
        if isinstance(data, np.ndarray):
            raise RlxError(f"--inputs {path}: a single array; {how}")
        with data:
            arrays = {k: data[k] for k in data.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
        what = e.strerror if isinstance(e, OSError) and e.strerror else f"not an .npz file ({e})"
        raise RlxError(f"--inputs {path}: {what}; {how}") from e
    wanted = {graph[i].name: graph[i] for i in graph.inputs}
    if wanted and not arrays:
        raise RlxError(f"--inputs {path}: it holds no array; wanted " + ", ".join(
            f"{name} ({n.dtype}{list(n.shape.sizes)})" for name, n in wanted.items()))
    return {k: _in_dtype(path, k, a, wanted[k].dtype) if k in wanted else a for k, a in arrays.items()}


def _in_dtype(path: str, name: str, a: Array, dtype: DType) -> Array:
    """``a`` in an input's dtype, where every value stays what it is."""
    kind = np.dtype(dtype.numpy)
    if a.dtype == kind or kind.isbuiltin == 1:  # NumPy's own types are taken as they are
        return a
    if a.dtype.kind == "V" and a.dtype.itemsize == kind.itemsize:
        return a.view(kind)
    with np.errstate(all="ignore"):
        got = a.astype(kind)
        if not np.array_equal(got.astype(np.float64), a.astype(np.float64), equal_nan=True):
            raise RlxError(f"--inputs {path}: {name} is {a.dtype} and holds values that its input's {dtype} can't; round it first "
                           f"(array.astype({kind.name!r}) with ml_dtypes imported)")
    return got


def write_arrays(path: str, arrays: Mapping[str, Array]) -> dict[str, np.dtype]:
    """Write an .npz that plain NumPy reads, and the dtype each array has in it: bf16, f8 and 4-bit values go in the
    smallest of float32, int8 and uint8 that holds every one of them."""
    stored = {k: a if a.dtype.isbuiltin == 1 else a.astype(_plain(a.dtype)) for k, a in arrays.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # as numpy.savez, which has no array named "file" or "allow_pickle"
        for name, a in stored.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, a, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
    return {k: a.dtype for k, a in stored.items()}


def _plain(dtype: np.dtype) -> np.dtype:
    return next(np.dtype(t) for t in (np.uint8, np.int8, np.float32) if np.can_cast(dtype, t))


def require_memory(c: Compilation) -> None:
    """``RlxError`` when a run would take more than the machine has free; silent where that can't be told."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    if c.allocate_bytes > free:
        raise RlxError(f"a run takes {bytes_text(c.allocate_bytes)}, and {bytes_text(free)} are free here; run a smaller model "
                       "(fewer layers, a shorter sequence), or run on a larger machine with `rlx-viz run`")
