"""Owns ops with nested graphs (If, Loop, Scan) and the user's or importer's opaque ``Custom``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner_core.errors import GraphError
from planner_core.ir.op import Op, op
from planner_core.ir.shape import Shape
from planner_core.ir.traits import Trait

if TYPE_CHECKING:
    from planner_core.ir.graph import Graph


def _fit(op: str, body: Graph, first: int, given: tuple[Shape, ...], of: str = "operand") -> None:
    """Refuse operands (or slices ``of`` some) that aren't what the body's inputs from ``first`` on are."""
    for i, x in zip(body.inputs[first:], given, strict=True):
        want = body[i].shape
        if x.dtype is not want.dtype or (x.rank == want.rank and any(a.clashes(b) for a, b in zip(x.dims, want.dims, strict=True))):
            raise GraphError(f"{op} {of} {x}: wanted {want}, as input {body[i].name!r} of body {body.name!r}")


@op(family="control", operands="cond captured*", traits=(Trait.STATEFUL, Trait.MANY_RESULTS))
class If(Op):
    """One of two bodies. Their ``Input``s are the captured operands in order; output i is theirs, further
    outputs are ``Result`` nodes. Planned as scratch of the larger body's arena."""

    shape: Shape
    then_body: Graph
    else_body: Graph

    def infer(self, *ins: Shape) -> Shape:
        for body in self.bodies():
            if len(body.inputs) != len(ins) - 1:
                raise GraphError(f"If body {body.name!r} has {len(body.inputs)} inputs for {len(ins) - 1} captures")
            _fit("If", body, 0, ins[1:])
        return self.shape

    def bodies(self) -> tuple[Graph, ...]:
        return (self.then_body, self.else_body)

    @property
    def body_names(self) -> tuple[str, ...]:
        return ("then", "else")


@op(family="control", operands="operands*", traits=(Trait.STATEFUL, Trait.MANY_RESULTS))
class Loop(Op):
    """ONNX Loop: operands are trip count, condition, ``carried`` states, then captures.

    Body inputs: iteration, condition, states, captures; outputs: condition, states, then scan outputs.
    """

    shape: Shape
    body: Graph
    carried: int

    def infer(self, *ins: Shape) -> Shape:
        if len(self.body.inputs) != len(ins):
            raise GraphError(f"Loop body {self.body.name!r} has {len(self.body.inputs)} inputs for {len(ins)} operands")
        _fit("Loop", self.body, 2, ins[2:])
        return self.shape

    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def body_inputs(self) -> int:
        return 2 + self.carried


@op(family="control", operands="operands*", traits=(Trait.STATEFUL, Trait.MANY_RESULTS))
class Scan(Op):
    """ONNX Scan: operands are ``carried`` states, scanned sequences, then captures; the body sees one slice
    of each sequence; outputs are the final states, then the stacked scan outputs.

    Axis and direction, one per sequence or scan output; empty: axis 0, first to last.
    """

    shape: Shape
    body: Graph
    carried: int
    scanned: int
    input_axes: tuple[int, ...] = ()
    output_axes: tuple[int, ...] = ()
    input_reversed: tuple[bool, ...] = ()
    output_reversed: tuple[bool, ...] = ()

    def infer(self, *ins: Shape) -> Shape:
        if len(self.body.inputs) != len(ins):
            raise GraphError(f"Scan body {self.body.name!r} has {len(self.body.inputs)} inputs for {len(ins)} operands")
        outputs = len(self.body.outputs) - self.carried
        for what, given, count in (("input_axes", self.input_axes, self.scanned), ("input_reversed", self.input_reversed, self.scanned),
                                   ("output_axes", self.output_axes, outputs), ("output_reversed", self.output_reversed, outputs)):
            if given and len(given) != count:
                raise GraphError(f"Scan {what} {given}: wanted none, or one of each of {count} "
                                 f"{'sequences' if what[0] == 'i' else 'scan outputs'}")
        turns = None
        for k, (x, axis) in enumerate(zip(ins[self.carried :][: self.scanned], self.input_axes or (0,) * self.scanned, strict=True)):
            extent = x.dims[x.axis(axis)]
            if turns is not None and not extent.same(turns) and None not in (extent.value, turns.value):
                raise GraphError(f"Scan sequence {k} {x} has {extent} slices along axis {axis}; sequence 0 has {turns}")
            turns = turns or extent
        axes = self.input_axes or (0,) * self.scanned
        seen = [x.with_dims(d for i, d in enumerate(x.dims) if i != x.axis(a))
                for x, a in zip(ins[self.carried :][: self.scanned], axes, strict=True)]
        _fit("Scan", self.body, 0, (*ins[: self.carried], *seen, *ins[self.carried + self.scanned :]),
             f"of operands {', '.join(map(str, ins))}:")
        return self.shape

    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def body_inputs(self) -> int:
        return self.carried + self.scanned


@op(family="custom", operands="operands*", traits=(Trait.STATEFUL, Trait.MANY_RESULTS))
class Custom(Op):
    """An op by name, opaque to the planner: its output ``shape`` is declared, its kernel (if any) is
    registered with the runtime. ``onnx.*`` names are ops that the importer kept as they were; ``attrs`` is
    JSON text."""

    op_name: str
    shape: Shape
    num_inputs: int = -1
    num_outputs: int = 1
    attrs: str = "{}"

    def infer(self, *ins: Shape) -> Shape:
        if self.num_inputs not in (-1, len(ins)):
            raise GraphError(f"Custom {self.op_name!r} got {len(ins)} operands, wanted {self.num_inputs}")
        return self.shape

    @property
    def detail(self) -> str:
        return self.op_name
