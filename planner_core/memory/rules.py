"""Owns the live-range rules of spec §3, in the order they apply. Each only ever extends."""

from __future__ import annotations

import numpy as np

from planner_core.ir import DType, Graph, NodeId
from planner_core.ir.ops import (
    Attention,
    Binary,
    Cast,
    Concat,
    Custom,
    DequantGroupedMatMul,
    DequantMatMul,
    Expand,
    LayerNorm,
    LayerNorm2d,
    Narrow,
    Reshape,
    Slice,
    Transpose,
    Where,
)
from planner_core.ir.views import static_mask
from planner_core.log import tell
from planner_core.memory.conv3d import conv3d_epilogue_folds
from planner_core.memory.elide import elided_transposes
from planner_core.memory.facts import NOT_BOUNDARY, facts_of
from planner_core.memory.liveness import LiveRanges, LiveState, Rule, base_ranges
from planner_core.memory.options import PlanOptions
from planner_core.memory.pass_operands import late_reads

__all__ = ["RULES", "is_static_weight_tensor", "live_ranges", "packed_qkv_parent",
           "static_mask"]


def _outputs(s: LiveState) -> None:
    s.extend(s.outputs(), s.last_step)


def _output_ancestors(s: LiveState) -> None:
    if s.options.pin_output_ancestors:
        s.extend_ancestors(s.outputs())


def _boundaries(s: LiveState) -> None:
    ids = np.flatnonzero(s.facts.boundary != NOT_BOUNDARY)
    s.born_by(ids, 0)
    s.extend(ids, s.last_step)


def packed_qkv_parent(graph: Graph, attention: NodeId) -> NodeId | None:
    """The one ``[B,S,3,H,D]`` tensor that an attention's q, k and v are slices of, or None."""
    parents = set()
    for i in graph[attention].inputs[:3]:
        sliced = False
        n = graph[i]
        while isinstance(n.op, (Reshape, Narrow, Slice, Cast)):
            if isinstance(n.op, (Narrow, Slice)):
                sliced = True
            n = graph[n.inputs[0]]
            if sliced and n.shape.rank == 5 and n.shape.dims[2].value == 3:
                break
        if not sliced or n.shape.rank != 5 or n.shape.dims[2].value != 3:
            return None
        parents.add(n.id)
    return parents.pop() if len(parents) == 1 else None


def _packed_qkv(s: LiveState) -> None:
    for a, op in enumerate(s.facts.ops):
        if op is Attention:
            parent = packed_qkv_parent(s.graph, a)
            if parent is not None:
                s.extend([parent], a, a)


def _custom(s: LiveState, *names: str) -> list[NodeId]:
    return [i for i, op in enumerate(s.facts.ops) if op is Custom
            and (s.graph[i].op.op_name in names if names else s.graph[i].op.op_name.startswith("onnx."))]  # type: ignore[attr-defined]


def _host_custom_inputs(s: LiveState) -> None:
    if not s.options.host_custom_inputs:
        return
    for i in _custom(s):
        n = s.graph[i]
        wanted = n.op.num_inputs  # type: ignore[attr-defined]
        found, _ = s.ancestors(n.inputs if wanted < 0 else n.inputs[:wanted])
        s.extend(found, s.last_step, i)


def _host_structure(s: LiveState) -> None:
    if s.options.pin_host_structure:
        s.extend_ancestors([i for i, op in enumerate(s.facts.ops)
                            if op in (Expand, Concat, Transpose, Narrow)])


def _dequant_host_fallback(s: LiveState) -> None:
    if s.options.dequant_host_fallback:
        s.extend_ancestors([s.graph[i].inputs[0] for i, op in enumerate(s.facts.ops)
                            if op in (DequantMatMul, DequantGroupedMatMul)])


def _onnx_hidden(s: LiveState) -> None:
    if not s.options.onnx_hidden or not _custom(s, "onnx.QMatMul", "onnx.ActCopy"):
        return
    for i, op in enumerate(s.facts.ops):
        n = s.graph[i]
        if op in (LayerNorm, LayerNorm2d):
            s.extend_ancestors(n.inputs[:1])
            s.extend([i], s.last_step)
        elif isinstance(n.op, Binary) and n.op.kind == "add":
            s.extend_ancestors(n.inputs)
            s.extend([i], s.last_step)


def _onnx_duration(s: LiveState) -> None:
    g = s.graph
    if not s.options.onnx_duration or not any(g[o].dtype is DType.I64 for o in g.outputs):
        return
    s.no_reuse = True
    seeds = [*g.outputs, *_custom(s, "onnx.ConcatFromSequence", "onnx.KittenConcatFromSequence")]
    seeds += [n.id for n in g.nodes if n.dtype is DType.I64
              and (isinstance(n.op, (Expand, Where, Binary, Cast)) or n.shape.rank <= 2)]
    s.extend_ancestors(seeds)


def is_static_weight_tensor(graph: Graph, node: NodeId) -> bool:
    """Computed from params and constants alone by ops that a backend may run once (spec §3)."""
    return static_mask(graph)[node]


def _static_weight_pack(s: LiveState) -> None:
    static = np.asarray(static_mask(s.graph), dtype=bool)
    ids = np.flatnonzero(static & (s.facts.boundary == NOT_BOUNDARY))
    s.born_by(ids, 0)
    s.extend(ids, s.last_step)


def _conv3d_epilogue(s: LiveState) -> None:
    if not s.options.fold_conv3d_epilogue:
        return
    folds = conv3d_epilogue_folds(s.graph)
    for fold in folds:
        if fold.leaky:
            s.born_by(fold.leaky, fold.conv, fold.conv)
        s.extend(fold.sources, fold.conv, fold.conv)
    if s.options.print_conv3d_folds:
        tell("memory", f"fold_conv3d_epilogue: {sum(f.leaky is not None for f in folds)} leaky ReLUs absorbed, "
             f"{sum(bool(f.sources) for f in folds)} concats read through")


def _pass_operands(s: LiveState) -> None:
    if s.options.keep_pass_operands:
        for operand, reader in late_reads(s.graph):
            s.extend([operand], reader, reader)


RULES: tuple[Rule, ...] = (
    Rule("outputs", "A graph output and the buffer it shows live to the last step.", "", _outputs),
    Rule("output_ancestors", "Everything an output was computed from lives to the last step.",
         "pin_output_ancestors", _output_ancestors),
    Rule("boundaries", "Inputs, params and constants hold data before the first step and after the last.", "",
         _boundaries),
    Rule("packed_qkv", "Attention may read q, k and v straight from the packed tensor they are slices of.", "",
         _packed_qkv),
    Rule("host_custom_inputs", "An opaque ONNX op runs on the host, which may read its inputs late.", "host_custom_inputs",
         _host_custom_inputs),
    Rule("host_structure", "Structure ops may run on the host, out of order.", "pin_host_structure", _host_structure),
    Rule("dequant_host_fallback", "A dequantising matmul may fall back to the host and read its activations late.",
         "dequant_host_fallback", _dequant_host_fallback),
    Rule("onnx_hidden", "With quantised ONNX ops present, norms and adds may be read by hidden host copies.", "onnx_hidden",
         _onnx_hidden),
    Rule("onnx_duration", "An int64 output means host-side length logic: nothing may be reused.", "onnx_duration",
         _onnx_duration),
    Rule("static_weight_pack", "Computed from weights alone: made once, needed unharmed by every run.", "",
         _static_weight_pack),
    Rule("conv3d_epilogue", "A 3-D conv may absorb its leaky ReLU or read through a concat.",
         "fold_conv3d_epilogue", _conv3d_epilogue),
    Rule("pass_operands", "A command pass may fuse its reader into a later command, which then reads it.",
         "keep_pass_operands", _pass_operands),
)


def live_state(graph: Graph, options: PlanOptions, without: frozenset[str] = frozenset()) -> tuple[LiveState, LiveRanges]:
    """Base ranges with the rules applied in order, but those named in ``without``."""
    elided = np.zeros(len(graph), dtype=bool)
    elided[elided_transposes(graph, options)] = True
    birth, death = base_ranges(graph, elided)
    last_read = death.copy()
    state = LiveState(graph, options, facts_of(graph), elided, birth, death, len(graph))
    for k, rule in enumerate(RULES):
        if rule.name not in without:
            state.rule = k
            rule.apply(state)
    return state, LiveRanges(state.birth, state.death, last_read, state.table())


def live_ranges(graph: Graph, options: PlanOptions) -> LiveRanges:
    """``[birth, death]`` of each node in steps, inclusive; ``last_step`` is ``len(graph)``. Spec §3."""
    return live_state(graph, options)[1]
