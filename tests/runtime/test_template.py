"""Models with open dims, compiled for any of them: symbolic where it goes, imported anew where not, one copy of weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rlx_viz
from planner_core.errors import ImportModelError, RlxError, UnboundDimError
from planner_core.importers import OpenModel
from planner_core.ir import Graph, save_graph
from runtime.caches import BucketedCompileCache, DynamicDimCompileCache
from runtime.caches.base import NO_SHARE_VARIABLE
from runtime.template import Template
from tests.symbolic_models import table_slice, transformer

LADDER = [(1, 9), (9, 17), (17, 33), (33, 65)]


def reference(proto: onnx.ModelProto, ids: np.ndarray) -> np.ndarray:
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"ids": ids})
    return np.asarray(want)


def test_a_symbolic_template() -> None:
    proto = transformer()
    template = rlx_viz.compile(proto, keep=["batch", "seq"])
    assert isinstance(template, Template)
    assert (template.symbols, template.reason) == (("batch", "seq"), "")
    assert template.graph is not None and set(template.graph.symbols) == {"batch", "seq"}
    for batch, seq in ((1, 5), (3, 16)):
        ids = np.random.default_rng(seq).integers(0, 50, (batch, seq))
        made = template.at(batch=batch, seq=seq)
        np.testing.assert_allclose(made.run({"ids": ids}, sanitize=True)["logits"], reference(proto, ids), rtol=1e-4, atol=1e-5)
    assert template.at(batch=1, seq=5).legal.weights["tok"] is template.at(batch=2, seq=9).legal.weights["tok"]


def test_options_and_target_hold_for_every_binding() -> None:
    template = rlx_viz.compile(transformer(), keep="seq", dims={"batch": 2}, target="metal", alignment=256)
    made = template.at(seq=8)
    assert (made.options.target.value, made.plan.options.alignment) == ("metal", 256)
    assert rlx_viz.compile(template, dims={"seq": 8}).allocate_bytes == made.allocate_bytes


def test_the_numbers_are_those_of_an_import_with_the_dims_bound() -> None:
    proto = transformer(layers=2)
    template = rlx_viz.compile(proto, keep=["batch", "seq"])
    for batch, seq in ((1, 8), (4, 64)):
        fixed = rlx_viz.compile(proto, dims={"batch": batch, "seq": seq})
        assert template.at(batch=batch, seq=seq).allocate_bytes == fixed.allocate_bytes


def test_a_model_that_needs_the_number_is_imported_for_each() -> None:
    template = rlx_viz.compile(table_slice(), keep=["batch", "seq"])
    assert template.graph is None and "Slice 'cut'" in template.reason
    for seq in (3, 9):
        made = template.at(batch=2, seq=seq)
        x = np.zeros((2, seq, 4), np.float32)
        np.testing.assert_array_equal(made.run({"x": x})["y"][1], np.arange(seq * 4, dtype=np.float32).reshape(seq, 4))
    assert template.at(batch=1, seq=3).source.weights["table"] is template.at(batch=1, seq=9).source.weights["table"]


@pytest.mark.parametrize("how", ["symbolic", "imported"])
def test_a_ladder_of_four_buckets_holds_one_copy(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it held before: a copy a bucket, and a Range_output_0 in each."""
    proto = transformer(layers=2)
    template = rlx_viz.compile(proto, keep=["seq"], dims={"batch": 1})
    build = template.build("seq")
    if how == "imported":
        def build(seq: int) -> Graph:
            from planner_core.importers import import_onnx

            return import_onnx(proto, dims={"batch": 1, "seq": seq})

    weights = sum(4 * int(np.prod(t.dims)) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    for share, copies in ((True, 1), (False, 4)):
        if not share:
            monkeypatch.setenv(NO_SHARE_VARIABLE, "1")
        cache = BucketedCompileCache("cpu", LADDER)
        for _, end in LADDER:
            cache.get_or_compile(end - 1, build)
        assert cache.resident_bytes == copies * weights
        assert len({cache.compiled_for_upper(end - 1).weight_buffer_id for _, end in LADDER}) == copies
    ids = np.random.default_rng(0).integers(0, 50, (1, 16))
    got = cache.compiled_for_upper(16).run({"ids": ids})["logits"]
    np.testing.assert_allclose(got, reference(proto, ids), rtol=1e-4, atol=1e-5)


def test_the_other_cache_takes_the_symbolic_graph() -> None:
    from planner_core.ir import DimBinding

    template = rlx_viz.compile(transformer(), keep=["batch", "seq"])
    cache = DynamicDimCompileCache("cpu", 3)
    made = [cache.get_or_specialize(n, DimBinding.batch_seq(1, n), lambda: template.graph) for n in (4, 8, 16)]
    assert len({m.weight_buffer_id for m in made}) == 1
    ids = np.random.default_rng(0).integers(0, 50, (1, 8))
    np.testing.assert_allclose(made[1].run({"ids": ids})["logits"], reference(transformer(), ids), rtol=1e-4, atol=1e-5)


def test_graphs_and_their_files(tmp_path: Path) -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", ("B", "S"))))
    save_graph(g, tmp_path / "g.json")
    for model in (g, tmp_path / "g.json"):
        template = rlx_viz.compile(model, keep=["S"], dims={"B": 2})
        assert template.symbols == ("S",) and template.at(S=5).legal.find("x").shape.sizes == (2, 5)
    with pytest.raises(UnboundDimError, match="keep names Q, which 'g' has not open; it has B, S"):
        rlx_viz.compile(g, keep=["Q"])


def test_errors_say_what_is_open() -> None:
    template = rlx_viz.compile(transformer(), keep=["batch", "seq"])
    with pytest.raises(UnboundDimError, match="no value for seq; wanted a value for each of batch, seq"):
        template.at(batch=1)
    with pytest.raises(UnboundDimError, match="n is not open"):
        template.at(batch=1, seq=2, n=3)
    with pytest.raises(UnboundDimError, match="batch, seq left open; name the dim that buckets are of"):
        template.build()
    with pytest.raises(UnboundDimError, match="batch, seq left open, not 'seq' alone"):
        template.build("seq")
    assert template.build(batch=1)(7).find("ids").shape.sizes == (1, 7)
    with pytest.raises(RlxError, match="a Template has its target and options"):
        rlx_viz.compile(template, target="metal")
    with pytest.raises(RlxError, match="a Compilation has its dims bound"):
        rlx_viz.compile(template.at(batch=1, seq=2), keep=["seq"])
    with pytest.raises(ImportModelError, match="keep names 'tokens'"):
        rlx_viz.compile(transformer(), keep=["tokens"])


def test_what_is_open_when_nobody_says() -> None:
    model = OpenModel(transformer(), keep=None)
    assert (model.symbols, model.axes) == (("batch", "seq"), {"batch": (0,), "seq": (1,)})
    assert OpenModel(transformer(), dims={"batch": 1}).symbols == ("seq",)
    assert repr(OpenModel(table_slice())) == "<OpenModel 'open': batch, seq open, imported for each binding>"
    assert "symbolic" in repr(model) and "at(batch=128, seq=128)" in repr(Template(model))
