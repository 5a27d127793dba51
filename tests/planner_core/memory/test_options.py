"""Spec §6: options, presets, environment; ``slot_is_exclusive``; §7 entry points and shared weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planner_core.errors import PlanError
from planner_core.ir import DType, Graph, QuantScheme, registry
from planner_core.ir.ops import LayerNormBackwardGamma
from planner_core.ir.traits import Trait
from planner_core.memory import (
    NO_SLOT,
    WEIGHTS,
    ArenaWidthPolicy,
    MemoryPlan,
    PlanOptions,
    SharedWeightLayout,
    Target,
    has_host_indexing,
    plan_graph,
    plan_memory,
    plan_memory_aligned,
    plan_memory_backward,
    plan_memory_f32_uniform,
    plan_memory_f32_uniform_no_params,
    plan_memory_hybrid,
    plan_memory_native,
    plan_memory_native_in_order,
    plan_memory_with_options,
    plan_memory_with_policy,
    slot_is_exclusive,
    static_weight_pack_skip_enabled,
)
from planner_core.options import options_of
from tests.planner_core.memory.checker import checked

P = ArenaWidthPolicy
VARIABLES = ("RLX_ARENA_NO_REUSE", "RLX_ARENA_PIN_HOST_STRUCTURE", "RLX_PLAN_VERIFY", "RLX_MEM_VERIFY",
             "RLX_PIN_OUTPUT_ANCESTORS", "RLX_FOLD_LIVENESS_DEBUG")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for v in VARIABLES:
        monkeypatch.delenv(v, raising=False)


def small(indexing: bool = False) -> Graph:
    """0 x, 1 w, 2 mm, 3 relu, 4 neg, 5 abs, with a gather behind them where asked."""
    g = Graph()
    y = g.abs(g.neg(g.relu(g.mm(g.input("x", (4, 8)), g.param("w", (8, 8))))))
    if indexing:
        y = g.gather(y, g.constant([0, 1]), axis=0)
    return g.set_outputs(y)


def test_defaults() -> None:
    """§6: each option and its default, declared once."""
    assert {o.name: o.default for o in options_of(PlanOptions) if o.group != "checks"} == {
        "allocate_params": True, "allocate_inputs": True, "allocate_constants": True, "separate_weights": False,
        "arena_no_reuse": False, "in_place": False, "pin_output_ancestors": True, "dequant_host_fallback": True, "pin_host_structure": False,
        "host_custom_inputs": True, "onnx_hidden": True, "onnx_duration": True,
        "elide_bank_transposes": False, "elide_requires_small_m": False, "fold_conv3d_epilogue": False,
        "keep_pass_operands": False, "alignment": 64,
        "width_policy": "f32_uniform", "placement": "first_fit"}
    assert all(o.help.endswith(".") for o in options_of(PlanOptions))
    assert {v for o in options_of(PlanOptions) for v in o.env.split("|") if v} == set(VARIABLES) - {"RLX_PIN_OUTPUT_ANCESTORS"}


@pytest.mark.parametrize(("option", "what"), [("allocate_params", "Param"), ("allocate_inputs", "Input"),
                                              ("allocate_constants", "Constant")])
def test_allocation_options(option: str, what: str) -> None:
    """§6: that kind, and its views, get no slot; the check exempts them."""
    g = Graph()
    nodes = [g.input("x", (4,)), g.param("p", (4,)), g.constant([1.0, 2.0, 3.0, 4.0])]
    views = [g.reshape(n, dims=(2, 2)) for n in nodes]
    g.set_outputs(g.add(g.add(views[0], views[1]), views[2]))
    plan = checked(plan_graph(g, PlanOptions(**{option: False})), g)
    for n, v in zip(nodes, views, strict=True):
        assert (n in plan.assignments) == (v in plan.assignments) == (g[n].op.name != what)


def test_separate_weights() -> None:
    """Design: params (and their views) in a region of their own; the sizes add up."""
    g = Graph()
    p = g.param("p", (4, 4))
    y = g.add(g.input("x", (4, 4)), p)
    v = g.reshape(p, dims=(16,))
    g.set_outputs(y, v)
    plan = checked(plan_graph(g, PlanOptions(separate_weights=True)), g)
    assert {n: s.space for n, s in plan.assignments.items()} == {p: "weights", 1: "arena", y: "arena", v: "weights"}
    assert (plan.weights_size, plan.total_size) == (64 + 128, plan.arena_size + 192)


def test_no_reuse_option() -> None:
    """§6 arena_no_reuse: every buffer its own bytes."""
    g = small()
    off = checked(plan_graph(g, PlanOptions(pin_output_ancestors=False)), g)
    on = checked(plan_graph(g, PlanOptions(pin_output_ancestors=False, arena_no_reuse=True)), g)
    assert on.arena_size - off.arena_size == 2 * 128


@pytest.mark.parametrize("alignment", [1 << k for k in range(13)])
def test_alignments(alignment: int) -> None:
    """§6: any power of two from 1 to 4096."""
    g = small()
    plan = checked(plan_memory_aligned(g, alignment), g)
    assert all(s.offset % alignment == 0 for s in plan.assignments.values())


@pytest.mark.parametrize("alignment", [0, -64, 3, 48, 65])
def test_bad_alignments(alignment: int) -> None:
    """§6: a power of two, else an error that says so."""
    with pytest.raises(PlanError, match=f"^alignment {alignment}: wanted a power of two, such as 1, 64 or 4096$"):
        plan_memory_aligned(small(), alignment)


@pytest.mark.parametrize(("name", "value", "text"), [
    ("width_policy", "narrow", r"option width_policy: got 'narrow', wanted one of f32_uniform, native, hybrid"),
    ("placement", "best", r"option placement: got 'best', wanted one of first_fit"),
    ("pin_output_ancestors", "maybe", r"got 'maybe', wanted true or false"),
    ("alignment", "big", r"option alignment: got 'big', wanted an integer"),
    ("pin_ancestors", True, r"no option 'pin_ancestors'; did you mean 'pin_output_ancestors'\? Options: allocate_params"),
])
def test_bad_options(name: str, value: object, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        PlanOptions().replace(**{name: value})


def test_presets() -> None:
    """§6: ``inference`` = the defaults; ``backward_activations_only`` the same without params."""
    assert PlanOptions.inference({}) == PlanOptions()
    assert PlanOptions.backward_activations_only({}) == PlanOptions(allocate_params=False)
    assert PlanOptions.inference({}).env == ()


@pytest.mark.parametrize("target", list(Target))
def test_for_target(target: Target) -> None:
    """§6: nothing pinned for executors that run out of order, host indexing or not; the target's policy; transposes
    dropped where it folds them (CPU: both kinds; Metal: banks of few rows); own weights."""
    for indexing in (False, True):
        opts = PlanOptions.for_target(target, small(indexing), {})
        assert not any(getattr(opts, name) for name in (
            "pin_output_ancestors", "dequant_host_fallback", "host_custom_inputs", "onnx_hidden", "onnx_duration"))
        assert (opts.separate_weights, opts.placement) == (True, "auto")
        assert opts.elide_bank_transposes == (target in (Target.CPU, Target.METAL))
        assert opts.elide_requires_small_m == (target is Target.METAL)
        assert opts.keep_pass_operands == (target is Target.METAL)
        checked(plan_graph(small(indexing), opts), small(indexing))
    assert PlanOptions.for_target(target.value, None, {}) == PlanOptions.for_target(target, small(), {})


def test_for_target_errors_and_explicit_values() -> None:
    with pytest.raises(PlanError, match="target 'npu': wanted one of cpu, metal, mlx, cuda, rocm, wgpu, tpu"):
        PlanOptions.for_target("npu")
    assert PlanOptions.for_target("cpu", None, {}, dequant_host_fallback=True).dequant_host_fallback


ENV = [("RLX_ARENA_NO_REUSE", "arena_no_reuse"), ("RLX_ARENA_PIN_HOST_STRUCTURE", "pin_host_structure"),
       ("RLX_PLAN_VERIFY", "verify_placement"), ("RLX_MEM_VERIFY", "verify_memory"),
       ("RLX_FOLD_LIVENESS_DEBUG", "print_conv3d_folds")]


@pytest.mark.parametrize(("variable", "option"), ENV)
@pytest.mark.parametrize("text", ["1", "true", "YES", " on ", "0", "off", ""])
def test_environment(monkeypatch: pytest.MonkeyPatch, variable: str, option: str, text: str) -> None:
    """§6: presets and entry points read it; the plan shows what was read; an explicit value wins."""
    monkeypatch.setenv(variable, text)
    on = text in ("1", "true", "YES", " on ")
    assert getattr(PlanOptions.inference(), option) is on
    assert getattr(PlanOptions.backward_activations_only(), option) is on
    assert getattr(PlanOptions.for_target(Target.CPU), option) is on
    assert getattr(PlanOptions.inference(**{option: not on}), option) is not on
    assert getattr(PlanOptions(), option) is False, "only presets read it"
    g = small()
    for entry in (plan_memory, plan_memory_native, plan_memory_native_in_order, plan_memory_hybrid, plan_memory_f32_uniform,
                  plan_memory_f32_uniform_no_params, lambda g: plan_memory_with_policy(g, 64, P.NATIVE)):
        plan = checked(entry(g), g)
        assert getattr(plan.options, option) is on
        assert plan.options.env == (((variable, text.strip()),) if text else ())
    explicit = plan_memory_with_options(g, 64, PlanOptions())
    assert getattr(explicit.options, option) is False and explicit.options.env == ()


def test_no_reuse_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_ARENA_NO_REUSE", "true")
    assert checked(plan_memory_native(small()), small()).no_reuse


def test_mem_verify_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """§10: bare entry points check themselves under ``RLX_MEM_VERIFY``."""
    import planner_core.memory.planner as planner

    monkeypatch.setattr(planner, "place_views", lambda plan: None)
    g = Graph()
    g.set_outputs(g.relu(g.reshape(g.input("x", (4, 4)), dims=(16,))))
    plan_memory(g)
    monkeypatch.setenv("RLX_MEM_VERIFY", "1")
    with pytest.raises(PlanError, match=r"the plan of 'graph' is not sound \(1 violations\):\n  MISSING_SLOT: %1 Reshape"):
        plan_memory(g)


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("0", False), (None, False)])
def test_pin_output_ancestors_variable(monkeypatch: pytest.MonkeyPatch, text: str | None, on: bool) -> None:
    """§6: ``RLX_PIN_OUTPUT_ANCESTORS`` is read by ``plan_memory_f32_uniform`` alone."""
    if text is not None:
        monkeypatch.setenv("RLX_PIN_OUTPUT_ANCESTORS", text)
    g = small()
    plan = checked(plan_memory_f32_uniform(g), g)
    assert plan.options.pin_output_ancestors is on
    assert plan.options.env == ((("RLX_PIN_OUTPUT_ANCESTORS", text),) if text is not None else ())
    for entry in (plan_memory_f32_uniform_no_params, plan_memory_native, plan_memory_native_in_order, plan_memory_hybrid):
        assert not entry(g).options.pin_output_ancestors
        assert entry(g).options.env == ()


@pytest.mark.parametrize(("environ", "on"), [
    ({}, True), ({"RLX_STATIC_WEIGHT_PACK": "0"}, False), ({"RLX_STATIC_WEIGHT_PACK": "1"}, True),
    ({"RLX_QWEN3_BAKE_WEIGHTS": "0"}, False), ({"RLX_QWEN3_BAKE_WEIGHTS": "1"}, True),
    ({"RLX_STATIC_WEIGHT_PACK": "1", "RLX_QWEN3_BAKE_WEIGHTS": "0"}, True)])
def test_static_weight_pack_skip_enabled(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], on: bool) -> None:
    """§6: default on; off with RLX_STATIC_WEIGHT_PACK=0 or the older name; the planner pins regardless."""
    assert static_weight_pack_skip_enabled(environ) is on
    for k, v in environ.items():
        monkeypatch.setenv(k, v)
    assert static_weight_pack_skip_enabled() is on
    g = Graph()
    t = g.relu(g.param("w", (4,)))
    g.set_outputs(g.add(t, g.input("x", (4,))))
    assert plan_memory(g).birth[t] == 0 and plan_memory(g).death[t] == len(g)


def test_slot_is_exclusive() -> None:
    """§6: a pin doesn't prove that the slot is exclusive; this answers it from the bytes."""
    g = Graph()
    x = g.input("x", (16,))
    a = g.relu(x)
    b = g.neg(a)
    c = g.exp(b)
    v = g.reshape(c, dims=(4, 4))
    g.set_outputs(g.abs(v))
    plan = checked(plan_memory_native(g), g)
    assert plan.offset[a] == plan.offset[c]
    assert [slot_is_exclusive(plan, n) for n in (x, a, b, c, v)] == [True, False, False, False, False]
    apart = checked(plan_graph(g, PlanOptions(arena_no_reuse=True)), g)
    assert all(slot_is_exclusive(apart, n) for n in range(len(g)))
    assert not slot_is_exclusive(plan_graph(g, PlanOptions(allocate_inputs=False)), x), "no slot is no exclusive slot"


# --- §7 -----------------------------------------------------------------------------------------------

ENTRIES: list[tuple[Callable[..., MemoryPlan], dict[str, Any], bool]] = [
    # entry, options beside the defaults, pins by host indexing
    (plan_memory, {"width_policy": P.NATIVE}, False),
    (lambda g: plan_memory_aligned(g, 256), {"width_policy": P.NATIVE, "alignment": 256}, False),
    (lambda g: plan_memory_with_options(g, 32, PlanOptions(pin_host_structure=True)),
     {"width_policy": P.NATIVE, "alignment": 32, "pin_host_structure": True}, False),
    (lambda g: plan_memory_with_options(g, 32, PlanOptions(), P.HYBRID), {"width_policy": P.HYBRID, "alignment": 32}, False),
    (plan_memory_f32_uniform, {"width_policy": P.F32_UNIFORM}, True),
    (plan_memory_f32_uniform_no_params, {"width_policy": P.F32_UNIFORM, "allocate_params": False}, True),
    (plan_memory_native, {"width_policy": P.NATIVE}, True),
    (plan_memory_native_in_order, {"width_policy": P.NATIVE_HALF_WIDENED, "dequant_host_fallback": False,
                                   "elide_bank_transposes": True, "elide_requires_small_m": False}, True),
    (plan_memory_hybrid, {"width_policy": P.HYBRID}, True),
    (lambda g: plan_memory_with_policy(g, 128, P.NATIVE_BF16_WIDENED),
     {"width_policy": P.NATIVE_BF16_WIDENED, "alignment": 128}, True),
]


@pytest.mark.parametrize(("entry", "changes", "by_indexing"), ENTRIES)
def test_entry_points(entry: Callable[..., MemoryPlan], changes: dict[str, Any], by_indexing: bool) -> None:
    """§7: each entry point's width and options; pinned by host indexing where it says so."""
    for indexing in (False, True):
        g = small(indexing)
        want = PlanOptions(**changes, pin_output_ancestors=indexing if by_indexing else True)
        assert checked(entry(g), g).options == want


def test_host_indexing() -> None:
    """§7: which ops count."""
    assert frozenset({"Gather", "GatherNd", "GatherElements", "ScatterNd", "ScatterElements", "LayerNormBackwardGamma"}) == {n for n, c in registry().items() if c.has(Trait.HOST_INDEXING)}
    makers = {
        "Gather": lambda g, x, i: g.gather(x, i, axis=0),
        "GatherNd": lambda g, x, i: g.gather_nd(x, i),
        "GatherElements": lambda g, x, i: g.gather_elements(x, i, axis=0),
        "ScatterNd": lambda g, x, i: g.scatter_nd(x, i, g.input("u", (4,))),  # a row of indices is a whole place
        "ScatterElements": lambda g, x, i: g.scatter_elements(x, i, x, axis=0),
        "LayerNormBackwardGamma": lambda g, x, i: g.add(LayerNormBackwardGamma(), x, x),
        "ScatterAdd": lambda g, x, i: g.scatter_add(x, i, out_dim=4),
        "TopK": lambda g, x, i: g.top_k(x, k=1),
    }
    for name, make in makers.items():
        g = Graph()
        make(g, g.input("x", (4, 2)), g.input("i", (4, 2), DType.I64))
        assert has_host_indexing(g) is registry()[name].has(Trait.HOST_INDEXING), name


def test_in_order_drops_the_dequant_fallback() -> None:
    """§7: plan_memory_native_in_order, against plan_memory_native."""
    g = Graph()
    a = g.neg(g.relu(g.input("x", (4, 32))))
    d = g.dequant_mat_mul(a, g.param("w", (6 * QuantScheme.Q8_0.row_bytes(32),), DType.U8), n=6, scheme=QuantScheme.Q8_0)
    g.set_outputs(g.exp(d))
    assert plan_memory_native(g).death[a] == len(g)
    assert checked(plan_memory_native_in_order(g), g).death[a] == d


def pair() -> tuple[Graph, Graph]:
    forward = Graph("forward")
    x = forward.input("x", (4, 8))
    w2, w1 = forward.param("w2", (8, 8)), forward.param("w1", (8, 8))
    forward.set_outputs(forward.mm(forward.relu(forward.mm(x, w1)), w2))
    backward = Graph("backward")
    dy, w = backward.input("dy", (4, 8)), backward.param("w2", (8, 8))
    t = backward.reshape(w, dims=(64,))
    dx = backward.mm(dy, backward.transpose(w, perm=(1, 0)))
    backward.set_outputs(dx, backward.neg(t))
    return forward, backward


def test_forward_and_backward_share_weights() -> None:
    """§7, §11: a forward matmul and its backward share the weight's offset; weights are a second region."""
    forward, backward = pair()
    plan = checked(plan_memory_native(forward), forward)
    layout = SharedWeightLayout.from_forward(forward, plan)
    assert [name for name, _ in layout.slots] == ["w1", "w2"]
    assert layout.size == max(s.end + s.guard for _, s in layout.slots)
    back = checked(plan_memory_backward(backward, 64, layout), backward)
    w = backward.find("w2").id
    assert back.assignments[w].offset == plan.assignments[forward.find("w2").id].offset
    assert (back.assignments[w].space, back.weights_size) == ("weights", layout.size)
    view = back.assignments[2]
    assert (view.space, view.offset) == ("weights", back.assignments[w].offset), "views of params follow"
    assert back.options == PlanOptions(width_policy=P.NATIVE, allocate_params=False)
    assert back.savings()[-1].name == "shared weights"
    assert sum(s.delta for s in back.savings()) == back.arena_size + back.weights_size
    assert back.space[w] == WEIGHTS and plan_graph(backward, back.options).space[w] == NO_SLOT


def test_backward_reads_the_environment_and_checks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """§6, §7: an entry point like the others."""
    forward, backward = pair()
    layout = SharedWeightLayout.from_forward(forward, plan_memory(forward))
    monkeypatch.setenv("RLX_MEM_VERIFY", "1")
    plan = plan_memory_backward(backward, 64, layout)
    assert plan.options.verify_memory and plan.options.env == (("RLX_MEM_VERIFY", "1"),)
    odd = dataclasses.replace(layout, size=1)
    with pytest.raises(PlanError, match=r"not sound.*\n  OUT_OF_REGION: %1 Param 'w2'"):
        plan_memory_backward(backward, 64, odd)


def test_shared_weight_errors() -> None:
    """§7: names or sizes that don't match are errors that list both sides."""
    forward, backward = pair()
    layout = SharedWeightLayout.from_forward(forward, plan_memory(forward))
    other = Graph("other")
    other.set_outputs(other.relu(other.param("w3", (8, 8))))
    with pytest.raises(PlanError, match=r"params \['w3'\] of 'other' are not in the forward plan; it has \['w1', 'w2'\], "
                                        r"the backward graph \['w3'\]"):
        plan_memory_backward(other, 64, layout)
    other = Graph("other")
    other.set_outputs(other.relu(other.param("w2", (8, 9))))
    with pytest.raises(PlanError, match=r"param 'w2': 256 bytes in the forward plan, 288 in the backward graph \(f32\[8, 9\]\)"):
        plan_memory_backward(other, 64, layout)
    with pytest.raises(PlanError, match=r"param 'w2' has no slot in the forward plan; plan it with allocate_params=True"):
        SharedWeightLayout.from_forward(forward, plan_memory_f32_uniform_no_params(forward))
    assert backward.params


def test_an_empty_param_is_shared_whatever_the_alignments() -> None:
    forward = Graph()
    forward.set_outputs(forward.relu(forward.param("w", (0,))))
    layout = SharedWeightLayout.from_forward(forward, plan_memory_aligned(forward, 128))
    plan = checked(plan_memory_backward(forward, 64, layout), forward)
    assert plan.assignments[0].space == "weights"


def test_a_graph_without_params_is_backward_of_anything() -> None:
    g = Graph()
    g.set_outputs(g.relu(g.input("x", (4,))))
    plan = checked(plan_memory_backward(g, 64, SharedWeightLayout((), 0)), g)
    assert plan.weights_size == 0 and np.all(plan.space == 0)
