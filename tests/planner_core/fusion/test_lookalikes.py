"""Graphs that look like a pattern and compute something else: whatever a pipeline does to them, the numbers stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner_core.fusion import FusionTarget, fusion_for_target
from planner_core.ir import Graph
from tests.planner_core.fusion.harness import same

H, D = 2, 4


def chunks(layout: str) -> Graph:
    """One packed projection of 6 rows, attended to in 2 chunks of 3."""
    g = Graph("chunks")
    x = g.input("x", (1, 6, 3 * H * D))
    if layout == "narrow":
        parts = [g.reshape(g.narrow(x, axis=2, start=i * H * D, len=H * D), dims=(2, 3, H, D)) for i in range(3)]
    elif layout == "five axes":
        wide = g.reshape(x, dims=(1, 6, 3, H, D))
        parts = [g.reshape(g.narrow(wide, axis=2, start=i, len=1), dims=(2, 3, H, D)) for i in range(3)]
    else:
        wide = g.transpose(g.reshape(x, dims=(1, 6, 3, H, D)), perm=(2, 0, 3, 1, 4))
        parts = [g.reshape(g.narrow(wide, axis=0, start=i, len=1), dims=(2, 2, 3, D)) for i in range(3)]
    how = "bhsd" if layout == "heads first" else "bshd"
    return g.set_outputs(g.attention(*parts, num_heads=H, head_dim=D, layout=how))


def merged(batch: int, heads: int) -> Graph:
    """Heads merged into the batch on the way in, split as (batch, heads) on the way out."""
    g = Graph("merged")
    rows = 3

    def operand(name: str) -> int:
        return g.reshape(g.transpose(g.input(name, (2, rows, 2, D)), perm=(0, 2, 1, 3)), dims=(4, rows, D))

    p = g.softmax(g.mm(operand("q"), g.transpose(operand("k"), perm=(0, 2, 1))), axis=-1)
    return g.set_outputs(g.transpose(g.reshape(g.mm(p, operand("v")), dims=(batch, heads, rows, D)), perm=(0, 2, 1, 3)))


def crossed_maximum() -> Graph:
    """On a square, the rows' largest values stand beside the columns."""
    g = Graph("crossed")
    x = g.input("x", (4, 4))
    e = g.exp(g.sub(x, g.reduce_max(x, axes=(1,))))
    return g.set_outputs(g.div(e, g.reduce_sum(e, axes=(1,), keepdims=True)))


def empty_chain() -> Graph:
    g = Graph("empty chain")
    x, y = g.input("x", (0, 4)), g.input("y", (0, 4))
    return g.set_outputs(g.relu(g.neg(g.add(x, y))))


CASES: dict[str, Callable[[], Graph]] = {
    **{f"chunks, {layout}": (lambda layout=layout: chunks(layout)) for layout in ("narrow", "five axes", "heads first")},  # type: ignore[misc]
    **{f"merged {b} x {h}": (lambda b=b, h=h: merged(b, h)) for b, h in ((2, 2), (1, 4), (4, 1))},  # type: ignore[misc]
    "crossed maximum": crossed_maximum,
    "empty chain": empty_chain,
}


@pytest.mark.parametrize("target", [FusionTarget.CPU, FusionTarget.METAL], ids=lambda t: t.value)
@pytest.mark.parametrize("name", CASES)
def test_numbers_stay(name: str, target: FusionTarget) -> None:
    f = same(CASES[name](), target=target, options=fusion_for_target(target))
    if name == "empty chain":
        assert f.log.dispatches_saved == 0
    if name == "merged 2 x 2":
        assert f.log.applied("attention")
