"""Stages, incremental re-runs, input checks, control flow."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rlx_viz
from planner_core.errors import OptionError, PlanError, UnboundDimError
from planner_core.fusion import no_fusion
from planner_core.ir import DimBinding, DType, Graph, Shape
from planner_core.memory import PlanOptions, Target
from runtime import CompileOptions, PrecisionPolicy, RunError, compile_graph, register_kernel
from runtime import compile as compile_module


def two_layers() -> Graph:
    g = Graph("two")
    x = g.input("x", (3, 5))
    w = g.param("w", (5, 7), data=np.ones((5, 7), np.float32))
    v = g.param("v", (7, 2), data=np.ones((7, 2), np.float32))
    g.set_outputs(g.mm(g.relu(g.mm(x, w)), v), names=["y"])
    return g


X = np.arange(15, dtype=np.float32).reshape(3, 5)


def test_stages_are_kept_and_timed() -> None:
    g = two_layers()
    c = compile_graph(g)
    assert c.source is g
    assert c.fused is c.fusion.graph
    assert c.legal is c.fused
    assert c.commands_before.thunks == c.commands.thunks
    assert set(c.timings) == {"fuse", "legalise", "plan", "verify", "lower", "passes"}
    assert c.allocate_bytes == c.plan.weights_size + c.plan.arena_size + c.commands.scratch_bytes
    np.testing.assert_array_equal(c.run({"x": X}, sanitize=True)["y"], np.repeat(X.sum(1)[:, None] * 7, 2, 1))


def test_with_options_replans_and_reuses_the_graph() -> None:
    c = compile_graph(two_layers())
    d = c.with_options(arena_no_reuse=True)
    assert d.legal is c.legal
    assert d.plan.arena_size >= c.plan.arena_size
    assert d.plan.no_reuse
    assert not c.plan.no_reuse
    e = d.with_options(arena_no_reuse="false", alignment="256")
    assert e.plan.options.alignment == 256
    assert not e.plan.no_reuse
    for other in (d, e, c.with_options(target="metal"), c.with_options(separate_weights=False)):
        np.testing.assert_array_equal(other.run({"x": X}, sanitize=True)["y"], c.run({"x": X})["y"])
    assert c.with_options(target="metal").options.target is Target.METAL
    with pytest.raises((PlanError, ValueError, KeyError), match="nonsense"):
        c.with_options(nonsense=1)


def test_results_are_copies() -> None:
    c = compile_graph(two_layers())
    first = c.run({"x": X})["y"]
    kept = first.copy()
    c.run({"x": X * 2})
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(("feed", "parts"), [
    ({}, ["missing input 'x'", r"x: f32\[3, 5\]"]),
    ({"x": X, "z": X}, ["unknown input 'z'"]),
    ({"x": X.T}, [r"float32\[5, 3\], wanted f32\[3, 5\]"]),
    ({"x": X.astype(np.float64)}, [r"float64\[3, 5\], wanted f32"]),
])
def test_wrong_inputs_are_explained(feed: dict[str, np.ndarray], parts: list[str]) -> None:
    for part in parts:
        with pytest.raises(RunError, match=part):
            compile_graph(two_layers()).run(feed)


def test_missing_weights_and_wrong_params_are_explained() -> None:
    g = two_layers()
    g.weights.pop("v")
    c = compile_graph(g)
    with pytest.raises(RunError, match="no data for params v"):
        c.run({"x": X})
    with pytest.raises(RunError, match="has no param 'q'"):
        c.executor.set_param("q", X)
    with pytest.raises(RunError, match=r"param 'v' is float32\[3, 5\], wanted f32\[7, 2\]"):
        c.executor.set_param("v", X)
    c.executor.set_param("v", np.ones((7, 2), np.float32))
    assert c.run({"x": X})["y"].shape == (3, 2)


def test_unbound_dims_are_an_error_that_names_them() -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", ("B", 3))))
    with pytest.raises(UnboundDimError, match="B"):
        compile_graph(g)
    assert compile_graph(g.bind({"B": 2}), CompileOptions()).commands.outputs[0].operand.bucket_axis == 0


def test_options_of_a_target_and_what_changed() -> None:
    g = two_layers()
    c = compile_graph(g, CompileOptions.for_target("cpu", g))
    assert c.plan.options == c.default_plan_options
    assert c.with_options(alignment=128).default_plan_options == c.default_plan_options


def test_timed_run_fills_seconds() -> None:
    c = compile_graph(two_layers())
    c.run({"x": X}, timed=True)
    assert (c.executor.seconds > 0).all()
    assert len(c.executor.seconds) == len(c.commands.thunks)


def test_outputs_may_be_inputs_params_and_repeated() -> None:
    g = Graph("g")
    x = g.input("x", (2,))
    w = g.param("w", (2,), data=np.ones(2, np.float32))
    k = g.constant([5.0, 6.0])
    g.set_outputs(x, w, k, x, names=["a", "b", "c", "d"])
    out = compile_graph(g).run({"x": np.asarray([1, 2], np.float32)}, sanitize=True)
    assert {n: v.tolist() for n, v in out.items()} == {"a": [1, 2], "b": [1, 1], "c": [5, 6], "d": [1, 2]}


# --- control flow -------------------------------------------------------------------------------------


def _body(name: str, kind: str) -> Graph:
    b = Graph(name)
    x = b.input("x", (3,))
    b.set_outputs(b.neg(x) if kind == "neg" else b.binary(x, x, kind="add"))
    return b


def test_if_runs_the_chosen_body() -> None:
    g = Graph("g")
    c, x = g.input("c", (), DType.BOOL), g.input("x", (3,))
    build = getattr(g, "if")
    g.set_outputs(build(c, x, shape=Shape.of((3,)), then_body=_body("t", "neg"), else_body=_body("e", "add")))
    compiled = compile_graph(g)
    x0 = np.asarray([1, 2, 3], np.float32)
    for flag, want in ((True, -x0), (False, x0 * 2)):
        out = compiled.run({"c": np.asarray(flag), "x": x0}, sanitize=True)
        np.testing.assert_array_equal(next(iter(out.values())), want)


def test_loop_carries_states_and_stacks_rows() -> None:
    b = Graph("body")
    i, keep, s = b.input("i", (), DType.I64), b.input("keep", (), DType.BOOL), b.input("s", (2,))
    step = b.binary(s, b.cast(i, to=DType.F32), kind="add")
    b.set_outputs(keep, step, s, names=["keep", "s", "row"])
    g = Graph("g")
    n, c, x = g.input("n", (), DType.I64), g.input("c", (), DType.BOOL), g.input("x", (2,))
    final = g.loop(n, c, x, shape=Shape.of((2,)), body=b, carried=1)
    rows = g.result(final, index=1, shape=Shape.of((4, 2)))
    g.set_outputs(final, rows)
    out = list(compile_graph(g).run({"n": np.asarray(4), "c": np.asarray(True), "x": np.zeros(2, np.float32)},
                                    sanitize=True).values())
    assert out[0].tolist() == [6, 6]
    assert out[1].tolist() == [[0, 0], [0, 0], [1, 1], [3, 3]]


def test_loop_without_iterations_and_with_an_unread_output() -> None:
    b = Graph("body")
    _, keep, s = b.input("i", (), DType.I64), b.input("keep", (), DType.BOOL), b.input("s", (2,))
    b.set_outputs(keep, b.neg(s), s, s, names=["keep", "s", "unread", "row"])
    g = Graph("g")
    n, c, x = g.input("n", (), DType.I64), g.input("c", (), DType.BOOL), g.input("x", (2,))
    final = g.loop(n, c, x, shape=Shape.of((2,)), body=b, carried=1)
    for trips, want in ((0, [1, 2]), (1, [-1, -2])):
        h = Graph.from_dict(g.to_dict())
        h.set_outputs(final, h.result(final, index=2, shape=Shape.of((trips, 2))))
        out = list(compile_graph(h).run({"n": np.asarray(trips), "c": np.asarray(True),
                                         "x": np.asarray([1, 2], np.float32)}, sanitize=True).values())
        assert out[0].tolist() == want
        assert out[1].shape == (trips, 2)


def test_scan_folds_a_sequence() -> None:
    b = Graph("body")
    s, x = b.input("s", (2,)), b.input("x", (2,))
    total = b.binary(s, x, kind="add")
    b.set_outputs(total, total, names=["s", "row"])
    g = Graph("g")
    first, xs = g.input("first", (2,)), g.input("xs", (3, 2))
    final = g.scan(first, xs, shape=Shape.of((2,)), body=b, carried=1, scanned=1)
    g.set_outputs(final, g.result(final, index=1, shape=Shape.of((3, 2))))
    xs0 = np.arange(6, dtype=np.float32).reshape(3, 2)
    out = list(compile_graph(g).run({"first": np.ones(2, np.float32), "xs": xs0}, sanitize=True).values())
    np.testing.assert_array_equal(out[0], 1 + xs0.sum(0))
    np.testing.assert_array_equal(out[1], 1 + xs0.cumsum(0))


def test_an_option_re_runs_only_what_it_touches() -> None:
    c = compile_graph(two_layers(), CompileOptions(target=Target.METAL))
    passes = c.with_options(narrow_rope=False)
    assert passes.plan is c.plan
    assert passes.commands_before is c.commands_before
    assert passes.options.passes_used.narrow_rope is False
    plan = c.with_options(alignment=256)
    assert plan.fusion is c.fusion
    assert plan.plan is not c.plan
    fusion = c.with_options(fusion="off")
    assert fusion.fused is c.source
    assert fusion.fusion is not c.fusion
    for other in (passes, plan, fusion):
        np.testing.assert_allclose(other.run({"x": X}, sanitize=True)["y"], c.run({"x": X})["y"], rtol=1e-6)
    with pytest.raises(PlanError, match="no option 'narow_rope'; did you mean 'narrow_rope'"):
        c.with_options(narow_rope=True)
    with pytest.raises(PlanError, match=r"option target: got .abacus., wanted one of cpu"):
        c.with_options(target="abacus")


@pytest.mark.parametrize("start", [CompileOptions(), CompileOptions.for_target("cpu")], ids=["presets", "written out"])
def test_precision_is_an_option_that_the_plan_follows(start: CompileOptions) -> None:
    """Half products, stored as half unless a width policy was chosen; the rules don't run again."""
    c = compile_graph(two_layers(), start)
    half = c.with_options(precision="auto_mixed")
    assert half.fusion is c.fusion
    assert {n.dtype for n in half.legal.nodes if "MatMul" in n.op.name} == {DType.F16}
    assert (half.plan.options.width_policy.value, [r.info.name for r in half.option_rows() if r.changed]) == ("native", ["precision"])
    np.testing.assert_allclose(half.run({"x": X}, sanitize=True)["y"], c.run({"x": X})["y"], rtol=1e-2, atol=1e-2)
    chosen = half.with_options(width_policy="f32_uniform")
    assert chosen.legal is half.legal
    assert chosen.plan.arena_size > half.plan.arena_size
    back = half.with_options(precision="f32")
    assert back.plan.arena_size == c.plan.arena_size
    assert not [r for r in back.option_rows() if r.changed]
    metal = half.with_options(target="metal")
    assert (metal.options.target, metal.options.half) == (Target.METAL, DType.F16)
    with pytest.raises(PlanError, match="option precision: got 'f8', wanted one of f32, auto_mixed, auto_mixed_bf16"):
        c.with_options(precision="f8")


def test_every_option_of_every_stage_is_listed_once() -> None:
    c = compile_graph(two_layers(), CompileOptions(target=Target.METAL))
    rows = c.option_rows()
    assert len({r.info.name for r in rows}) == len(rows)
    assert {r.stage for r in rows} == {"compile", "fusion", "plan", "lower", "passes"}
    assert [r.info.name for r in rows if r.changed] == []
    changed = c.with_options(alignment=256, narrow_rope=False, dead_code=False).option_rows()
    assert {r.info.name for r in changed if r.changed} == {"alignment", "narrow_rope", "dead_code"}


def packed_weight() -> Graph:
    g = Graph("packed")
    x = g.input("x", (3, 5))
    w = g.param("w", (7, 5), data=np.ones((7, 5), np.float32))
    g.set_outputs(g.mm(x, g.transpose(g.neg(w), perm=(1, 0))), names=["y"])
    return g


def test_static_packs_are_made_once_and_again_after_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CompileOptions(fusion=no_fusion(), plan=PlanOptions.for_target("cpu", elide_bank_transposes=False))
    c = compile_graph(packed_weight(), plain)
    assert (c.commands.dispatches, c.commands.setup_dispatches) == (1, 2)
    assert "1 dispatches (+ 2 once)" in str(c.commands)
    first = c.run({"x": X}, timed=True)["y"]
    np.testing.assert_array_equal(first, np.repeat(-X.sum(1)[:, None], 7, 1))
    assert (c.executor.seconds > 0).sum() == 3
    np.testing.assert_array_equal(c.run({"x": X}, timed=True)["y"], first)
    assert (c.executor.seconds > 0).sum() == 1
    np.testing.assert_array_equal(c.run({"x": X}, sanitize=True)["y"], first)
    c.executor.set_param("w", np.full((7, 5), 2, np.float32))
    np.testing.assert_array_equal(c.run({"x": X}, timed=True)["y"], 2 * first)
    assert (c.executor.seconds > 0).sum() == 3
    monkeypatch.setenv("RLX_STATIC_WEIGHT_PACK", "0")
    assert compile_graph(packed_weight(), plain).commands.dispatches == 3


def test_in_place_runs_are_audited_clean_and_equal() -> None:
    """Bytes that one value hands to the next are one slot's life for the audit."""
    g = Graph("in place")
    x = g.input("x", (64, 64))
    y = g.mm(x, g.param("w", (64, 64), data=np.eye(64, dtype=np.float32)))
    for kind in ("tanh", "abs", "sin", "neg"):
        y = g.activation(y, kind=kind)
    z = g.mul(y, g.mm(x, x))
    g.set_outputs(g.add(z, x), names=["y"])
    feed = {"x": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    plain = compile_graph(g, CompileOptions(fusion=no_fusion()))
    merged = plain.with_options(in_place=True)
    assert merged.plan.arena_size < plain.plan.arena_size
    np.testing.assert_array_equal(merged.run(feed, sanitize=True)["y"], plain.run(feed, sanitize=True)["y"])


def test_a_kernels_own_error_names_the_thunk_and_the_node() -> None:
    def writes_its_input(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray], attrs: dict[str, object]) -> None:
        ins[0][...] = 0

    register_kernel("test.writes", writes_its_input)
    g = Graph("custom")
    x = g.input("x", (3, 5))
    g.set_outputs(g.custom(x, op_name="test.writes", shape=g[x].shape, name="mine"))
    with pytest.raises(RunError, match=r"thunk 0 custom_op:test\.writes .*'mine'.*raised ValueError: .*read-only"):
        compile_graph(g).run({"x": X}, sanitize=True)


def test_texts_will_do_for_target_and_precision() -> None:
    options = CompileOptions(target="metal", precision="auto_mixed")  # type: ignore[arg-type]
    assert options == CompileOptions(target=Target.METAL, precision=PrecisionPolicy.AUTO_MIXED)
    assert options.cache_key(two_layers()) == CompileOptions(target=Target.METAL, precision=PrecisionPolicy.AUTO_MIXED).cache_key(two_layers())
    with pytest.raises(PlanError, match="option precision: got 'f8'"):
        CompileOptions(precision="f8")  # type: ignore[arg-type]


def test_a_scalar_is_padded_by_nothing() -> None:
    g = Graph("scalar")
    g.set_outputs(g.pad(g.reduce(g.input("x", (3,)), kind="sum", axes=(0,)), before=(), after=()), names=["y"])
    assert compile_graph(g, CompileOptions(fusion=no_fusion())).run({"x": np.ones(3, np.float32)}, sanitize=True)["y"] == 3


def test_each_stage_runs_once_and_only_where_what_it_reads_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: options given at once plan once, a toggle runs what it touches, and going back runs nothing."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> None:
        real = getattr(compile_module, name)
        monkeypatch.setattr(compile_module, name, lambda *a, **k: (counted.update([name]), real(*a, **k))[1])

    for name in ("fuse_graph", "plan_graph", "require_sound", "lower_graph", "run_passes"):
        counting(name)

    def ran(c: Any) -> list[str]:
        assert c.run({"x": X}, sanitize=True)
        out = sorted(f"{n} ×{k}" if k > 1 else n for n, k in counted.items())
        counted.clear()
        return out

    g = two_layers()
    from_plan = ["lower_graph", "plan_graph", "require_sound", "run_passes"]
    assert ran(rlx_viz.compile(g, alignment=256)) == ["fuse_graph", *from_plan]
    assert ran(rlx_viz.compile(g, fusion=False, target="metal")) == ["fuse_graph", *from_plan]
    start = rlx_viz.compile(g, target="metal")
    counted.clear()
    assert ran(start.with_options(arena_no_reuse=True)) == from_plan
    assert ran(start.with_options(static_packs_once=False)) == ["lower_graph", "run_passes"]
    assert ran(start.with_options(narrow_rope=False)) == ["run_passes"]
    off = start.with_options(fusion=False)
    assert ran(off) == ["fuse_graph", *from_plan]
    assert ran(off.with_options(fusion=True)) == []
    assert ran(start.with_options(fusion=False)) == []
    assert ran(start.under(start.options)) == []
    with pytest.raises(OptionError, match="are bound to"):
        start.under(dataclasses.replace(start.options, dims=DimBinding.of({"B": 2})))
