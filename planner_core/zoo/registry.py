"""Owns the zoo's registry: model graphs by name, each a function with keyword parameters."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, Literal, overload

from planner_core.errors import GraphError
from planner_core.ir import Graph

__all__ = ["build", "describe", "graphs_of", "names", "require_name", "zoo"]

Builder = Callable[..., Any]
"""Makes a ``Graph``, or a pair of them: forward and backward."""

_ZOO: dict[str, Builder] = {}


def zoo(name: str) -> Callable[[Builder], Builder]:
    """Register a builder: its docstring's first line is the description, its keyword parameters (all with
    defaults) are the model's. Fails at import without them, or when the name is taken."""

    def declare(function: Builder) -> Builder:
        if name in _ZOO:
            raise TypeError(f"zoo graph {name!r} is declared twice")
        if not function.__doc__:
            raise TypeError(f"zoo graph {name!r}: a docstring is required")
        bare = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if bare:
            raise TypeError(f"zoo graph {name!r}: parameters {bare} need defaults")
        _ZOO[name] = function
        return function

    return declare


def names() -> list[str]:
    """The graphs that ``build`` knows, sorted."""
    return sorted(_ZOO)


def require_name(name: str) -> Builder:
    """The builder of that name; ``GraphError`` lists what exists."""
    if name not in _ZOO:
        near = difflib.get_close_matches(name, _ZOO, 1)
        raise GraphError(f"no zoo graph {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
                         + f" It has: {', '.join(names())}")
    return _ZOO[name]


def describe(name: str) -> str:
    """What the graph is, then one line a parameter with its default."""
    function = require_name(name)
    first = inspect.cleandoc(function.__doc__ or "").splitlines()[0]
    params = [f"  {p.name} = {p.default!r}" for p in inspect.signature(function).parameters.values()]
    return "\n".join([f"{name}: {first}", *params])


@overload
def build(name: Literal["matmul-train"], **params: Any) -> tuple[Graph, Graph]: ...
@overload
def build(name: str, **params: Any) -> Graph: ...
def build(name: str, **params: Any) -> Any:
    """The graph of that name (``matmul-train``: the pair, forward and backward).

    ``GraphError`` lists what exists where a name or parameter doesn't.
    """
    function = require_name(name)
    known = inspect.signature(function).parameters
    unknown = sorted(params.keys() - known.keys())
    if unknown:
        raise GraphError(f"zoo graph {name!r} has no parameter {', '.join(unknown)}; it has: {', '.join(known)}")
    return function(**params)


def graphs_of(name: str, **params: Any) -> tuple[Graph, ...]:
    """``build``, always as a tuple: one graph, or forward and backward."""
    made: Any = build(name, **params)
    return made if isinstance(made, tuple) else (made,)
