"""Owns ``Source``: where the graphs of a sweep come from, by sizes. Sources travel to other processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from planner_core.errors import GraphError, RlxError
from planner_core.importers import import_onnx, load_model
from planner_core.ir import Graph
from planner_core.zoo import graphs_of, names
from planner_core.zoo.registry import require_params
from runtime.compile import Compilation
from runtime.template import Template

__all__ = ["FileSource", "GraphSource", "Source", "TemplateSource", "ZooSource", "is_zoo_name", "source_of"]


class Source(Protocol):
    """Graphs for values of names; several where a model is a pair (forward and backward)."""

    @property
    def name(self) -> str:
        """The model's name, for titles."""
        ...

    def graphs(self, values: Mapping[str, Any]) -> tuple[Graph, ...]:
        """The graphs for these values. Raises a ``RlxError`` for values that the model doesn't take."""
        ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """A model file (or the bytes of an ONNX model), imported with the values as dims."""

    name: str
    model: str | bytes

    def graphs(self, values: Mapping[str, Any]) -> tuple[Graph, ...]:
        dims = {k: _whole(k, v) for k, v in values.items()}
        return (import_onnx(self.model, dims=dims) if isinstance(self.model, bytes) else load_model(self.model, dims=dims),)


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph with open symbols."""

    graph: Graph

    @property
    def name(self) -> str:
        return self.graph.name

    def graphs(self, values: Mapping[str, Any]) -> tuple[Graph, ...]:
        return (self.graph.bind({k: _whole(k, v) for k, v in values.items()}),)


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template with symbolic dims or one that imports each binding."""

    template: Template

    @property
    def name(self) -> str:
        return self.template.name

    def graphs(self, values: Mapping[str, Any]) -> tuple[Graph, ...]:
        return (self.template.bound(**{k: _whole(k, v) for k, v in values.items()}),)


@dataclass(frozen=True, slots=True)
class ZooSource:
    """A graph of the zoo; the values are its parameters."""

    name: str

    def graphs(self, values: Mapping[str, Any]) -> tuple[Graph, ...]:
        return graphs_of(self.name, **values)


def is_zoo_name(model: Any) -> bool:
    """A zoo graph's name that is no file's path."""
    return isinstance(model, str) and model in names() and not Path(model).exists()


def source_of(model: Any, wanted: Iterable[str]) -> Source:
    """The source of a model for values of the names ``wanted``. ``RlxError`` for names that the model doesn't have, where that
    is known before anything is imported."""
    wanted = list(wanted)
    if is_zoo_name(model):
        require_params(model, wanted)
        return ZooSource(model)
    if isinstance(model, (str, Path)):
        return FileSource(Path(model).name, str(model))
    if hasattr(model, "SerializeToString"):
        return FileSource(model.graph.name or "ONNX model", model.SerializeToString())
    if isinstance(model, (Graph, Template)):
        have = tuple(model.symbols)
        stray, missing = [w for w in wanted if w not in have], [s for s in have if s not in wanted]
        if stray or missing:
            raise GraphError(f"{model.name!r}: " + (f"no open dim {', '.join(stray)}" if stray else f"no values for {', '.join(missing)}")
                             + f"; it has {', '.join(have) or 'none'} open, each wants a number or a list")
        return GraphSource(model) if isinstance(model, Graph) else TemplateSource(model)
    if isinstance(model, Compilation):
        raise RlxError("a Compilation has its dims bound; sweep the graph or the file")
    raise RlxError(f"can't sweep a {type(model).__name__}; wanted a path, an onnx.ModelProto, a Graph, a Template or a zoo name")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise GraphError(f"dim {name!r} is given as {value!r}; wanted an int of 1 or more")
    return int(value)
