"""Which thunks a graph becomes; what can't run says why."""

from __future__ import annotations

import numpy as np
import pytest

from planner_core.ir import UNKNOWN, Dim, DType, Graph, Shape
from planner_core.ir.op import registry as ops
from planner_core.ir.ops import REGION_STEP, region_steps
from planner_core.ir.overwrites import overwrite_reasons
from runtime import RunError, compile_graph, register_kernel
from runtime.command_list.thunks.adaln import pack_lead, unpack_lead
from runtime.command_list.thunks.packed_attention import FusedAttn
from runtime.command_list.thunks.region import ElementwiseRegion
from runtime.lowering import how_lowered, lower_graph
from tests.runtime.gallery import as_written
from tests.tamper import writable


def test_every_op_is_lowered_or_refused_with_a_reason() -> None:
    how = {name: how_lowered(cls) for name, cls in ops().items()}
    assert [name for name, text in how.items() if not text and name != "Result"] == []
    refused = {name for name, text in how.items() if " " in text}
    assert refused == set()


def labels(g: Graph) -> list[str]:
    return [t.label for t in as_written(g).commands.thunks]


@pytest.mark.parametrize(("kind", "a", "b", "label"), [
    ("add", (3, 5), (3, 5), "binary"),
    ("mul", (3, 5), (3, 5), "binary"),
    ("add", (3, 5), (5,), "bias_add"),
    ("add", (2, 3, 5), (3, 5), "bias_add"),
    ("sub", (3, 5), (5,), "binary_broadcast"),
    ("add", (5,), (3, 5), "binary_broadcast"),
    ("add", (3, 5), (3, 1), "binary_broadcast"),
])
def test_broadcast_forms(kind: str, a: tuple[int, ...], b: tuple[int, ...], label: str) -> None:
    g = Graph("g")
    g.set_outputs(g.binary(g.input("a", a), g.input("b", b), kind=kind))
    assert labels(g) == [label]


def test_only_a_right_side_without_batch_is_flattened() -> None:
    g = Graph("g")
    a, b, c = g.input("a", (2, 3, 5)), g.input("b", (5, 7)), g.input("c", (1, 5, 7))
    g.set_outputs(g.mm(a, b), g.mm(a, c))
    assert labels(g) == ["sgemm", "batched_sgemm"]


def test_pure_views_emit_nothing_and_share_bytes() -> None:
    g = Graph("g")
    x = g.relu(g.input("x", (6, 4)))
    g.set_outputs(g.reshape(x, dims=(24,)), g.narrow(x, axis=0, start=2, len=3))
    compiled = compile_graph(g)
    assert [t.label for t in compiled.commands.thunks] == ["activation_out"]
    flat, cut = (b.operand for b in compiled.commands.outputs)
    assert cut.offset == flat.offset + 2 * 4 * 4
    data = np.arange(24, dtype=np.float32).reshape(6, 4)
    out = list(compiled.run({"x": data}, sanitize=True).values())
    np.testing.assert_array_equal(out[1], data[2:5])


def test_half_params_with_widened_activations_are_one_product() -> None:
    for dtype in (DType.F16, DType.BF16):
        g = Graph("g")
        w = np.arange(6).reshape(3, 2).astype(dtype.numpy)
        g.set_outputs(g.mm(g.input("x", (2, 3), dtype), g.param("w", (3, 2), dtype, data=w)))
        assert labels(g) == ["sgemm", "narrow_stored"]
        x = np.ones((2, 3), dtype.numpy)
        out = compile_graph(g).run({"x": x}, sanitize=True)
        np.testing.assert_array_equal(next(iter(out.values())).astype(np.float32), [[6, 9], [6, 9]])


def test_zero_sized_values_take_no_thunk() -> None:
    g = Graph("g")
    x = g.input("x", (0, 4))
    y = g.input("y", (3, 4))
    g.set_outputs(g.concat(g.relu(x), y, axis=0))
    assert labels(g) == ["concat"]
    out = compile_graph(g).run({"x": np.zeros((0, 4), np.float32), "y": np.ones((3, 4), np.float32)}, sanitize=True)
    assert next(iter(out.values())).tolist() == np.ones((3, 4)).tolist()


def test_custom_op_without_kernel_is_planned_and_says_what_to_call() -> None:
    g = Graph("g")
    x = g.input("x", (3,))
    g.set_outputs(g.custom(x, op_name="acme.twice", shape=Shape.of((3,)), attrs='{"by": 2}', name="double"))
    compiled = compile_graph(g)
    assert compiled.plan.arena_size > 0
    with pytest.raises(RunError, match=r"'double'.*'acme\.twice'.*register_kernel\('acme\.twice'"):
        compiled.run({"x": np.ones(3, np.float32)})


def test_custom_op_with_kernel_and_two_outputs() -> None:
    g = Graph("g")
    x = g.input("x", (3,))
    a = g.custom(x, op_name="test.split", shape=Shape.of((3,)), num_outputs=2, attrs='{"by": 2}')
    b = g.result(a, index=1, shape=Shape.of((1,)))
    g.set_outputs(a, b)

    def split(inputs, outputs, attrs):  # type: ignore[no-untyped-def]
        np.multiply(inputs[0], attrs["by"], out=outputs[0])
        outputs[1][0] = inputs[0].sum()

    register_kernel("test.split", split)
    out = list(compile_graph(g).run({"x": np.asarray([1, 2, 4], np.float32)}, sanitize=True).values())
    assert [o.tolist() for o in out] == [[2, 4, 8], [7]]


def test_unknown_extents_are_planned_not_run() -> None:
    g = Graph("g")
    y = g.custom(g.input("x", (3,)), op_name="onnx.NonZero", shape=Shape.of((UNKNOWN,), DType.I64), name="nz")
    g.set_outputs(g.neg(y))
    compiled = compile_graph(g)
    with pytest.raises(RunError, match="nz is planned, not runnable: an extent"):
        compiled.run({"x": np.ones(3, np.float32)})


def test_a_result_of_unknown_extent_is_planned_not_run() -> None:
    g = Graph("g")
    a = g.custom(g.input("x", (3,)), op_name="test.rows", shape=Shape.of((3,)), num_outputs=2, name="rows")
    g.set_outputs(a, g.result(a, index=1, shape=Shape.of((UNKNOWN,))))
    with pytest.raises(RunError, match="rows is planned, not runnable"):
        compile_graph(g).run({"x": np.ones(3, np.float32)})


def test_ops_without_a_thunk_run_through_their_reference() -> None:
    g = Graph("g")
    x, dy = g.input("x", (4, 3)), g.input("dy", (4, 2))
    g.set_outputs(g.grouped_mat_mul_backward_weight(x, dy, g.constant([0, 1, 1, 0]), experts=2))
    assert labels(g) == ["host_op"]
    a, b = np.random.default_rng(0).random((2, 4, 3)).astype(np.float32)
    b = b[:, :2]
    want = [a[[0, 3]].T @ b[[0, 3]], a[[1, 2]].T @ b[[1, 2]]]
    np.testing.assert_allclose(next(iter(compile_graph(g).run({"x": a, "dy": b}).values())), want, rtol=1e-4)


def test_text_form_names_every_thunk_and_node() -> None:
    g = Graph("tiny")
    g.set_outputs(g.relu(g.input("x", (2,)), name="r"))
    assert str(compile_graph(g).commands) == (
        "command list 'tiny': 1 dispatches, arena 200 B, weights 0 B, scratch 0 B\n"
        "  0  activation_out(src=0+8:f32[2], dst=192+8:f32[2], len=2, act=relu, alpha=0.0, beta=0.0)"
        "  ; %1 Activation 'r'")


def test_int_division_truncates_and_index_errors_name_the_place() -> None:
    g = Graph("g")
    a, b = g.input("a", (4,), DType.I32), g.input("b", (4,), DType.I32)
    g.set_outputs(g.div(a, b), g.gather(a, b, name="pick"))
    feed = {"a": np.asarray([7, -7, 7, -7], np.int32), "b": np.asarray([2, 2, -2, -2], np.int32)}
    out = compile_graph(g).run(feed, sanitize=True)
    assert next(iter(out.values())).tolist() == [3, -3, -3, 3]
    feed["b"] = np.asarray([1, 4, 0, 0], np.int32)
    with pytest.raises(RunError, match=r"gather .*'pick'.*index 4 is outside \[-4, 4\)"):
        compile_graph(g).run(feed)


def test_gelu_past_4_gib_of_the_arena_runs_on_the_host() -> None:
    g = Graph("g")
    g.set_outputs(g.gelu_approx(g.input("x", (3,))))
    compiled = as_written(g)
    assert labels(g) == ["gelu_approx_out"]
    far = writable(compiled.plan)
    far.offset[1] += 1 << 32
    assert [t.label for t in lower_graph(compiled.legal, far).thunks] == ["gelu_approx_host"]


def test_regions_carry_the_words_of_the_command_list() -> None:
    g = Graph("g")
    a, b, c = g.input("a", (2, 3)), g.input("b", (3,)), g.input("c", (1,))
    g.set_outputs(g.elementwise_region(a, b, c, steps=region_steps("s0 = add(x0, x1); s1 = gelu_approx(s0); s2 = mul(s1, x2)")))
    (t,) = as_written(g).commands.thunks
    assert isinstance(t, ElementwiseRegion)
    assert (t.num_inputs, t.num_steps, t.scalar_input_mask, t.input_modulus, t.is_dense) == (3, 3, 4, (0, 3, 0), False)
    assert t.chain == (2, 0, 0, 1, 0, 1, REGION_STEP, 0, 2, 2, REGION_STEP + 1, 2)
    assert t.input_offs == tuple(o.offset // 4 for o in t.inputs)


def test_labels_and_gradient_indices_out_of_range_name_the_place() -> None:
    g = Graph("g")
    x, labels = g.input("x", (2, 3)), g.input("t", (2,), DType.I32)
    g.set_outputs(g.softmax_cross_entropy(x, labels, name="loss"))
    with pytest.raises(RunError, match=r"softmax_cross_entropy_with_logits .*'loss'.*label 3 is outside \[-3, 3\)"):
        as_written(g).run({"x": np.zeros((2, 3), np.float32), "t": np.asarray([0, 3], np.int32)})
    g = Graph("g")
    dy, idx = g.input("dy", (2, 3)), g.input("i", (2,), DType.I32)
    g.set_outputs(g.gather_backward(dy, idx, axis=0, extent=Dim(4), name="grad"))
    with pytest.raises(RunError, match=r"gather_backward .*'grad'.*index -5 is outside \[-4, 4\)"):
        as_written(g).run({"dy": np.zeros((2, 3), np.float32), "i": np.asarray([0, -5], np.int32)})


def test_packed_attention_carries_its_scale_as_bits() -> None:
    g = Graph("g")
    g.set_outputs(g.fused_attention_block(g.input("x", (1, 2, 12)), num_heads=2, head_dim=2, score_scale=0.25))
    (t,) = as_written(g).commands.thunks
    assert isinstance(t, FusedAttn)
    assert (t.scale_bits, t.score_scale, t.has_rope) == (0x3E800000, 0.25, False)


def test_modulations_carry_their_lead_dims() -> None:
    assert pack_lead((2, 5), (2, 1)) == (2, 2, 5, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1)
    assert pack_lead((2, 5), (5,))[9:11] == (1, 5)
    assert unpack_lead(pack_lead((3, 2, 5), (3, 1, 1))) == ((3, 2, 5), (3, 1, 1))


def appended(read_first: bool = False, output_cache: bool = False, through_view: bool = False) -> Graph:
    g = Graph("kv")
    c, r = g.input("cache", (1, 4, 2)), g.input("rows", (1, 1, 2))
    old = g.reshape(c, dims=(4, 2)) if through_view else c
    first = g.exp(old, name="seen") if read_first else None
    k = g.kv_append(c, r, axis=1, start=2, name="appended")
    seen = first if first is not None else g.exp(old, name="seen")
    return g.set_outputs(*([c] if output_cache else []), k, seen)


@pytest.mark.parametrize("through_view", [False, True])
def test_a_cache_read_after_the_append_is_refused(through_view: bool) -> None:
    """In memory the old rows are gone; before the append the value is read as it was."""
    feed = {"cache": np.arange(8, dtype=np.float32).reshape(1, 4, 2) / 8, "rows": np.full((1, 1, 2), 3, np.float32)}
    with pytest.raises(RunError, match=r"seen is planned, not runnable: it reads .* after appended wrote rows into those bytes"):
        compile_graph(appended(through_view=through_view)).run(feed)
    with pytest.raises(RunError, match="appended is planned, not runnable: it writes rows into the bytes of the output 'cache'"):
        compile_graph(appended(read_first=True, output_cache=True)).run(feed)
    out = compile_graph(appended(read_first=True, through_view=through_view)).run(feed, sanitize=True)
    np.testing.assert_allclose(out["seen"].reshape(1, 4, 2), np.exp(feed["cache"]), rtol=1e-6)
    assert (out["appended"][0, 2] == 3).all()


def test_two_appends_to_one_value_are_refused() -> None:
    g = Graph("twice")
    c, r = g.input("cache", (1, 4, 2)), g.input("rows", (1, 1, 2))
    first = g.kv_append(c, r, axis=1, start=0, name="first")
    g.set_outputs(first, g.kv_append(c, r, axis=1, start=1, name="second"))
    assert set(overwrite_reasons(g)) == {3}
    chained = Graph("chain")
    c, r = chained.input("cache", (1, 4, 2)), chained.input("rows", (1, 1, 2))
    first = chained.kv_append(c, r, axis=1, start=0)
    chained.set_outputs(chained.kv_append(first, r, axis=1, start=1))
    assert overwrite_reasons(chained) == {}
