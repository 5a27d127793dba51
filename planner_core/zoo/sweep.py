"""Owns ``sweep``: one plan for each combination of sizes, as rows. Frame and figure: ``rlx_viz``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from planner_core.errors import GraphError
from planner_core.fusion import fuse_graph
from planner_core.ir import Graph
from planner_core.memory import PlanOptions, headline, plan_graph
from planner_core.target import Target
from planner_core.zoo.registry import graphs_of, require_params

__all__ = ["SweepRow", "sweep"]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One size: the values it was planned at, then bytes. ``allocate`` counts weights, arena and the scratch of bodies;
    what kernels need beside is known once commands are lowered (``rlx_viz.sweep``)."""

    binding: tuple[tuple[str, Any], ...]
    arena: int
    bound: int
    allocate: int

    def __getitem__(self, name: str) -> Any:
        """The value of a swept name."""
        return dict(self.binding)[name]


def _maker(model: str | Graph, dims: dict[str, list[Any]]) -> Callable[..., tuple[Graph, ...]]:
    if isinstance(model, Graph):
        missing = sorted(model.symbols.keys() - dims.keys())
        if missing:
            raise GraphError(f"{model.name!r} needs values for {', '.join(missing)} too: each a number or a list")
        return lambda **values: (model.bind(values),)
    require_params(model, dims)
    return lambda **values: graphs_of(model, **values)


def sweep(model: str | Graph, options: PlanOptions | None = None, target: Target | str = Target.CPU, **dims: Any) -> list[SweepRow]:
    """Arena, lower bound and bytes to allocate for every combination of ``dims``, the last varying fastest: the arena and the
    weights of ``rlx_viz.compile(zoo.build(model, …), target=target)``.

    ``model``: a zoo name, whose parameters the dims are, or a graph, whose symbols they are. A dim is a list
    of values or one value. A training pair gives two rows a combination, told apart by ``graph``, its last name.
    ``options`` None: the target's preset. The graph is fused as the target fuses it.
    Raises ``GraphError`` for a name that the model doesn't have, a value it can't take, a symbol left out.
    """
    values = {k: list(v) if isinstance(v, Iterable) and not isinstance(v, str) else [v] for k, v in dims.items()}
    make = _maker(model, values)
    rows = []
    for point in itertools.product(*values.values()):
        binding = dict(zip(values, point, strict=True))
        graphs = make(**binding)
        for graph in graphs:
            plan = plan_graph(fuse_graph(graph, target).graph, options or PlanOptions.for_target(target, graph))
            which = (("graph", graph.name),) if len(graphs) > 1 else ()
            rows.append(SweepRow((*binding.items(), *which), plan.arena_size, plan.lower_bound, headline(plan).allocate))
    return rows
