"""Owns the zoo's registry: model graphs by name, each a function with keyword parameters."""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, overload

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import Graph

__all__ = ["build", "describe", "graphs_of", "names", "require_name", "require_params", "zoo"]

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
        raise GraphError(f"no zoo graph {name!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
                         + f" It has: {', '.join(names())}")
    return _ZOO[name]


def require_params(name: str, params: Iterable[str]) -> Mapping[str, inspect.Parameter]:
    """The builder's parameters; ``GraphError`` for others that ``params`` names."""
    known = inspect.signature(require_name(name)).parameters
    unknown = sorted(set(params) - known.keys())
    if unknown:
        raise GraphError(f"zoo graph {name!r} has no parameter {', '.join(unknown)}; it has: {', '.join(known)}")
    return known


_MAY_BE_NONE = frozenset({"past"})
"""Sizes that may be 0 though their default isn't."""


def _value(name: str, parameter: inspect.Parameter, value: Any) -> Any:
    """``value`` as the parameter's own type, that of its default; integers of other libraries are integers."""
    want = type(parameter.default)
    if want is int and not isinstance(value, (bool, np.bool_)) and hasattr(value, "__index__"):
        number, least = operator.index(value), int(parameter.default > 0 and parameter.name not in _MAY_BE_NONE)
        if number < least:
            raise GraphError(f"{name}: {parameter.name}={number}: wanted {least} or more")
        return number
    if type(value) is not want:
        raise GraphError(f"{name}: {parameter.name}={value!r}: wanted {want.__name__}, like its default {parameter.default!r}")
    return value


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

    ``GraphError`` lists what exists where a name or parameter doesn't, and names a value of the wrong type.
    """
    known = require_params(name, params)
    return require_name(name)(**{k: _value(name, known[k], v) for k, v in params.items()})


def graphs_of(name: str, **params: Any) -> tuple[Graph, ...]:
    """``build``, always as a tuple: one graph, or forward and backward."""
    made: Any = build(name, **params)
    return made if isinstance(made, tuple) else (made,)
