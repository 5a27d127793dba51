"""What a case of the gallery is, and how one is registered.

References are ONNX Runtime on a one-node model, SciPy, PyTorch, or the formula written out; never ``Op.evaluate``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph
from runtime import Compilation, CompileOptions, compile_graph
from runtime.passes import PassOptions

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    graph: Graph
    feed: dict[str, Array]
    want: list[Array]
    options: tuple[tuple[str, Any], ...] = ()


AS_WRITTEN = CompileOptions(fusion=no_fusion(), passes=PassOptions.none())
"""No rule and no pass: each op becomes its own thunks."""


def as_written(graph: Graph) -> Compilation:
    """The graph compiled op by op."""
    return compile_graph(graph, AS_WRITTEN)


CASES: dict[str, Callable[[], Case]] = {}


def case(fn: Callable[..., Case], *grid: Any) -> None:
    """Register ``fn(*values)`` for every combination of the grid's values."""
    for values in itertools.product(*grid):
        text = "-".join(str(v).replace(" ", "") for v in values)
        CASES[f"{fn.__name__.strip('_')}-{text}".rstrip("-")] = lambda values=values: fn(*values)


def rand(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype=np.float32)


def ort(op: str, arrays: list[Array], opset: int = 17, **attrs: Any) -> Array:
    """Output 0 of one ONNX node by ONNX Runtime."""
    arrays = [np.asarray(a) for a in arrays]
    names = [f"x{i}" for i in range(len(arrays))]
    ins = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
           for n, a in zip(names, arrays, strict=True)]
    out = onnx.ValueInfoProto(name="y")  # ONNX Runtime infers its type
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", ins, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(zip(names, arrays, strict=True)))[0])


def one(build: Callable[..., int], arrays: list[Array], want: Array, **options: Any) -> Case:
    """A graph of inputs and one op: ``build(g, *ids)`` returns the output."""
    arrays = [np.asarray(a) for a in arrays]
    g = Graph("case")
    ids = [g.input(f"x{i}", a.shape, DType.of(a.dtype)) for i, a in enumerate(arrays)]
    g.set_outputs(build(g, *ids))
    return Case(g, {f"x{i}": a for i, a in enumerate(arrays)}, [want], tuple(options.items()))
