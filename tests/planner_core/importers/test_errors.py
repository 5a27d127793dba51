"""What a user reads when a file or a binding is wrong: each message says what, where, got, wanted, what next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from planner_core.errors import ImportModelError
from planner_core.importers import import_onnx, load_model
from planner_core.ir import Graph, save_graph
from tests.planner_core.importers.evaluator import model


def relu(**inputs: Any) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [n], [f"{n}_out"]) for n in inputs]
    return model(nodes, {n: ("float32", d) for n, d in inputs.items()}, [f"{n}_out" for n in inputs])


TWO = relu(x=["batch", 3, "height", "width"], mask=["batch", "?", -1])

BINDINGS: list[tuple[str, onnx.ModelProto, dict[str, Any], list[str]]] = [
    ("unbound", TWO, {}, [
        "some input dims have no size", "x: f32[batch, 3, height, width]   <- no size on axis 2, 3",
        "mask: f32[batch, ?, ?]   <- no size on axis 1, 2", "Symbols: height, width", "--dim height=640 --dim width=640",
        "--shape x=1,3,640,640", "shapes={input: sizes}"]),
    ("anonymous", relu(x=["?", "?", "?"]), {}, ["<- no size on axis 1, 2", "anonymous", "--shape x=1,640,640"]),
    ("half-bound", TWO, {"dims": {"height": 32}, "shapes": {"mask": (2, 4, 4)}}, ["Symbols: width", "<- no size on axis 3"]),
    ("unknown-dim", TWO, {"dims": {"hight": 3}}, ["'hight'", "no input has", "batch, height, width"]),
    ("unknown-input", TWO, {"shapes": {"y": (1,)}}, ["'y'", "no input", "x f32[batch, 3, height, width]", "mask"]),
    ("rank", TWO, {"shapes": {"x": (1, 3, 4)}}, ["'x'", "rank 3", "rank 4"]),
    ("negative", TWO, {"dims": {"height": -1}}, ["'height'", "-1", "0 or more"]),
    ("below zero", TWO, {"shapes": {"x": (1, 3, -2, 4)}}, ["'x'", "[1, 3, -2, 4]", "0 or more"]),
    ("bool", TWO, {"dims": {"height": True}}, ["'height'", "True", "an int"]),
    ("fixed", TWO, {"shapes": {"x": (1, 4, 8, 8)}}, ["fixes axis 1 to 3", "got 4"]),
    ("conflict", TWO, {"dims": {"batch": 2}, "shapes": {"x": (1, 3, 8, 8)}}, ["'batch'", "given as 2", "as 1"]),
    ("expression", relu(x=[1, "n-8"], y=[1, "n"]), {"dims": {"n": 7}}, ["'n-8'", "less than 0"]),
]


@pytest.mark.parametrize(("proto", "kw", "wanted"), [b[1:] for b in BINDINGS], ids=[b[0] for b in BINDINGS])
def test_binding(proto: onnx.ModelProto, kw: dict[str, Any], wanted: list[str]) -> None:
    with pytest.raises(ImportModelError) as e:
        import_onnx(proto, **kw)
    for text in wanted:
        assert text in str(e.value)


GOOD = relu(x=[2, 3]).SerializeToString()
FILES: list[tuple[str, str, bytes | None, list[str]]] = [
    ("empty", "m.onnx", b"", ["m.onnx", "empty"]),
    ("truncated", "m.onnx", GOOD[:-9], ["m.onnx", "cut short or damaged", "export it again"]),
    ("text", "m.onnx", b"<!DOCTYPE html><html>nothing here</html>", ["m.onnx", "not an ONNX file", "DOCTYPE"]),
    ("lfs", "m.onnx", b"version 1 git-lfs pointer", ["Git LFS pointer"]),
    ("missing", "m.onnx", None, ["m.onnx", "no such file"]),
    ("no-graph", "m.onnx", onnx.ModelProto(ir_version=8).SerializeToString(), ["holds no graph"]),
    ("suffix", "m.pt", b"PK\x03\x04rest", ["m.pt", "supported: ONNX (.onnx)", ".json"]),
    ("json", "m.json", b'{"format": "other"}', ["m.json", "save_graph"]),
    ("bad-json", "m.json", b"{", ["m.json", "save_graph"]),
]


@pytest.mark.parametrize(("name", "data", "wanted"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_file(tmp_path: Path, name: str, data: bytes | None, wanted: list[str]) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ImportModelError) as e:
        load_model(tmp_path / name)
    for text in wanted:
        assert text in str(e.value)


def test_every_cut_of_a_file_is_refused_or_whole(tmp_path: Path) -> None:
    for cut in range(len(GOOD)):
        with pytest.raises(ImportModelError):
            import_onnx(GOOD[:cut])


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "inner.onnx").write_bytes(GOOD)
    with pytest.raises(ImportModelError, match=r"a folder, wanted an ONNX file; it holds inner\.onnx"):
        load_model(tmp_path)


def test_models_that_can_not_be() -> None:
    old = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("float32", [2])}, ["y"], opset=6)
    unread = model([helper.make_node("Add", ["x", "ghost"], ["y"], name="sum")], {"x": ("float32", [2])}, ["y"])
    misfit = model([helper.make_node("MatMul", ["x", "y"], ["z"], name="mm")],
                   {"x": ("float32", [2, "k"]), "y": ("float32", [7, 2])}, ["z"])
    absent = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("float32", [2])}, ["nope"])
    twice = model([helper.make_node("Relu", ["x"], ["y"], name="a"), helper.make_node("Neg", ["x"], ["y"], name="b")],
                  {"x": ("float32", [2])}, ["y"])
    future = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("float32", [2])}, ["y"])
    future.opset_import[0].version = 99
    for proto, wanted in ((twice, ["'y' is written twice", "Relu 'a'", "Neg 'b'"]),
                          (future, ["opset 99", "Update it"]), (old, ["opset 6", "7 or later", "convert_version"]), (unread, ["Add sum", "'ghost'", "checker"]),
                          (misfit, ["MatMul 'mm'", "x f32[2, k=5]", "y f32[7, 2]", "bound dims"]),
                          (absent, ["'nope'", "no node"])):
        with pytest.raises(ImportModelError) as e:
            import_onnx(proto, dims={"k": 5} if proto is misfit else None)
        assert all(w in str(e.value) for w in wanted), str(e.value)


def test_missing_and_short_external_data(tmp_path: Path) -> None:
    w = np.arange(600, dtype=np.float32).reshape(2, 300)
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": w}, ["y"], weights={"w": w})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=16)
    assert import_onnx(tmp_path / "m.onnx").weights["w"].shape == (2, 300)
    (tmp_path / "m.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ImportModelError, match=r"tensor 'w'.*'m\.bin', which has 100; the data file is cut short"):
        import_onnx(tmp_path / "m.onnx")
    (tmp_path / "m.bin").unlink()
    with pytest.raises(ImportModelError, match=r"'m\.bin' is missing \(tensor 'w' is in it\)"):
        import_onnx(tmp_path / "m.onnx")
    with pytest.raises(ImportModelError, match="pass the file's path"):
        import_onnx((tmp_path / "m.onnx").read_bytes())


def test_json_graphs_load_and_bind(tmp_path: Path) -> None:
    graph = Graph("g")
    x = graph.input("x", ("B", 4))
    graph.set_outputs(graph.relu(x))
    save_graph(graph, tmp_path / "g.json")
    assert load_model(tmp_path / "g.json", dims={"B": 2}).find("x").shape.sizes == (2, 4)
    assert load_model(tmp_path / "g.json", shapes={"x": (3, 4)}).find("x").shape.sizes == (3, 4)
    with pytest.raises(ImportModelError, match="no dim named"):
        load_model(tmp_path / "g.json", dims={"C": 2})
    with pytest.raises(ImportModelError, match="the graph fixes"):
        load_model(tmp_path / "g.json", shapes={"x": (3, 5)})


def test_damaged_files_never_crash() -> None:
    """Bytes flipped, dropped or replaced at fixed places: a graph or an ``ImportModelError``, nothing else."""
    rng = np.random.default_rng(5)
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]), helper.make_node("Shape", ["h"], ["s"]),
             helper.make_node("Reshape", ["h", "to"], ["r"]), helper.make_node("Sinh", ["r"], ["y"], name="/a/b/Sinh")]
    proto = model(nodes, {"x": np.ones((1, 2, 4, 4), np.float32)}, ["y", "s"],
                  weights={"w": np.ones((3, 2, 3, 3), np.float32), "to": np.array([1, -1])})
    whole = proto.SerializeToString()
    refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(data)))
            if rng.random() < 0.7:
                data[at] = int(rng.integers(256))
            else:
                del data[at]
        try:
            import_onnx(bytes(data))
        except ImportModelError:
            refused += 1
    assert 0 < refused < 1500


def test_extreme_attributes_reach_no_native_code() -> None:
    x = np.ones((2, 3), np.float32)
    for node in (helper.make_node("LayerNormalization", ["x", "x"], ["y", "m"], axis=2**63 - 3),
                 helper.make_node("Einsum", ["x"], ["y"], equation=".G.ii->...i")):
        graph = import_onnx(model([node], {"x": x}, ["y"]))
        assert [graph[i].op.name for i in graph.of("Custom")] == ["Custom"]
