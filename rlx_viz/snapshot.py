"""Owns ``snapshot``: one compilation as the columnar document that every picture and export is made from."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from planner_core.ir import Graph, Shape
from planner_core.memory import (
    ARENA,
    NO_SLOT,
    RULES,
    SPACES,
    facts_of,
    headline,
    is_static_weight_tensor,
    last_rule,
    live_curve,
)
from planner_core.memory.facts import CONSTANT, DTYPES, INPUT, NOT_BOUNDARY, PARAM
from rlx_viz.columns import ColumnDocument, StringTable, exact_int
from rlx_viz.version import VERSION
from runtime.compile import Compilation

__all__ = ["snapshot"]

KINDS = ("input", "param", "constant", "activation", "view", "elided")
CLASSES = ("inputs", "constants", "params", "packs", "activations")
OUTPUT_FLAG, OPAQUE_FLAG, UNKNOWN_FLAG, STATIC_FLAG = 1, 2, 4, 8
READ_RULE = {"name": "read", "doc": "The last read of the tensor or of a view of it."}


def snapshot(compilation: Compilation, *, name: str = "", command: str = "", redact: bool = False) -> ColumnDocument:
    """The document of a compilation: ≤ 64 bytes a tensor in ``tensors``, other tables apart.

    ``name`` is shown for the graph's own; ``command`` goes into the footer. ``redact`` replaces names and sources by stable tokens (``t12``,
    ``s3``), keeping ops, shapes and numbers.
    """
    graph, plan = compilation.legal, compilation.plan
    strings = StringTable()
    names = _Names(redact)
    meta = _meta(compilation, name, command, names)
    families = meta["families"]
    facts = facts_of(graph)
    count = len(graph)
    own = facts.parent < 0
    kind = np.full(count, KINDS.index("activation"), dtype=np.uint8)
    for code, name in ((INPUT, "input"), (PARAM, "param"), (CONSTANT, "constant")):
        kind[facts.boundary == code] = KINDS.index(name)
    kind[~own] = KINDS.index("view")
    kind[plan.elided] = KINDS.index("elided")
    flags = np.zeros(count, dtype=np.uint8)
    flags[graph.outputs] |= OUTPUT_FLAG
    flags[[n.op.name == "Custom" for n in graph.nodes]] |= OPAQUE_FLAG
    flags[plan.unknown] |= UNKNOWN_FLAG
    static = np.asarray([is_static_weight_tensor(graph, i) for i in range(count)], dtype=bool)
    flags[static] |= STATIC_FLAG
    has = plan.space != NO_SLOT
    u4 = np.uint32
    tensors = {
        "name": strings.intern_all(names.name(n.id, n.label) for n in graph.nodes),
        "op": strings.intern_all(names.op(n.op.detail) for n in graph.nodes),
        "shape": strings.intern_all(names.shape(n.shape) for n in graph.nodes),
        "source": strings.intern_all(names.source("; ".join(map(str, n.source))) for n in graph.nodes),
        "dtype": facts.dtype.astype(np.uint8),
        "kind": kind,
        "space": plan.space.astype(np.uint8),
        "family": np.asarray([families.index(n.op.family) for n in graph.nodes], dtype=np.uint8),
        "rule": (last_rule(plan) + 1).astype(np.uint8),
        "flags": flags,
        "birth": plan.birth.astype(u4),
        "death": plan.death.astype(u4),
        "last_read": plan.last_read.astype(u4),
        "offset": np.where(has, plan.offset, 0).astype(np.float64),
        "size": np.where(has, plan.size, 0).astype(np.float64),
        "guard": np.where(has, plan.guard, 0).astype(u4),
        "root": plan.root.astype(u4),
    }
    ptr, flat = graph.edges
    e = plan.extensions
    tables: dict[str, dict[str, np.ndarray[Any, Any]]] = {
        "tensors": tensors,
        "edges": {"src": flat.astype(u4), "dst": np.repeat(np.arange(count, dtype=u4), np.diff(ptr))},
        "occupancy": _occupancy(compilation, static),
        "extensions": {"node": e.node.astype(u4), "rule": (e.rule + 1).astype(np.uint8), "cause": e.cause.astype(u4),
                       "old": e.old.astype(u4), "new": e.new.astype(u4)},
    }
    return ColumnDocument(meta, strings.strings(), tables)


@dataclasses.dataclass(slots=True)
class _Names:
    redact: bool
    tokens: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def name(self, node: int, label: str) -> str:
        return f"t{node}" if self.redact else label

    def op(self, detail: str) -> str:
        """Ops of ONNX's own domain are public; another domain's name may say whose model it is."""
        public = "." not in detail or (detail.startswith("onnx.") and detail.count(".") == 1)
        return detail if not self.redact or public else self.token("custom", detail)

    def token(self, kind: str, text: str) -> str:
        return self.tokens.setdefault((kind, text), f"{kind}{len(self.tokens)}")

    def shape(self, shape: Shape) -> str:
        return f"{shape.dtype}[{self.dims(shape)}]"

    def dims(self, shape: Shape) -> str:
        """The extents; redacted, a symbol's name gives way to its value or to "?"."""
        return ", ".join(str(d if not self.redact else "?" if d.value is None else d.value) for d in shape.dims)

    def source(self, text: str) -> str:
        if not self.redact or not text:
            return text
        return self.token("s", text)


def _occupancy(compilation: Compilation, static: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Live arena bytes a step by class; one row a step, ``last_step`` included; classes sum to ``live``."""
    plan = compilation.plan
    facts = facts_of(compilation.legal)
    ids = plan.buffers(ARENA)
    kinds = facts.boundary[ids]
    masks = {
        "inputs": kinds == INPUT, "constants": kinds == CONSTANT, "params": kinds == PARAM,
        "packs": (kinds == NOT_BOUNDARY) & static[ids], "activations": (kinds == NOT_BOUNDARY) & ~static[ids],
    }
    out = {"live": live_curve(plan).astype(np.float64)}
    for name in CLASSES:
        out[name] = live_curve(plan, ids[masks[name]]).astype(np.float64)
    return out


def _tensor_rows(graph: Graph, nodes: list[int], labels: list[str], names: _Names) -> list[dict[str, Any]]:
    return [{"name": names.name(i, label), "shape": f"[{names.dims(graph[i].shape)}]",
             "dtype": str(graph[i].dtype)} for i, label in zip(nodes, labels, strict=True)]


def _meta(c: Compilation, name: str, command: str, names: _Names) -> dict[str, Any]:
    graph, plan, redact = c.legal, c.plan, names.redact
    h = headline(plan, c.commands.scratch_bytes)
    numbers = {f.name: getattr(h, f.name) for f in dataclasses.fields(h) if f.name != "unknown"}
    unknown = np.flatnonzero(plan.unknown).tolist()
    head: dict[str, Any] = {k: exact_int(v) for k, v in numbers.items()}
    head |= {"unknown": len(unknown), "unknown_names": [names.name(i, graph[i].label) for i in unknown[:100]],
             "optimal": plan.is_optimal}
    unsupported: dict[str, int] = {}
    for n in graph.nodes:
        if n.op.name == "Custom":
            op = names.op(n.op.detail)
            unsupported[op] = unsupported.get(op, 0) + 1
    model_hash = c.source.content_hash
    options = [
        {"name": o.name, "group": o.group, "stage": row.stage, "type": o.type, "value": _plain(row.value),
         "default": _plain(row.default), "choices": list(o.choices), "help": o.help, "changed": row.changed}
        for row in c.option_rows() for o in (row.info,)
    ]
    changed = [f"{o['name']}={str(o['value']).lower()}" for o in options if o["changed"]]
    read = [f"{k}={v}" for k, v in plan.options.env]
    return {
        "model": {"name": "model" if redact else name or _default_name(graph), "hash": model_hash, "nodes": len(graph),
                  "inputs": _tensor_rows(graph, graph.inputs, [graph[i].name for i in graph.inputs], names),
                  "outputs": _tensor_rows(graph, graph.outputs, graph.output_names, names)},
        "headline": head,
        "classes": list(CLASSES),
        "kinds": list(KINDS),
        "spaces": list(SPACES),
        "dtypes": [d.text for d in DTYPES],
        "rules": [READ_RULE, *({"name": r.name, "doc": r.doc} for r in RULES)],
        "families": sorted({n.op.family for n in graph.nodes}),
        "options": options,
        "unsupported": dict(sorted(unsupported.items())),
        "notes": [f"Importer's notes withheld (they name tensors and dims): {len(c.source.notes)}"]
        if redact and c.source.notes else list(c.source.notes),
        "footer": {"model_hash": model_hash, "version": VERSION,
                   "options": ", ".join([f"target={c.options.target.value}", *changed, *read]),
                   "command": "" if redact else command},
    }


def _default_name(graph: Graph) -> str:
    """The file a graph came from, or its own name."""
    files = (s.file for n in graph.nodes for s in n.source if s.file)
    return next(files, graph.name)


def _plain(v: Any) -> Any:
    return getattr(v, "value", v)
