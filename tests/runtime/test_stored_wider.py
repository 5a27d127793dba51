"""Values stored wider than their type: what each target keeps of them is what the type holds. References: NumPy, torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.memory import ArenaWidthPolicy, Target
from runtime import CompileOptions, compile_graph

Array = np.ndarray[Any, np.dtype[Any]]
TARGETS = list(Target)
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.value)


def run(target: Target, arrays: dict[str, Array], build: Callable[..., int], fused: bool = True) -> Array:
    """The graph's output on a target, audited; the arrays are its inputs."""
    g = Graph("stored")
    ids = [g.input(n, a.shape, DType.of(a.dtype)) for n, a in arrays.items()]
    g.set_outputs(build(g, *ids), names=["y"])
    return compile_graph(g, options_of(target, fused)).run(arrays, sanitize=True)["y"]


def options_of(target: Target, fused: bool) -> CompileOptions:
    made = CompileOptions.for_target(target, environ={})
    return made if fused else dataclasses.replace(made, fusion=no_fusion())


def f32(*values: float) -> Array:
    return np.asarray(values, np.float32)


@each_target
@pytest.mark.parametrize("half", [DType.F16, DType.BF16, DType.F8E5M2], ids=str)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_a_cast_to_a_narrow_float_and_back_keeps_what_the_narrow_one_holds(target: Target, half: DType, fused: bool) -> None:
    x = f32(1e5, 1 / 3, -1e-9, 2049, np.nan, -np.inf)
    with np.errstate(over="ignore"):
        want = x.astype(half.numpy).astype(np.float32)
    assert half is not DType.F16 or (want[:2] == f32(np.inf, 0.333251953125)).all()
    got = run(target, {"x": x}, lambda g, a: g.cast(g.cast(a, to=half), to=DType.F32), fused)
    np.testing.assert_array_equal(got, want)


def _chain(g: Graph, a: int) -> int:
    """((x · x) + x) / x in x's own type."""
    return g.div(g.add(g.mul(a, a), a), a)


@each_target
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_each_value_of_a_chain_is_rounded_to_its_declared_type(target: Target, half: str, fused: bool) -> None:
    x = f32(300, 1 / 3, 0.1, 7, -41, 1e-3)
    t = torch.from_numpy(x).to(getattr(torch, half))
    want = (t * t + t) / t
    dtype = DType.F16 if half == "float16" else DType.BF16
    got = run(target, {"x": x}, lambda g, a: g.cast(_chain(g, g.cast(a, to=dtype)), to=DType.F32), fused)
    np.testing.assert_array_equal(got, want.float().numpy())


INTS: dict[str, tuple[list[Array], Callable[..., int], Callable[..., Array]]] = {
    "u32 stays": ([np.asarray([4294967295, 1, 2**24 + 1], np.uint32)], lambda g, a: g.max(a, a), lambda a: a),
    "u32 wraps": ([np.asarray([4294967295, 2**31], np.uint32)], lambda g, a: g.add(a, a), lambda a: a + a),
    "i32 past 2**24": ([np.asarray([2**24], np.int32), np.asarray([1], np.int32)],
                       lambda g, a, b: g.sub(g.add(a, b), a), lambda a, b: a + b - a),
    "u8 wraps": ([np.asarray([250, 3], np.uint8), np.asarray([10, 9], np.uint8)], lambda g, a, b: g.sub(g.add(a, b), b),
                 lambda a, b: a + b - b),
    "u8 sum": ([np.asarray([250, 3], np.uint8), np.asarray([10, 9], np.uint8)], lambda g, a, b: g.add(a, b), lambda a, b: a + b),
    "u8 below zero": ([np.asarray([3, 0], np.uint8), np.asarray([9, 1], np.uint8)], lambda g, a, b: g.sub(a, b), lambda a, b: a - b),
    "i8 neg of the least": ([np.asarray([-128, 5], np.int8)], lambda g, a: g.neg(a), lambda a: -a),
    "i8 abs of the least": ([np.asarray([-128, -5], np.int8)], lambda g, a: g.abs(a), np.abs),
    "i16 product past f32": ([np.asarray([30001, -30001], np.int16)], lambda g, a: g.mul(a, a), lambda a: a * a),
    "u16 product past f32": ([np.asarray([65535, 40503], np.uint16)], lambda g, a: g.mul(a, a), lambda a: a * a),
    "i8 matmul": ([np.full((1, 70), 127, np.int8), np.full((70, 1), 127, np.int8)], lambda g, a, b: g.mm(a, b), np.matmul),
    "i32 to u8": ([np.asarray([300, -1, 255], np.int32)], lambda g, a: g.cast(a, to=DType.U8), lambda a: a.astype(np.uint8)),
    "u32 to i8": ([np.asarray([300, 128, 4294967295], np.uint32)], lambda g, a: g.cast(a, to=DType.I8), lambda a: a.astype(np.int8)),
    "f32 to u8": ([f32(3.9, 254.5, 0.5)], lambda g, a: g.cast(a, to=DType.U8), lambda a: a.astype(np.uint8)),
    "f32 to i8": ([f32(-3.9, 126.5, -0.5)], lambda g, a: g.cast(a, to=DType.I8), lambda a: a.astype(np.int8)),
    "i8 to f16": ([np.asarray([-128, 127], np.int8)], lambda g, a: g.cast(a, to=DType.F16), lambda a: a.astype(np.float16)),
    "i8 div toward zero": ([np.asarray([-7, 7], np.int8), np.asarray([2, -2], np.int8)], lambda g, a, b: g.div(a, b),
                           lambda a, b: np.trunc(a / b).astype(np.int8)),
    "u8 pow": ([np.asarray([7, 3], np.uint8), np.asarray([3, 9], np.uint8)], lambda g, a, b: g.pow(a, b), np.power),
    "i8 running sum": ([np.asarray([[100, 100, 100]], np.int8)], lambda g, a: g.cumsum(a), lambda a: a.cumsum(1, dtype=np.int8)),
    "i8 mean": ([np.asarray([[100, 101, 103]], np.int8)], lambda g, a: g.reduce_mean(a, axes=(1,)), lambda a: np.asarray([101], np.int8)),
    "i8 most of nothing": ([np.zeros((2, 0), np.int8)], lambda g, a: g.reduce_max(a, axes=(1,)), lambda a: np.full(2, -128, np.int8)),
    "bool or": ([np.asarray([True, True, False]), np.asarray([True, False, False])],
                lambda g, a, b: g.cast(g.logical_or(a, b), to=DType.I32), lambda a, b: (a | b).astype(np.int32)),
}


@each_target
@pytest.mark.parametrize("name", INTS)
def test_integers_wrap_as_their_type_says(target: Target, name: str) -> None:
    arrays, build, reference = INTS[name]
    with np.errstate(all="ignore"):
        want = reference(*arrays)
    got = run(target, {f"x{i}": a for i, a in enumerate(arrays)}, build)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_f32_in_f32_pays_nothing(fused: bool) -> None:
    g = Graph("plain")
    g.set_outputs(_chain(g, g.input("x", (64,))))
    for target in TARGETS:
        assert "NarrowStored" not in {t.name for t in compile_graph(g, options_of(target, fused)).commands.thunks}


def test_policies_store_short_integers_where_sums_are_exact() -> None:
    from planner_core.memory import storage_dtype

    for policy in (ArenaWidthPolicy.F32_UNIFORM, ArenaWidthPolicy.HYBRID):
        got = {d: storage_dtype(policy, d, False) for d in DType}
        assert {d: got[d] for d in (DType.I32, DType.U32)} == {DType.I32: DType.I32, DType.U32: DType.U32}
        assert {got[d] for d in (DType.I8, DType.U8, DType.I16, DType.U16, DType.I4, DType.U4)} == {DType.I32}
        assert {got[d] for d in (DType.BOOL, DType.F8E4M3, DType.F8E5M2)} == {DType.F32}
