"""Owns the texts of a document: as they are, or redacted to stable tokens (``t12``, ``n7``, ``s3``)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from planner_core.fusion import RULES
from planner_core.ir import DType, Graph, Node, QuantScheme, Shape
from planner_core.ir.op import registry as op_registry
from planner_core.ir.ops.elementwise import ACTIVATION, BINARY
from rlx_viz.columns import Column, StringTable
from runtime.command_list import registry as thunk_registry
from runtime.passes import PASSES

__all__ = ["Names", "TEXT_COLUMNS", "text_columns"]

TEXT_COLUMNS = ("name", "op", "shape", "source")
_NAMING = frozenset({"culprit", "param", "name", "node", "tensor", "says"})
"""Facts whose value names a tensor, or may."""
_WORD = re.compile(r"[^\W\d][\w.]*")


@cache
def _public() -> frozenset[str]:
    """Words of ours that say nothing about a model: ops, thunks, kinds, dtypes, rules, passes."""
    words = {*op_registry(), *RULES, *(p.name for p in PASSES), *(d.text for d in DType), *(q.text for q in QuantScheme),
             *BINARY, *ACTIVATION, "arena", "weights", "none", "True", "False"}
    for t in thunk_registry().values():
        words |= {t.name, t.label}
    return frozenset(w for text in words for w in (text, *_WORD.findall(text)))


@dataclasses.dataclass(slots=True)
class Names:
    """How names, sources, dims and facts are written. Tokens count up in the order of first use."""

    redact: bool
    tokens: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def name(self, node: int, label: str) -> str:
        return f"t{node}" if self.redact else label

    def source_name(self, node: int, label: str) -> str:
        """A node of the graph before fusion."""
        return f"n{node}" if self.redact else label

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
        return self.token("s", text) if self.redact and text else text

    def command(self, label: str) -> str:
        """A thunk's label; what stands behind a colon may be a custom op's name."""
        head, colon, rest = label.partition(":")
        return f"{head}:{self.op(rest)}" if colon and self.redact else label

    def module(self, path: str) -> str:
        """A module path or an op's name."""
        return self.token("m", path) if self.redact and path not in _public() else path

    def facts(self, facts: Iterable[tuple[str, Any]]) -> str:
        """``k v, k v``. Redacted, a value with a word that is not ours becomes a token."""
        return ", ".join(f"{k} {self.fact(k, v)}" for k, v in facts)

    def fact(self, key: str, value: Any) -> str:
        text = str(value)
        if not self.redact or isinstance(value, (bool, int, float)) or value is None:
            return text
        return text if key not in _NAMING and all(w in _public() for w in _WORD.findall(text)) else self.token("x", text)


def _texts(graph: Graph, names: Names, name_of: Any) -> list[list[str]]:
    shapes: dict[Any, str] = {}

    def shape(n: Node) -> str:
        key = (n.shape.dtype, n.shape.dims)
        found = shapes.get(key)
        if found is None:
            found = shapes[key] = names.shape(n.shape)
        return found

    return [
        [name_of(n.id, n.label) for n in graph.nodes],
        [names.op(n.op.detail) for n in graph.nodes],
        [shape(n) for n in graph.nodes],
        [names.source("; ".join(map(str, n.source))) if n.source else "" for n in graph.nodes],
    ]


def _indexed(texts: list[str]) -> tuple[list[str], Column]:
    seen: dict[str, int] = {}
    index = np.fromiter((seen.setdefault(t, len(seen)) for t in texts), dtype=np.uint32, count=len(texts))
    return list(seen), index


def _plain_texts(graph: Graph) -> list[tuple[list[str], Column]]:
    names = Names(redact=False)
    return [_indexed(t) for t in _texts(graph, names, names.name)]


def text_columns(graph: Graph, names: Names, strings: StringTable, *, source: bool = False) -> dict[str, Column]:
    """Columns ``name``, ``op``, ``shape``, ``source`` of a graph's nodes. Plain texts are made once a graph."""
    name_of = names.source_name if source else names.name
    found = graph.derived(_plain_texts) if not names.redact else [_indexed(t) for t in _texts(graph, names, name_of)]
    return {column: strings.intern_all(unique)[index] if unique else np.zeros(0, np.uint32)
            for column, (unique, index) in zip(TEXT_COLUMNS, found, strict=True)}
