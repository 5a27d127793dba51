"""Owns ``Template``: a model with dims left open, compiled for any values of them, one copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner_core.errors import UnboundDimError
from planner_core.importers.open_model import OpenModel
from planner_core.ir import Graph
from runtime.compile import Compilation, CompileOptions, compile_graph

__all__ = ["Template"]


class Template:
    """A model whose ``symbols`` are open. ``template.at(seq=128)`` compiles it for a length.

    ``graph`` is the symbolic graph, None where each binding is imported anew (``reason`` says for which node).
    ``changes`` are options by name over the target's presets, as ``Compilation.with_options`` takes them.
    """

    def __init__(self, model: OpenModel, target: str = "cpu", changes: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.target = target
        self.changes = dict(changes or {})

    def __repr__(self) -> str:
        return (f"<Template {self.name!r} for {self.target}: {', '.join(self.symbols)} open>\n"
                f".at({', '.join(f'{s}=128' for s in self.symbols)}) compiles it")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def symbols(self) -> tuple[str, ...]:
        """Dims without a value."""
        return self.model.symbols

    @property
    def graph(self) -> Graph | None:
        """The symbolic graph, if there is one."""
        return self.model.graph

    @property
    def reason(self) -> str:
        """Which node needs a number, where there is no symbolic graph."""
        return self.model.reason

    def bound(self, **dims: int) -> Graph:
        """The graph for these values; ``UnboundDimError`` for a symbol left out, or one that isn't open."""
        return self.model.bind(dims)

    def at(self, **dims: int) -> Compilation:
        """The model compiled for these values, its weights those of every other binding."""
        graph = self.model.bind(dims)
        return compile_graph(graph, CompileOptions.for_target(self.target, graph, **self.changes))

    def build(self, dim: str = "", **others: int) -> Callable[[int], Graph]:
        """What a cache of buckets takes for ``build``: extent of ``dim`` (the one that ``others`` leave open) to graph.

        ``cache.get_or_compile(key, template.build("seq", batch=1))``. ``UnboundDimError`` where more than one is left.
        """
        name = self.the_dim(dim, others)
        return lambda extent: self.model.bind({**others, name: extent})

    def the_dim(self, dim: str, others: Mapping[str, int]) -> str:
        """The symbol that varies: ``dim``, or the only one that ``others`` leave open."""
        left = [s for s in self.symbols if s not in others]
        if (dim or len(left) != 1) and left != [dim]:
            raise UnboundDimError(f"{self.name!r}: {', '.join(left) or 'no dim'} left open" + (f", not {dim!r} alone" if dim else "")
                                  + "; name the dim that buckets are of, and give each other one a value")
        return left[0]
