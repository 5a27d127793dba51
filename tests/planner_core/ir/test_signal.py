"""Transforms, codebooks, im2col, random streams and narrow floats: references, gradients, what shape rules refuse."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from planner_core.autodiff import backward
from planner_core.errors import GraphError
from planner_core.ir import Array, DType, Graph, Shape
from planner_core.ir.ops import (
    DequantMatMulFp8,
    DequantMatMulNvfp4,
    Fft,
    Im2Col,
    RngNormal,
    RngUniform,
    Sample,
    VqAssign,
)
from planner_core.ir.philox import key_words, normal, uniform


def _blocks(z: torch.Tensor) -> torch.Tensor:
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inverse", [False, True])
def test_fft_and_its_gradient_equal_pytorch(inverse: bool, norm: str, real: bool) -> None:
    g = Graph("case")
    g.set_outputs(g.add(Fft(inverse, norm, real), g.input("x", (3, 5 if real else 10), DType.F64)), names=["y"])
    training = backward(g, wrt=["x"])
    rng = np.random.default_rng(1)
    values = {"x": rng.standard_normal((3, 5 if real else 10)), "d_y": rng.standard_normal((3, 10))}
    done: list[Array] = []
    for n in training.nodes:
        done.append(values[n.name] if n.op.name == "Input" else n.op.evaluate(*[done[i] for i in n.inputs]))
    got = dict(zip(training.output_names, (done[i] for i in training.outputs), strict=True))
    leaf = torch.tensor(values["x"], requires_grad=True)
    z = torch.complex(leaf, torch.zeros_like(leaf)) if real else torch.complex(leaf[:, :5], leaf[:, 5:])
    want = _blocks((torch.fft.ifft if inverse else torch.fft.fft)(z, norm=norm))
    want.backward(torch.tensor(values["d_y"]))
    assert leaf.grad is not None
    np.testing.assert_allclose(got["y"], want.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got["d_x"], leaf.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_a_piece_of_a_stream_is_the_stream_there() -> None:
    words = key_words(3, 0.5)
    for draw in (uniform, normal):
        whole = draw(words, 0, 50)
        for start, count in ((0, 1), (3, 6), (4, 4), (17, 33)):
            np.testing.assert_array_equal(draw(words, start, count), whole[start : start + count])
    assert len({float(uniform(key_words(*k), 0, 1)[0]) for k in ((3, 0.5), (3, None), (3, 0.0), (4, 0.5), (-1, None))}) == 5


def test_random_fills_have_their_moments() -> None:
    z = RngNormal(Shape.of((200, 501), DType.F64), 2.0, 3.0, key=1).evaluate()
    assert abs(z.mean() - 2) < 0.05 and abs(z.std() - 3) < 0.05 and abs(((z - 2) ** 3).mean()) < 1
    u = RngUniform(Shape.of((200, 501)), -1.0, 3.0, key=2).evaluate()
    assert u.dtype == np.float32 and u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 0.02 and abs(u.std() - 4 / 12**0.5) < 0.02


def test_sampling_follows_the_kept_distribution() -> None:
    p = np.asarray([0.5, 0.2, 0.2, 0.06, 0.04])
    rows = np.tile(np.log(p), (20000, 1))
    counts = np.bincount(Sample(seed=1).evaluate(rows), minlength=5) / len(rows)
    np.testing.assert_allclose(counts, p, atol=0.015)
    cut = np.bincount(Sample(top_k=4, top_p=0.85, seed=1).evaluate(rows), minlength=5) / len(rows)
    np.testing.assert_allclose(cut, np.asarray([0.5, 0.2, 0.2, 0, 0]) / 0.9, atol=0.015)
    np.testing.assert_array_equal(Sample(temperature=0.0).evaluate(rows[:3, ::-1]), [4, 4, 4])


def test_codebooks_and_windows_equal_pytorch() -> None:
    rng = np.random.default_rng(0)
    x, cb = rng.standard_normal((2, 7, 3)), rng.standard_normal((11, 3))
    tx, tc = torch.tensor(x).reshape(-1, 3), torch.tensor(cb)
    wants = {"l2": torch.cdist(tx, tc).argmin(1), "dot": (tx @ tc.T).argmax(1),
             "cosine": F.cosine_similarity(tx[:, None], tc[None], dim=2).argmax(1)}
    for metric, want in wants.items():
        np.testing.assert_array_equal(VqAssign(metric).evaluate(x, cb).reshape(-1), want.numpy())
    image = rng.standard_normal((2, 3, 9, 8))
    got = Im2Col((3, 2), (2, 1), (1, 2, 1, 2), (2, 1)).evaluate(image)
    np.testing.assert_array_equal(got, F.unfold(torch.tensor(image), (3, 2), (2, 1), (1, 2), (2, 1)).numpy())


def test_narrow_floats_by_hand() -> None:
    x, w = np.asarray([[1.0, 2.0]]), np.asarray([[0.5, -1.5]]).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(DequantMatMulFp8().evaluate(x, w, np.asarray([4.0])), [[-10.0]])
    codes = np.zeros((1, 8), np.uint8)
    codes[0, 0] = 0x1 | 0xF << 4  # 0.5, then -6
    y = DequantMatMulNvfp4().evaluate(np.arange(1.0, 17.0)[None], codes, np.asarray([[2]]).astype(ml_dtypes.float8_e4m3fn), np.asarray([3.0]))
    np.testing.assert_array_equal(y, [[(0.5 * 1 - 6 * 2) * 6]])


def _i(g: Graph, *dims: int, dtype: DType = DType.F32) -> int:
    return g.input(f"x{len(g)}", dims, dtype)


ERRORS: list[tuple[str, Callable[[Graph], object], str]] = [
    ("odd row", lambda g: g.fft(_i(g, 2, 5)), "real parts, then as many imaginary ones"),
    ("norm", lambda g: g.fft(_i(g, 2, 4), norm="unit"), "wanted f32 or f64 and one of backward, ortho, forward"),
    ("width", lambda g: g.fft(_i(g, 2, 4, dtype=DType.F16)), "wanted f32 or f64"),
    ("metric", lambda g: g.vq_assign(_i(g, 2, 4), _i(g, 3, 4), metric="l1"), "one of l2, dot, cosine"),
    ("codebook", lambda g: g.vq_assign(_i(g, 2, 4), _i(g, 3, 5)), r"wanted \[.., d\], \[k, d\]"),
    ("window", lambda g: g.im2col(_i(g, 2, 4, 3), kernel=(1, 1), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)), "wanted NCHW"),
    ("ints", lambda g: g.rng_normal(shape=Shape.of((2,), DType.I32)), "fills floats"),
    ("bounds", lambda g: g.rng_uniform(shape=Shape.of((2,)), low=2.0), "wanted low ≤ high"),
    ("top_p", lambda g: g.sample(_i(g, 2, 4), top_p=0.0), "0 < top_p ≤ 1"),
    ("fp8", lambda g: g.dequant_mat_mul_fp8(_i(g, 2, 4), _i(g, 3, 4), _i(g, 1)), "wanted f8e4m3 or f8e5m2"),
    ("fp8 scale", lambda g: g.dequant_mat_mul_fp8(_i(g, 2, 4), _i(g, 3, 4, dtype=DType.F8E4M3), _i(g, 2)), r"wanted \[1\] or \[3\]"),
    ("fp8 rows", lambda g: g.dequant_mat_mul_fp8(_i(g, 2, 4), _i(g, 3, 5, dtype=DType.F8E4M3), _i(g, 1)), r"wanted \[.., k\] and \[n, k\]"),
    ("nvfp4", lambda g: g.dequant_mat_mul_nvfp4(_i(g, 2, 8), _i(g, 3, 4, dtype=DType.U8), _i(g, 3, 1, dtype=DType.F8E4M3), _i(g, 1)),
     "k a multiple of 16"),
]


@pytest.mark.parametrize(("make", "text"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_misfits_say_what_was_wanted(make: Callable[[Graph], object], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        make(Graph())
