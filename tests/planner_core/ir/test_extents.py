"""Every op, every operand, one wrong extent: a ``GraphError`` that names the operand, or a result of the inferred shape.

No table of what is legal: what the shape rule accepts must evaluate (the indices are zeros, so that values don't matter). An
operand with an extent that is tied to another's must refuse at least one; the others are listed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from planner_core.errors import GraphError
from planner_core.ir import Array, Graph, Node, Shape
from planner_core.ir.op import Op
from tests.planner_core.ir.test_ops import EXAMPLES


def _operands(example: str) -> int:
    g = Graph()
    return len(g[EXAMPLES[example](g)].inputs)


NO_OPERANDS = {n for n in EXAMPLES if not _operands(n)} | {"Result"}  # which has its producer's bytes, no operand
FREE = {
    ("Activation", "x"), ("ArgReduce", "x"), ("Cast", "x"), ("Cumsum", "x"), ("CumsumBackward", "dy"), ("Fft", "x"),
    ("Gather", "x"), ("Gather", "indices"), ("GatherNd", "x"), ("GlobalPool", "x"), ("LayerNormBackwardBeta", "dy"), ("Reduce", "x"),
    ("ResizeNearest", "x"), ("Reverse", "x"), ("RmsNormBackwardBeta", "dy"), ("Sample", "logits"), ("Softmax", "x"),
    ("Transpose", "x"), ("Custom", "operands"), ("Im2Col", "x"),
}
"""Operands whose every extent stands for itself, as far as the example goes: nothing to be wrong."""


def names(n: Node) -> list[str]:
    """The operand's declared name, one each input."""
    declared = [o.rstrip("?*") for o in type(n.op).operands]
    return [declared[min(k, len(declared) - 1)] for k in range(len(n.inputs))]


def value(g: Graph, i: int) -> Array:
    n = g[i]
    if n.op.name == "Constant":
        return np.zeros_like(n.op.data.array)  # type: ignore[attr-defined]
    if n.op.name in ("Input", "Param"):
        full = np.full(n.shape.sizes, 0 if n.dtype.is_int else 0.5)
        return full.astype(n.dtype.numpy)
    return n.op.evaluate(*[value(g, k) for k in n.inputs])


def changed(shapes: list[Shape], k: int) -> Iterator[list[Shape]]:
    """One extent of operand k one more, one less, twice and one more, a third."""
    for axis, n in enumerate(shapes[k].sizes):
        for new in {n + 1, n - 1, 2 * n + 1, max(n // 3, 1)} - {n}:
            dims = list(shapes[k].sizes)
            dims[axis] = new
            yield [*shapes[:k], Shape.of(dims, shapes[k].dtype), *shapes[k + 1 :]]


def refused(op: Op, name: str, wrong: Shape, shapes: list[Shape], values: list[Array]) -> bool:
    """The shape rule names the operand, by its name or its shape; or what it accepts evaluates to what it says."""
    said = ""
    try:
        out = op.infer(*shapes)
    except GraphError as e:
        said = str(e).replace(op.name, "")
    if said:
        assert str(wrong) in said or re.search(rf"\b{name}\b", said), f"{op.name} {name} {wrong}: {said}"
        return True
    if type(op).evaluate is not Op.evaluate:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = op.evaluate(*values)
        assert got.shape == out.sizes, f"{op.name} {name} {wrong}: evaluates to {got.shape}, inferred {out}"
    return False


@pytest.mark.parametrize("example", sorted(set(EXAMPLES) - NO_OPERANDS))
def test_a_wrong_extent_is_refused_by_name_or_right_after_all(example: str) -> None:
    g = Graph()
    n = g[EXAMPLES[example](g)]
    shapes, values = [g[i].shape for i in n.inputs], [value(g, i) for i in n.inputs]
    told: dict[str, bool] = {}
    for k, name in enumerate(names(n)):
        for given in changed(shapes, k):
            at = [np.arange(size) % max(have, 1) for size, have in zip(given[k].sizes, shapes[k].sizes, strict=True)]
            cut = values[k][np.ix_(*at)] if at else values[k]
            made = refused(n.op, name, given[k], given, [*values[:k], cut, *values[k + 1 :]])
            told[name] = told.get(name, False) or made
    for name, some in told.items():
        assert some != ((example, name) in FREE), f"{example} {name}: {'refused' if some else 'any extent is accepted'}"
