"""Devices, options, modules, weights: ``Session`` and ``CompiledGraph`` as the caches call them."""

from __future__ import annotations

import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from planner_core.errors import GraphError, UnboundDimError
from planner_core.fusion import no_fusion
from planner_core.ir import DimBinding, DType, Graph
from planner_core.ir.hir import HirModule
from runtime import CompileOptions, RunError
from runtime.session import Device, DeviceError, PrecisionPolicy, Session
from tests.runtime.caches.graphs import WIDTH, expected, mlp, module, params

X = np.random.default_rng(3).standard_normal((3, WIDTH)).astype(np.float32)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# --- devices ------------------------------------------------------------------------------------------


def test_auto_picks_and_says_so() -> None:
    s = Session()
    assert s.device is Device.CPU
    assert "auto" in s.picked_because
    assert Session(Device.CPU).picked_because == "asked for"


@pytest.mark.parametrize("device", [d for d in Device if d not in (Device.CPU, Device.AUTO)])
def test_other_devices_are_an_error_that_names_the_alternatives(device: Device) -> None:
    with pytest.raises(DeviceError, match=rf"{device.value} .*Device\.CPU .*Device\.AUTO"):
        Session(device)
    with pytest.raises(DeviceError, match="no device 'abacus'; wanted one of cpu, metal"):
        Session("abacus")


# --- options ------------------------------------------------------------------------------------------


def test_cache_keys_are_stable_and_tell_options_apart() -> None:
    g = mlp(3)
    base = CompileOptions()
    assert base.cache_key(g) == CompileOptions.for_target("cpu", g).cache_key(g)
    assert base.cache_key(g) == base.cache_key(mlp(3))
    others = [
        CompileOptions(precision=PrecisionPolicy.AUTO_MIXED), CompileOptions(dims=DimBinding.of(S=3)),
        CompileOptions(fusion=no_fusion()), base.changed(g, arena_no_reuse=True), base.changed(g, alignment=128),
        CompileOptions.for_target("metal", g), base.changed(g, decode=True),
    ]
    keys = [base.cache_key(g), *(o.cache_key(g) for o in others)]
    assert len(set(keys)) == len(keys)
    assert base.changed(g, verify_memory=True).cache_key(g) == base.cache_key(g), "a check changes nothing compiled"
    assert CompileOptions(precision=PrecisionPolicy.F32).cache_key(g) == base.cache_key(g)


def test_cache_keys_are_equal_in_another_process() -> None:
    code = ("from runtime import CompileOptions; from tests.runtime.caches.graphs import mlp; "
            "print(CompileOptions().cache_key(mlp(3)))")
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)})
    assert got.stdout.strip() == CompileOptions().cache_key(mlp(3))


def test_options_with_dims_can_be_changed_later() -> None:
    c = Session().compile_hir(module(), CompileOptions(dims=DimBinding.batch_seq(1, 3)))
    assert c.compilation is not None
    again = c.compilation.with_options(fusion=False)
    assert again.source.find("x").shape.sizes == (1, 3, WIDTH)


# --- modules ------------------------------------------------------------------------------------------


def test_modules_lower_to_graphs_with_symbols() -> None:
    m = HirModule("block")
    x = m.input_batch_seq("x", 8)
    h = m.add(x, m.attention(m.rms_norm(x, "norm"), "attn", heads=2, kv_heads=1))
    m.outputs(m.linear(h, "head", 3, bias=False), names=["y"])
    g = m.lower()
    assert sorted(g.symbols) == ["batch", "seq"]
    assert str(g[g.outputs[0]].shape) == "f32[batch, seq, 3]"
    bound = m.bind(DimBinding.batch_seq(2, 5)).lower()
    assert bound[bound.outputs[0]].shape.sizes == (2, 5, 3)
    assert m.lower().symbols, "binding makes another module"
    assert g.find("attn.k.w").shape.sizes == (8, 4)


def test_module_mistakes_are_explained() -> None:
    m = HirModule("m")
    with pytest.raises(GraphError, match="has no outputs"):
        m.lower()
    with pytest.raises(GraphError, match="only leading dims may be symbols"):
        m.linear(m.input("x", (2, "n")), "l", 3)
    with pytest.raises(GraphError, match="3 heads don't divide"):
        m.attention(m.input_batch_seq("z", 8), "a", heads=3)
    m = HirModule("m")
    m.outputs(m.relu(m.input_batch_seq("t", 4)))
    with pytest.raises(UnboundDimError, match="depth"):
        m.bind(DimBinding.of(depth=2)).lower()
    with pytest.raises(UnboundDimError, match=r"batch|seq"):
        Session().compile_hir(m)
    with pytest.raises(AttributeError):
        m.no_such_builder


# --- weights ------------------------------------------------------------------------------------------


def loaded(rows: int = 3, seed: int = 0):
    c = Session().compile(mlp(rows))
    c.set_params(params(seed))
    return c


def test_one_buffer_behind_several_graphs() -> None:
    """"one weight buffer behind several graphs, checked by writing through one and reading through the other"."""
    a, b, c = loaded(3), Session().compile(mlp(5)), Session().compile(mlp(1))
    assert b.share_params_from(a)
    assert c.share_params_from(b)
    assert (a.own_weight_bytes, b.own_weight_bytes, c.own_weight_bytes) == (a.weight_bytes, 0, 0)
    x = np.ones((5, WIDTH), np.float32)
    np.testing.assert_allclose(b.run({"x": x})["y"], expected(x, params()), **CLOSE)
    c.set_param("w", params(1)["w"])
    want = {**params(), "w": params(1)["w"]}
    np.testing.assert_array_equal(a.param("w"), want["w"])
    np.testing.assert_allclose(a.run({"x": X})["y"], expected(X, want), **CLOSE)
    np.testing.assert_allclose(b.run({"x": x})["y"], expected(x, want), **CLOSE)
    assert np.shares_memory(a.executor.weights, c.executor.weights)
    assert a.share_params_from(a)


def test_static_packs_follow_a_write_through_a_sharer() -> None:
    def graph(rows: int) -> Graph:
        g = Graph("half")
        w = g.param("w", (WIDTH, WIDTH), DType.F16)
        return g.set_outputs(g.mm(g.input("x", (rows, WIDTH)), g.cast(w, to=DType.F32)), names=["y"])

    a, b = Session().compile(graph(3)), Session().compile(graph(5))
    a.set_param("w", np.ones((WIDTH, WIDTH), np.float16))
    assert b.share_params_from(a)
    x = np.ones((5, WIDTH), np.float32)
    assert b.run({"x": x})["y"][0, 0] == b.run({"x": x})["y"][0, 0] == WIDTH
    a.set_param("w", np.full((WIDTH, WIDTH), 3, np.float16))
    assert b.run({"x": x})["y"][0, 0] == 3 * WIDTH


def test_static_packs_are_made_anew_from_a_buffer_taken_over() -> None:
    """Both buffers were written as often, so their versions alone don't tell them apart."""
    def graph() -> Graph:
        g = Graph("half")
        w = g.param("w", (WIDTH, WIDTH), DType.F16)
        return g.set_outputs(g.mm(g.input("x", (3, WIDTH)), g.cast(w, to=DType.F32)), names=["y"])

    a, b = Session().compile(graph()), Session().compile(graph())
    for c, value in ((a, 1), (b, 2)):
        c.set_param("w", np.full((WIDTH, WIDTH), value, np.float16))
        assert c.commands.setup_dispatches == 1
        assert c.run({"x": np.ones((3, WIDTH), np.float32)})["y"][0, 0] == value * WIDTH
    assert b.share_params_from(a)
    assert b.run({"x": np.ones((3, WIDTH), np.float32)})["y"][0, 0] == WIDTH


def test_layouts_that_differ_are_not_shared() -> None:
    a = loaded()
    other_name = Graph("g")
    other_name.set_outputs(other_name.mm(other_name.input("x", (3, WIDTH)), other_name.param("u", (WIDTH, 6))))
    in_arena = Session().compile(mlp(3), CompileOptions.for_target("cpu").changed(mlp(3), separate_weights=False))
    for b in (Session().compile(mlp(3, hidden=7)), Session().compile(other_name), in_arena):
        before = b.executor.weight_buffer
        assert not b.share_params_from(a)
        assert b.executor.weight_buffer is before
        assert b.own_weight_bytes == b.weight_bytes


def test_values_that_were_compiled_in_must_agree() -> None:
    def graph(value: float) -> Graph:
        g = Graph("frozen")
        x = g.input("x", (2, WIDTH))
        w = g.param("w", (WIDTH, WIDTH), data=np.full((WIDTH, WIDTH), value, np.float32))
        s = g.param("s", (1,), data=np.full(1, value, np.float32))
        return g.set_outputs(g.mm(g.mul(x, g.mul(s, g.constant(2.0))), w), names=["y"])

    a, same, other = (Session().compile(graph(v)) for v in (1.0, 1.0, 2.0))
    x = np.ones((2, WIDTH), np.float32)
    want = other.run({"x": x})["y"].copy()
    assert "s" in a.executor.frozen
    assert not other.share_params_from(a)
    np.testing.assert_array_equal(other.run({"x": x})["y"], want)
    assert same.share_params_from(a)
    np.testing.assert_array_equal(same.run({"x": x})["y"], a.run({"x": x})["y"])


def test_copies_by_name_leave_buffers_apart() -> None:
    a, b = loaded(3), Session().compile(mlp(5))
    assert b.copy_params_from(a) == 3
    a.set_param("b", np.zeros(6, np.float32))
    np.testing.assert_array_equal(b.param("b"), params()["b"])
    assert Session().compile(mlp(3, hidden=7)).copy_params_from(a) == 0


def test_typed_params() -> None:
    c = loaded()
    w = params(5)["w"]
    c.set_param_typed("w", w.tobytes(), "f32")
    np.testing.assert_array_equal(c.param("w"), w)
    c.set_param_typed("w", w.astype(np.float16), DType.F16)
    np.testing.assert_array_equal(c.param("w"), w.astype(np.float16).astype(np.float32))
    c.set_param_typed("w", memoryview(w.astype(ml_dtypes.bfloat16).tobytes()), "bf16")
    np.testing.assert_array_equal(c.param("w"), w.astype(ml_dtypes.bfloat16).astype(np.float32))
    with pytest.raises(RunError, match="12 bytes of f32, wanted 96"):
        c.set_param_typed("w", bytes(12), "f32")
    for call in (lambda: c.set_param_typed("q", b"", "f32"), lambda: c.param("q"), lambda: c.set_param("q", w)):
        with pytest.raises(RunError, match="has no param 'q'"):
            call()


# --- threads ------------------------------------------------------------------------------------------


def test_runs_of_several_threads_take_turns() -> None:
    c = loaded()
    xs = [np.random.default_rng(i).standard_normal((3, WIDTH)).astype(np.float32) for i in range(8)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(30):
            if not np.allclose(c.run({"x": xs[i]})["y"], expected(xs[i], params()), **CLOSE):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    c.sync_pending()
