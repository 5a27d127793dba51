"""Kernels on f16 storage, and the ops' references in f16 and bf16, against f64: a few half units on long rows and large values.

The target is metal, whose plan stores half as half. References: NumPy, SciPy or PyTorch in f64, on the rounded operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from planner_core.ir.ops.region import region_steps
from planner_core.ir.shape import Dim
from runtime import CompileOptions, compile_graph
from runtime.passes import PassOptions

Array = np.ndarray[Any, np.dtype[Any]]
Build = Callable[..., int]
HALF = np.dtype(np.float16)
UNIT = 2.0**-11
METAL = CompileOptions(target="metal", fusion=no_fusion(), passes=PassOptions.none())  # type: ignore[arg-type]
CASES: dict[str, Callable[..., tuple[Build, list[Array], Array]]] = {}


def case(name: str, build: Build, arrays: Callable[[], list[Array]], want: Callable[..., Any]) -> None:
    """``want`` takes the rounded operands as f64 (integers as they are)."""
    def make(half: np.dtype[Any] = HALF) -> tuple[Build, list[Array], Array]:
        given = [a.astype(half) if a.dtype.kind == "f" else a for a in arrays()]
        return build, given, np.asarray(want(*(a.astype(np.float64) if a.dtype == half else a for a in given)))

    assert name not in CASES
    CASES[name] = make


def rand(*shape: int, scale: float = 1.0, off: float = 0.0) -> Array:
    return np.random.default_rng(shape).standard_normal(shape) * scale + off


def torched(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A reference in PyTorch, f64."""
    return lambda *xs: fn(*(torch.from_numpy(np.array(x)) for x in xs)).numpy()


def grad(fn: Callable[..., Any], wrt: int) -> Callable[..., Any]:
    """The gradient of fn(*operands), weighted by the last one, wrt one of them, by PyTorch's autograd."""
    def run(*xs: Array) -> Any:
        *ins, dy = (torch.from_numpy(np.array(x)) for x in xs)
        ins[wrt].requires_grad_()
        (got,) = torch.autograd.grad(fn(*ins), ins[wrt], dy)
        return got.numpy()

    return run


# --- reductions, scans ------------------------------------------------------------------------------------

for _kind, _fn in {"sum": np.sum, "mean": np.mean}.items():
    for _axes, _dims in {(1,): (3, 7000), (0,): (5000, 3), (0, 2): (50, 3, 60), (1, 3): (70, 30, 3, 60)}.items():
        case(f"reduce-{_kind}-{_axes}", lambda g, i, k=_kind, a=_axes: g.reduce(i, kind=k, axes=a),
             lambda d=_dims: [rand(*d, off=1)], lambda x, f=_fn, a=_axes: f(x, axis=a))
case("reduce-prod", lambda g, i: g.reduce(i, kind="prod", axes=(1,)), lambda: [rand(3, 3000, scale=0.001, off=1)],
     lambda x: np.prod(x, axis=1))
case("mean-of-70000", lambda g, i: g.reduce(i, kind="mean", axes=(1,)), lambda: [np.ones((3, 70000))], lambda x: x.mean(1))
for _exclusive in (False, True):
    for _dims in ((2, 40000), (40000, 3)):
        case(f"cumsum-{_exclusive}-{_dims}", lambda g, i, e=_exclusive: g.cumsum(i, exclusive=e),
             lambda d=_dims: [rand(*d, scale=0.1, off=0.5)],
             lambda x, e=_exclusive: np.cumsum(x, 1) - (x if e else 0))
        case(f"cumsum-backward-{_exclusive}-{_dims}", lambda g, i, e=_exclusive: g.cumsum_backward(i, exclusive=e),
             lambda d=_dims: [rand(*d, scale=0.1, off=0.5)],
             lambda x, e=_exclusive: np.cumsum(x[:, ::-1], 1)[:, ::-1] - (x if e else 0))
for _axis, _dims in {1: (3, 70000), 0: (5000, 3), -1: (500, 30)}.items():
    case(f"softmax-{_axis}-ones", lambda g, i, a=_axis: g.softmax(i, axis=a), lambda d=_dims: [np.ones(d)],
         lambda x, a=_axis: scipy.special.softmax(x, axis=a))
    case(f"softmax-{_axis}", lambda g, i, a=_axis: g.softmax(i, axis=a), lambda d=_dims: [rand(*d, scale=4)],
         lambda x, a=_axis: scipy.special.softmax(x, axis=a))
case("softmax-backward", lambda g, i, j: g.softmax_backward(i, j, axis=1),
     lambda: [scipy.special.softmax(rand(4, 9000), axis=1), rand(4, 9000, off=3, scale=100)],
     lambda y, dy: y * (dy - (dy * y).sum(1, keepdims=True)))

# --- norms ------------------------------------------------------------------------------------------------


def _layer_norm(x: Any, g: Any, b: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], g, b)


def _rms(x: Any, g: Any) -> Any:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g


def _first_axis_last(x: Any, g: Any, b: Any) -> Any:
    return F.layer_norm(x.movedim(1, -1), x.shape[1:2], g, b, 1e-6).movedim(-1, 1)


for _scale, _off in ((1, 0), (300, 0), (1, 1000)):
    _x = {"scale": _scale, "off": _off}
    _name = f"{_scale}+{_off}"
    case(f"layer-norm-{_name}", lambda g, *i: g.layer_norm(*i), lambda x=_x: [rand(5, 3000, **x), rand(3000), rand(3000)],
         torched(_layer_norm))
    case(f"layer-norm-2d-{_name}", lambda g, *i: g.layer_norm2d(*i), lambda x=_x: [rand(2, 400, 5, 60, **x), rand(400), rand(400)],
         torched(_first_axis_last))
    case(f"group-norm-{_name}", lambda g, *i: g.group_norm(*i, groups=2), lambda x=_x: [rand(2, 8, 50, 60, **x), rand(8), rand(8)],
         torched(lambda x, g, b: F.group_norm(x, 2, g, b)))
    case(f"batch-norm-{_name}", lambda g, *i: g.batch_norm(*i),
         lambda x=_x: [rand(2, 4, 50, 60, **x), rand(4), rand(4), rand(4, off=x["off"]), np.abs(rand(4)) + 0.5],
         torched(lambda x, g, b, m, v: F.batch_norm(x, m, v, g, b)))
    case(f"rms-norm-{_name}", lambda g, *i: g.rms_norm(*i), lambda x=_x: [rand(5, 3000, **x), rand(3000)], torched(_rms))
    case(f"residual-layer-norm-{_name}", lambda g, *i: g.residual_layer_norm(*i),
         lambda x=_x: [rand(5, 3000, **x), rand(5, 3000), rand(3000), rand(3000)],
         torched(lambda x, r, g, b: _layer_norm(x + r, g, b)))
    case(f"layer-norm-dx-{_name}", lambda g, *i: g.layer_norm_backward_input(*i),
         lambda x=_x: [rand(5, 3000, **x), rand(3000), rand(5, 3000, scale=10)],
         grad(lambda x, g: F.layer_norm(x, x.shape[-1:], g), 0))
    case(f"layer-norm-dgamma-{_name}", lambda g, x, dy: g.layer_norm_backward_gamma(x, dy),
         lambda x=_x: [rand(5000, 30, **x), rand(5000, 30, off=1)],
         lambda x, dy: grad(lambda x, g: F.layer_norm(x, x.shape[-1:], g), 1)(x, np.ones(30), dy))
    case(f"rms-norm-dx-{_name}", lambda g, *i: g.rms_norm_backward_input(*i),
         lambda x=_x: [rand(5, 3000, **x), rand(3000), rand(5, 3000, scale=10)], grad(_rms, 0))
    case(f"rms-norm-dgamma-{_name}", lambda g, x, dy: g.rms_norm_backward_gamma(x, dy),
         lambda x=_x: [rand(5000, 30, **x), rand(5000, 30, off=1)], lambda x, dy: grad(_rms, 1)(x, np.ones(30), dy))
case("layer-norm-2d-of-300s", lambda g, *i: g.layer_norm2d(*i), lambda: [rand(2, 4, 5, 6, scale=300), np.ones(4), np.zeros(4)],
     torched(_first_axis_last))
case("rms-norm-dbeta", lambda g, i: g.rms_norm_backward_beta(i), lambda: [rand(5000, 30, off=1)], lambda dy: dy.sum(0))
case("ada-dscale", lambda g, *i: g.ada_layer_norm_backward(*i, wrt="scale"),
     lambda: [rand(2, 5000, 30), rand(2, 30), rand(2, 5000, 30, off=1)],
     grad(lambda x, s: F.layer_norm(x, x.shape[-1:]) * (1 + s[:, None]), 1))
case("gate-gradient", lambda g, *i: g.gated_residual_backward(*i, wrt="gate"),
     lambda: [rand(2, 5000, 30), rand(2, 5000, 30, off=1)], lambda y, dy: (y * dy).sum(1))

# --- pools, convolution, products -------------------------------------------------------------------------

case("global-pool", lambda g, i: g.global_pool(i, kind="mean"), lambda: [np.full((1, 2, 64, 64), 100.0)],
     lambda x: x.mean((2, 3), keepdims=True))
case("pool-of-100s", lambda g, i: g.pool2d(i, kind="mean", kernel=(64, 64), strides=(1, 1), pads=(0, 0, 0, 0)),
     lambda: [np.full((1, 2, 64, 64), 100.0)], lambda x: x.mean((2, 3), keepdims=True))
case("pool", lambda g, i: g.pool2d(i, kind="mean", kernel=(31, 31), strides=(2, 1), pads=(0, 0, 0, 0)),
     lambda: [rand(1, 90, 70, 70, off=100)], torched(lambda x: F.avg_pool2d(x, 31, (2, 1))))
case("max-pool-backward", lambda g, *i: g.max_pool2d_backward(*i, kernel=(31, 31), strides=(1, 1), pads=(0,) * 4),
     lambda: [np.random.default_rng(0).permutation(2 * 6400).reshape(1, 2, 80, 80) / 8.0, rand(1, 2, 50, 50, off=3)],
     lambda x, dy: _first_maximum(x, dy))
_CONV: dict[str, Any] = {"strides": (1, 1), "pads": (3, 3, 3, 3), "dilations": (1, 1)}
case("conv", lambda g, *i: g.conv(*i, **_CONV), lambda: [rand(1, 64, 30, 30, off=1), rand(8, 64, 7, 7, off=1, scale=0.1)],
     torched(lambda x, w: F.conv2d(x, w, padding=3)))
case("conv-transpose", lambda g, *i: g.conv_transpose2d(*i, **_CONV),
     lambda: [rand(1, 64, 30, 30, off=1), rand(64, 8, 7, 7, off=1, scale=0.1)],
     torched(lambda x, w: F.conv_transpose2d(x, w, padding=3)))
case("conv-dx", lambda g, *i: g.conv_backward_input(*i, groups=1, dims=tuple(map(Dim, (1, 64, 30, 30))), **_CONV),
     lambda: [rand(8, 64, 7, 7, off=1, scale=0.1), rand(1, 8, 30, 30, off=1)],
     torched(lambda w, dy: F.conv_transpose2d(dy, w, padding=3)))
case("conv-dw", lambda g, *i: g.conv_backward_weight(*i, groups=1, dims=tuple(map(Dim, (8, 16, 7, 7))), **_CONV),
     lambda: [rand(4, 16, 30, 30, off=1), rand(4, 8, 30, 30, off=1)],
     torched(lambda x, dy: torch.nn.grad.conv2d_weight(x, (8, 16, 7, 7), dy, padding=3)))  # type: ignore[attr-defined]
case("depthwise-1d", lambda g, *i: g.depthwise_conv1d_bsc(*i), lambda: [rand(1, 140, 8, off=1), rand(8, 1, 101, off=1)],
     torched(lambda x, w: F.conv1d(x.movedim(2, 1), w, groups=8).movedim(1, 2)))
case("matmul", lambda g, *i: g.mm(*i), lambda: [rand(3, 9000, off=1, scale=0.1), rand(9000, 4, off=1, scale=0.1)], np.matmul)


def _first_maximum(x: Array, dy: Array) -> Array:
    dx = np.zeros_like(x)
    for c, i, j in np.ndindex(*dy.shape[1:]):
        y, z = np.unravel_index(np.argmax(x[0, c, i : i + 31, j : j + 31]), (31, 31))
        dx[0, c, i + y, j + z] += dy[0, c, i, j]
    return dx


# --- attention, losses, the rest --------------------------------------------------------------------------


def _attend(q: Any, k: Any, v: Any) -> Any:
    split = [x.reshape(x.shape[0], x.shape[1], -1, 32).movedim(2, 1) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(split[0], *(x.repeat_interleave(split[0].shape[1] // x.shape[1], 1) for x in split[1:]),
                                         is_causal=True)
    return out.movedim(1, 2).reshape(q.shape)


_HEADS: dict[str, Any] = {"num_heads": 4, "kv_heads": 2, "head_dim": 32, "mask_kind": "causal"}


def _qkv(scale: float) -> list[Array]:
    return [rand(1, 90, 128, scale=scale), rand(1, 90, 64, scale=scale), rand(1, 90, 64, scale=scale, off=1)]


case("attention", lambda g, *i: g.attention(*i, **_HEADS), lambda: _qkv(60), torched(_attend))
case("attention-of-60s", lambda g, *i: g.attention(*i, num_heads=1, head_dim=64, mask_kind="causal"),
     lambda: [rand(1, 4, 64, scale=60)] * 3, torched(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True)))
for _k, _wrt in enumerate("qkv"):
    case(f"attention-d{_wrt}", lambda g, *i, w=_wrt: g.attention_backward(*i, wrt=w, **_HEADS),
         lambda: [*_qkv(2), rand(1, 90, 128, off=1)], grad(_attend, _k))
case("attention-dmask", lambda g, *i: g.attention_backward(*i, wrt="mask", num_heads=1, head_dim=32, mask_kind="bias"),
     lambda: [*(rand(500, 6, 32) for _ in range(3)), rand(500, 6, 32, off=1), rand(1, 1, 6, 6)],
     lambda q, k, v, dy, m: grad(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m[0]), 0)(m, q, k, v, dy))
_LABELS = np.asarray([1, 5, 7, 8999], np.int64)
case("cross-entropy", lambda g, *i: g.softmax_cross_entropy(*i), lambda: [rand(4, 9000, scale=9), _LABELS],
     torched(lambda x, t: F.cross_entropy(x, t, reduction="none")))
case("cross-entropy-dense", lambda g, *i: g.softmax_cross_entropy(*i),
     lambda: [rand(4, 9000, scale=9), scipy.special.softmax(rand(4, 9000), axis=1)],
     lambda x, t: -(t * scipy.special.log_softmax(x, axis=1)).sum(1))
case("cross-entropy-backward", lambda g, *i: g.softmax_cross_entropy_backward(*i),
     lambda: [rand(4, 9000, scale=9), _LABELS, rand(4, scale=100)],
     lambda x, t, d: (scipy.special.softmax(x, axis=1) - np.eye(9000)[t]) * d[:, None])
_ZEROS = np.zeros(5000, np.int64)
case("scatter-add", lambda g, *i: g.scatter_add(*i, out_dim=4), lambda: [rand(5000, 3, off=1), _ZEROS],
     lambda x, i: np.stack([x.sum(0), *np.zeros((3, 3))]))
case("gather-backward", lambda g, *i: g.gather_backward(*i, axis=0, extent=Dim(4)), lambda: [rand(5000, 3, off=1), _ZEROS],
     lambda x, i: np.stack([x.sum(0), *np.zeros((3, 3))]))
case("scatter-elements", lambda g, *i: g.scatter_elements(*i, axis=0, reduction="add"),
     lambda: [rand(4, 3), np.zeros((5000, 3), np.int64), rand(5000, 3, off=1)],
     lambda x, i, u: x + np.stack([u.sum(0), *np.zeros((3, 3))]))


def _scan(x: Array, delta: Array, a: Array, b: Array, c: Array) -> Array:
    h, out = np.zeros((*x.shape[::2], a.shape[1])), np.zeros_like(x)
    for t in range(x.shape[1]):
        h = np.exp(delta[:, t, :, None] * a) * h + (delta[:, t] * x[:, t])[..., None] * b[:, t, None]
        out[:, t] = (h * c[:, t, None]).sum(-1)
    return out


case("selective-scan", lambda g, *i: g.selective_scan(*i),
     lambda: [rand(1, 900, 5, off=1), np.full((1, 900, 5), 0.01), np.full((5, 16), -0.01), rand(1, 900, 16, off=1),
              rand(1, 900, 16, off=1)], _scan)
case("mean-pool-backward", lambda g, i: g.mean_pool2d_backward(
         i, kernel=(31, 31), strides=(1, 1), pads=(0,) * 4, ceil_mode=False, count_include_pad=False,
         dims=tuple(map(Dim, (1, 2, 80, 80)))),
     lambda: [rand(1, 2, 50, 50, off=3)],
     lambda dy: grad(lambda x: F.avg_pool2d(x, 31, 1), 0)(np.zeros((1, 2, 80, 80)), dy))
case("rope-dcos", lambda g, *i: g.rope_table_backward(*i, wrt="cos", head_dim=64, n_rot=64),
     lambda: [rand(400, 5, 128), rand(400, 5, 128, off=1)],
     lambda x, dy: (x * dy).reshape(400, 5, 2, 2, 32).sum((0, 2, 3)))
case("region", lambda g, *i: g.elementwise_region(*i, steps=region_steps("s0 = mul(x0, x1); s1 = div(s0, x1); s2 = gelu(s1)")),
     lambda: [rand(3000, scale=300), rand(3000, scale=300)], torched(lambda x, y: F.gelu(x)))
for _act, _f in {"gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid, "elu": F.elu}.items():
    case(f"activation-{_act}", lambda g, i, k=_act: g.activation(i, kind=k, alpha=1.0 if k == "elu" else 0.0),
         lambda: [np.linspace(-12, 12, 4001)], torched(_f))


def _graph(build: Build, arrays: list[Array]) -> tuple[Graph, int]:
    g = Graph("half")
    out = build(g, *(g.input(f"x{i}", a.shape, DType.of(a.dtype)) for i, a in enumerate(arrays)))
    return g.set_outputs(out), out


def _close(got: Array, want: Array, unit: float = UNIT) -> None:
    """Within four units of the largest value, and half values that f64 can round to are finite."""
    scale = float(np.abs(want).max())
    assert scale < 65504
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=4 * unit * scale)


@pytest.mark.parametrize("name", CASES)
def test_half_kernels_keep_their_sums_wide(name: str) -> None:
    build, arrays, want = CASES[name]()
    g, out = _graph(build, arrays)
    compiled = compile_graph(g, METAL)
    feed = {f"x{i}": a for i, a in enumerate(arrays)}
    assert all(o.storage is DType.F16 or not o.storage.is_float for t in compiled.commands.thunks for _, _, o in t.operands())
    got = next(iter(compiled.run(feed).values()))
    assert got.dtype == HALF
    _close(got, want)
    np.testing.assert_array_equal(next(iter(compiled.run(feed, sanitize=True).values())), got)
    reference = g[out].op.evaluate(*arrays)
    assert reference.dtype == HALF
    _close(reference, want)


@pytest.mark.parametrize("name", ["reduce-sum-(0,)", "cumsum-False-(2, 40000)", "softmax-1", "layer-norm-300+0", "conv-dw", "attention",
                                  "scatter-add", "matmul"])
def test_references_of_bf16_compute_wide(name: str) -> None:
    build, arrays, _ = CASES[name]()
    narrow = [a.astype(ml_dtypes.bfloat16) if a.dtype == HALF else a for a in arrays]
    g, out = _graph(build, narrow)
    wide = [a.astype(np.float64) if a.dtype.itemsize == 2 else a for a in narrow]
    reference, exact = g[out].op.evaluate(*narrow), g[out].op.evaluate(*wide)
    assert reference.dtype == ml_dtypes.bfloat16
    _close(reference, exact, 2.0**-8)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_kernels_that_only_pick_take_no_scratch(kind: str) -> None:
    g, _ = _graph(lambda g, i: g.reduce(i, kind=kind, axes=(1,)), [np.ones((3, 5), HALF)])
    assert compile_graph(g, METAL).commands.scratch_bytes == 0


def test_long_rows_take_scratch_for_a_piece_only() -> None:
    """A half softmax over 4 million elements in short rows is widened a piece at a time."""
    g, _ = _graph(lambda g, i: g.softmax(i, axis=1), [np.ones((40_000, 100), HALF)])
    assert compile_graph(g, METAL).commands.scratch_bytes < 1 << 19


@pytest.mark.parametrize("target", ["metal", "mlx", "cuda"])
@pytest.mark.parametrize("shape", [(3, 700, 5), (1, 4096, 33), (40, 64, 600)], ids=str)
def test_half_products_are_summed_in_f32_within_declared_scratch(target: str, shape: tuple[int, int, int]) -> None:
    """Widened strip by strip: as exact as one rounding of the f64 product, whatever the strips' edges."""
    import rlx_viz

    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    g = Graph("half product")
    g.set_outputs(g.mm(g.input("a", (m, k), DType.F16), g.param("b", (k, n), DType.F16, data=b)), names=["y"])
    c = rlx_viz.compile(g, target=target)
    got = c.run({"a": a}, sanitize=True)["y"].astype(np.float64)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(got - want).max() <= 2.0**-10 * np.abs(want).max()
    thunk = next(t for t in c.commands.thunks if t.name == "Sgemm")
    assert 0 < thunk.scratch_bytes <= 3 * (1 << 20) + 4 * max(m, n, k) * 4 + 256
