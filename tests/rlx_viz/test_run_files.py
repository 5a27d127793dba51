"""Arrays in and out of ``rlx-viz run``: NumPy's files know no bf16 or f8, and a person may give the wrong file."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rlx_viz.inputs import write_arrays

X = np.asarray([[1e5, 1 / 3, 3], [-5, 0, np.inf]], np.float32)


def cast_model(path: Path, source: int, to: int) -> Path:
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=to)], "cast",
                              [helper.make_tensor_value_info("x", source, [2, 3])], [helper.make_tensor_value_info("y", to, [2, 3])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_outputs_without_a_numpy_type_read_back_and_feed_again(rlx, name: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The outputs are ml_dtypes' casts in float32, exactly, and the file they lie in is taken as inputs."""
    kind, onnx_kind = np.dtype(getattr(ml_dtypes, name)), getattr(TensorProto, name.upper().replace("_", ""))
    narrow = cast_model(tmp_path / "narrow.onnx", TensorProto.FLOAT, onnx_kind)
    wide = cast_model(tmp_path / "wide.onnx", onnx_kind, TensorProto.FLOAT)
    x = np.clip(X, -400, 400)  # what ONNX saturates and what ml_dtypes makes NaN of is not this test's question
    np.savez(tmp_path / "x.npz", x=x)
    code, out, err = rlx("run", narrow, "--inputs", tmp_path / "x.npz", "--out", tmp_path / "y.npz")
    assert (code, err) == (0, "")
    assert f"y: {name}[2, 3], saved as float32" in out
    with np.load(tmp_path / "y.npz") as saved:
        got = saved["y"]
    want = x.astype(kind).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    for given in (got, x.astype(kind).view(f"V{kind.itemsize}")):  # ours; what numpy.savez makes of bf16
        np.savez(tmp_path / "again.npz", x=given)
        assert rlx("run", wide, "--inputs", tmp_path / "again.npz", "--out", tmp_path / "z.npz")[0] == 0
        with np.load(tmp_path / "z.npz") as saved:
            np.testing.assert_array_equal(saved["y"], want)
    np.savez(tmp_path / "again.npz", x=x)
    code, _, err = rlx("run", wide, "--inputs", tmp_path / "again.npz", "--out", tmp_path / "never.npz")
    assert code == 1 and "x is float32 and holds values that its input's" in err
    assert not (tmp_path / "never.npz").exists()


def test_odd_input_files_get_a_message(rlx, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = cast_model(tmp_path / "m.onnx", TensorProto.FLOAT, TensorProto.FLOAT16)
    np.save(tmp_path / "one.npy", X)
    np.savez(tmp_path / "empty.npz")
    (tmp_path / "nothing.npz").write_bytes(b"")
    for file, message in (("one.npy", "one.npy: a single array; wanted an .npz with one array an input"),
                          ("empty.npz", "empty.npz: it holds no array; wanted x (f32[2, 3])"),
                          ("nothing.npz", "nothing.npz: not an .npz file (")):
        code, out, err = rlx("run", model, "--inputs", tmp_path / file, "--out", tmp_path / "o.npz")
        assert (code, out) == (1, "") and message in err and "Traceback" not in err, err


def test_an_output_may_be_named_as_an_argument_of_savez(tmp_path: Path) -> None:
    arrays = {"file": X, "allow_pickle": X[0], "a/b": X[:, 0]}
    write_arrays(str(tmp_path / "o.npz"), arrays)
    with np.load(tmp_path / "o.npz") as got:
        assert sorted(got.files) == sorted(arrays)
        for name, want in arrays.items():
            np.testing.assert_array_equal(got[name], want)
