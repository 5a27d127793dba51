"""Owns the import of one model: what all its graphs share, its inputs and outputs, its notes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from planner_core.errors import GraphError, ImportModelError
from planner_core.importers import onnx_ops  # noqa: F401  declares the handlers
from planner_core.importers.onnx_build import Builder
from planner_core.importers.onnx_inputs import BoundInputs, bind_inputs
from planner_core.importers.onnx_opaque import free_names, is_odd, op_name, shape_of_type
from planner_core.importers.onnx_read import OnnxFile
from planner_core.importers.onnx_tensors import dtype_of
from planner_core.importers.onnx_value import Value
from planner_core.ir import UNKNOWN, DType, Graph, Shape, Source, ops

if TYPE_CHECKING:
    import onnx

    from planner_core.importers.onnx_call import Call

__all__ = ["Model", "build"]

_SCOPES = "pkg.torch.onnx.name_scopes"
_SMALL = 1 << 16


class Model:
    """What the builders of one model share: file, opsets, bound symbols, the log of refusals."""

    def __init__(self, file: OnnxFile, inputs: BoundInputs, kept: Sequence[str] = ()) -> None:
        self.file = file
        self.values = inputs.values
        self.shapes: Mapping[str, Shape] = inputs.shapes
        self.open_inputs = inputs.open
        """Inputs with a dim that the file leaves to the caller."""
        self.kept = tuple(kept)
        """Symbols that stay without a value."""
        self.opaque: Counter[tuple[str, str]] = Counter()
        self.odd_types: dict[str, onnx.TypeProto] = {}
        self.inexact: Counter[str] = Counter()
        self._transposed: dict[str, Value] = {}
        self._opsets: dict[str, int] = {
            "" if o.domain == "ai.onnx" else o.domain: int(o.version) for o in file.proto.opset_import}

    def opset(self, domain: str) -> int:
        return self._opsets.get(domain, 1)

    def refused(self, call: Call, reason: str) -> None:
        """Count a node that is kept as it was."""
        self.opaque[op_name(call), reason] += 1

    def source(self, name: str, op: str, node: onnx.NodeProto | None = None) -> Source:
        """File, node name, module path and op type of a node."""
        scope = ""
        for p in node.metadata_props if node is not None else ():
            if p.key == _SCOPES:
                try:
                    scope = str(ast.literal_eval(p.value)[-2])
                except (ValueError, SyntaxError, IndexError, TypeError):
                    scope = ""
        if not scope and node is not None and "/" in node.name:
            scope = ".".join(part for part in node.name.split("/")[:-1] if part)
        return Source(self.file.file, name, scope, op)

    def tensor_value(self, t: onnx.TensorProto, name: str, op: str) -> Value:
        """A tensor of the file as a value; element types with no DType are sized, not read."""
        source = (self.source(name, op),)
        array = self.file.tensors.array(t)
        if array is not None:
            value = Value.of(array, name)
            value.source, value.from_file = source, True
            return value
        dtype, _ = dtype_of(t.data_type)
        self.inexact[_type_name(t.data_type)] += 1
        text = _type_name(t.data_type) == "STRING"
        shape = Shape((UNKNOWN,), DType.U8) if text else Shape.of(t.dims, dtype)
        root = self.root
        return Value(shape, name=name, recipe=(ops.Param(shape), ()), source=source, owner=root, odd=True)

    root: Builder

    def transposed_weight(self, v: Value) -> Value | None:
        """A weight that every reader wants transposed (Gemm's transB), stored so; None where another reads it."""
        reads, wanted = self._gemm_reads
        if not v.from_file or v.array is None or v.array.ndim != 2 or reads[v.name] != wanted[v.name]:
            return None
        if v.name not in self._transposed:
            made = Value.of(v.array.T, v.name)
            made.source, made.from_file, made.constant = v.source, True, v.constant
            self._transposed[v.name] = made
        return self._transposed[v.name]

    @cached_property
    def _gemm_reads(self) -> tuple[Counter[str], Counter[str]]:
        """How often each tensor is read at all, and how often as a transposed right operand."""
        reads: Counter[str] = Counter(o.name for o in self.file.proto.graph.output)
        wanted: Counter[str] = Counter()
        for n in self.file.proto.graph.node:
            reads.update([*n.input, *free_names(n)])
            if n.op_type == "Gemm" and any(a.name == "transB" and a.i for a in n.attribute):
                wanted[n.input[1]] += 1
        return reads, wanted

    @cached_property
    def checker(self) -> Any:
        """Context for checking single nodes."""
        from onnx import checker

        context = checker.C.CheckerContext()
        context.ir_version, context.opset_imports = self.file.proto.ir_version, self._opsets
        return context

    @cached_property
    def _inferred(self) -> dict[str, onnx.TypeProto]:
        """Types that the file declares or that ONNX's inference over the whole model finds."""
        import onnx

        light = _light_copy(self.file.proto, self.shapes)
        try:
            onnx.checker.check_model(light)  # inference itself may crash on what the checker forbids
            light = onnx.shape_inference.infer_shapes(light, data_prop=True)
        except Exception:  # inference is C++ and raises its own types; the declared types remain
            light = self.file.proto
        return {v.name: v.type for v in [*self.file.proto.graph.output, *light.graph.value_info, *light.graph.output]}

    def declared(self, name: str) -> Shape | None:
        t = self._inferred.get(name)
        return None if t is None else shape_of_type(t, self.values)


def _type_name(elem: int) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(elem)) if elem in onnx.TensorProto.DataType.values() else str(elem)


def _light_copy(proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> onnx.ModelProto:
    """The model with bound input shapes and without its big tensors, for shape inference."""
    import onnx
    from onnx import helper

    out = onnx.ModelProto()
    out.ir_version = proto.ir_version
    out.opset_import.extend(proto.opset_import)
    g, src = out.graph, proto.graph
    g.name = src.name
    for n in src.node:
        big = n.op_type == "Constant" and any(a.HasField("t") and a.t.ByteSize() > _SMALL for a in n.attribute)
        if big:
            t = next(a.t for a in n.attribute if a.HasField("t"))
            g.input.append(helper.make_tensor_value_info(n.output[0], t.data_type, list(t.dims)))
        else:
            g.node.append(n)
    for t in src.initializer:
        if t.data_location == 1 or t.ByteSize() > _SMALL:
            g.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
        else:
            g.initializer.append(t)
    taken = {v.name for v in g.input}
    for v in src.input:
        if v.name not in taken:
            g.input.append(v)
            bound = shapes.get(v.name)
            if bound is not None and bound.is_static:
                g.input[-1].type.tensor_type.ClearField("shape")
                for size in bound.sizes:
                    g.input[-1].type.tensor_type.shape.dim.add().dim_value = size
    g.output.extend(src.output)
    g.value_info.extend(src.value_info)
    return out


def build(file: OnnxFile, dims: dict[str, int], shapes: dict[str, tuple[int, ...]], keep: Sequence[str] = ()) -> Graph:
    """The whole import. Raises ``ImportModelError``; ``OpenDimError`` for a node that a dim of ``keep`` can't be open in."""
    try:
        return _build(file, dims, shapes, keep)
    except ImportModelError:
        raise
    except GraphError as e:
        raise ImportModelError(f"{file.what}: {e}; check the file with onnx.checker.check_model") from e
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as e:
        # a damaged file still parses now and then, with bytes for names and attributes of no type
        raise ImportModelError(f"{file.what}: can't be imported ({type(e).__name__}: {e}); the file is damaged, or breaks "
                               "the ONNX rules: check it with onnx.checker.check_model") from e


def _build(file: OnnxFile, dims: dict[str, int], shapes: dict[str, tuple[int, ...]], keep: Sequence[str]) -> Graph:
    proto = file.proto.graph
    given = {t.name for t in proto.initializer} | {s.values.name for s in proto.sparse_initializer}
    inputs = [v for v in proto.input if v.name not in given]
    doubled = [n for n, c in Counter(v.name for v in inputs).items() if c > 1]
    if doubled:
        raise ImportModelError(f"{file.what}: input {doubled[0]!r} is declared twice; check the file with onnx.checker")
    bound = bind_inputs(file.what, inputs, dims, shapes, keep)
    graph = Graph(proto.name or "onnx")
    model = Model(file, bound, keep)
    builder = model.root = Builder(model, graph)
    for v in inputs:
        made = builder.add_input(v.name, bound.shapes[v.name], model.source(v.name, "input"))
        builder.env[v.name] = made
        if is_odd(v.type):
            made.odd = True
            model.odd_types[v.name] = v.type
    builder.add_initializers(proto)
    builder.run(proto.node)
    names = [o.name for o in proto.output]
    notes = list(bound.notes)
    if not names:
        read = {i for n in proto.node for i in n.input}
        names = [o for n in proto.node for o in n.output if o and o not in read]
        notes.append(f"The file declares no outputs; taken: {', '.join(names)}, which nothing reads.")
    missing = [n for n in names if n not in builder.env]
    if missing or not names:
        raise ImportModelError(f"{file.what}: output {missing[0] if missing else ''!r} is given by no node; "
                               "check the file with onnx.checker")
    builder.finish([builder.env[n] for n in names], names)
    graph.notes = notes + _notes(model, builder)
    return graph


def _notes(model: Model, builder: Builder) -> list[str]:
    out = []
    if builder.merged:
        out.append(f"{builder.merged} weights have the same data as another and count once.")
    for (name, reason), count in sorted(model.opaque.items()):
        why = f"{name.rsplit('.', 1)[-1]}: {reason}" if reason else "no IR op for it"
        out.append(f"{count} × {name} kept as opaque Custom nodes ({why}).")
    if model._transposed:
        out.append(f"{len(model._transposed)} weights of Gemm nodes are stored transposed, as all their readers want.")
    for kind, count in sorted(model.inexact.items()):
        out.append(f"{count} tensors of type {kind} are sized by the nearest type or unknown.")
    return out
