"""One case for each reason of each pass; a registry test keeps the table complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner_core.ir import DType, QuantScheme
from planner_core.ir.ops.region import activation_step, binary_step, cast_step, result_of
from runtime.command_list import Operand, registry
from runtime.command_list.thunks.attention import FusedSwiGLU, Rope
from runtime.command_list.thunks.conv import Conv2D
from runtime.command_list.thunks.elementwise import ActivationOut, BinaryBroadcast, BinaryFull
from runtime.command_list.thunks.matmul import Sgemm
from runtime.command_list.thunks.packed import DequantMatMulGguf
from runtime.command_list.thunks.reduce import RmsNorm
from runtime.command_list.thunks.region import ElementwiseRegion, flat_chain
from runtime.command_list.thunks.structure import Concat, Copy, Narrow, Transpose
from runtime.passes import PASSES, CommandPass, Refusal
from tests.runtime.passes.lab import F16, F32, Lab, act_mul, outcome

R = Refusal
Q = QuantScheme
Case = Callable[[], Lab]
CASES: dict[tuple[str, Refusal], tuple[Case, dict[str, bool]]] = {}


def refused(name: str, reason: Refusal, **options: bool) -> Callable[[Case], Case]:
    def register(fn: Case) -> Case:
        assert (name, reason) not in CASES
        CASES[name, reason] = fn, options
        return fn

    return register


def half(o: Operand) -> Operand:
    return replace(o, storage=F16, nbytes=o.numel * 2)


# --- region rewrite ---------------------------------------------------------------------------------------


def region(*steps: tuple[int, int, int, int], inputs: int = 3, n: int = 5) -> Lab:
    lab = Lab()
    xs = tuple(lab.value(n) for _ in range(inputs))
    lab.op("region", ElementwiseRegion(xs, lab.value(n), n, flat_chain(steps)))
    return lab


ADD, MORE = binary_step("add", 0, 1), binary_step("mul", result_of(0), 2)
for _reason, _case in {
    R.HAS_PROLOGUE: lambda: region(ADD).change("region", prologue=1),
    R.NOT_DENSE: lambda: region(ADD).change("region", input_modulus=(0, 2, 0)),
    R.NOT_F32: lambda: region(ADD).change("region", dst=half(Lab().value(5))),
    R.CHAIN_HAS_NO_FORM: lambda: region(ADD, MORE, activation_step("relu", result_of(1)),
                                        activation_step("relu", result_of(2))),
    R.STEP_ORDER: lambda: region(ADD, binary_step("sub", 2, result_of(0))),
    R.CAST_CHANGES_VALUES: lambda: region(cast_step("to_f16", 0), binary_step("add", result_of(0), 1)),
    R.SPLIT_OVERLAPS: lambda: _into_third(region(ADD, MORE)),
    R.NOT_IN_PLACE: lambda: region(activation_step("relu", 0), inputs=1),
}.items():
    refused("region_rewrite", _reason)(_case)


def _into_third(lab: Lab) -> Lab:
    return lab.change("region", dst=lab["region"].inputs[2])


@pytest.mark.parametrize("steps", [(binary_step("mul", 0, 0),), (binary_step("mul", 0, 1),) * 4])
def test_other_chains_stay_regions(steps: tuple[tuple[int, int, int, int], ...]) -> None:
    assert outcome(region(*steps), BY_NAME["region_rewrite"]).log.decisions[0].reason is R.CHAIN_HAS_NO_FORM


def test_a_scalar_input_is_not_dense() -> None:
    lab = region(ADD).change("region", scalar_input_mask=2)
    assert outcome(lab, BY_NAME["region_rewrite"]).log.decisions[0].reason is R.NOT_DENSE


# --- dense broadcast --------------------------------------------------------------------------------------


@refused("dense_broadcast", R.RANK_ZERO)
def _rank_zero() -> Lab:
    lab = Lab()
    a, b, c = (lab.value() for _ in range(3))
    lab.op("b", BinaryBroadcast(a, b, c, 1, "add", 0, (), (), ()))
    return lab


@refused("dense_broadcast", R.NOT_DENSE)
def _row() -> Lab:
    lab = Lab()
    lab.op("b", BinaryBroadcast(lab.value(3, 5), lab.value(5), lab.value(3, 5), 15, "mul", 2, (3, 5), (5, 1), (0, 1)))
    return lab


# --- decode MLP -------------------------------------------------------------------------------------------


def mlp(*, combined: bool, scheme: QuantScheme = Q.Q4_K, act: str = "silu", m: int = 1, k: int = 256, n: int = 256,
        dtype=F32, down_scheme: QuantScheme | None = None) -> Lab:  # type: ignore[no-untyped-def]
    lab = Lab()
    x, res = lab.value(m, k, dtype=dtype), lab.value(k, dtype=dtype)
    f16 = dtype is F16
    if combined:
        both = lab.value(m, 2 * n, dtype=dtype)
        lab.op("both", DequantMatMulGguf(x, lab.weight(2 * n, k, scheme), both, m, k, 2 * n, scheme, f16, f16))
        gate, up = lab.value(m, n, dtype=dtype), lab.value(m, n, dtype=dtype)
        lab.op("gate", Narrow(both, gate, m, 2 * n, 0, n))
        lab.op("up", Narrow(both, up, m, 2 * n, n, n))
    else:
        gate, up = lab.value(m, n, dtype=dtype), lab.value(m, n, dtype=dtype)
        lab.op("gate", DequantMatMulGguf(x, lab.weight(n, k, scheme), gate, m, k, n, scheme, f16, f16))
        lab.op("up", DequantMatMulGguf(x, lab.weight(n, k, scheme), up, m, k, n, scheme, f16, f16))
    product = act_mul(lab, gate, up, m * n, act, dtype)
    down, out = lab.value(1, k, dtype=dtype), lab.value(k, dtype=dtype)
    ds = down_scheme or scheme
    lab.op("down", DequantMatMulGguf(product.viewed(1, m * n), lab.weight(k, n, ds), down, 1, n, k, ds, f16, f16))
    lab.op("add", BinaryFull(res, down.viewed(k), out, k, "add"))
    return lab.end(out)


def into(lab: Lab, target: str, field: str, o: Operand) -> Lab:
    """The thunk writes where ``o`` is."""
    old = getattr(lab[target], field)
    return lab.change(target, **{field: replace(old, space=o.space, offset=o.offset)})


def _apart_product(lab: Lab, first: str) -> Lab:
    """The product lands on x, and the down projection reads it there."""
    x = lab[first].x
    return into(into(lab, "mul", "dst", x), "down", "x", x)


BOTH = {
    R.NOT_ONE_ROW: lambda c: mlp(combined=c, m=2),
    R.SCHEME: lambda c: mlp(combined=c, scheme=Q.Q8_0),
    R.NO_DOWN: lambda c: mlp(combined=c, down_scheme=Q.Q8_0),
    R.READ_ELSEWHERE: lambda c: (lab := mlp(combined=c)).read_after("up", lab["up"].dst),
    R.GRAPH_OUTPUT: lambda c: (lab := mlp(combined=c)).end(lab["act"].dst),
    R.OPERAND_OVERWRITTEN: lambda c: (lab := mlp(combined=c)).write_after("up", lab["both" if c else "gate"].x),
    R.OUTPUT_OVERLAPS_OPERAND: lambda c: _apart_product(mlp(combined=c), "both" if c else "gate"),
    R.OPAQUE: lambda c: mlp(combined=c).opaque_after("act"),
}
for _reason, _make in BOTH.items():
    refused("decode_mlp_combined", _reason)(lambda make=_make: make(True))  # type: ignore[misc]
    refused("decode_mlp_separate", _reason)(lambda make=_make: make(False))  # type: ignore[misc]
for _name in ("decode_mlp_combined", "decode_mlp_separate"):
    _c = _name == "decode_mlp_combined"
    refused(_name, R.SWITCHED_OFF, decode_gelu=False)(lambda c=_c: mlp(combined=c, act="gelu_approx"))  # type: ignore[misc]
    refused(_name, R.HOST_FORM_FORCED, dequant_gpu_disable=True)(lambda c=_c: mlp(combined=c))  # type: ignore[misc]


@refused("decode_mlp_combined", R.NOT_F32)
def _half_combined() -> Lab:
    return mlp(combined=True, dtype=F16)


@refused("decode_mlp_combined", R.NOT_SAME_INPUT)
def _up_from_elsewhere() -> Lab:
    lab = mlp(combined=True)
    other = lab.value(1, 512)
    return lab.change("up", src=other)


@refused("decode_mlp_combined", R.NOT_HALVES)
def _up_first() -> Lab:
    return mlp(combined=True).change("gate", start=256).change("up", start=0)


@refused("decode_mlp_separate", R.NOT_SAME_INPUT)
def _other_x() -> Lab:
    lab = mlp(combined=False)
    return lab.change("up", x=lab.value(1, 256))


@refused("decode_mlp_separate", R.K_NOT_BLOCKS)
def _odd_k() -> Lab:
    return mlp(combined=False, scheme=Q.Q1_0, k=200)


@refused("decode_mlp_separate", R.HALF_FORM)
def _half_separate() -> Lab:
    return mlp(combined=False, dtype=F16)


@refused("decode_mlp_separate", R.NO_RESIDUAL)
def _no_add() -> Lab:
    return mlp(combined=False).change("add", op="mul")


@refused("decode_mlp_separate", R.NOT_F32)
def _wide_residual() -> Lab:
    lab = mlp(combined=False)
    return lab.change("add", lhs=lab.value(256, dtype=DType.F64), dst=lab.value(256, dtype=DType.F64))


BY_NAME = {p.name: p for p in PASSES}


def test_slices_that_are_forced_to_the_host_stay_apart() -> None:
    """host_fallback: the combined MLP keeps its slices, and they are what runs on the host."""
    result = outcome(mlp(combined=True), BY_NAME["decode_mlp_combined"], host_fallback=True)
    (d,) = result.log
    assert (d.reason, dict(d.facts)["option"], dict(d.facts)["label"]) == (R.HOST_FORM_FORCED, "host_fallback", "narrow")
    assert result.counters.dispatches_after == result.counters.dispatches_before
    assert len(result.host_forced) == 2
    assert outcome(mlp(combined=True), BY_NAME["decode_mlp_combined"]).log.applied()


@pytest.mark.parametrize("scheme", [Q.Q1_0, Q.Q2_0])
def test_half_precision_gelu_has_no_form(scheme: QuantScheme) -> None:
    log = outcome(mlp(combined=False, scheme=scheme, dtype=F16, act="gelu_approx"), BY_NAME["decode_mlp_separate"]).log
    assert log.decisions[0].reason is R.HALF_FORM


@pytest.mark.parametrize("scheme", [Q.Q4_K, Q.Q5_0, Q.Q6_K])
def test_a_half_down_product_needs_a_half_form_of_its_own(scheme: QuantScheme) -> None:
    """Gate and up have one in Q1_0; the down product of halves has none in these formats."""
    log = outcome(mlp(combined=False, scheme=Q.Q1_0, dtype=F16, down_scheme=scheme), BY_NAME["decode_mlp_separate"]).log
    (d,) = log
    assert d.reason is R.HALF_FORM
    assert (dict(d.facts)["label"], dict(d.facts)["down"]) == ("dequant_matmul_gguf", scheme.text)
    fits = mlp(combined=False, scheme=Q.Q1_0, dtype=F16, down_scheme=Q.Q2_0)
    assert outcome(fits, BY_NAME["decode_mlp_separate"]).log.applied()


def gated_mlp(combined: bool) -> Lab:
    """Activation and product in one thunk, at ``mul``."""
    lab = mlp(combined=combined)
    row = lab["both"].dst if combined else lab.value(1, 512)
    gate, up, product = lab["gate"], lab["up"], lab["mul"].dst
    keep = [i for i, name in enumerate(lab.names) if name not in ("act", *(("gate", "up") if combined else ()))]
    lab.names, lab.thunks = [lab.names[i] for i in keep], [lab.thunks[i] for i in keep]
    if not combined:
        lab.after("up", Concat(row.viewed(1, 512, 1), 1, 512, 1, (gate.dst.viewed(1, 256, 1), up.dst.viewed(1, 256, 1))))
    lab.thunks[lab.names.index("mul")] = FusedSwiGLU(row, product.viewed(1, 256), 256, 256, True)
    return lab


@pytest.mark.parametrize(("reason", "change"), [
    (R.READ_ELSEWHERE, lambda lab, c: lab.read_after("add", lab["mul"].src)),
    (R.GRAPH_OUTPUT, lambda lab, c: lab.end(lab["mul"].src)),
    (R.OPERAND_OVERWRITTEN, lambda lab, c: lab.write_after("both" if c else "up", lab["both" if c else "gate"].x)),
    (R.OUTPUT_OVERLAPS_OPERAND, lambda lab, c: _apart_product(lab, "both" if c else "gate")),
    (R.OPAQUE, lambda lab, c: lab.opaque_after("mul")),
    (R.NO_DOWN, lambda lab, c: lab.change("down", scheme=Q.Q8_0)),
], ids=lambda v: v.name.lower() if isinstance(v, R) else "")
@pytest.mark.parametrize("combined", [True, False])
def test_the_gated_thunk_is_refused_for_the_same_reasons(reason: R, change: Callable[[Lab, bool], Lab], combined: bool) -> None:
    p = BY_NAME["decode_mlp_combined" if combined else "decode_mlp_separate"]
    assert outcome(gated_mlp(combined), p).log.applied()
    (d,) = outcome(change(gated_mlp(combined), combined), p).log
    assert d.reason is reason


@pytest.mark.parametrize("lab", [lambda: mlp(combined=False, scheme=Q.Q2_0),
                                 lambda: mlp(combined=False, down_scheme=Q.Q2_0)])
def test_q2_0_switch_touches_the_separate_pass(lab: Case) -> None:
    assert outcome(lab(), BY_NAME["decode_mlp_separate"]).log.applied()
    off = outcome(lab(), BY_NAME["decode_mlp_separate"], q2_0_fused_disable=True).log
    assert off.decisions[0].reason is R.SWITCHED_OFF
    assert dict(off.decisions[0].facts)["option"] == "q2_0_fused_disable"
    assert outcome(mlp(combined=True), BY_NAME["decode_mlp_combined"], q2_0_fused_disable=True).log.applied()


@pytest.mark.parametrize("combined", [True, False])
def test_a_gelu_product_has_no_other_reader_to_the_end_of_the_list(combined: bool) -> None:
    p = BY_NAME["decode_mlp_combined" if combined else "decode_mlp_separate"]
    lab = mlp(combined=combined, act="gelu_approx")
    log = outcome(lab.read_after("add", lab["mul"].dst), p).log
    assert log.decisions[0].reason is R.READ_ELSEWHERE
    lab = mlp(combined=combined)  # the SwiGLU product is still written
    assert outcome(lab.read_after("add", lab["mul"].dst), p).log.applied()


def test_combined_without_its_residual_says_why() -> None:
    lab = mlp(combined=True)
    lab.write_after("down", lab["down"].x)
    (d,) = outcome(lab, BY_NAME["decode_mlp_combined"]).log.applied()
    assert dict(d.facts)["residual"] == "operand_overwritten"


def test_a_weight_in_the_arena_that_is_overwritten() -> None:
    lab = mlp(combined=False)
    w = replace(lab["up"].w_q, space="arena", offset=lab.at)
    lab.at += w.nbytes
    lab.change("up", w_q=w)
    lab.write_after("act", lab.value(1))
    assert outcome(lab, BY_NAME["decode_mlp_separate"]).log.applied()
    lab.after("act", Copy(w, w, w.numel))
    assert outcome(lab, BY_NAME["decode_mlp_separate"]).log.decisions[0].reason is R.OPERAND_OVERWRITTEN


# --- residual + norm --------------------------------------------------------------------------------------


def residual(rows: int = 1, h: int = 1024, dtype=F32, copy: bool = False) -> Lab:  # type: ignore[no-untyped-def]
    lab = Lab()
    a, w, y, res = lab.value(rows, 8), lab.value(8, h), lab.value(rows, h), lab.value(rows * h)
    lab.op("mm", Sgemm(a, w, y, rows, 8, h))
    s = lab.value(rows * h, dtype=dtype)
    lab.op("add", BinaryFull(res, y.viewed(rows * h), s, rows * h, "add"))
    if copy:
        t = lab.value(rows * h, dtype=dtype)
        lab.op("copy", Copy(s, t, rows * h))
        s = t
    out = lab.value(rows, h)
    lab.op("norm", RmsNorm(s.viewed(rows, h), lab.value(h), None, out, rows, h, 1e-5))
    return lab.end(out)


def _busy(lab: Lab, after: str, count: int) -> Lab:
    for _ in range(count):
        lab.write_after(after, lab.value(1))
    return lab


for _reason, _case in {
    R.NOT_ONE_ROW: lambda: residual(rows=2),
    R.ROW_TOO_SHORT: lambda: residual(h=1023),
    R.NOT_F32: lambda: residual(dtype=F16),
    R.TOO_FAR: lambda: _busy(residual(), "add", 3),
    R.NOT_A_PROJECTION: lambda: (lab := residual()).write_after("mm", lab["mm"].c).write_after("mm", lab["mm"].c),
    R.OPAQUE: lambda: residual().opaque_after("add"),
    R.SUM_READ_LATER: lambda: (lab := residual()).read_after("norm", lab["add"].dst),
    R.READ_ELSEWHERE: lambda: (lab := residual(copy=True)).read_after("norm", lab["copy"].dst),
    R.GRAPH_OUTPUT: lambda: (lab := residual()).end(lab["add"].dst),
    R.OPERAND_OVERWRITTEN: lambda: (lab := residual()).write_after("add", lab["add"].lhs),
    R.OUTPUT_OVERLAPS_OPERAND: lambda: into(lab := residual(), "norm", "dst", lab["add"].lhs),
}.items():
    refused("residual_rms_norm", _reason)(_case)


def test_the_sum_may_be_copied_and_two_thunks_may_stand_between() -> None:
    for lab in (residual(copy=True), _busy(residual(), "add", 2), _busy(residual(copy=True), "copy", 5)):
        assert outcome(lab, BY_NAME["residual_rms_norm"]).log.applied()
    assert not outcome(_busy(residual(copy=True), "add", 3), BY_NAME["residual_rms_norm"]).log.applied()


@pytest.mark.parametrize(("hops", "applies"), [(3, True), (4, False)])
def test_a_projection_through_at_most_three_copies(hops: int, applies: bool) -> None:
    lab, last = residual(), "mm"
    for _ in range(hops):
        hop = Copy(lab["add"].rhs, lab.value(1024), 1024)
        lab.after(last, hop).change("add", rhs=hop.dst)
        last = lab.names[lab.thunks.index(hop)]
    log = outcome(lab, BY_NAME["residual_rms_norm"]).log
    assert bool(log.applied()) is applies


# --- gated norm -------------------------------------------------------------------------------------------


def gated(dtype=F32) -> Lab:  # type: ignore[no-untyped-def]
    lab = Lab()
    x, z, n, s, out = lab.value(2, 4), lab.value(8), lab.value(2, 4), lab.value(8, dtype=dtype), lab.value(8)
    lab.op("norm", RmsNorm(x, lab.value(4), None, n, 2, 4, 1e-5))
    lab.op("silu", ActivationOut(z, s, 8, "silu"))
    lab.op("mul", BinaryFull(n.viewed(8), s, out, 8, "mul"))
    return lab.end(out)


for _reason, _case in {
    R.NOT_F32: lambda: gated(F16),
    R.OPAQUE: lambda: gated().opaque_after("norm"),
    R.READ_ELSEWHERE: lambda: (lab := gated()).read_after("mul", lab["silu"].dst),
    R.GRAPH_OUTPUT: lambda: (lab := gated()).end(lab["norm"].dst),
    R.OPERAND_OVERWRITTEN: lambda: (lab := gated()).write_after("silu", lab["norm"].src),
    R.OUTPUT_OVERLAPS_OPERAND: lambda: into(lab := gated(), "mul", "dst", lab["silu"].src),
}.items():
    refused("gated_norm", _reason)(_case)


def test_a_gate_that_is_copied_first() -> None:
    lab = gated()
    z, c = lab["silu"].src, lab.value(8)
    lab.after("norm", Copy(z, c, 8)).change("silu", src=c)
    result = outcome(lab, BY_NAME["gated_norm"])
    assert result.commands.thunks[-1].label == "fused_rms_norm_mul_silu"
    assert result.counters.dispatches_after == 1


# --- depthwise --------------------------------------------------------------------------------------------


def depthwise(k: int = 4, c: int = 3, w_out: int = 1, dtype=F32, silu: bool = False) -> Lab:  # type: ignore[no-untyped-def]
    lab = Lab()
    w = w_out + k - 1
    x, t, y, out = (lab.value(1, w, c, dtype=dtype), lab.value(1, c, w, dtype=dtype), lab.value(1, c, 1, w_out, dtype=dtype),
                    lab.value(1, w_out, c, dtype=dtype))
    lab.op("in", Transpose(x, t, w * c, (1, c, w), (w * c, 1, c)))
    lab.op("conv", Conv2D(t.viewed(1, c, 1, w), lab.value(c, 1, 1, k, dtype=dtype), y, 1, c, 1, w, c, 1, w_out, 1, k, 1, 1, 0,
                          0, 1, 1, c))
    lab.op("out", Transpose(y, out, w_out * c, (1, w_out, c), (w_out * c, 1, w_out)))
    if silu:
        s = lab.value(w_out * c)
        lab.op("silu", ActivationOut(out.viewed(w_out * c), s, w_out * c, "silu"))
        out = s
    return lab.end(out)


for _reason, _case in {
    R.NOT_DEPTHWISE: lambda: depthwise().change("conv", groups=1),
    R.CONV_SHAPE: lambda: depthwise(w_out=2),
    R.NOT_F32: lambda: depthwise(dtype=F16),
    R.TRANSPOSE_STRIDES: lambda: depthwise().change("in", in_strides=(12, 4, 1)),
    R.NO_TRANSPOSE_BACK: lambda: (lab := depthwise()).change("out", src=lab.value(1, 3, 1)),
    R.OPAQUE: lambda: depthwise().opaque_after("in"),
    R.READ_ELSEWHERE: lambda: (lab := depthwise()).read_after("out", lab["in"].dst),
    R.GRAPH_OUTPUT: lambda: (lab := depthwise()).end(lab["conv"].dst),
    R.OPERAND_OVERWRITTEN: lambda: (lab := depthwise()).write_after("in", lab["in"].src),
    R.DESTINATION_IN_USE: lambda: (lab := depthwise()).read_after("conv", lab["out"].dst),
    R.OUTPUT_OVERLAPS_OPERAND: lambda: _end_at(lab := depthwise(), lab["in"].src),
}.items():
    refused("depthwise_conv", _reason)(_case)


def _end_at(lab: Lab, o: Operand) -> Lab:
    return into(lab, "out", "dst", o)


@pytest.mark.parametrize("where", ["in", "conv", "out"])
def test_copies_around_the_convolution_vanish(where: str) -> None:
    lab = depthwise(silu=True)
    following = {"in": ("conv", "src"), "conv": ("out", "src"), "out": ("silu", "src")}[where]
    src = getattr(lab[following[0]], following[1])
    c = replace(src, offset=lab.at)
    lab.at += 1024
    lab.after(where, Copy(src, c, src.numel)).change(following[0], **{following[1]: c})
    result = outcome(lab, BY_NAME["depthwise_conv"])
    assert [t.label for t in result.commands.thunks if t.where != "none"] == ["fused_depthwise_conv1d_bsc"]


@pytest.mark.parametrize("between", [31, 32])
def test_a_silu_is_looked_for_among_the_next_32_thunks(between: int) -> None:
    lab = _busy(depthwise(silu=True), "out", between)
    (d,) = outcome(lab, BY_NAME["depthwise_conv"]).log.applied()
    assert dict(d.facts)["silu"] is (between < 32)


# --- narrow and rope --------------------------------------------------------------------------------------


def rope(outer: int = 2, hidden: int = 8, parent: int = 12) -> Lab:
    lab = Lab()
    wide, cut, out = lab.value(outer, parent), lab.value(outer, hidden), lab.value(outer, hidden)
    lab.op("narrow", Narrow(wide, cut, outer, parent, 4, hidden))
    lab.op("rope", Rope(cut, lab.value(2, 2), lab.value(2, 2), out, 1, 2, hidden, 4, 4, hidden))
    return lab.end(out)


for _reason, _case in {
    R.LENGTH_DIFFERS: lambda: rope().change("narrow", outer=1, len=16, src_axis=24),
    R.OPAQUE: lambda: rope().opaque_after("narrow"),
    R.READ_ELSEWHERE: lambda: (lab := rope()).read_after("rope", lab["narrow"].dst),
    R.GRAPH_OUTPUT: lambda: (lab := rope()).end(lab["narrow"].dst),
    R.OPERAND_OVERWRITTEN: lambda: (lab := rope()).write_after("narrow", lab["narrow"].src),
    R.OUTPUT_OVERLAPS_OPERAND: lambda: into(lab := rope(), "rope", "dst", lab["narrow"].src),
}.items():
    refused("narrow_rope", _reason)(_case)
refused("narrow_rope", R.HOST_FORM_FORCED, host_fallback=True)(rope)


def test_a_rope_before_the_slices_value_is_written_again() -> None:
    """The bytes of the slice are overwritten after the rope and read by a stranger then: no hindrance."""
    lab = rope()
    cut = lab["narrow"].dst
    lab.read_after("rope", cut).write_after("rope", cut)
    assert outcome(lab, BY_NAME["narrow_rope"]).log.applied()


# --- clusters ---------------------------------------------------------------------------------------------


def slices(*cuts: tuple[int, int], width: int = 12, dtype=F32) -> Lab:  # type: ignore[no-untyped-def]
    lab = Lab()
    x = lab.value(2, width, dtype=dtype)
    for k, (start, n) in enumerate(cuts or ((0, 4), (4, 8))):
        lab.op(f"n{k}", Narrow(x, lab.value(2, n, dtype=dtype), 2, width, start, n))
        lab.end(lab[f"n{k}"].dst)
    return lab


for _reason, _case in {
    R.NOT_F32: lambda: slices(dtype=F16),
    R.NOT_A_PARTITION: lambda: slices((0, 4), (5, 7)),
    R.OPAQUE: lambda: slices().opaque_after("n0"),
    R.DESTINATION_IN_USE: lambda: (lab := slices()).read_after("n0", lab["n1"].dst),
    R.OUTPUT_OVERLAPS_OPERAND: lambda: into(lab := slices(), "n1", "dst", lab["n1"].src),
}.items():
    refused("narrow_clusters", _reason)(_case)
refused("narrow_clusters", R.HOST_FORM_FORCED, host_fallback=True)(slices)


@pytest.mark.parametrize("cuts", [((0, 4), (4, 7)), ((0, 4), (4, 8), (0, 4)), ((1, 3), (4, 8))])
def test_gaps_and_overlaps_are_no_partition(cuts: tuple[tuple[int, int], ...]) -> None:
    log = outcome(slices(*cuts), BY_NAME["narrow_clusters"]).log
    assert [d.reason for d in log] == [R.NOT_A_PARTITION]


def test_slices_of_a_value_written_anew_are_another_cluster() -> None:
    lab = slices()
    lab.write_after("n0", lab["n0"].src)
    assert len(outcome(lab, BY_NAME["narrow_clusters"]).log) == 0  # a lone slice of each value: no candidate


def test_a_destination_on_a_fresh_value_of_other_bytes_between() -> None:
    lab = slices()
    lab.write_after("n0", replace(lab["n1"].dst, nbytes=4, shape=(1,)))
    assert outcome(lab, BY_NAME["narrow_clusters"]).log.decisions[0].reason is R.DESTINATION_IN_USE


# --- the table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reason"), CASES, ids=[f"{n}-{r.name}" for n, r in CASES])
def test_refused(name: str, reason: Refusal) -> None:
    make, options = CASES[name, reason]
    lab = make()
    before = lab.commands()
    result = outcome(lab, BY_NAME[name], **options)
    assert [d.reason for d in result.log] == [reason]
    (d,) = result.log
    assert (d.stage, d.rule, d.applied) == ("passes", name, False)
    assert d.anchor in d.nodes
    assert result.commands.thunks == before.thunks
    assert str(reason.value).endswith(".") and str(d)


def test_every_reason_of_every_pass_has_a_case_and_none_is_unused() -> None:
    wanted = {(p.name, r) for p in PASSES for r in p.reasons}
    assert set(CASES) == wanted
    assert {r for _, r in wanted} == set(Refusal)
    assert len({r.value for r in Refusal}) == len(Refusal)


@pytest.mark.parametrize("p", PASSES, ids=lambda p: p.name)
def test_a_pass_gives_only_reasons_that_it_declares(p: CommandPass) -> None:
    """Every pass over every list of the table, each with the options of its own case and with none."""
    for (_, reason), (make, options) in CASES.items():
        for given in ({}, options):
            for d in outcome(make(), p, **given).log:
                assert d.reason is None or d.reason in p.reasons, (reason, d)


def test_passes_declare_known_anchors_and_docs() -> None:
    labels = {c.label for c in registry().values()}
    for p in PASSES:
        assert p.anchors <= labels and p.doc.endswith(".") and p.switches
