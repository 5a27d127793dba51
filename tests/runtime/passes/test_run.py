"""Options and switches, order, log, index map, counters; the zoo's decoder; long lists."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from planner_core import zoo
from planner_core.errors import OptionError
from planner_core.ir import Graph, QuantScheme
from planner_core.ir.ops.region import activation_step, binary_step, result_of
from planner_core.options import options_of
from runtime import CompileOptions, HostExecutor, compile_graph
from runtime.passes import PASSES, PassOptions, PassResult, Refusal, run_passes
from tests.runtime.passes.lab import feed_of, lowered, off_and_on, packed_mlp

DECODE = {"decode_mlp_combined", "decode_mlp_separate", "residual_rms_norm", "gated_norm", "depthwise_conv"}


def enabled(o: PassOptions) -> set[str]:
    return {p.name for p in PASSES if p.enabled(o)}


def test_spec_order() -> None:
    assert [p.name for p in PASSES] == [
        "region_rewrite", "dense_broadcast", "decode_mlp_combined", "decode_mlp_separate", "residual_rms_norm",
        "gated_norm", "depthwise_conv", "narrow_rope", "narrow_clusters"]


@pytest.mark.parametrize(("variable", "off"), [
    ("RLX_METAL_FUSE_DECODE", DECODE), ("RLX_METAL_FUSE_RESIDUAL_RMS", {"residual_rms_norm"}),
    ("RLX_METAL_FUSE_GDN_NORM", {"gated_norm"}), ("RLX_METAL_FUSE_DEPTHWISE", {"depthwise_conv"}),
])
def test_a_fuse_switch_is_a_flag_like_any_other(variable: str, off: set[str]) -> None:
    everything = {p.name for p in PASSES}
    assert enabled(PassOptions.for_environment({})) == everything
    for text in ("0", "false", "No", "off"):
        assert enabled(PassOptions.for_environment({variable: text})) == everything - off
    for text in ("1", "", "on"):
        assert enabled(PassOptions.for_environment({variable: text})) == everything
    with pytest.raises(OptionError, match=f"environment variable {variable} is '00'; wanted one of 1, true, yes, on, 0, false"):
        PassOptions.for_environment({variable: "00"})


@pytest.mark.parametrize(("variable", "name"), [
    ("RLX_METAL_Q2_0_FUSED_DISABLE", "q2_0_fused_disable"), ("RLX_METAL_HOST_FALLBACK", "host_fallback"),
    ("RLX_METAL_HOST_SLICE", "host_fallback"), ("RLX_METAL_GDN_HOST_FALLBACK", "gdn_host_fallback"),
    ("RLX_METAL_DEQUANT_GPU_DISABLE", "dequant_gpu_disable"), ("RLX_METAL_FUSE_DECODE_LOG", "print_fused"),
    ("RLX_VERBOSE", "verbose"),
])
def test_a_flag_is_on_when_set(variable: str, name: str) -> None:
    o = PassOptions.for_environment({variable: "1"})
    assert getattr(o, name) is True
    assert o.env == ((variable, "1"),)
    assert not getattr(PassOptions.for_environment({variable: "0"}), name)
    assert not getattr(PassOptions.for_environment({variable: "1"}, **{name: False}), name)
    assert PassOptions.for_environment({variable: "0"}) == PassOptions()


def test_either_name_of_the_slice_switch_is_enough() -> None:
    assert PassOptions.for_environment({"RLX_METAL_HOST_FALLBACK": "1", "RLX_METAL_HOST_SLICE": "0"}).host_fallback


def test_gelu_has_a_switch_of_its_own() -> None:
    o = PassOptions.for_environment({"RLX_METAL_FUSE_DECODE_GELU": "0"})
    assert enabled(o) == {p.name for p in PASSES} and not o.decode_gelu


def test_every_pass_has_its_option_and_no_option_goes_unused() -> None:
    fields = {f.name for f in dataclasses.fields(PassOptions)} - {"env"}
    assert {o.name for o in options_of(PassOptions)} == fields
    assert {s for p in PASSES for s in p.switches} | {
        "decode_gelu", "q2_0_fused_disable", "host_fallback", "gdn_host_fallback", "dequant_gpu_disable", "print_fused",
        "verbose"} == fields
    assert not any(getattr(PassOptions.none(), f) for f in fields)


def test_off_changes_nothing() -> None:
    before = lowered(packed_mlp(QuantScheme.Q4_K))
    result = run_passes(before, PassOptions.none())
    assert result.commands == before and not len(result.log)
    assert result.counters.dispatches_before == result.counters.dispatches_after
    assert str(result.counters).endswith("nothing to do")


def test_host_forms_are_forced() -> None:
    before = lowered(packed_mlp(QuantScheme.Q4_K, combined=True))
    result = run_passes(before, PassOptions(dequant_gpu_disable=True, host_fallback=True))
    forced = {result.commands.thunks[i].label for i in result.host_forced}
    assert forced == {"dequant_matmul_gguf", "narrow"}
    assert {d.reason for d in result.log.refused()} >= {Refusal.HOST_FORM_FORCED}
    assert run_passes(before).host_forced == frozenset()


def test_applications_are_logged(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """A library prints nothing: standard output is a command's, JSON perhaps."""
    caplog.set_level("INFO", "rlx_viz")
    before = lowered(packed_mlp(QuantScheme.Q4_K))
    run_passes(before)
    assert caplog.text == ""
    run_passes(before, PassOptions(print_fused=True))
    assert "decode_mlp_separate at 4: applied, 4 dispatches" in caplog.text
    assert capsys.readouterr().out == ""


def test_a_split_keeps_the_map_from_old_to_new() -> None:
    g = Graph("g")
    x, y = g.input("x", (1, 6)), g.input("y", (6,))
    r = g.elementwise_region(x, y, x, steps=(binary_step("mul", 0, 1), binary_step("sub", result_of(0), 2)))
    b = g.sub(r, y)  # a dense broadcast, behind the split
    g.set_outputs(g.elementwise_region(b, steps=(activation_step("exp", 0),)))
    result = off_and_on(g, PassOptions(), 1e-6)
    assert result.index_map == {0: (0, 1), 1: (2,), 2: (3,)}
    assert result.starts == (0, 2, 3, 4)
    # a later pass names the old index, and the step of every new thunk is the old one's
    (dense,) = result.log.applied("dense_broadcast")
    assert dense.anchor == 1
    assert result.commands.node_of[0] == result.commands.node_of[1] == r
    assert [t.label for t in result.commands.thunks] == ["binary", "binary", "binary", "elementwise_region"]
    assert {d.reason for d in result.log.refused()} == {Refusal.NOT_IN_PLACE}


def test_a_command_of_the_first_run_only_is_no_saving() -> None:
    """Two slices of a weight become one command: one fewer to set up, as many as before in every run."""
    g = Graph("g")
    w, x = g.param("w", (2, 6), data=np.arange(12, dtype=np.float32).reshape(2, 6)), g.input("x", (2, 3))
    g.set_outputs(*[g.mul(g.narrow(w, axis=1, start=s, len=3), x) for s in (0, 3)])
    before = lowered(g)
    result = off_and_on(g, PassOptions())
    assert (before.setup_dispatches, result.commands.setup_dispatches) == (2, 1)
    assert [d.dispatches_saved for d in result.log.applied("narrow_clusters")] == [0]


def test_scratch_follows_what_the_list_now_holds() -> None:
    result = run_passes(lowered(packed_mlp(QuantScheme.Q4_K)))
    assert result.commands.scratch_bytes == max(t.scratch_bytes for t in result.commands.thunks)


# --- the zoo's decoder ------------------------------------------------------------------------------------


def decoder(quant: str, **more: object) -> Graph:
    g = zoo.build("llama-decode", layers=2, hidden=256, heads=4, ffn=512, vocab=96, past=5, quant=quant, **more)
    return zoo.random_weights(g)


def counts(result: PassResult) -> dict[str, int]:
    return {k: v for k, v in result.counters.fused if v}


@pytest.mark.parametrize("quant", ["q4_k", "q5_0", "q1_0", "q2_0"])
def test_the_quantised_decoder_goes_6_to_2_a_layer(quant: str) -> None:
    result = off_and_on(decoder(quant), PassOptions(), 1e-5, arena_no_reuse=False)
    assert counts(result) == {"decode_mlp_separate": 2}
    assert result.counters.dispatches_before - result.counters.dispatches_after == 2 * (6 - 2)


def test_packed_queries_are_cut_by_the_rope() -> None:
    result = off_and_on(decoder("q4_k", packed_qkv=True), PassOptions(), 1e-5)
    assert counts(result) == {"decode_mlp_separate": 2, "narrow_rope": 4}
    refused = {k: {r: n for r, n in row.items() if r != "applied"} for k, row in result.log.counts().items()}
    assert refused["residual_rms_norm"] == {"row_too_short": 2}


def test_a_wide_residual_stream_is_read_again_later() -> None:
    g = zoo.random_weights(zoo.build("llama-decode", layers=1, hidden=1024, heads=4, ffn=64, vocab=16, past=2, quant="q5_0"))
    log = run_passes(lowered(g)).log
    assert {d.reason for d in log.refused("residual_rms_norm")} == {Refusal.SUM_READ_LATER}


def test_a_tight_arena_leaves_no_room_for_the_fused_product() -> None:
    """x is dead once gate and up are computed, and a tight plan puts the product there: refused, with that reason."""
    g = decoder("q4_k")
    before = lowered(g, arena_no_reuse=False, pin_output_ancestors=False, dequant_host_fallback=False)
    log = run_passes(before).log
    assert {d.reason for d in log.refused("decode_mlp_separate")} == {Refusal.OUTPUT_OVERLAPS_OPERAND}


def test_operands_stay_for_the_thunk_that_gates_and_multiplies() -> None:
    """Under reuse the product would lie on x, which the fused thunk still reads: ``keep_pass_operands`` leaves x there."""
    g = packed_mlp(QuantScheme.Q4_K, combined=True, gated="gate", n=256, residual=False, layers=2)
    tight = {"arena_no_reuse": False, "pin_output_ancestors": False, "dequant_host_fallback": False}
    refused = run_passes(lowered(g, **tight)).log.refused("decode_mlp_combined")
    assert {d.reason for d in refused} == {Refusal.OUTPUT_OVERLAPS_OPERAND}
    kept = off_and_on(g, PassOptions(), 1e-5, keep_pass_operands=True, **tight)
    assert counts(kept) == {"decode_mlp_combined": 2}


def test_metal_runs_its_passes_and_the_cpu_does_not() -> None:
    g = decoder("q4_k", packed_qkv=True)
    metal, cpu = (compile_graph(g, CompileOptions.for_target(t, g)) for t in ("metal", "cpu"))
    assert {d.rule for d in metal.pass_log.applied()} == {"decode_mlp_separate", "narrow_rope"}
    assert not len(cpu.pass_log)
    feed = feed_of(g)
    want = cpu.run(feed, sanitize=True)
    for name, got in metal.run(feed, sanitize=True).items():
        np.testing.assert_allclose(got, want[name], rtol=1e-4, atol=1e-5)


def test_slots_follow_reads_that_move() -> None:
    g = decoder("q4_k")
    before = lowered(g, arena_no_reuse=True, pin_output_ancestors=False, dequant_host_fallback=False)
    result = run_passes(before)
    assert len(result.commands.slots) < len(before.slots)  # the vanished values'
    steps = {s.node: (s.birth, s.death) for s in before.slots}
    assert any(s.death > steps[s.node][1] for s in result.commands.slots)


def test_the_list_given_is_not_changed() -> None:
    g = packed_mlp(QuantScheme.Q5_0)
    before = lowered(g)
    text = str(before)
    run_passes(before)
    assert str(before) == text
    out = HostExecutor(before, g.weights).run(feed_of(g))
    assert all(np.isfinite(v).all() for v in out.values())
