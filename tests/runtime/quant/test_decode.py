"""The fused thunks that passes make, each run by itself on its declared scratch, against formulas in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from planner_core.ir import DType, QuantScheme
from planner_core.ir.packed import dequantize, quantize, random_blocks
from runtime.command_list import Operand, Scratch, Thunk, registry, thunk_from_json
from runtime.command_list.thunks import decode
from tests.runtime.gallery import Array, rand
from tests.runtime.gallery_packed import floats


def operands(*shapes: tuple[int, ...], dtype: DType = DType.F32) -> list[Operand]:
    """Operands one after another in the arena."""
    out, at = [], 0
    for s in shapes:
        nbytes = int(np.prod(s)) * dtype.bits // 8
        out.append(Operand("arena", at, nbytes, dtype, None, s))
        at += nbytes
    return out


def run(t: Thunk, *arrays: Any) -> None:
    """With exactly the scratch it declares, full of NaN; JSON and text are checked in passing."""
    scratch = Scratch(np.full(t.scratch_bytes, 0xFF, np.uint8))
    scratch.reset(t.scratch_bytes)
    t.run(*arrays, scratch)
    assert thunk_from_json(t.to_json()) == t
    assert str(t).startswith(t.label)
    assert t.dt == ("f16" if next(iter(t.operands()))[2].storage is DType.F16 else "f32")


def packed(scheme: QuantScheme, n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    rows = random_blocks(np.random.default_rng(seed), scheme, n, k, k**-0.5)
    return rows, floats(rows, scheme, k)


def close(got: Array, want: Array, half: bool = False) -> None:
    tolerance = 2e-3 if half else 1e-5
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance * float(np.abs(want).max()))


@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize("scheme", [QuantScheme.Q4_K, QuantScheme.Q5_0, QuantScheme.Q1_0, QuantScheme.Q2_0])
@pytest.mark.parametrize("half", [False, True])
def test_gate_up(act: str, scheme: QuantScheme, half: bool) -> None:
    if act == "gelu" and half:
        return  # no half form
    k, n = 2 * scheme.block, 11
    (gw, gate), (uw, up) = packed(scheme, n, k), packed(scheme, n, k, 1)
    x = rand(1, k).astype(np.float16 if half else np.float32)
    dst = np.full((1, n), np.nan, x.dtype)
    a, d = operands((1, k), (1, n), dtype=DType.F16 if half else DType.F32)
    b, c = operands(gw.shape, uw.shape, dtype=DType.U8)
    if act == "silu":
        t: Thunk = decode.FusedMlpGateUpSwiGLU(a, b, c, d, k, n, scheme, half, half)
    else:
        t = decode.FusedMlpGateUpGelu(a, b, c, d, k, n, scheme)
    run(t, x, gw, uw, dst)
    g, u = gate @ x[0].astype(np.float64), up @ x[0].astype(np.float64)
    hidden = g * scipy.special.expit(g) if act == "silu" else 0.5 * g * (1 + np.tanh(0.7978845608028654 * (g + 0.044715 * g**3)))
    close(dst[0], hidden * u, half)


@pytest.mark.parametrize("scheme", [QuantScheme.Q4_K, QuantScheme.Q6_K, QuantScheme.Q1_0])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_down_residual(scheme: QuantScheme, half: bool, in_place: bool) -> None:
    k, n = scheme.block, 13
    wq, w = packed(scheme, n, k)
    dtype = np.float16 if half else np.float32
    x, res = rand(1, k).astype(dtype), rand(1, n, seed=2).astype(dtype)
    want = res[0].astype(np.float64) + w @ x[0].astype(np.float64)
    dst = res if in_place else np.full((1, n), np.nan, dtype)
    a, b, c = operands((1, k), (1, n), (1, n), dtype=DType.F16 if half else DType.F32)
    (q,) = operands(wq.shape, dtype=DType.U8)
    run(decode.FusedMlpDownResidual(a, q, b, b if in_place else c, k, n, scheme, half, half, half), x, wq, res, dst)
    close(dst[0], want, half)


FORMULAS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum}


@pytest.mark.parametrize("op", FORMULAS)
@pytest.mark.parametrize("size", [1, 7, 40009])
def test_binary_activation(op: str, size: int) -> None:
    x, y = rand(size), rand(size, seed=1)
    want = FORMULAS[op](x.astype(np.float64), y)
    a, b = operands((size,), (size,))
    run(decode.FusedBinaryActivation(a, b, b, size, op, "silu"), x, y, y)
    close(y, want * scipy.special.expit(want))


@pytest.mark.parametrize("place", ["apart", "lhs", "rhs0", "rhs1"])
def test_ternary_activation(place: str) -> None:
    arrays = {n: rand(13, seed=i) for i, n in enumerate(("lhs", "rhs0", "rhs1"))}
    x, y, z = (a.astype(np.float64) for a in arrays.values())
    ops = dict(zip(("lhs", "rhs0", "rhs1", "apart"), operands(*[(13,)] * 4), strict=True))
    dst = arrays.get(place, np.full(13, np.nan, np.float32))
    run(decode.FusedTernaryActivation(ops["lhs"], ops["rhs0"], ops["rhs1"], ops[place], 13, "sub", "mul", "tanh"),
        *arrays.values(), dst)
    close(dst, np.tanh((x - y) * z))


@pytest.mark.parametrize("outer", [1, 3])
def test_split(outer: int) -> None:
    x = rand(outer, 9)
    src, a, b = operands((outer, 9), (outer, 7), (outer, 2))
    left, right = np.empty((outer, 7), np.float32), np.empty((outer, 2), np.float32)
    run(decode.SplitLastAxis(src, outer, 9, (a, b), (2, 0)), x, (left, right))
    np.testing.assert_array_equal(np.concatenate([right, left], axis=1), x)


def test_every_thunk_of_the_module_has_a_test() -> None:
    text = Path(__file__).read_text()
    for cls in registry().values():
        assert cls.__module__ != decode.__name__ or f"decode.{cls.name}(" in text, cls.name


@pytest.mark.parametrize("k", [1, 64, 128, 200])
def test_q1_0_scales_a_short_block_by_its_own_values(k: int) -> None:
    got = dequantize(quantize(np.full((2, k), 8, np.float32), QuantScheme.Q1_0), QuantScheme.Q1_0, k)
    assert (got == 8).all()
