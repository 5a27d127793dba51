"""Owns graph files: ``model.json`` beside ``model.safetensors`` (weights), loaded back equal."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from planner_core.errors import GraphError, RlxError
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, Source
from planner_core.ir.op import Array, decode_op, encode_op

__all__ = ["graph_from_dict", "graph_to_dict", "load_graph", "save_graph", "write_atomically"]

FORMAT = "rlx-graph"
VERSION = 1


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write beside the target and rename over it: readers see the old file or the new one, never half."""
    path = Path(path)
    if not path.parent.is_dir():
        raise RlxError(f"can't write {path}: folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise RlxError(f"can't write {path}: it is a folder; give the name of a file")
    try:
        handle, temp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    except OSError as e:
        raise RlxError(f"can't write {path}: {e.strerror or e}") from e
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temp, 0o666 & ~umask)  # mkstemp makes it private; an export is an ordinary file
        os.replace(temp, path)
    except BaseException:
        Path(temp).unlink(missing_ok=True)
        raise


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """The graph as JSON-able data, without its weights' bytes."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "nodes": [
            {"op": n.op.name, "inputs": list(n.inputs), "attributes": encode_op(n.op), "name": n.name,
             "source": [[s.file, s.node, s.scope, s.op] for s in n.source]}
            for n in graph.nodes
        ],
        "outputs": graph.outputs,
        "output_names": graph.output_names,
    }


def graph_from_dict(value: dict[str, Any]) -> Graph:
    """Inverse of ``graph_to_dict``; ``GraphError`` for another format or version."""
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise GraphError(f"not a graph file of this version: format {value.get('format')!r}, version "
                         f"{value.get('version')!r}; wanted {FORMAT!r}, {VERSION}")
    graph = Graph(value["name"])
    for n in value["nodes"]:
        graph.add(decode_op(n["op"], n["attributes"]), *n["inputs"], name=n["name"],
                  source=[Source(*s) for s in n["source"]])
    return graph.set_outputs(*value["outputs"], names=value["output_names"])


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write ``path`` (JSON) and, where there are weights, the same name with ``.safetensors``; atomic."""
    from safetensors.numpy import save

    path = Path(path)
    raw = {k: np.ascontiguousarray(v).reshape(-1).view(np.uint8) for k, v in graph.weights.items()}
    types = {k: [DType.of(v.dtype).text, list(v.shape)] for k, v in graph.weights.items()}
    document = graph_to_dict(graph) | {"weights": dict(sorted(types.items()))}
    if raw:
        write_atomically(path.with_suffix(".safetensors"), save(dict(sorted(raw.items()))))
    write_atomically(path, json.dumps(document, separators=(",", ":")).encode())


def load_graph(path: str | Path) -> Graph:
    """Inverse of ``save_graph``; ``GraphError`` says what is wrong with the file."""
    path = Path(path)
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise GraphError(f"can't read graph {path}: {e}") from e
    if not isinstance(document, dict):
        raise GraphError(f"{path} holds no graph: wanted a JSON object")
    try:
        types = document.pop("weights", {})
        graph = graph_from_dict(document)
        if types:
            graph.weights.update(_load_weights(path, types))
    except GraphError as e:
        raise GraphError(f"{path}: {e}") from e
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        raise GraphError(f"{path} is damaged: {type(e).__name__} {e}") from e
    return graph


def _load_weights(path: Path, types: dict[str, Any]) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    beside = path.with_suffix(".safetensors")
    try:
        raw = load_file(beside)
    except (OSError, SafetensorError) as e:
        raise GraphError(f"can't read the weights: {beside}: {e}") from e
    return {name: raw[name].view(DType.parse(dtype).numpy).reshape(shape) for name, (dtype, shape) in types.items()}
