"""Packed formats: bits as documented, quantisers, refusals."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from planner_core.errors import GraphError, MissingExtraError
from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.packed import dequantize, quantize, random_blocks
from runtime import RunError, compile_graph
from tests.runtime.gallery_packed import GGUF, floats

NO_QUANTISER = {QuantScheme.Q2_K, QuantScheme.Q3_K, QuantScheme.Q4_K, QuantScheme.Q5_K, QuantScheme.Q6_K}


@pytest.mark.parametrize("scheme", QuantScheme)
def test_random_blocks_are_valid_and_scaled(scheme: QuantScheme) -> None:
    rows = random_blocks(np.random.default_rng(0), scheme, 40, 3 * scheme.block, 0.125)
    want = floats(rows, scheme, 3 * scheme.block)
    assert np.isfinite(want).all()
    assert 0.08 < want.std() < 0.17
    np.testing.assert_array_equal(dequantize(rows, scheme, 3 * scheme.block), want.astype(np.float32))


def test_one_block_bit_by_bit() -> None:
    d = np.asarray([0.5], "<f2").view(np.uint8)
    one = np.concatenate([d, np.asarray([0b0000_0101] + [0] * 15, np.uint8)])
    np.testing.assert_array_equal(dequantize(one, QuantScheme.Q1_0, 5), np.float32([0.5, -0.5, 0.5, -0.5, -0.5]))
    two = np.concatenate([d, np.asarray([0b11_10_01_00] + [0] * 31, np.uint8)])
    np.testing.assert_array_equal(dequantize(two, QuantScheme.Q2_0, 5), np.float32([-0.5, 0, 0.5, 1, -0.5]))


@pytest.mark.parametrize("scheme", [s for s in QuantScheme if s not in NO_QUANTISER])
def test_quantised_values_come_back(scheme: QuantScheme) -> None:
    k = scheme.block + 5
    x = floats(random_blocks(np.random.default_rng(1), scheme, 9, k), scheme, k).astype(np.float32)
    packed = quantize(x, scheme)
    assert packed.shape == (9, scheme.row_bytes(k)) and packed.dtype == np.uint8
    error = np.abs(floats(packed, scheme, k) - x)
    assert error.mean() < {QuantScheme.Q1_0: 0.15}.get(scheme, 0.05) * np.abs(x).mean()
    assert not dequantize(quantize(np.zeros((1, k), np.float32), scheme), scheme, k).any()


@pytest.mark.parametrize("scheme", sorted(NO_QUANTISER, key=str))
def test_k_quants_have_no_quantiser(scheme: QuantScheme) -> None:
    with pytest.raises(GraphError, match="no quantiser"):
        quantize(np.zeros((1, 256), np.float32), scheme)


@pytest.mark.parametrize("bad", [1e6, np.inf, np.nan])
@pytest.mark.parametrize("scheme", [QuantScheme.Q4_0, QuantScheme.Q1_0, QuantScheme.Q2_0])
def test_a_scale_beyond_f16_is_refused(scheme: QuantScheme, bad: float) -> None:
    x = np.full((1, scheme.block), bad, np.float32)
    with pytest.raises(GraphError, match=f"{scheme}: the largest magnitude is .*scales fit f16"):
        quantize(x, scheme)
    quantize(np.full((1, scheme.block), 6e4, np.float32), scheme)


def test_wrong_bytes_are_named() -> None:
    with pytest.raises(GraphError, match=r"a row of 32 elements is 18 bytes, got \[2, 17\]"):
        dequantize(np.zeros((2, 17), np.uint8), QuantScheme.Q4_0, 32)


@pytest.mark.parametrize("scheme", [GGUF[0], QuantScheme.Q1_0])
def test_without_gguf_only_its_formats_are_missing(scheme: QuantScheme, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "gguf":
            raise ImportError(name)
        return real(name, *args, **more)

    rows = random_blocks(np.random.default_rng(0), scheme, 1, scheme.block)
    monkeypatch.setattr(builtins, "__import__", without)
    if scheme is QuantScheme.Q1_0:
        assert dequantize(rows, scheme, scheme.block).any()
        return
    with pytest.raises(MissingExtraError, match=r"pip install 'rlx-viz\[gguf\]'"):
        dequantize(rows, scheme, scheme.block)


def test_the_whole_matrix_is_never_floats() -> None:
    g = Graph("g")
    n, k = 4096, 512
    w = g.param("w", (n * 288,), DType.U8, data=random_blocks(np.random.default_rng(0), QuantScheme.Q4_K, n, k).reshape(-1))
    g.set_outputs(g.dequant_mat_mul(g.input("x", (1, k)), w, n=n, scheme=QuantScheme.Q4_K))
    compiled = compile_graph(g)
    assert compiled.commands.scratch_bytes <= (1 << 20) + 64 < n * k * 4
    compiled.run({"x": np.ones((1, k), np.float32)}, sanitize=True)


def test_an_expert_out_of_range_is_named() -> None:
    g = Graph("g")
    w = g.param("w", (2 * 3 * 18,), DType.U8, data=np.zeros(108, np.uint8))
    g.set_outputs(g.dequant_grouped_mat_mul(g.input("x", (1, 32)), w, g.input("i", (1,), DType.I64), n=3, experts=2,
                                            scheme=QuantScheme.Q4_0, name="experts"))
    with pytest.raises(RunError, match=r"'experts'.*expert 2 of row 0 is outside \[0, 2\)"):
        compile_graph(g).run({"x": np.ones((1, 32), np.float32), "i": np.asarray([2])})


def test_bf16_activations_take_the_packed_product() -> None:
    g = Graph("g")
    w = g.param("w", (3 * 18,), DType.U8, data=random_blocks(np.random.default_rng(0), QuantScheme.Q1_0, 3, 128).reshape(-1))
    x = g.input("x", (2, 128), DType.BF16)
    g.set_outputs(g.dequant_mat_mul(x, w, n=3, scheme=QuantScheme.Q1_0))
    compiled = compile_graph(g).with_options(width_policy="native")
    assert compiled.commands.counts() == {"dequant_matmul_gguf": 1}
    data = np.random.default_rng(1).standard_normal((2, 128)).astype(DType.BF16.numpy)
    got = next(iter(compiled.run({"x": data}, sanitize=True).values())).astype(np.float64)
    want = data.astype(np.float64) @ floats(g.weights["w"].reshape(3, -1), QuantScheme.Q1_0, 128).T
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
