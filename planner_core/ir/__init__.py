"""Model graphs: dtypes, shapes with symbols, op declarations, ``Graph`` with builders, text and files."""

from planner_core.ir import ops
from planner_core.ir.dtype import DType, QuantScheme
from planner_core.ir.files import load_graph, save_graph, write_atomically
from planner_core.ir.graph import Graph, Node, NodeId, Source, Uses
from planner_core.ir.op import Array, Op, TensorData, attributes, op, registry
from planner_core.ir.shape import UNKNOWN, Dim, DimBinding, DimLike, Shape, broadcast_dims, dim
from planner_core.ir.text import from_text, to_text
from planner_core.ir.validate import Problem, ProblemKind, validate

__all__ = [
    "UNKNOWN", "Array", "DType", "Dim", "DimBinding", "DimLike", "Graph", "Node", "NodeId", "Op", "Problem",
    "ProblemKind", "QuantScheme", "Shape", "Source", "TensorData", "Uses", "attributes", "broadcast_dims",
    "dim", "from_text", "load_graph", "op", "ops", "registry", "save_graph", "to_text", "validate",
    "write_atomically",
]
