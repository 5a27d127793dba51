"""Owns the entry points. Reading: ``onnx_read.py``; dims: ``onnx_inputs.py``; the walk: ``onnx_build.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner_core.errors import GraphError, ImportModelError
from planner_core.ir import Graph, load_graph

if TYPE_CHECKING:
    import onnx

    from planner_core.importers.onnx_read import OnnxFile

__all__ = ["import_onnx", "is_graph_file", "load_model", "names_of"]


def import_onnx(
    model: str | Path | bytes | onnx.ModelProto | OnnxFile,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    keep: Sequence[str] = (),
) -> Graph:
    """The graph of an ONNX model, with shape arithmetic folded and every input dim bound, but for the symbols ``keep``.

    ``dims`` binds symbols of the file, ``shapes`` an input's whole shape. What had to be assumed is in
    ``graph.notes``. Raises ``ImportModelError``; ``OpenDimError`` names the node and op that a kept symbol can't pass.
    """
    from planner_core.importers.onnx_model import build
    from planner_core.importers.onnx_read import OnnxFile, read_model

    return build(model if isinstance(model, OnnxFile) else read_model(model), dict(dims or {}), {k: tuple(v) for k, v in (shapes or {}).items()}, names_of(keep))


def load_model(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    keep: Sequence[str] = (),
) -> Graph:
    """The graph of a model file: ONNX (by suffix or content) or this project's JSON; arguments and errors as of
    ``import_onnx``. A JSON graph's symbols stay open unless bound."""
    if is_graph_file(path):
        return _load_json(Path(path), dims, shapes, names_of(keep))
    return import_onnx(path, dims=dims, shapes=shapes, keep=keep)


def is_graph_file(path: str | Path) -> bool:
    """A graph saved as JSON, and no ONNX file; ``ImportModelError`` for what is neither."""
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.is_file() or suffix == ".onnx":
        return False
    with path.open("rb") as f:
        head = f.read(64)
    if suffix == ".json" or head.lstrip()[:1] == b"{":
        return True
    if head[:1] != b"\x08":  # field 1 (ir_version), a varint: how every ONNX file starts
        raise ImportModelError(
            f"{path}: not a model file this version reads (suffix {suffix or 'none'!r}, starts with {head[:8]!r}); "
            "supported: ONNX (.onnx), graph files written by save_graph (.json)"
        )
    return False


def names_of(keep: Sequence[str]) -> tuple[str, ...]:
    """Symbols to keep, each once; a lone text is one name."""
    return tuple(dict.fromkeys([keep] if isinstance(keep, str) else keep))


def _load_json(
    path: Path, dims: Mapping[str, int] | None, shapes: Mapping[str, Sequence[int]] | None, keep: Sequence[str]
) -> Graph:
    try:
        graph = load_graph(path)
        for name in keep:
            if name not in graph.symbols or name in (dims or {}):
                raise GraphError(f"keep names {name!r}, which " + ("dims binds" if name in (dims or {}) else
                                 f"no input has open; symbols: {', '.join(graph.symbols) or 'none'}"))
        values = dict(dims or {})
        inputs = {graph[i].name: graph[i].shape for i in graph.inputs}
        for name, sizes in (shapes or {}).items():
            if name not in inputs:
                raise GraphError(f"shapes names {name!r}, which is no input; inputs: {', '.join(inputs) or 'none'}")
            have = inputs[name]
            if len(sizes) != have.rank:
                raise GraphError(f"shapes gives {name!r} {len(sizes)} dims {list(sizes)}, the graph has {have}")
            for d, size in zip(have.dims, sizes, strict=True):
                if d.value is None and d.symbol is not None and not d.is_unknown:
                    if values.setdefault(d.symbol, size) != size:
                        raise GraphError(f"dim {d.symbol!r} is given as {values[d.symbol]} and as {size}")
                elif d.value != size:
                    raise GraphError(f"shapes gives {name!r} {list(sizes)}, the graph fixes {have}")
        return graph.bind(values) if values else graph
    except (GraphError, KeyError, TypeError) as e:
        raise ImportModelError(f"{path}: {e}; wanted a graph file written by save_graph") from e
