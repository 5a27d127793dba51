"""What every fusion test goes through: float64 evaluation, the invariants of a fused graph, and case tables.

``same(graph, ...)`` fuses with the given rules and checks that numbers, names and shapes stay, that a second run
changes nothing, that the fused graph validates and that its plan passes both checkers. Modules of this folder declare
``APPLIED`` and ``REFUSED`` tables; ``test_registry.py`` compares them with the rules' declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner_core.fusion import RULES, Fusion, FusionOptions, FusionTarget, Refusal, fuse_graph, no_fusion
from planner_core.fusion.pipeline import PIPELINE_REASONS
from planner_core.ir import Array, Graph
from planner_core.ir.validate import validate
from planner_core.memory import PlanOptions, plan_graph
from tests.planner_core.memory.checker import checked

Build = Callable[[], Graph]


@dataclass(frozen=True)
class Applied:
    """``rule`` applies ``times`` to what ``build`` makes; ``gone`` ops are in no fused graph, ``made`` ones are."""

    rule: str
    build: Build
    made: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    times: int = 1
    target: FusionTarget = FusionTarget.CPU
    decode_forms: bool = True
    id: str = ""
    rtol: float = 1e-9
    """Looser where a pattern holds irrational constants, rounded to f32."""


@dataclass(frozen=True)
class Refused:
    """``rule`` looks at what ``build`` makes and stops for ``reason``."""

    rule: str
    reason: Refusal
    build: Build
    target: FusionTarget = FusionTarget.CPU
    decode_forms: bool = True
    evaluate: bool = True
    """Off where extents are unbound: nothing can be computed or planned, only looked at."""
    id: str = ""


def case_id(c: Applied | Refused) -> str:
    tail = c.reason.name.lower() if isinstance(c, Refused) else "applied"
    return f"{c.rule}-{tail}" + (f"-{c.id}" if c.id else "")


def only(*rules: str, decode_forms: bool = True) -> FusionOptions:
    """Options with these rules on and every other off (none named: all on)."""
    values = {r: not rules or r in rules for r in RULES}
    return FusionOptions(fusion=True, decode_forms=decode_forms, **values)


def doubles(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random data for inputs and for params without data, floats in float64; ints small and non-negative."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for i in (*graph.inputs, *graph.params):
        n = graph[i]
        if n.name in graph.weights:
            data = graph.weights[n.name]
            out[n.name] = data.astype(np.float64) if n.dtype.is_float else data
        elif n.dtype.is_float:
            out[n.name] = rng.standard_normal(n.shape.sizes)
            if n.name.endswith((".var", ".variance")):
                out[n.name] = np.abs(out[n.name]) + 0.5
        elif n.dtype.text == "bool":
            out[n.name] = rng.random(n.shape.sizes) < 0.5
        else:
            out[n.name] = rng.integers(0, 2, n.shape.sizes).astype(n.dtype.numpy)
    return out


def evaluate(graph: Graph, feed: Mapping[str, Array]) -> list[Array]:
    """Outputs with every float in float64: each op's plain evaluation, one after the other.

    Casts between float types are the identity here: what is compared is algebra, not rounding.
    """
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for n in graph.nodes:
            name = n.op.name
            if name in ("Input", "Param"):
                data = feed[n.name] if n.name in feed else graph.weights[n.name]
                made = data.astype(np.float64) if n.dtype.is_float else data
            elif name == "Constant":
                made = n.op.data.array.astype(np.float64) if n.dtype.is_float else n.op.data.array
            elif name == "Cast" and n.dtype.is_float:
                made = values[n.inputs[0]].astype(np.float64)
            else:
                made = np.asarray(n.op.evaluate(*[values[i] for i in n.inputs]))
            assert made.shape == n.shape.sizes, (name, n.label, made.shape, n.shape)
            values.append(made)
    return [values[o] for o in graph.outputs]


def boundary(graph: Graph) -> tuple[object, ...]:
    """What a rewrite may not change: inputs and outputs with names, shapes and dtypes."""
    return (tuple((graph[i].name, str(graph[i].shape)) for i in graph.inputs), tuple(graph.output_names),
            tuple(str(graph[o].shape) for o in graph.outputs))


def same(graph: Graph, *rules: str, target: FusionTarget = FusionTarget.CPU, decode_forms: bool = True,
         seed: int = 0, rtol: float = 1e-9, options: FusionOptions | None = None) -> Fusion:
    """Fuse and check everything that must hold of any fusion; returns it."""
    options = options if options is not None else only(*rules, decode_forms=decode_forms)
    f = fuse_graph(graph, target, options)
    assert boundary(f.graph) == boundary(graph)
    assert validate(f.graph) == []
    feed = doubles(graph, seed)
    for got, want in zip(evaluate(f.graph, feed), evaluate(graph, feed), strict=True):
        scale = float(np.abs(np.where(np.isfinite(want), want, 0)).max()) if want.size and want.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(scale, 1e-300))
    again = fuse_graph(f.graph, target, options)
    assert again.log.applied() == []
    assert fuse_graph(graph, target, options).graph == f.graph, "two runs differ"
    off = fuse_graph(graph, target, no_fusion())
    assert off.graph is graph and len(off.log) == 0
    for g in (graph, f.graph):
        checked(plan_graph(g, PlanOptions(pin_output_ancestors=False)), g)
    sources = {s for n in graph.nodes for s in n.source}
    assert {s for n in f.graph.nodes for s in n.source} <= sources
    for d in f.log:
        assert d.rule in RULES
        assert (d.reason is None) == d.applied
        assert d.reason is None or d.reason in RULES[d.rule].reasons | PIPELINE_REASONS
        assert all(0 <= i < len(graph) for i in (d.anchor, *d.nodes))
    return f


def check_applied(c: Applied) -> Fusion:
    graph = c.build()
    f = same(graph, c.rule, target=c.target, decode_forms=c.decode_forms, rtol=c.rtol)
    assert len(f.log.applied(c.rule)) == c.times, [str(d) for d in f.log]
    ops = [x for n in f.graph.nodes for x in (n.op.name, n.op.detail)]
    assert not set(c.gone) & set(ops), ops
    assert set(c.made) <= set(ops), ops
    return f


def check_refused(c: Refused) -> None:
    graph = c.build()
    f = (same(graph, c.rule, target=c.target, decode_forms=c.decode_forms) if c.evaluate
         else fuse_graph(graph, c.target, only(c.rule, decode_forms=c.decode_forms)))
    reasons = [d.reason for d in f.log.refused(c.rule)]
    assert c.reason in reasons, [str(d) for d in f.log]
    assert f.log.applied(c.rule) == []
