"""What a kernel can't do is one error that says which thunk, or has the value that NumPy or ONNX give it; never a traceback."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from planner_core.errors import GraphError
from planner_core.ir import DType, Graph, Shape
from runtime import CompileOptions, RunError, SanitizeError, compile_graph, register_kernel
from runtime.command_list.thunks.host import kernels
from tests.runtime.gallery.base import as_written, ort

Array = np.ndarray[Any, np.dtype[Any]]


def run(build: Callable[..., int], *arrays: Any, sanitize: bool = True) -> Array:
    """The output of one op by its thunks; that of its reference is the same."""
    given = [np.asarray(a) for a in arrays]
    g = Graph("case")
    out = build(g, *(g.input(f"x{i}", a.shape, DType.of(a.dtype)) for i, a in enumerate(given)))
    g.set_outputs(out)
    made = next(iter(as_written(g).run({f"x{i}": a for i, a in enumerate(given)}, sanitize=sanitize).values()))
    np.testing.assert_array_equal(made, g[out].op.evaluate(*given))
    return made


# --- values that NumPy or ONNX define ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_negative_integer_power_goes_toward_zero(dtype: type) -> None:
    base = np.asarray([1, -1, -1, 2, -3, 7, 0, 5], dtype)
    power = np.asarray([-3, -3, -2, -1, -5, 2, 3, 0], dtype)
    want = np.asarray([int(float(a) ** float(b)) for a, b in zip(base, power, strict=True)])
    np.testing.assert_array_equal(run(lambda g, i, j: g.pow(i, j), base, power), want)
    np.testing.assert_array_equal(run(lambda g, i, j: g.pow(i, j), base[[0, 1, 3]].reshape(3, 1), power[:3]),
                                  [[1, 1, 1], [-1, -1, 1], [0, 0, 0]])


@pytest.mark.parametrize("policy", ["f32_uniform", "hybrid", "native"])
def test_integers_stay_whole_where_they_are_stored_as_floats(policy: str) -> None:
    """2 to the -1 is 0, and the mean of 1 and 2 is 1, for whoever reads them next."""
    g = Graph("whole")
    a, b = (g.input(n, (1, 1, 1, 2), DType.I32) for n in "ab")
    made = [g.pow(a, b), g.reduce(a, kind="mean", axes=(3,), keepdims=True), g.global_pool(a, kind="mean"),
            g.pool2d(a, kind="mean", kernel=(1, 2), strides=(1, 1), pads=(0, 0, 0, 0))]
    g.set_outputs(*(g.mul(m, b) for m in made))
    got = as_written(g).with_options(width_policy=policy).run({
        "a": np.asarray([[[[2, 1]]]], np.int32), "b": np.asarray([[[[-1, 40]]]], np.int32)}, sanitize=True)
    assert [v.reshape(-1).tolist() for v in got.values()] == [[0, 40], [-1, 40], [-1, 40], [-1, 40]]


def test_zero_to_a_negative_power_is_an_error_that_names_the_thunk() -> None:
    with pytest.raises(RunError, match=r"thunk 0 binary \(%2 Binary\): .*0 to a negative power.*cast to a float"):
        run(lambda g, i, j: g.pow(i, j), np.asarray([0, 2], np.int32), np.asarray([-1, 2], np.int32))
    g = Graph("reference")
    p = g.pow(g.input("a", (1,), DType.I32), g.input("b", (1,), DType.I32))
    with pytest.raises(GraphError, match="0 to a negative power"):
        g[p].op.evaluate(np.zeros(1, np.int32), np.asarray([-1], np.int32))


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.float32])
def test_max_pool_of_integers(dtype: type) -> None:
    x = np.random.default_rng(3).integers(0 if dtype is np.uint8 else -100, 100, (2, 3, 9, 7)).astype(dtype)
    want = F.max_pool2d(torch.from_numpy(x.astype(np.float64)), 3, 2, 1).numpy()
    got = run(lambda g, i: g.pool2d(i, kind="max", kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), x)
    np.testing.assert_array_equal(got, want)
    if dtype in (np.int8, np.uint8):
        np.testing.assert_array_equal(got, ort("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))


def test_mean_pool_of_integers_goes_toward_zero() -> None:
    x = np.asarray([[[[-3, 0], [0, 0]], [[7, 7], [7, 0]]]], np.int32)
    got = run(lambda g, i: g.pool2d(i, kind="mean", kernel=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0)), x)
    np.testing.assert_array_equal(got.reshape(-1), [0, 5])


@pytest.mark.parametrize(("kind", "dtype", "want"), [
    ("max", np.float32, -np.inf), ("min", np.float32, np.inf), ("max", np.float16, -np.inf),
    ("max", np.int32, np.iinfo(np.int32).min), ("min", np.int32, np.iinfo(np.int32).max), ("sum", np.float32, 0),
    ("prod", np.float32, 1)])
@pytest.mark.parametrize("axes", [(1,), (1, 2)])
def test_a_reduction_of_nothing_is_its_identity(kind: str, dtype: type, want: float, axes: tuple[int, ...]) -> None:
    got = run(lambda g, i: g.reduce(i, kind=kind, axes=axes), np.zeros((3, 0, 2), dtype))
    np.testing.assert_array_equal(got, np.full(got.shape, want))


def test_the_largest_of_nothing_has_no_index() -> None:
    g = Graph("arg")
    x = g.input("x", (3, 0))
    with pytest.raises(GraphError, match=r"ArgReduce\(max\) of f32\[3, 0\] along axis 1.*at least one"):
        g.argmax(x, axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_without_a_key_weighs_nothing(dtype: type) -> None:
    q, none = np.ones((2, 3, 8), dtype), np.zeros((2, 0, 8), dtype)
    got = run(lambda g, *i: g.attention(*i, num_heads=2, head_dim=4), q, none, none)
    np.testing.assert_array_equal(got, np.zeros((2, 3, 8)))


# --- custom ops -------------------------------------------------------------------------------------------


def custom(name: str, *shapes: tuple[int, ...], attrs: str = "{}", out: str = "i32[3]") -> Graph:
    g = Graph("custom")
    return g.set_outputs(g.custom(*(g.input(f"x{i}", s) for i, s in enumerate(shapes)), op_name=name, shape=Shape.parse(out), attrs=attrs))


@pytest.mark.parametrize(("shapes", "attrs", "what"), [
    (((3, 4),), "{}", r"got operands f32\[3, 4\], metric 'l2'; wanted x .*codebook"),
    (((3, 4), (5, 6)), "{}", r"wanted x \[\.\., 6\]"),
    (((3, 4), (5, 4)), '{"metric": "far"}', "metric 'far'; wanted .*cosine"),
    (((3, 4), (5, 4)), "{metric", "attrs are not JSON"),
    (((3, 4), (5, 4)), "[1]", "wanted a JSON object"),
])
def test_a_custom_vq_assign_that_does_not_fit(shapes: tuple[tuple[int, ...], ...], attrs: str, what: str) -> None:
    g = custom("rlx.vq_assign", *shapes, attrs=attrs)
    compiled = compile_graph(g)  # it can be planned and looked at
    with pytest.raises(RunError, match=what):
        compiled.run({f"x{i}": np.zeros(s, np.float32) for i, s in enumerate(shapes)})


@pytest.mark.parametrize(("name", "fn"), [("", print), ("  ", print), ("k", None), ("k", 3)])
def test_what_is_no_kernel_is_refused(name: str, fn: Any) -> None:
    before = kernels()
    with pytest.raises(RunError, match=r"register_kernel\(.*wanted the name of a Custom op"):
        register_kernel(name, fn)
    assert kernels() == before


def test_bad_attributes_are_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.command_list.thunks.host._KERNELS", {})
    register_kernel("mine", lambda inputs, outputs, attrs: outputs[0].fill(1))
    with pytest.raises(RunError, match=r"thunk 0 custom_op:mine .*custom op 'mine': its attrs are not JSON") as caught:
        compile_graph(custom("mine", (3,), attrs="{axis: 1}")).run({"x0": np.zeros(3, np.float32)})
    assert "raised" not in str(caught.value)


# --- kernels that break -----------------------------------------------------------------------------------


def broken(run_: Callable[..., None]) -> Any:
    """An executor of tanh(a) * b whose last thunk runs ``run_``."""
    g = Graph("broken")
    a, b = (g.input(n, (2, 3)) for n in "ab")
    g.set_outputs(g.mul(g.tanh(a, name="t"), b, name="product"))
    executor = as_written(g).executor
    t, args, _ = executor._calls[-1]

    class Mutant(type(t)):  # type: ignore[misc]
        run = run_

    mutant = object.__new__(Mutant)
    for f in t.__dataclass_fields__:
        object.__setattr__(mutant, f, getattr(t, f))
    executor._calls[-1] = (mutant, args, 0)
    return executor


FEED = {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)}


def _index_error(self: Any, lhs: Array, rhs: Array, dst: Array, scratch: Any) -> None:
    raise IndexError("index 7 is out of bounds")


@pytest.mark.parametrize("sanitize", [False, True])
def test_any_exception_of_a_kernel_is_an_error_that_names_the_thunk(sanitize: bool) -> None:
    with pytest.raises(RunError, match=r"thunk 1 binary \(%3 Binary 'product'\): its kernel raised IndexError: index 7 .*lhs f32") as e:
        broken(_index_error).run(FEED, sanitize=sanitize)
    assert isinstance(e.value.__cause__, IndexError)


def _writes(name: str) -> Callable[..., None]:
    def run_(self: Any, lhs: Array, rhs: Array, dst: Array, scratch: Any) -> None:
        {"lhs": lhs, "rhs": rhs}[name][...] = 0

    return run_


@pytest.mark.parametrize(("field", "tensor"), [("lhs", "%2 Activation 't'"), ("rhs", "'b'")])
def test_a_kernel_that_writes_what_it_reads_is_told_which_tensor(field: str, tensor: str) -> None:
    with pytest.raises(SanitizeError, match=rf"thunk 1 .*writes its operand {field} \({tensor}\), .*To blame: ") as caught:
        broken(_writes(field)).run(FEED, sanitize=True)
    e = caught.value
    assert (e.thunk, e.label, e.node, e.field) == (1, "binary", "%3 Binary 'product'", field)
    assert "lowering of %3 Binary 'product'" in e.blame and isinstance(e.__cause__, ValueError)
    with pytest.raises(RunError, match=rf"writes its operand {field}"):
        broken(_writes(field)).run(FEED)


def test_outputs_that_overflow_their_dtype_warn_nobody() -> None:
    """f16 in an f32 slot, on the CPU: 1e5 is inf on the way out."""
    g = Graph("wide")
    x = g.input("x", (2,), DType.F16)
    g.set_outputs(g.mul(x, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = compile_graph(g).run({"x": np.asarray([1000, 2], np.float16)})
    np.testing.assert_array_equal(next(iter(got.values())), [np.inf, 4])


# --- memory outside the plan ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["top_k", "top_k_values", "smallest", "top_k_of_all", "sample", "sample_of_all"])
def test_picking_from_a_wide_row_takes_declared_scratch_only(op: str) -> None:
    width = 100_000
    x = np.random.default_rng(0).standard_normal((2, width)).astype(np.float32)
    g = Graph("wide")
    i = g.input("x", x.shape)
    build: dict[str, Callable[[], int]] = {
        "top_k": lambda: g.top_k(i, k=40), "top_k_values": lambda: g.top_k(i, k=40, values=True),
        "smallest": lambda: g.top_k(i, k=40, largest=False), "top_k_of_all": lambda: g.top_k(i, k=width),
        "sample": lambda: g.sample(i, top_k=40, top_p=0.9, temperature=1.0, seed=1),
        "sample_of_all": lambda: g.sample(i, top_k=0, top_p=0.9, temperature=1.0, seed=1)}
    out = build[op]()
    g.set_outputs(out)
    compiled = as_written(g)
    executor, _ = compiled.executor, compiled.run({"x": x})
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        executor.execute({"x": x})
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 150_000
    assert compiled.commands.scratch_bytes <= 24 * width + 64
    np.testing.assert_array_equal(executor.outputs()[g.output_names[0]], g[out].op.evaluate(x))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("largest", [False, True])
def test_top_k_of_every_width_keeps_values_and_ties(dtype: type, largest: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 4, (3, 50)).astype(dtype)
    if dtype is np.int64:
        x += 1 << 60  # neighbours that f64 can't tell apart
    rows = [sorted(range(50), key=lambda j, r=r: (-r[j] if largest else r[j], j))[:13] for r in x.tolist()]
    np.testing.assert_array_equal(as_written_top_k(x, largest, False), rows)
    np.testing.assert_array_equal(as_written_top_k(x, largest, True), np.take_along_axis(x, np.asarray(rows), 1))


def as_written_top_k(x: Array, largest: bool, values: bool) -> Array:
    g = Graph("top")
    g.set_outputs(g.top_k(g.input("x", x.shape, DType.of(x.dtype)), k=13, largest=largest, values=values))
    return next(iter(as_written(g).run({"x": x}, sanitize=True).values()))


# --- options ----------------------------------------------------------------------------------------------


def test_a_compilation_says_what_it_was_compiled_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's switches are taken down when a graph is compiled; later changes are for later compilations."""
    g = Graph("env")
    g.set_outputs(g.relu(g.input("x", (2,))))
    monkeypatch.setenv("RLX_METAL_FUSE_DECODE", "0")
    options = CompileOptions(target="metal")  # type: ignore[arg-type]
    before = compile_graph(g, options)
    monkeypatch.delenv("RLX_METAL_FUSE_DECODE")
    after = compile_graph(g, options)

    def decode(c: Any) -> bool:
        return next(r.value for r in c.option_rows() if r.info.name == "decode")

    assert (decode(before), decode(after)) == (False, True)
    assert before.options.passes_used.decode is False
    assert decode(before.with_options(narrow_rope=False)) is False
    assert not any(r.changed for r in (*before.option_rows(), *after.option_rows()))
    assert before.options == after.options == options
