"""Random graphs: every pass on gives what no pass gives, on sanitised arenas of several layouts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner_core.ir import Graph, QuantScheme
from planner_core.ir.ops.region import activation_step, binary_step, cast_step, result_of
from runtime.passes import PASSES, PassOptions
from tests.runtime.passes.lab import off_and_on, packed_param
from tests.runtime.test_property import graphs as any_graphs

QUICK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large,
                                                     HealthCheck.filter_too_much]}
SCHEMES = [*[QuantScheme.Q4_K, QuantScheme.Q5_0] * 3, QuantScheme.Q1_0, QuantScheme.Q2_0, QuantScheme.Q6_K]


@st.composite
def decode_graphs(draw: st.DrawFn) -> Graph:
    """Blocks that the passes look for, strung together, with strangers that read what should vanish."""
    g = Graph("decode")
    h = draw(st.sampled_from([256, 1024]))
    x = g.input("x", (1, h))
    extra: list[int] = []

    def weight(*shape: int) -> int:
        data = np.random.default_rng(len(g)).standard_normal(shape) / np.sqrt(shape[0])
        return g.param(f"w{len(g)}", shape, data=data.astype(np.float32))

    def packed(v: int, n: int, scheme: QuantScheme) -> int:
        k = g[v].shape.sizes[-1]
        return g.dequant_mat_mul(v, packed_param(g, f"p{len(g)}", n, k, scheme), n=n, scheme=scheme)

    def seen(v: int) -> int:
        if draw(st.integers(0, 19)) == 7:
            extra.append(g.neg(v) if draw(st.booleans()) else v)
        return v

    def mlp(x: int) -> int:
        n, scheme = 256, draw(st.sampled_from(SCHEMES))
        act = draw(st.sampled_from(["silu", "silu", "gelu_approx", "relu"]))
        v = g.rms_norm(x, weight(h)) if draw(st.booleans()) else x
        if draw(st.booleans()):
            both = seen(packed(v, 2 * n, scheme))
            parts = [g.narrow(both, axis=1, start=s, len=n) for s in draw(st.sampled_from([(0, n), (0, n), (n, 0)]))]
        else:
            parts = [packed(v, n, scheme), packed(v, n, draw(st.sampled_from([scheme, *SCHEMES[:2]])))]
        gate = seen(g.activation(seen(parts[0]), kind=act))
        y = seen(g.mul(*draw(st.permutations([gate, seen(parts[1])]))))
        y = seen(packed(y, h, draw(st.sampled_from(SCHEMES))))
        return g.add(*draw(st.permutations([x, y])))

    def normed(x: int) -> int:
        y = g.mm(x, weight(h, h)) if h < 512 else packed(x, h, QuantScheme.Q5_0)
        s = seen(g.add(*draw(st.permutations([y, g.input(f"res{len(g)}", (1, h))]))))
        return g.rms_norm(s, weight(h))

    def gated(x: int) -> int:
        n = seen(g.rms_norm(x, weight(h)))
        return g.mul(*draw(st.permutations([n, seen(g.silu(g.tanh(x)))])))

    def sliced(x: int) -> int:
        cuts = draw(st.sampled_from([(0, h // 2, h), (0, h // 4, h // 2, h), (0, 64, h)]))
        x = g.tanh(x)
        parts = [g.narrow(x, axis=1, start=a, len=b - a) for a, b in pairwise(cuts)]
        if draw(st.booleans()):
            k = draw(st.integers(0, len(parts) - 1))
            angle = np.random.default_rng(k).random((1, 4)).astype(np.float32)
            cos, sin = (g.param(f"t{len(g)}{i}", (1, 4), data=f(angle)) for i, f in enumerate((np.cos, np.sin)))
            parts[k] = g.rope(seen(parts[k]), cos, sin, head_dim=8, n_rot=8)
        return g.concat(*draw(st.permutations(parts)), axis=1)

    def convolved(x: int) -> int:
        k = draw(st.sampled_from([2, 4]))
        c = h // k
        t = seen(g.transpose(g.reshape(x, dims=(1, k, c)), perm=(0, 2, 1)))
        y = g.transpose(seen(g.conv(t, weight(c, 1, k), strides=(1,), pads=(0, 0), dilations=(1,), groups=c)), perm=(0, 2, 1))
        y = g.silu(seen(y)) if draw(st.booleans()) else y
        return g.concat(*[g.reshape(y, dims=(1, c))] * k, axis=1)

    def region(x: int) -> int:
        steps = [binary_step(draw(st.sampled_from(["add", "mul", "sub", "max"])), *draw(st.permutations([0, 1])))]
        if draw(st.booleans()):
            steps = [cast_step(draw(st.sampled_from(["keep", "to_f16"])), 0), binary_step("add", result_of(0), 1)]
        for _ in range(draw(st.integers(0, 2))):
            last = result_of(len(steps) - 1)
            steps.append(draw(st.sampled_from([binary_step("sub", last, 1), binary_step("max", last, 2),
                                               activation_step("gelu_approx", last), binary_step("min", 2, last)])))
        return g.elementwise_region(x, g.tanh(x), g.reshape(weight(h), dims=(1, h)), steps=tuple(steps))

    def dense(x: int) -> int:
        return g.mul(x, weight(h))

    for _ in range(draw(st.integers(1, 4))):
        block = draw(st.sampled_from([mlp, mlp, normed, gated, sliced, convolved, region, dense]))
        x = block(x)
        if draw(st.integers(0, 3)):
            x = g.tanh(x)
    return g.set_outputs(*dict.fromkeys([x, *extra]))


def plans() -> st.SearchStrategy[dict[str, bool]]:
    return st.fixed_dictionaries({"arena_no_reuse": st.booleans(), "pin_output_ancestors": st.booleans(),
                                  "dequant_host_fallback": st.booleans(), "separate_weights": st.booleans()})


def switches() -> st.SearchStrategy[PassOptions]:
    names = sorted({s for p in PASSES for s in p.switches})
    return st.just(PassOptions()) | st.fixed_dictionaries(dict.fromkeys(names, st.booleans())).map(
        lambda v: PassOptions().replace(**v))


@settings(max_examples=60, **QUICK)  # type: ignore[arg-type]
@given(decode_graphs(), plans(), switches())
def test_decode_graphs_keep_their_numbers(g: Graph, plan: dict[str, bool], options: PassOptions) -> None:
    off_and_on(g, options, 1e-4, **plan)


@settings(max_examples=40, **QUICK)  # type: ignore[arg-type]
@given(any_graphs(), plans())
def test_any_graph_keeps_its_numbers(g: Graph, plan: dict[str, bool]) -> None:
    off_and_on(g, PassOptions(), 1e-4, **plan)


@pytest.mark.slow
@settings(max_examples=1000, **QUICK)  # type: ignore[arg-type]
@given(decode_graphs(), plans(), switches())
def test_decode_graphs_at_length(g: Graph, plan: dict[str, bool], options: PassOptions) -> None:
    off_and_on(g, options, 1e-4, **plan)


def test_the_strategy_reaches_every_pass() -> None:
    applied: Counter[str] = Counter()
    refused: Counter[str] = Counter()

    @settings(max_examples=120, database=None, derandomize=True, **QUICK)  # type: ignore[arg-type]
    @given(decode_graphs(), st.booleans())
    def collect(g: Graph, tight: bool) -> None:
        from runtime.passes import run_passes
        from tests.runtime.passes.lab import lowered

        log = run_passes(lowered(g, arena_no_reuse=not tight, pin_output_ancestors=False)).log
        applied.update(d.rule for d in log.applied())
        refused.update(d.reason.name for d in log.refused() if d.reason)

    collect()
    assert {p.name for p in PASSES} - set(applied) == set()
    assert {"READ_ELSEWHERE", "OUTPUT_OVERLAPS_OPERAND", "GRAPH_OUTPUT"} <= set(refused)


