"""Owns reading: a path, bytes or a ModelProto to a parsed model with local functions inlined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner_core.errors import ImportModelError
from planner_core.importers.onnx_tensors import TensorReader

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxFile", "read_model"]

_OVER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A parsed model: ``what`` names it in messages, ``file`` in sources; ``tensors`` reads its data."""

    proto: onnx.ModelProto
    what: str
    file: str
    tensors: TensorReader


def read_model(model: str | Path | bytes | onnx.ModelProto) -> OnnxFile:
    """Parse and check. Raises ``ImportModelError`` for whatever is not a whole ONNX model."""
    try:
        import onnx
    except ImportError as e:
        raise ImportModelError("reading ONNX files needs the onnx package, which is not installed; "
                               "install it with: pip install onnx") from e
    folder: Path | None = None
    if isinstance(model, onnx.ModelProto):
        proto, what, file = model, model.graph.name or "ONNX model", ""
    elif isinstance(model, (bytes, bytearray, memoryview)):
        what, file = "ONNX bytes", ""
        proto = _parse(bytes(model), what)
    else:
        path = Path(model)
        what, file, folder = str(path), path.name, path.parent
        proto = _parse(_read(path), what)
    if proto.functions:
        proto = _inline(proto, what)
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ImportModelError(f"{what}: not an ONNX model: it holds no graph; "
                               "wanted a file written by an ONNX exporter")
    if not proto.opset_import:
        raise ImportModelError(f"{what}: no opset_import, so its ops have no defined meaning; "
                               "not an ONNX model, or one to export again")
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), None)
    if opset is not None and opset < 7:
        raise ImportModelError(f"{what}: opset {opset}; wanted 7 or later. Convert it with "
                               "onnx.version_converter.convert_version(model, 13)")
    import onnx

    latest = onnx.defs.onnx_opset_version()
    if opset is not None and opset > latest:
        raise ImportModelError(f"{what}: opset {opset}; the installed onnx {onnx.__version__} knows ops up to opset "
                               f"{latest}. Update it (pip install -U onnx) or export the model at {latest}")
    _check_written_once(proto, what)
    return OnnxFile(proto, what, file, TensorReader(what, folder))


def _check_written_once(proto: onnx.ModelProto, what: str) -> None:
    """ONNX is in single-assignment form: a second writer of a name makes every reader ambiguous. Inputs and initializers
    are written before the first node; bodies of control flow and functions are graphs of their own."""
    _check_graph(proto.graph.node, [*(v.name for v in proto.graph.input), *(t.name for t in proto.graph.initializer),
                                    *(t.values.name for t in proto.graph.sparse_initializer)], what, "")
    for f in proto.functions:
        _check_graph(f.node, f.input, what, f" of function {f.name!r}")


def _check_graph(nodes: Iterable[onnx.NodeProto], given: Iterable[str], what: str, where: str) -> None:
    writer = dict.fromkeys(given, "the graph's inputs or initializers")
    for n in nodes:
        for name in filter(None, n.output):
            if name in writer:
                raise ImportModelError(f"{what}: tensor {name!r}{where} is written twice, by {writer[name]} and by {n.op_type} "
                                       f"{n.name!r}; not a valid ONNX graph, check it with onnx.checker")
            writer[name] = f"{n.op_type} {n.name!r}"
        for attribute in n.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _check_graph(body.node, [*(v.name for v in body.input), *(t.name for t in body.initializer)], what,
                             f" in {attribute.name} of {n.op_type} {n.name!r}")


def _read(path: Path) -> bytes:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.onnx"))[:5]
        raise ImportModelError(f"{path}: a folder, wanted an ONNX file"
                               + (f"; it holds {', '.join(inside)}" if inside else ""))
    try:
        size = path.stat().st_size
        if size == 0:
            raise ImportModelError(f"{path}: the file is empty; wanted an ONNX model. Download or export it again")
        if size > _OVER:
            raise ImportModelError(f"{path}: {size} bytes in one file, over protobuf's 2 GB; save it with external "
                                   "data: onnx.save(model, path, save_as_external_data=True)")
        return path.read_bytes()
    except FileNotFoundError as e:
        raise ImportModelError(f"{path}: no such file; check the path") from e
    except OSError as e:
        raise ImportModelError(f"{path}: can't be read: {e.strerror or e}") from e


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    import onnx

    if not data:
        raise ImportModelError(f"{what}: empty; wanted an ONNX model")
    try:
        return onnx.load_model_from_string(data)
    except Exception as e:  # protobuf's DecodeError; its class moves between protobuf versions
        kind = "cut short or damaged" if data[:1] == b"\x08" else f"not an ONNX file (it starts with {data[:16]!r})"
        hint = "; this is a Git LFS pointer, fetch the real file" if b"git-lfs" in data[:64] else ""
        raise ImportModelError(f"{what}: {kind}: {len(data)} bytes don't parse as an ONNX model{hint}. "
                               "Wanted a whole file written by an ONNX exporter; download or export it again") from e


def _inline(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    from onnx import inliner

    try:
        return inliner.inline_local_functions(proto)
    except Exception as e:  # the inliner is C++ and raises its own types
        raise ImportModelError(f"{what}: its {len(proto.functions)} local functions can't be inlined: {e}; "
                               "check the file with onnx.checker") from e
