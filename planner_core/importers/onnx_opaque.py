"""Owns opaque nodes: an ONNX op kept as ``Custom``, with shapes from ONNX's own inference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner_core.errors import GraphError, ImportModelError
from planner_core.importers.onnx_inputs import declared_dims, evaluate
from planner_core.importers.onnx_tensors import STRING, dtype_of, elem_type_of
from planner_core.importers.onnx_value import Value
from planner_core.ir import UNKNOWN, Dim, DType, Shape, ops

if TYPE_CHECKING:
    import onnx

    from planner_core.importers.onnx_call import Call

__all__ = ["check_consistent", "opaque", "outputs_as_values"]

_KNOWN_BYTES = 1 << 16
_MAX_RANK = 64
_RANKLESS = (Dim(None, "?rank"),)


def opaque(call: Call) -> list[Value]:
    """The node as ``Custom("onnx.<Op>")``, further outputs as ``Result``s right after it."""
    node = call.node
    names = [n for n in free_names(node) if n not in node.input]
    found = [*call.ins, *(call.builder.find(n) for n in names)]
    operands = [v for v in found if v is not None]
    operands += [call.builder.model.tensor_value(t, t.name or "constant", "initializer") for t in body_tensors(node)]
    raw = output_shapes(call)
    shapes = [s if s.dims != _RANKLESS else Shape((UNKNOWN,), s.dtype) for s in raw]
    attrs = {a.name: _json(a) for a in node.attribute}
    absent = [i for i, v in enumerate(call.ins) if v is None]
    if absent:
        attrs["absent_inputs"] = absent
    first = shapes[0] if shapes else Shape((UNKNOWN,))
    text = json.dumps(attrs, sort_keys=True)
    custom = ops.Custom(op_name(call), first, len(operands), max(1, len(node.output)), text)
    outs = outputs_as_values(call, call.emit(custom, *operands), shapes)
    for v, shape in zip(outs, raw, strict=False):
        v.rankless = v.rankless or shape.dims == _RANKLESS
    for name, v in zip(node.output, outs, strict=False):
        v.odd = v.odd or name in call.builder.model.odd_types
    return outs


def outputs_as_values(call: Call, first: Value, shapes: Sequence[Shape]) -> list[Value]:
    """Output 0 as the node itself, the used others as ``Result``s."""
    out = [first]
    for i in range(1, len(call.node.output)):
        out.append(call.emit(ops.Result(i, shapes[i]), first) if call.used(i) else first)
    return out


def op_name(call: Call) -> str:
    return f"onnx.{call.domain}.{call.node.op_type}" if call.domain else f"onnx.{call.node.op_type}"


def free_names(node: onnx.NodeProto) -> list[str]:
    """Outer tensors that the node's subgraphs read."""
    out: dict[str, None] = {}
    for a in node.attribute:
        for g in [a.g] if a.HasField("g") else list(a.graphs):
            made = {v.name for v in g.input} | {t.name for t in g.initializer}
            for n in g.node:
                for name in [*n.input, *free_names(n)]:
                    if name and name not in made:
                        out[name] = None
                made.update(n.output)
            out.update({o.name: None for o in g.output if o.name not in made})
    return list(out)


def body_tensors(node: onnx.NodeProto) -> list[onnx.TensorProto]:
    """Weights inside the node's subgraphs: still bytes that the model brings."""
    out: list[onnx.TensorProto] = []
    for a in node.attribute:
        for g in [a.g] if a.HasField("g") else list(a.graphs):
            out += g.initializer
            for n in g.node:
                out += [b.t for b in n.attribute if n.op_type == "Constant" and b.HasField("t")]
                out += body_tensors(n)
    return out


def _json(a: onnx.AttributeProto) -> Any:
    from onnx.helper import get_attribute_value

    v = get_attribute_value(a)
    if isinstance(v, bytes):
        return v.decode(errors="replace")
    if v is None or isinstance(v, (int, str)):
        return v
    if isinstance(v, float):
        return v if v == v and abs(v) != float("inf") else str(v)
    if a.HasField("t"):
        return f"tensor {dtype_of(a.t.data_type)[0]}{list(a.t.dims)}"
    if a.ints or a.floats:
        return list(v)
    if a.strings:
        return [s.decode(errors="replace") for s in v]
    if a.HasField("g"):
        return f"graph {a.g.name} of {len(a.g.node)} nodes"
    return str(a.type)


# --- shapes ---------------------------------------------------------------------------------------------


def output_shapes(call: Call) -> list[Shape]:
    """Shape and dtype of each output: from the node alone, else from the file, else unknown."""
    try:
        types = _infer(call)
    except Exception:  # ONNX's inference is C++ and raises its own types; a failure means "unknown"
        types = {}
    out = []
    for name in call.node.output:
        found = _shape(call, types.get(name))
        if found is None or not found.is_static:
            found = _merge(found, call.builder.model.declared(name) if name else None)
        out.append(found)
    return out


def is_odd(t: onnx.TypeProto) -> bool:
    """No tensor, or one of an element type that a DType only stands in for."""
    kind = t.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or not dtype_of(t.tensor_type.elem_type or 1)[1])


def _shape(call: Call, t: onnx.TypeProto | None) -> Shape | None:
    return None if t is None else shape_of_type(t, call.builder.model.values)


def shape_of_type(t: onnx.TypeProto, values: dict[str, int]) -> Shape | None:
    """A type as a shape; extents that no binding gives are UNKNOWN, None where nothing is said."""
    kind = t.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type" or t.tensor_type.elem_type == STRING:
        return Shape(_RANKLESS, DType.U8)
    row, dtype = declared_dims(t.tensor_type), dtype_of(t.tensor_type.elem_type)[0]
    if row is None:
        return Shape(_RANKLESS, dtype)
    dims = []
    for i, a in enumerate(row):
        value = a if isinstance(a, int) or a is None else evaluate(a, values)
        if a is None and t.tensor_type.shape.dim[i].WhichOneof("value") == "dim_value":
            value = max(t.tensor_type.shape.dim[i].dim_value, -1)  # inference says 0 and means it
            value = value if value == 0 else None
        dims.append(UNKNOWN if value is None or value < 0 else Dim(value))
    return Shape(tuple(dims), dtype)


def _merge(a: Shape | None, b: Shape | None) -> Shape:
    found = [s for s in (a, b) if s is not None]
    if not found:
        return Shape(_RANKLESS)
    ranked = [s for s in found if s.dims != _RANKLESS]
    if not ranked:
        return found[0]
    if len(ranked) == 2 and ranked[0].rank == ranked[1].rank:
        dims = tuple(x if x.value is not None else y for x, y in zip(ranked[0].dims, ranked[1].dims, strict=True))
        return Shape(dims, ranked[0].dtype)
    return ranked[0]


def _infer(call: Call, strict: bool = False) -> dict[str, onnx.TypeProto]:
    """ONNX's inference of this node from the shapes known here."""
    import onnx
    from onnx import helper, numpy_helper

    model, node = call.builder.model, call.node
    if abs(int(call.attr("axis", 0))) > _MAX_RANK or "." in str(call.attr("equation", "")).replace("...", ""):
        return {}  # known to crash or hang ONNX's inference (LayerNormalization, Einsum)
    schema = onnx.defs.get_schema(node.op_type, call.opset, call.domain)
    onnx.checker.check_node(node, model.checker)  # inference itself may crash on what the schema forbids
    types, data = {}, {}
    for name, v in zip(node.input, call.ins, strict=True):
        if v is None:
            continue
        dims = [d.value for d in v.shape.dims]
        types[name] = model.odd_types.get(name) or helper.make_tensor_type_proto(
            elem_type_of(v.shape.dtype), None if v.rankless else dims)
        if v.array is not None and v.array.nbytes <= _KNOWN_BYTES:
            data[name] = numpy_helper.from_array(v.array, name)
    found = onnx.shape_inference.infer_node_outputs(
        schema, node, types, data, opset_imports=list(model.file.proto.opset_import),
        ir_version=model.file.proto.ir_version)
    for name, t in found.items():
        if is_odd(t):
            model.odd_types[name] = t
    return dict(found)


def check_consistent(call: Call, error: GraphError) -> None:
    """Raise ``ImportModelError`` when ONNX's inference finds the node's operands inconsistent too."""
    import onnx

    if any(v is not None and not v.shape.is_static for v in call.ins):
        return  # with unknown extents the fault may lie in what is known here
    try:
        _infer(call)
    except onnx.shape_inference.InferenceError as e:
        shapes = ", ".join(f"{n} {v.shape}" for n, v in zip(call.node.input, call.ins, strict=True) if v is not None)
        raise ImportModelError(
            f"{call.builder.model.file.what}: {call.node.op_type} {call.label!r} can't take operands {shapes}: {error}"
            "; the bound dims don't suit the model, or the file is inconsistent"
        ) from e
    except Exception:  # no schema, or inference met something it can't say: the node stays opaque
        return
