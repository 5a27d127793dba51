"""Each pass applied: what it makes, and outputs that stay, on a sanitised arena."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx_viz
from planner_core import zoo
from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.ops.region import activation_step, binary_step, cast_step, result_of
from runtime import HostExecutor
from runtime.passes import PASSES, PassOptions, run_passes
from tests.runtime.passes.lab import Lab, feed_of, lowered, off_and_on, only, outcome, packed_mlp

BY_NAME = {p.name: p for p in PASSES}
CLOSE = 1e-5


def labels(result) -> list[str]:  # type: ignore[no-untyped-def]
    return [t.label for t in result.commands.thunks if t.where != "none"]


# --- regions --------------------------------------------------------------------------------------------

R = result_of
CHAINS = {
    "binary": ([binary_step("sub", 0, 1)], ["binary"]),
    "reversed": ([binary_step("sub", 1, 0)], ["binary"]),
    "binary-act": ([binary_step("mul", 0, 1), activation_step("gelu_approx", R(0))], ["fused_binary_activation"]),
    "binary-binary": ([binary_step("mul", 0, 1), binary_step("sub", R(0), 2)], ["binary", "binary"]),
    "binary-binary-act": ([binary_step("mul", 0, 1), binary_step("sub", R(0), 2), activation_step("tanh", R(1))],
                          ["fused_ternary_activation"]),
    "three": ([binary_step("mul", 0, 1), binary_step("sub", R(0), 2), binary_step("max", R(1), 0)], ["binary"] * 3),
    "cast-binary": ([cast_step("keep", 1), binary_step("div", R(0), 0)], ["binary"]),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("size", [1, 13, 40009])
def test_region_rewrite(name: str, size: int) -> None:
    steps, want = CHAINS[name]
    g = Graph("region")
    used = sorted({o for s in steps for o in (s[2], *s[3:] * (s[0] == 2)) if o < 16})
    xs = [g.input(f"x{i}", (size,)) for i in used]
    g.set_outputs(g.elementwise_region(*xs, steps=tuple(steps)))
    result = off_and_on(g, only(BY_NAME["region_rewrite"]), CLOSE)
    assert labels(result) == want
    assert result.index_map == {0: tuple(range(len(want)))}
    (d,) = result.log.applied("region_rewrite")
    assert (d.anchor, d.dispatches_saved) == (0, 1 - len(want))


def test_a_lone_activation_in_place() -> None:
    from runtime.command_list.thunks.region import ElementwiseRegion, flat_chain

    lab = Lab()
    x = lab.value(5)
    lab.op("region", ElementwiseRegion((x,), x, 5, flat_chain([activation_step("relu", 0)])))
    assert labels(outcome(lab, BY_NAME["region_rewrite"])) == ["activation"]


# --- dense broadcast --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [((1, 3, 7), (3, 7)), ((3, 7), (1, 3, 7)), ((1,), (1, 1)), ((1, 1, 5), (5,))])
def test_dense_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    g = Graph("dense")
    g.set_outputs(g.sub(g.input("a", a), g.input("b", b)))
    assert labels(off_and_on(g, only(BY_NAME["dense_broadcast"]))) == ["binary"]


# --- decode MLP -------------------------------------------------------------------------------------------

Q = QuantScheme


@pytest.mark.parametrize("act", ["silu", "gelu_approx"])
@pytest.mark.parametrize(("scheme", "down"), [(Q.Q4_K, Q.Q4_K), (Q.Q5_0, Q.Q6_K), (Q.Q4_K, Q.Q5_0)])
@pytest.mark.parametrize("swapped", [False, True])
def test_mlp_combined_7_to_2(act: str, scheme: QuantScheme, down: QuantScheme, swapped: bool) -> None:
    g = packed_mlp(scheme, act=act, combined=True, down=down, swapped=swapped)
    result = off_and_on(g, only(BY_NAME["decode_mlp_combined"]), CLOSE)
    kind = "swiglu" if act == "silu" else "gelu"
    assert labels(result) == ["rms_norm", f"fused_mlp_gate_up_{kind}", "fused_mlp_down_residual"]
    assert (result.counters.dispatches_before - 1, result.counters.dispatches_after - 1) == (7, 2)
    (d,) = result.log.applied()
    assert d.dispatches_saved == 5
    assert d.bytes_saved == 4 * (2 * 512 + 3 * 512 + 256)


def test_mlp_combined_before_a_norm_5_to_1() -> None:
    result = off_and_on(packed_mlp(Q.Q4_K, combined=True, norm=True), only(BY_NAME["decode_mlp_combined"]), CLOSE)
    assert labels(result) == ["rms_norm", "fused_mlp_gate_up_swiglu", "dequant_matmul_gguf", "rms_norm", "binary"]
    (d,) = result.log.applied()
    assert d.dispatches_saved == 4
    assert dict(d.facts)["residual"] == "no_residual"


def test_mlp_combined_reads_the_segments_of_a_split() -> None:
    """Clusters first, as a lowering with splits would: the MLP is found all the same."""
    g = packed_mlp(Q.Q4_K, combined=True)
    split = run_passes(lowered(g), only(BY_NAME["narrow_clusters"]))
    assert "split_lastax" in labels(split)
    result = run_passes(split.commands, only(BY_NAME["decode_mlp_combined"]))
    assert labels(result) == ["rms_norm", "fused_mlp_gate_up_swiglu", "fused_mlp_down_residual"]


@pytest.mark.parametrize("act", ["silu", "gelu_approx"])
@pytest.mark.parametrize(("scheme", "down"), [(Q.Q4_K, Q.Q6_K), (Q.Q5_0, Q.Q5_0), (Q.Q1_0, Q.Q1_0), (Q.Q2_0, Q.Q4_K)])
def test_mlp_separate_6_to_2(act: str, scheme: QuantScheme, down: QuantScheme) -> None:
    result = off_and_on(packed_mlp(scheme, act=act, down=down, layers=2), only(BY_NAME["decode_mlp_separate"]), CLOSE)
    kind = "swiglu" if act == "silu" else "gelu"
    assert labels(result) == ["rms_norm", f"fused_mlp_gate_up_{kind}", "fused_mlp_down_residual"] * 2
    assert (result.counters.dispatches_before - 2, result.counters.dispatches_after - 2) == (12, 4)
    assert dict(result.counters.fused) == {"decode_mlp_separate": 2}
    # the applied decision names its place, and the fused thunks stand at the product and at the add
    first = result.log.applied()[0]
    assert first.anchor == 4 and first.nodes == (1, 2, 3, 4, 5, 6)
    assert [i for i, t in enumerate(result.commands.thunks[:7]) if t.where != "none"] == [0, 4, 6]


@pytest.mark.parametrize("scheme", [Q.Q1_0, Q.Q2_0])
def test_mlp_separate_in_half_precision(scheme: QuantScheme) -> None:
    g = packed_mlp(scheme, dtype=DType.F16)
    result = off_and_on(g, only(BY_NAME["decode_mlp_separate"]), 5e-3, width_policy=_native())
    gate_up, down = result.commands.thunks[4], result.commands.thunks[6]
    assert (gate_up.x_f16, gate_up.dst_f16) == (True, True)  # type: ignore[attr-defined]
    assert (down.x_f16, down.dst_f16, down.res_f16) == (True, True, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", ["gate", "up"])
@pytest.mark.parametrize("act", ["silu", "gelu_approx"])
@pytest.mark.parametrize(("scheme", "down"), [(Q.Q4_K, Q.Q6_K), (Q.Q5_0, Q.Q5_0)])
def test_mlp_combined_where_one_thunk_gates_and_multiplies(act: str, scheme: Q, down: Q, first: str) -> None:
    """4 dispatches become 2, whichever half is the gate; the numbers are gguf's weights through the formula in f64."""
    g = packed_mlp(scheme, act=act, down=down, combined=True, gated=first)
    result = off_and_on(g, only(BY_NAME["decode_mlp_combined"]), CLOSE)
    kind = "swiglu" if act == "silu" else "gelu"
    assert labels(result) == ["rms_norm", f"fused_mlp_gate_up_{kind}", "fused_mlp_down_residual"]
    (d,) = result.log.applied()
    assert (d.dispatches_saved, d.bytes_saved) == (2, 4 * (2 * 512 + 256))
    halves = np.split(_weight(g, "0.both", scheme, 1024, 256), 2)
    gate, up = halves if first == "gate" else halves[::-1]
    _is_the_formula(g, result, act, gate, up, _weight(g, "0.down", down, 256, 512))


@pytest.mark.parametrize("first", ["gate", "up"])
@pytest.mark.parametrize("act", ["silu", "gelu_approx"])
@pytest.mark.parametrize(("scheme", "down"), [(Q.Q4_K, Q.Q6_K), (Q.Q2_0, Q.Q4_K)])
def test_mlp_separate_where_one_thunk_gates_and_multiplies(act: str, scheme: Q, down: Q, first: str) -> None:
    """Gate and up are put side by side for it: 6 dispatches become 2."""
    g = packed_mlp(scheme, act=act, down=down, gated=first)
    result = off_and_on(g, only(BY_NAME["decode_mlp_separate"]), CLOSE)
    kind = "swiglu" if act == "silu" else "gelu"
    assert labels(result) == ["rms_norm", f"fused_mlp_gate_up_{kind}", "fused_mlp_down_residual"]
    assert result.log.dispatches_saved == 4
    weights = [_weight(g, f"0.{name}", scheme, 512, 256) for name in ("gate", "up")]
    _is_the_formula(g, result, act, *weights, _weight(g, "0.down", down, 256, 512))


def test_an_exact_gelu_in_the_thunk_has_no_fused_form() -> None:
    for combined in (True, False):
        result = run_passes(lowered(packed_mlp(Q.Q4_K, act="gelu", combined=combined, gated="gate")))
        assert not result.log.applied()


def test_the_zoo_decoder_with_one_product_for_gate_and_up() -> None:
    """Per layer of llama-decode, 16 dispatches become 14: 515 in 32 layers become 451, as sliced and separate ones."""
    form = {"quant": "q4_k", "past": 7}
    got = {}
    for more in ({"packed_mlp": True}, {"packed_mlp": True, "sliced_mlp": True}, {}):
        c = rlx_viz.compile(zoo.build("llama-decode", **form, **more), target="metal")
        got[tuple(more)] = c.commands.dispatches
        assert len(c.pass_log.applied()) == 32
    assert set(got.values()) == {451}


def _weight(g: Graph, name: str, scheme: Q, n: int, k: int) -> np.ndarray:
    """The rows as the gguf package reads them, or by the formula for the two formats that it lacks."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = np.asarray(g.weights[name]).reshape(n, -1)
    if scheme is not Q.Q2_0:
        return dequantize(rows, GGMLQuantizationType[scheme.name]).astype(np.float64)
    blocks = rows.reshape(n, k // 128, 34)
    codes = blocks[:, :, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    scale = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float64)
    return ((codes.reshape(n, k // 128, 128).astype(np.float64) - 1) * scale).reshape(n, k)


def _is_the_formula(g: Graph, result: Any, act: str, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> None:
    feed = feed_of(g)
    x = feed["x"].astype(np.float64).reshape(-1)
    h = x / np.sqrt((x * x).mean() + 1e-6)
    a = gate @ h
    active = a / (1 + np.exp(-a)) if act == "silu" else (
        a * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))))
    want = x + down @ (active * (up @ h))
    got = HostExecutor(result.commands, g.weights).run(feed, sanitize=True)
    np.testing.assert_allclose(next(iter(got.values())).reshape(-1), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def _native():  # type: ignore[no-untyped-def]
    from planner_core.memory import ArenaWidthPolicy

    return ArenaWidthPolicy.NATIVE


# --- norms ------------------------------------------------------------------------------------------------


def residual_norm(h: int = 1024, rows: int = 1, bias: bool = False, again: bool = False) -> Graph:
    g = Graph("residual")
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> int:
        return g.param(f"w{len(g)}", shape, data=(rng.standard_normal(shape) / 8).astype(np.float32))

    x, res = g.input("x", (rows, 8)), g.input("res", (rows, h))
    y = g.mm(x, weight(8, h))
    if bias:
        y = g.add(y, weight(h))
    s = g.add(res, y)
    n = g.rms_norm(s, weight(h), weight(h)) if bias else g.rms_norm(s, weight(h))
    return g.set_outputs(*([g.neg(n), g.relu(s)] if again else [g.neg(n)]))


@pytest.mark.parametrize("bias", [False, True])
def test_residual_rms_norm(bias: bool) -> None:
    result = off_and_on(residual_norm(bias=bias), only(BY_NAME["residual_rms_norm"]), CLOSE)
    assert labels(result)[-2:] == ["fused_residual_rms_norm", "activation_out"]
    assert result.log.applied()[0].bytes_saved == 4096


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_gated_norm(swapped: bool, rows: int) -> None:
    g = Graph("gated")
    x, z = g.input("x", (rows, 7)), g.input("z", (rows, 7))
    n = g.rms_norm(x, g.param("g", (7,), data=np.linspace(1, 2, 7, dtype=np.float32)))
    s = g.silu(z)
    g.set_outputs(g.mul(s, n) if swapped else g.mul(n, s))
    assert labels(off_and_on(g, only(BY_NAME["gated_norm"]), CLOSE)) == ["fused_rms_norm_mul_silu"]


# --- depthwise --------------------------------------------------------------------------------------------


def depthwise(batch: int, channels: int, k: int, silu: bool) -> Graph:
    g = Graph("depthwise")
    x = g.transpose(g.input("x", (batch, k, channels)), perm=(0, 2, 1))
    w = g.param("w", (channels, 1, k), data=np.random.default_rng(0).standard_normal((channels, 1, k)).astype(np.float32))
    y = g.transpose(g.conv(x, w, strides=(1,), pads=(0, 0), dilations=(1,), groups=channels), perm=(0, 2, 1))
    return g.set_outputs(g.silu(y) if silu else y)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize(("batch", "channels", "k"), [(1, 5, 4), (3, 7, 2)])
def test_depthwise(batch: int, channels: int, k: int, silu: bool) -> None:
    result = off_and_on(depthwise(batch, channels, k, silu), only(BY_NAME["depthwise_conv"]), CLOSE)
    assert labels(result) == ["fused_depthwise_conv1d_bsc"]
    assert dict(result.log.applied()[0].facts)["silu"] is silu


# --- slices -----------------------------------------------------------------------------------------------


def rope_of_slices(rows: int, interleaved: bool = False, batch: int = 1) -> Graph:
    g = Graph("rope")
    both = g.relu(g.input("qk", (batch, rows, 20)))
    angle = np.random.default_rng(0).random((rows, 2)).astype(np.float32)
    tables = [g.param(n, angle.shape, data=f(angle)) for n, f in (("cos", np.cos), ("sin", np.sin))]
    cut = [g.narrow(both, axis=2, start=s, len=n) for s, n in ((0, 8), (8, 4))]
    return g.set_outputs(*(g.rope(c, *tables, head_dim=4, n_rot=4, interleaved=interleaved) for c in cut))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
def test_narrow_rope(rows: int, batch: int, interleaved: bool) -> None:
    result = off_and_on(rope_of_slices(rows, interleaved, batch), only(BY_NAME["narrow_rope"]))
    assert labels(result) == ["activation_out", "rope", "rope"]
    assert {t.src_row_stride for t in result.commands.thunks if t.label == "rope"} == {20}  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [1, 3])
def test_narrow_clusters(rows: int) -> None:
    g = Graph("clusters")
    x = g.relu(g.input("x", (rows, 11)))
    cut = [g.narrow(x, axis=1, start=s, len=n) for s, n in ((4, 5), (0, 4), (9, 2))]
    g.set_outputs(*map(g.tanh, cut))
    result = off_and_on(g, only(BY_NAME["narrow_clusters"]))
    assert labels(result) == ["activation_out", "split_lastax", "activation_out", "activation_out", "activation_out"]
    split = next(t for t in result.commands.thunks if t.label == "split_lastax")
    assert split.starts == (4, 0, 9)  # type: ignore[attr-defined]


# --- together ---------------------------------------------------------------------------------------------


def test_every_pass_together_in_a_tight_arena_keeps_the_numbers() -> None:
    for g in (packed_mlp(Q.Q4_K, combined=True, layers=3), packed_mlp(Q.Q2_0, layers=3), rope_of_slices(3),
              depthwise(2, 5, 4, True), residual_norm(again=True)):
        for tight in (True, False):
            off_and_on(g, PassOptions(), CLOSE, arena_no_reuse=not tight, pin_output_ancestors=False,
                       dequant_host_fallback=False)


def test_feeds_are_not_trivial() -> None:
    assert all(np.std(v) > 0 for v in feed_of(residual_norm()).values())
