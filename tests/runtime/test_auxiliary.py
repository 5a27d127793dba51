"""Operands beside the first: rotary tables in each form, short indices, what doesn't fit. References: PyTorch, or the formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from planner_core.errors import GraphError
from planner_core.ir import DType, Graph
from planner_core.memory import Target
from runtime import CompileOptions, compile_graph

Array = np.ndarray[Any, np.dtype[Any]]
B, S, H, D, N_ROT = 2, 5, 3, 8, 6
HALF = N_ROT // 2
RNG = np.random.default_rng(11)
X, DY = (RNG.standard_normal((B, S, H * D)).astype(np.float32) for _ in range(2))
TABLES: dict[str, tuple[int, ...]] = {"a position": (S, HALF), "one for all": (1, HALF), "a token": (B, S, HALF)}
each_target = pytest.mark.parametrize("target", list(Target), ids=lambda t: t.value)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The rotation written out over [B, S, H, D]; tables broadcast over heads."""
    heads = x.reshape(B, S, H, D)
    c, s = cos[..., None, :], sin[..., None, :]
    low, high = (slice(0, N_ROT, 2), slice(1, N_ROT, 2)) if interleaved else (slice(0, HALF), slice(HALF, N_ROT))
    a, b = heads[..., low], heads[..., high]
    out = heads.clone()
    out[..., low], out[..., high] = a * c - b * s, b * c + a * s
    return out.reshape(B, S, H * D)


def run(g: Graph, feeds: dict[str, Array], target: Target) -> list[Array]:
    out = compile_graph(g, CompileOptions.for_target(target, environ={})).run(feeds, sanitize=True)
    return [out[n] for n in g.output_names]


@each_target
@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_reads_each_form_of_table(target: Target, form: str, interleaved: bool) -> None:
    """Value, and the gradients of x and both tables."""
    cos, sin = (RNG.standard_normal(TABLES[form]).astype(np.float32) for _ in range(2))
    ts = [torch.from_numpy(a).requires_grad_() for a in (X, cos, sin)]
    y = rotated(*ts, interleaved)
    wants = [y.detach().numpy(), *(t.numpy() for t in torch.autograd.grad(y, ts, torch.from_numpy(DY)))]
    g = Graph("rope")
    x, c, s, dy = (g.input(n, a.shape) for n, a in (("x", X), ("c", cos), ("s", sin), ("dy", DY)))
    made = g.rope(x, c, s, head_dim=D, n_rot=N_ROT, interleaved=interleaved)
    slopes = g[made].op.gradient(g, made, (x, c, s), dy)
    g.set_outputs(made, *[i for i in slopes if i is not None])
    feeds = {"x": X, "c": cos, "s": sin, "dy": DY}
    for got, want in zip(run(g, feeds, target), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(g[made].op.evaluate(X, cos, sin), wants[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cos", [(7, 3), (15,), (S, N_ROT), (S, D), (3, HALF), (B, S, D), (B + 1, S, HALF), (S, B, HALF), ()], ids=str)
def test_rope_refuses_other_tables(cos: tuple[int, ...]) -> None:
    for backward in (False, True):
        g = Graph("rope")
        x, c, s = g.input("x", X.shape), g.param("c", cos), g.param("s", (S, HALF))
        with pytest.raises(GraphError, match=r"Rope(Backward)? cos f32\[.*\]: wanted \[5, 3\] or \[1, 3\], or one row a token \[2, 5, 3\]"):
            (g.rope_backward if backward else g.rope)(x, c, s, head_dim=D, n_rot=N_ROT)


def test_rope_wants_sin_as_cos() -> None:
    g = Graph("rope")
    with pytest.raises(GraphError, match=r"Rope sin f32\[1, 3\]: wanted \[5, 3\], as cos f32\[5, 3\]"):
        g.rope(g.input("x", X.shape), g.param("c", (S, HALF)), g.param("s", (1, HALF)), head_dim=D, n_rot=N_ROT)


def test_a_symbol_of_positions_reads_the_first_rows_of_a_longer_table() -> None:
    """Tables for 9 positions serve any length up to it."""
    cos, sin = (RNG.standard_normal((9, HALF)).astype(np.float32) for _ in range(2))
    g = Graph("rope")
    g.set_outputs(g.rope(g.input("x", (B, "S", H * D)), g.param("c", (9, HALF), data=cos), g.param("s", (9, HALF), data=sin),
                         head_dim=D, n_rot=N_ROT))
    want = rotated(*(torch.from_numpy(a) for a in (X, cos[:S], sin[:S])), False).numpy()
    np.testing.assert_allclose(run(g.bind({"S": S}), {"x": X}, Target.CPU)[0], want, rtol=1e-5, atol=1e-6)


I64 = DType.I64
REFUSED: dict[str, tuple[Callable[[Graph], int], str]] = {
    "a short expert_idx": (lambda g: g.grouped_mat_mul(g.input("x", (4, 5)), g.param("w", (2, 5, 6)), g.input("i", (3,), I64)),
                           r"GroupedMatMul expert_idx i64\[3\]: wanted \[4\], one expert a row of x f32\[4, 5\]"),
    "fewer values than keys": (lambda g: g.attention(g.input("q", (1, 4, 4)), g.input("k", (1, 6, 4)), g.input("v", (1, 5, 4)),
                                                     num_heads=2, head_dim=2),
                               r"Attention v f32\[1, 5, 4\]: wanted batch 1 .*, and 6 keys as k f32\[1, 6, 4\]"),
    "another batch": (lambda g: g.attention(g.input("q", (2, 4, 4)), g.input("k", (1, 6, 4)), g.input("v", (1, 6, 4)),
                                            num_heads=2, head_dim=2), r"Attention k f32\[1, 6, 4\]: wanted batch 2 as q f32\[2, 4, 4\]"),
    "a mask of other keys": (lambda g: g.attention(*[g.input(n, (2, 4, 4)) for n in "qkv"], g.input("m", (4, 3)), num_heads=2,
                                                   head_dim=2, mask_kind="bias"), r"Attention mask f32\[4, 3\]: wanted \[4, 4\], or 1, for"),
    "heads and widths exchanged": (lambda g: g.attention(*[g.input(n, (1, 3, 4, 2)) for n in "qkv"], num_heads=2, head_dim=4),
                                   r"Attention q f32\[1, 3, 4, 2\]: wanted 2 heads × 4"),
    "updates of other rows": (lambda g: g.scatter_add(g.input("u", (4, 3)), g.input("i", (5,), I64), out_dim=6),
                              r"ScatterAdd updates f32\[4, 3\]: wanted \[5, 3\], one slice an index of indices i64\[5\]"),
    "a gradient of other indices": (lambda g: g.gather_backward(g.input("dy", (5, 2, 3)), g.input("i", (4,), I64), axis=1, extent=7),
                                    r"GatherBackward dy f32\[5, 2, 3\]: wanted \[5, 4, 3\], indices i64\[4\] from axis 1 on"),
    "scales of other blocks": (lambda g: g.dequant_mat_mul_blocked(g.input("x", (3, 8)), g.param("w", (5, 4), DType.U8),
                                                                   g.param("s", (5, 3)), bits=4, block_size=4),
                               r"DequantMatMulBlocked: scale or zero_point f32\[5, 3\], wanted \[5, 2\]"),
    "a scan's operand": (lambda g: g.selective_scan_backward(
        *[g.input(n, (2, 5, 3)) for n in "xd"], g.param("a", (3, 4)), *[g.input(n, (2, 6, 4)) for n in "bc"],
        g.input("dy", (2, 5, 3)), wrt="a"), r"SelectiveScan: .* b f32\[2, 6, 4\]"),
    "past the last element": (lambda g: g.slice(g.input("x", (6,)), axes=(0,), starts=(6,), stops=(-1,), steps=(-1,)),
                              r"Slice \[6:-1:-1\] of axis 0 of f32\[6\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operand_that_does_not_fit_is_refused_by_name(name: str) -> None:
    build, text = REFUSED[name]
    with pytest.raises(GraphError, match=text):
        build(Graph("refused"))


@each_target
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements_by_fewer_places_than_there_are(target: Target, axis: int) -> None:
    x = RNG.standard_normal((4, 5)).astype(np.float32)
    at = np.asarray([[3, 0, -1]] if axis == 0 else [[4, -5], [0, 1], [2, 2]])
    g = Graph("gather")
    g.set_outputs(g.gather_elements(g.input("x", x.shape), g.input("i", at.shape, I64), axis=axis))
    want = torch.gather(torch.from_numpy(x), axis, torch.from_numpy(at % x.shape[axis])).numpy()
    np.testing.assert_array_equal(run(g, {"x": x, "i": at}, target)[0], want)
