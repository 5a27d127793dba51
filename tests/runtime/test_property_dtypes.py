"""Random chains in every element type on every target, whole and over a bucket's first rows, against PyTorch in that type.

Floats agree within units of the type; integers exactly, wrapped as their type says (u32: PyTorch's i64, modulo 2³²).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.memory import Target
from runtime import CompileOptions, compile_graph
from runtime.marking import BUCKET
from runtime.session import Session

Array = np.ndarray[Any, np.dtype[Any]]
Tensor = torch.Tensor
TORCH = {DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.I8: torch.int8, DType.U8: torch.uint8,
         DType.I32: torch.int32, DType.I64: torch.int64, DType.U32: torch.int64}
UNIT = {DType.F16: 2.0**-11, DType.BF16: 2.0**-8, DType.F32: 2.0**-22}
ROWS, COLS = 6, 4
FLOATS = tuple(UNIT)
INTS = tuple(d for d in TORCH if d.is_int)


def to_torch(a: Array) -> Tensor:
    """The same values, in the type that ``TORCH`` says."""
    dtype = DType.of(a.dtype)
    if dtype is DType.BF16:
        return torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(a.astype(np.int64) if dtype is DType.U32 else a.copy())


def to_numpy(t: Tensor, dtype: DType) -> Array:
    if dtype is DType.BF16:
        return t.float().numpy().astype(ml_dtypes.bfloat16)
    return t.numpy().astype(dtype.numpy)


class Pair(NamedTuple):
    """A node and what PyTorch says it is."""

    node: int
    value: Tensor


class Chain:
    """A graph in the making with its values; ``data`` gives weights of its own type, none of them 0."""

    def __init__(self, dtype: DType, seed: int) -> None:
        self.g, self.dtype, self.rng = Graph("chain"), dtype, np.random.default_rng(seed)
        self.arrays = {n: self.data(ROWS, COLS) for n in ("x", "y")}
        self.inputs = [Pair(self.g.input(n, a.shape, dtype), to_torch(a)) for n, a in self.arrays.items()]

    def data(self, *dims: int) -> Array:
        if self.dtype.is_float:
            return self.rng.uniform(0.25, 1.5, dims).astype(np.float32).astype(self.dtype.numpy) * np.asarray(
                self.rng.choice([-1, 1], dims), self.dtype.numpy)
        info = np.iinfo(self.dtype.numpy)
        return np.asarray(self.rng.integers(max(info.min, -(2**40)), min(info.max, 2**40), dims), self.dtype.numpy) | 1

    def weight(self, *dims: int) -> Pair:
        a = self.data(*dims)
        return Pair(self.g.param(f"w{len(self.g)}", dims, self.dtype, data=a), to_torch(a))

    def wrapped(self, t: Tensor) -> Tensor:
        made = t.to(TORCH[self.dtype])
        return made & 0xFFFFFFFF if self.dtype is DType.U32 else made


Step = Callable[[st.DrawFn, Chain, Pair], tuple[int, Tensor]]
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0), "abs": torch.abs, "neg": torch.neg, "sign": torch.sign}
REAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor,
    "ceil": torch.ceil, "round": torch.round, "erf": torch.erf, "hardswish": F.hardswish, "softplus": F.softplus}


def _binary(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    kind = draw(st.sampled_from(sorted(BINARY)))
    other = draw(st.sampled_from([*c.inputs, c.weight(COLS), c.weight(1)]))
    if x.value.shape[-1] != COLS or x.value.shape[0] != ROWS:
        other = c.weight(1)
    return c.g.binary(x.node, other.node, kind=kind), BINARY[kind](x.value, other.value)


def _divide(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    w = c.weight(1)
    mode = None if c.dtype.is_float else "trunc"
    return c.g.div(x.node, w.node), torch.div(x.value, w.value, rounding_mode=mode)


def _unary(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    kind = draw(st.sampled_from(["relu", "sign"] if c.dtype is DType.U32 else sorted(UNARY)))
    return c.g.activation(x.node, kind=kind), UNARY[kind](x.value)


def _real(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    kind = draw(st.sampled_from(sorted(REAL)))
    if kind in ("floor", "ceil", "round"):  # of what PyTorch's sum and ours agree on to the last bit
        x = c.inputs[0]
    return c.g.activation(x.node, kind=kind), REAL[kind](x.value.float()).to(x.value.dtype)


def _select(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    """Where the input (exact everywhere) is below a weight."""
    w, first = c.weight(1), c.inputs[0]
    if x.value.shape != first.value.shape:
        x = first
    return (c.g.where(c.g.lt(first.node, w.node), x.node, w.node), torch.where(first.value < w.value, x.value, w.value))


def _product(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    w = c.weight(x.value.shape[-1], COLS)
    a, b = (x.value.float(), w.value.float()) if c.dtype.is_float else (x.value, w.value)
    return c.g.mm(x.node, w.node), a @ b


def _reduce(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    kind = draw(st.sampled_from(["sum", "max", "min", *(["mean"] if c.dtype.is_float else ["prod"])]))
    wide = x.value.float() if c.dtype.is_float else x.value
    own: dict[str, Any] = {} if c.dtype.is_float else {"dtype": wide.dtype}
    got = {"sum": lambda: wide.sum(-1, keepdim=True, **own), "max": lambda: wide.amax(-1, keepdim=True), "mean": lambda: wide.mean(-1, True),
           "min": lambda: wide.amin(-1, keepdim=True), "prod": lambda: wide.prod(-1, keepdim=True, **own)}[kind]()
    return c.g.reduce(x.node, kind=kind, axes=(1,), keepdims=True), got


def _running(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    wide = x.value.float() if c.dtype.is_float else x.value
    return c.g.cumsum(x.node), wide.cumsum(-1, dtype=wide.dtype)


def _moved(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    n = x.value.shape[-1]
    if draw(st.booleans()):
        return c.g.concat(x.node, c.inputs[1].node, axis=1), torch.cat([x.value, c.inputs[1].value], 1)
    start = draw(st.integers(0, n - 1))
    if draw(st.booleans()):
        return c.g.narrow(x.node, axis=1, start=start, len=n - start), x.value[:, start:]
    return c.g.reverse(x.node, axes=(1,)), x.value.flip(1)


def _picked(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    at = draw(st.lists(st.integers(0, x.value.shape[-1] - 1), min_size=1, max_size=4))
    return c.g.gather(x.node, c.g.constant(np.asarray(at)), axis=1), x.value[:, at]


def _there_and_back(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    """Through another type of the same kind: floats rounded, integers modulo 2ⁿ."""
    via = draw(st.sampled_from([DType.F16, DType.BF16] if c.dtype.is_float else [DType.I8, DType.U8, DType.I32]))
    node = c.g.cast(c.g.cast(x.node, to=via), to=c.dtype)
    return node, x.value.to(TORCH[via])


def _norm(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    n = x.value.shape[-1]
    gain, shift = c.weight(n), c.weight(n)
    wide = [p.value.float() for p in (x, gain, shift)]
    if draw(st.booleans()):
        return (c.g.layer_norm(x.node, gain.node, shift.node, eps=0.1), F.layer_norm(wide[0], (n,), wide[1], wide[2], 0.1))
    return c.g.rms_norm(x.node, gain.node, eps=0.1), F.rms_norm(wide[0], (n,), wide[1], 0.1)


def _softmax(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    return c.g.softmax(x.node, axis=1), torch.softmax(x.value.float(), 1)


def _attention(draw: st.DrawFn, c: Chain, x: Pair) -> tuple[int, Tensor]:
    q, k, v = (c.g.reshape(i, dims=(1, ROWS, COLS)) for i in (c.inputs[0].node, c.inputs[1].node, c.inputs[0].node))
    y = c.g.attention(q, k, v, num_heads=2, head_dim=2, mask_kind="causal")
    heads = [t.value.float().reshape(1, ROWS, 2, 2).swapaxes(1, 2) for t in (c.inputs[0], c.inputs[1], c.inputs[0])]
    want = F.scaled_dot_product_attention(*heads, is_causal=True).swapaxes(1, 2).reshape(ROWS, COLS)
    return c.g.reshape(y, dims=(ROWS, COLS)), want


ANY: tuple[Step, ...] = (_binary, _divide, _unary, _select, _product, _reduce, _running, _moved, _picked, _there_and_back)
OF_FLOATS: tuple[Step, ...] = (*ANY, _real, _norm, _softmax, _attention)


def chain(draw: st.DrawFn, dtype: DType) -> tuple[Chain, Pair, int]:
    """(the chain, its last value, its steps); floats stay small, so that a unit of the largest bounds the error."""
    c = Chain(dtype, draw(st.integers(0, 999)))
    at, steps = c.inputs[0], draw(st.integers(1, 4))
    for _ in range(steps):
        node, value = draw(st.sampled_from(OF_FLOATS if dtype.is_float else ANY))(draw, c, at)
        at = Pair(node, c.wrapped(value))
        if dtype.is_float and float(at.value.float().abs().max()) > 8:
            at = Pair(c.g.tanh(node), torch.tanh(at.value.float()).to(TORCH[dtype]))
    c.g.set_outputs(at.node, names=["out"])
    return c, at, steps


def agree(got: Array, want: Array, dtype: DType, steps: int) -> None:
    assert got.dtype == want.dtype == dtype.numpy and got.shape == want.shape
    if dtype.is_int:
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    coarse = max(UNIT[dtype], UNIT[DType.BF16] if steps < 0 else 0)
    np.testing.assert_allclose(a, b, rtol=0, atol=coarse * 64 * max(1.0, float(np.abs(b).max(initial=0))))


def options_for(target: Target, fused: bool) -> CompileOptions:
    made = CompileOptions.for_target(target, environ={})
    return made if fused else dataclasses.replace(made, fusion=no_fusion())


@pytest.mark.parametrize("target", list(Target), ids=lambda t: t.value)
@pytest.mark.parametrize("dtype", list(TORCH), ids=str)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_a_chain_in_each_type_is_what_torch_says(target: Target, dtype: DType, data: st.DataObject) -> None:
    c, last, steps = chain(data.draw, dtype)
    options = options_for(target, data.draw(st.booleans()))
    want = to_numpy(last.value, dtype)
    agree(compile_graph(c.g, options).run(c.arrays, sanitize=True)["out"], want, dtype, steps)
    some = data.draw(st.integers(1, ROWS - 1))
    active = Session().compile(c.g, options, bucket_dim={"x": 0, "y": 0})
    active.set_active_extent((some, ROWS))
    got = active.run(c.arrays)["out"]
    rows = BUCKET in active.graph[active.graph.outputs[0]].shape.dims[0].names() and not active.extent_reason
    agree(got[: some if rows else ROWS], want[: some if rows else ROWS], dtype, steps)
