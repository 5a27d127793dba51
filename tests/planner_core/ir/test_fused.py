"""Fused ops against PyTorch or the formula written out, their regions' text, and what their shape rules refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from planner_core.autodiff import backward
from planner_core.errors import GraphError
from planner_core.ir import Array, DType, Graph, Op
from planner_core.ir.op import decode_op, encode_op
from planner_core.ir.ops import (
    REGION_STEP,
    BatchElementwiseRegion,
    DepthwiseConv1dBsc,
    DequantMatMulBlocked,
    ElementwiseRegion,
    FusedAttentionBlock,
    FusedMatMulBiasAct,
    GeGLU,
    GroupNorm,
    ResidualLayerNorm,
    ResidualRmsNorm,
    RmsNormMulSilu,
    activation_step,
    binary_step,
    cast_step,
    region_steps,
    region_text,
    result_of,
)

Torch = Callable[..., torch.Tensor]
X, R, V, W = (2, 3, 7), (2, 3, 7), (7,), (7, 5)


def _rms(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], g, 1e-3)


def _split(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.chunk(2, -1)


def _attention(qkv: torch.Tensor, *more: torch.Tensor, rope: bool, kind: str) -> torch.Tensor:
    q, k, v = (t.reshape(2, 3, 2, 4).transpose(1, 2) for t in qkv.chunk(3, -1))
    if rope:
        cos, sin, *more = more  # type: ignore[assignment]
        turn = torch.complex(cos, sin)
        q, k = (torch.cat([z.real, z.imag], -1) for z in (torch.complex(t[..., :2], t[..., 2:]) * turn for t in (q, k)))
    mask: Any = None
    if kind == "custom":
        mask = more[0] != 0
    elif kind == "bias":
        mask = more[0]
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal", scale=0.3)
    return y.transpose(1, 2).reshape(2, 3, 8)


CASES: list[tuple[str, Op, list[tuple[int, ...]], Torch]] = [
    ("mm bias", FusedMatMulBiasAct(), [X, W, (5,)], lambda a, w, b: a @ w + b),
    ("mm bias gelu", FusedMatMulBiasAct("gelu"), [X, W, (5,)], lambda a, w, b: F.gelu(a @ w + b)),
    ("mm bias leaky", FusedMatMulBiasAct("leaky_relu", 0.1), [X[2:], W, (5,)], lambda a, w, b: F.leaky_relu(a @ w + b, 0.1)),
    ("residual ln", ResidualLayerNorm(1e-3), [X, R, V, V], lambda x, r, g, b: F.layer_norm(x + r, V, g, b, 1e-3)),
    ("residual ln bias", ResidualLayerNorm(1e-3), [X, R, V, V, V], lambda x, r, g, b, c: F.layer_norm(x + r + c, V, g, b, 1e-3)),
    ("residual rms", ResidualRmsNorm(1e-3), [X, R, V], lambda x, r, g: _rms(x + r, g)),
    ("residual rms bias", ResidualRmsNorm(1e-3, has_bias=True), [X, R, V, V], lambda x, r, g, c: _rms(x + r + c, g)),
    ("residual rms beta", ResidualRmsNorm(1e-3, has_beta=True), [X, R, V, V], lambda x, r, g, b: _rms(x + r, g) + b),
    ("residual rms both", ResidualRmsNorm(1e-3, True, True), [X, R, V, V, V], lambda x, r, g, c, b: _rms(x + r + c, g) + b),
    ("gated norm", RmsNormMulSilu(1e-3), [X, V, X], lambda x, g, z: _rms(x, g) * F.silu(z)),
    ("gated norm beta", RmsNormMulSilu(1e-3), [X, V, X, V], lambda x, g, z, b: (_rms(x, g) + b) * F.silu(z)),
    ("group norm", GroupNorm(3, 1e-3), [(2, 6, 3, 5), (6,), (6,)], lambda x, g, b: F.group_norm(x, 3, g, b, 1e-3)),
    ("group norm 1-d", GroupNorm(1, 1e-3), [(2, 3, 5), (3,), (3,)], lambda x, g, b: F.group_norm(x, 1, g, b, 1e-3)),
    ("geglu", GeGLU(), [(2, 6)], lambda x: _split(x)[1] * F.gelu(_split(x)[0])),
    ("geglu second tanh", GeGLU(False, True), [(2, 3, 6)], lambda x: _split(x)[0] * F.gelu(_split(x)[1], approximate="tanh")),
    ("depthwise", DepthwiseConv1dBsc(), [(2, 7, 5), (5, 1, 4)],
     lambda x, w: F.conv1d(x.transpose(1, 2), w, groups=5).transpose(1, 2)),
    ("depthwise silu", DepthwiseConv1dBsc(True), [(2, 3, 5), (5, 1, 3)],
     lambda x, w: F.silu(F.conv1d(x.transpose(1, 2), w, groups=5).transpose(1, 2))),
    *((f"packed attention {kind} {rope}", FusedAttentionBlock(2, 4, rope, kind, 0.3),
       [(2, 3, 24), *([(3, 2)] * 2 if rope else []), *({"custom": [(2, 1, 3, 3)], "bias": [(1, 2, 3, 3)]}.get(kind, []))],
       lambda *x, kind=kind, rope=rope: _attention(*x, rope=rope, kind=kind))
      for kind in ("none", "causal", "custom", "bias") for rope in (False, True)),
]


@pytest.mark.parametrize(("o", "shapes", "fn"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_values_equal_pytorch(o: Op, shapes: list[tuple[int, ...]], fn: Torch) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(s) for s in shapes]
    got = o.evaluate(*arrays)
    np.testing.assert_allclose(got, fn(*map(torch.tensor, arrays)).numpy(), rtol=1e-9, atol=1e-11)
    half = o.evaluate(*[a.astype(np.float16) for a in arrays])
    assert half.dtype == np.float16 and half.shape == got.shape
    assert decode_op(o.name, encode_op(o)) == o


@pytest.mark.parametrize("gradient", [c for c in CASES if not c[0].startswith("packed")], ids=lambda c: c[0])
def test_gradients_equal_pytorch(gradient: tuple[str, Op, list[tuple[int, ...]], Torch]) -> None:
    _, o, shapes, fn = gradient
    g = Graph("case")
    g.set_outputs(g.add(o, *[g.input(f"x{i}", s, DType.F64) for i, s in enumerate(shapes)]), names=["y"])
    training = backward(g, wrt=[f"x{i}" for i in range(len(shapes))])
    rng = np.random.default_rng(6)
    values = {f"x{i}": rng.standard_normal(s) for i, s in enumerate(shapes)}
    values["d_y"] = rng.standard_normal(g[g.outputs[0]].shape.sizes)
    done: list[Array] = []
    for n in training.nodes:
        done.append(values[n.name] if n.op.name == "Input" else n.op.evaluate(*[done[i] for i in n.inputs]))
    got = dict(zip(training.output_names, (done[i] for i in training.outputs), strict=True))
    leaves = [torch.tensor(values[f"x{i}"], requires_grad=True) for i in range(len(shapes))]
    fn(*leaves).backward(torch.tensor(values["d_y"]))
    for i, leaf in enumerate(leaves):
        assert leaf.grad is not None
        np.testing.assert_allclose(got[f"d_x{i}"], leaf.grad.numpy(), rtol=1e-8, atol=1e-10, err_msg=str(i))


# --- blockwise weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("k", [8, 7])
def test_blockwise_weights_element_by_element(bits: int, zeros: bool, k: int) -> None:
    rng, n, block = np.random.default_rng(k), 5, 4
    x, scale = rng.standard_normal((2, 3, k)), rng.random((n, 2)) + 0.5
    codes = rng.integers(-128, 128, (n, k)) if bits == 8 else rng.integers(0, 16, (n, k))
    zero = rng.integers(-9, 9, (n, 2)) if bits == 8 else rng.integers(0, 16, (n, 2))
    want = np.zeros((2, 3, n))
    for i in range(n):
        for j in range(k):
            z = zero[i, j // block] if zeros else 8 * (bits == 4)
            want[..., i] += x[..., j] * (codes[i, j] - z) * scale[i, j // block]
    if bits == 4:
        padded = np.pad(codes, [(0, 0), (0, k % 2)]).astype(np.uint8)
        w, zero = padded[:, 0::2] | padded[:, 1::2] << 4, zero.astype(np.uint8)
    else:
        w, zero = codes.astype(np.int8), zero.astype(np.int8)
    got = DequantMatMulBlocked(bits, block).evaluate(x, w, scale, *([zero] if zeros else []))
    np.testing.assert_allclose(got, want, rtol=1e-12)


# --- regions ------------------------------------------------------------------------------------------

TEXT = "s0 = add(x0, x1); s1 = gelu_approx(s0); s2 = to_f16(s1); s3 = pow(s2, s0)"


def test_region_text_round_trips_and_steps_have_the_documented_words() -> None:
    steps = region_steps(TEXT)
    assert steps == ((2, 0, 0, 1), (0, 1, 1 << 31, 0), (1, 1, 1 + (1 << 31), 0), (2, 6, 2 + (1 << 31), 1 << 31))
    assert steps == (binary_step("add", 0, 1), activation_step("gelu_approx", result_of(0)), cast_step("to_f16", result_of(1)),
                     binary_step("pow", result_of(2), result_of(0)))
    assert region_text(steps) == TEXT
    o = ElementwiseRegion(steps)
    assert decode_op(o.name, encode_op(o)) == o
    assert o.detail == "ElementwiseRegion(add · gelu_approx · to_f16 · pow)"


def test_every_step_against_its_formula() -> None:
    x, y = np.asarray([0.3, 1.7, 2.49]), np.asarray([1.1, -0.4, 3.0])
    t = torch.tensor(x)
    unary = {"gelu": F.gelu(t), "gelu_approx": F.gelu(t, approximate="tanh"), "silu": F.silu(t), "relu": F.relu(t),
             "sigmoid": torch.sigmoid(t), "tanh": torch.tanh(t), "exp": t.exp(), "log": t.log(), "sqrt": t.sqrt(),
             "rsqrt": t.rsqrt(), "neg": -t, "abs": t.abs(), "keep": t, "to_f16": t.half().double(),
             "to_bf16": t.bfloat16().double(), "trunc": t.trunc()}
    binary = {"add": x + y, "sub": x - y, "mul": x * y, "div": x / y, "max": np.maximum(x, y), "min": np.minimum(x, y),
              "pow": x**y}
    for name, want in unary.items():
        got = ElementwiseRegion(region_steps(f"s0 = {name}(x0)")).evaluate(x)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-12, err_msg=name)
    for name, expect in binary.items():
        got = ElementwiseRegion(region_steps(f"s0 = {name}(x0, x1)")).evaluate(x, y)
        np.testing.assert_allclose(got, expect, rtol=1e-12, err_msg=name)
    assert [region_steps(f"s0 = {n}(x0)")[0][1] for n in unary] == [*range(12), *range(4)]
    assert [region_steps(f"s0 = {n}(x0, x1)")[0][1] for n in binary] == list(range(7))


def test_region_broadcasts_and_upsamples() -> None:
    rng = np.random.default_rng(0)
    small, full, row, one = (rng.standard_normal(s) for s in ((1, 2, 3, 2), (1, 2, 6, 4), (1, 4), ()))
    steps = region_steps("s0 = mul(x0, x1); s1 = add(s0, x2); s2 = max(s1, x3)")
    got = ElementwiseRegion(steps, "nearest2x").evaluate(small, full, row, one)
    np.testing.assert_allclose(got, np.maximum(np.kron(small, np.ones((1, 1, 2, 2))) * full + row, one))
    slices = [rng.standard_normal((3, 4)), rng.standard_normal(4), rng.standard_normal((3, 4)), rng.standard_normal(4)]
    batch = BatchElementwiseRegion(region_steps("s0 = sub(x0, x1)"), 2).evaluate(*slices)
    np.testing.assert_allclose(batch, [slices[0] - slices[1], slices[2] - slices[3]])
    wide = ElementwiseRegion(region_steps("s0 = neg(x1)")).evaluate(np.zeros((2, 3)), np.arange(3.0))
    np.testing.assert_allclose(wide, [[0, -1, -2]] * 2)


def _i(g: Graph, *dims: int, dtype: DType = DType.F32) -> int:
    return g.input(f"x{len(g)}", dims, dtype)


ADD: dict[str, Any] = {"steps": region_steps("s0 = add(x0, x1)")}
ERRORS: list[tuple[str, Callable[[Graph], object], str]] = [
    ("no step", lambda g: g.elementwise_region(_i(g, 2), steps=()), "1 inputs and 0 steps: wanted 1 to 16 inputs, 1 to 32 steps"),
    ("steps", lambda g: g.elementwise_region(_i(g, 2), steps=region_steps("s0 = abs(x0)") * 33), "33 steps"),
    ("inputs", lambda g: g.elementwise_region(*[_i(g, 2) for _ in range(17)], **ADD), "17 inputs"),
    ("kind", lambda g: g.elementwise_region(_i(g, 2), steps=((3, 0, 0, 0),)), "no such kind and sub-op"),
    ("sub-op", lambda g: g.elementwise_region(_i(g, 2), steps=((2, 7, 0, 0),)), "no such kind and sub-op"),
    ("input there", lambda g: g.elementwise_region(_i(g, 2), **ADD), r"step 0 .*operand input 1 isn't there \(1 inputs"),
    ("step there", lambda g: g.elementwise_region(_i(g, 2), steps=((0, 0, REGION_STEP, 0),)), "operand step 0 isn't there"),
    ("right", lambda g: g.elementwise_region(_i(g, 2), steps=((0, 0, 0, 1),)), "right = 0"),
    ("crossed", lambda g: g.elementwise_region(_i(g, 3, 1), _i(g, 1, 4), **ADD), r"input 0 f32\[3, 1\]: neither f32\[3, 4\]"),
    ("dtypes", lambda g: g.elementwise_region(_i(g, 3), _i(g, 3, dtype=DType.F16), **ADD), "wanted one float dtype"),
    ("prologue", lambda g: g.elementwise_region(_i(g, 3), _i(g, 3), prologue="half", **ADD), "wanted nearest2x or none"),
    ("prologue rank", lambda g: g.elementwise_region(_i(g, 3), _i(g, 3), prologue="nearest2x", **ADD), "wanted an NCHW input"),
    ("groups", lambda g: g.batch_elementwise_region(*[_i(g, 3) for _ in "abc"], num_batch=2, **ADD), "wanted equal groups"),
    ("too many", lambda g: g.batch_elementwise_region(*[_i(g, 3) for _ in range(66)], num_batch=33, **ADD), "64 operands at most"),
    ("slices", lambda g: g.batch_elementwise_region(*[_i(g, n) for n in (3, 3, 4, 4)], num_batch=2, **ADD),
     r"operand 2 f32\[4\]: slice 0 has f32\[3\]"),
    ("text", lambda g: region_steps("s0 = add(x0)"), "add takes 2 operands"),
    ("text op", lambda g: region_steps("s0 = adds(x0, x1)"), "no step 'adds'; wanted one of add, sub"),
    ("text order", lambda g: region_steps("s1 = abs(x0)"), "wanted s0 = op"),
    ("bias", lambda g: g.fused_mat_mul_bias_act(_i(g, 2, 3), _i(g, 3, 4), _i(g, 3)), r"wanted \[k, n\] and \[n\]"),
    ("activation", lambda g: g.fused_mat_mul_bias_act(_i(g, 2, 3), _i(g, 3, 4), _i(g, 4), activation="x"), "activation 'x': wanted"),
    ("residual", lambda g: g.residual_layer_norm(_i(g, 2, 3), _i(g, 1, 3), _i(g, 3), _i(g, 3)), "must have the same shape"),
    ("more", lambda g: g.residual_rms_norm(_i(g, 2, 3), _i(g, 2, 3), _i(g, 3), has_bias=True), "got 0 operands after gamma"),
    ("geglu", lambda g: g.geglu(_i(g, 2, 3)), "has an odd one"),
    ("groups of channels", lambda g: g.group_norm(_i(g, 1, 5, 2), _i(g, 5), _i(g, 5), groups=2), "C a multiple of the groups"),
    ("window", lambda g: g.depthwise_conv1d_bsc(_i(g, 1, 2, 5), _i(g, 5, 1, 3)), "window of 3 is wider"),
    ("channels", lambda g: g.depthwise_conv1d_bsc(_i(g, 1, 4, 5), _i(g, 4, 1, 3)), r"wanted \[B, W, C\] and \[C, 1, k\]"),
    ("bits", lambda g: g.dequant_mat_mul_blocked(_i(g, 1, 8), _i(g, 2, 8, dtype=DType.I8), _i(g, 2, 1), bits=5), "wanted 8 or 4 bits"),
    ("codes", lambda g: g.dequant_mat_mul_blocked(_i(g, 1, 8), _i(g, 2, 8), _i(g, 2, 1)), r"wanted i8 \[n, k\]"),
    ("blocks", lambda g: g.dequant_mat_mul_blocked(_i(g, 1, 40), _i(g, 2, 40, dtype=DType.I8), _i(g, 2, 1)), r"wanted \[2, 2\]"),
    ("packed width", lambda g: g.fused_attention_block(_i(g, 1, 2, 9), num_heads=2, head_dim=2), r"wanted \[B, S, 12\]"),
    ("packed operands", lambda g: g.fused_attention_block(_i(g, 1, 2, 12), num_heads=2, head_dim=2, has_rope=True), "got 0 operands"),
]


@pytest.mark.parametrize(("make", "text"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_misfits_say_what_was_wanted(make: Callable[[Graph], object], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        make(Graph())
