"""Owns ``OpenModel``: a model with dims left open, read once, bound any number of times, one copy of its weights.

Where shape arithmetic can name every extent there is a symbolic ``graph``; elsewhere each binding is imported anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from planner_core.errors import OpenDimError, UnboundDimError
from planner_core.importers.load import import_onnx, is_graph_file, load_model, names_of
from planner_core.importers.onnx_inputs import declared_dims
from planner_core.importers.onnx_read import OnnxFile, read_model
from planner_core.ir import Array, Dim, DimBinding, Graph

if TYPE_CHECKING:
    import onnx

__all__ = ["OpenModel"]


class OpenModel:
    """A model whose symbols ``keep`` (None: all that nothing binds) have no value yet.

    ``axes`` has the input axes that each symbol is found on. ``graph`` is symbolic, or None with ``reason`` saying which node needs a number. Raises as ``import_onnx``.
    """

    def __init__(self, model: str | Path | bytes | onnx.ModelProto | Graph, *, keep: Sequence[str] | None = None,
                 dims: Mapping[str, int] | None = None, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        self.graph: Graph | None = None
        self.reason = ""
        self._file: OnnxFile | None = None
        self._dims, self._shapes = dict(dims or {}), dict(shapes or {})
        self._weights: dict[str, Array] = {}
        if isinstance(model, Graph):
            self.graph = model.bind(self._dims) if self._dims else model
        elif isinstance(model, (str, Path)) and is_graph_file(model):
            self.graph = load_model(model, dims=dims, shapes=shapes)
        if self.graph is not None:
            missing = [s for s in names_of(keep or ()) if s not in self.graph.symbols]
            if missing:
                raise UnboundDimError(f"keep names {', '.join(missing)}, which {self.graph.name!r} has not open; it has "
                                      f"{', '.join(self.graph.symbols) or 'none'}")
            self.symbols = tuple(self.graph.symbols)
            self.name, self.axes = self.graph.name, _axes((self.graph[i].shape.dims for i in self.graph.inputs), self.symbols)
            return
        assert not isinstance(model, Graph)
        self._file = read_model(model)
        left = _file_dims(self._file, self._shapes)
        self.axes = _axes(left, sorted({n for row in left for d in row for n in d.names()} - self._dims.keys()))
        self.symbols = tuple(self.axes) if keep is None else names_of(keep)
        self.name = self._file.file or self._file.proto.graph.name
        try:
            self.graph = import_onnx(self._file, dims=dims, shapes=shapes, keep=self.symbols)
        except OpenDimError as e:
            self.reason = str(e)

    def __repr__(self) -> str:
        how = "symbolic" if self.graph is not None else "imported for each binding"
        return f"<OpenModel {self.name!r}: {', '.join(self.symbols)} open, {how}>"

    def bind(self, binding: DimBinding | Mapping[str, int]) -> Graph:
        """The graph with every open dim bound. ``UnboundDimError`` for a symbol left out, or one that isn't open."""
        values = binding.as_dict() if isinstance(binding, DimBinding) else dict(binding)
        missing, stray = [s for s in self.symbols if s not in values], sorted(values.keys() - set(self.symbols))
        if missing or stray:
            what = " and ".join([*([f"no value for {', '.join(missing)}"] if missing else []),
                                 *([f"{', '.join(stray)} {'is' if len(stray) == 1 else 'are'} not open"] if stray else [])])
            raise UnboundDimError(f"{self.name!r}: {what}; wanted a value for each of {', '.join(self.symbols) or 'no dims'}, e.g. "
                                  f"{', '.join(f'{s}=128' for s in self.symbols)}")
        if self.graph is not None:
            return self.graph.bind(DimBinding.of(values)) if values else self.graph
        assert self._file is not None
        made = import_onnx(self._file, dims={**self._dims, **values}, shapes=self._shapes)
        made.weights = {name: self._one_copy(name, a) for name, a in made.weights.items()}
        return made

    def _one_copy(self, name: str, a: Array) -> Array:
        """The array that another binding read for the param, where the bytes are the same."""
        kept = self._weights.setdefault(name, a)
        same = kept.dtype == a.dtype and kept.shape == a.shape and (kept is a or np.array_equal(kept, a))
        return kept if same else a


def _axes(rows: Iterable[Sequence[Dim]], symbols: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Axes of the inputs that each symbol is found on."""
    found: dict[str, set[int]] = {s: set() for s in symbols}
    for row in rows:
        for axis, d in enumerate(row):
            for n in d.names() if d.value is None else ():
                if n in found:
                    found[n].add(axis)
    return {s: tuple(sorted(axes)) for s, axes in found.items()}


def _file_dims(file: OnnxFile, shapes: Mapping[str, Sequence[int]]) -> list[list[Dim]]:
    """Dims of the inputs that no shape is given for."""
    given = {t.name for t in file.proto.graph.initializer} | shapes.keys()
    rows = [declared_dims(v.type.tensor_type) or [] for v in file.proto.graph.input
            if v.name not in given and v.type.HasField("tensor_type")]
    return [[Dim(None, a) if isinstance(a, str) else Dim(1) for a in row] for row in rows]
