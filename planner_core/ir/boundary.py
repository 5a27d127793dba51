"""Owns what enters a graph from outside: inputs, params, constants, and further results of an op."""

from __future__ import annotations

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.op import Array, Op, TensorData, op
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait


@op(family="boundary", traits=(Trait.BOUNDARY, Trait.NAMED), rows=rows.anywhere)
class Input(Op):
    """A tensor the caller gives for every run; its node's name is the key in ``run({...})``."""

    shape: Shape

    def infer(self, *ins: Shape) -> Shape:
        return self.shape


@op(family="boundary", traits=(Trait.BOUNDARY, Trait.NAMED, Trait.STORED), rows=rows.anywhere)
class Param(Op):
    """A weight: set once, read by every run; ``Graph.weights`` may hold its data under the node's name."""

    shape: Shape

    def infer(self, *ins: Shape) -> Shape:
        return self.shape


@op(family="boundary", traits=(Trait.BOUNDARY, Trait.STORED))
class Constant(Op):
    """A value written into the graph itself."""

    data: TensorData

    def infer(self, *ins: Shape) -> Shape:
        return Shape.of(self.data.array.shape, self.data.dtype)

    def evaluate(self, *ins: Array) -> Array:
        return self.data.array


@op(family="boundary", operands="of")
class Result(Op):
    """Output ``index`` (1, 2, …) of a node with several outputs; output 0 is that node itself.

    It owns bytes of its own, written when ``of`` runs: its live range starts at ``of``'s step.
    """

    index: int
    shape: Shape

    def infer(self, *ins: Shape) -> Shape:
        if self.index < 1:
            raise GraphError(f"Result index {self.index}: wanted 1 or more (output 0 is the node itself)")
        return self.shape
