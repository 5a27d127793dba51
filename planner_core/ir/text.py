"""Owns the text form: one line a node, and a parser that gives the same graph back (weights apart)."""

from __future__ import annotations

import json
import re
from typing import Any

from planner_core.errors import GraphError
from planner_core.ir.graph import Graph, Source
from planner_core.ir.op import attributes_text, decode_op, encode_op
from planner_core.ir.shape import QUOTED, Shape

__all__ = ["from_text", "to_text"]


def to_text(graph: Graph, *, files: bool = True) -> str:
    """``%3 = MatMul(%0, %1) {} : f32[1, 8] "name" @ [...]`` lines between ``graph "…" {`` and ``}``.

    ``files=False`` leaves out the names of files that nodes came from, in bodies too: the graph's content alone.
    """
    lines = [f"graph {json.dumps(graph.name)} {{"]
    for n in graph.nodes:
        attrs = attributes_text(n.op)
        if not files and n.op.bodies():
            attrs = json.dumps(_without_files(encode_op(n.op)), separators=(", ", ": "))
        line = f"  %{n.id} = {n.op.name}({', '.join(f'%{i}' for i in n.inputs)})"
        line += f" {{{attrs}}} : {n.shape}" if attrs else f" : {n.shape}"
        if n.name:
            line += f" {json.dumps(n.name)}"
        if n.source:
            line += " @ " + json.dumps([[s.file if files else "", s.node, s.scope, s.op] for s in n.source])
        lines.append(line)
    outs = ", ".join(f"%{o} {json.dumps(name)}" for o, name in zip(graph.outputs, graph.output_names, strict=True))
    return "\n".join([*lines, f"  outputs {outs}".rstrip(), "}", ""])


def _without_files(value: Any) -> Any:
    """The same encoded value, with the file of each node's source blank."""
    if isinstance(value, dict):
        return {k: [["", *s[1:]] for s in v] if k == "source" else _without_files(v) for k, v in value.items()}
    return [_without_files(v) for v in value] if isinstance(value, list) else value


_HEAD = re.compile(r"\s*%(\d+) = (\w+)\(([^)]*)\)\s*")
_KEY = re.compile(r"\s*,?\s*(\w+)=")
_SHAPE = re.compile(rf'\s*: (\w+\[(?:{QUOTED}|[^\]"])*\])\s*')
_JSON = json.JSONDecoder()


def from_text(text: str) -> Graph:
    """Inverse of ``to_text``; ``GraphError`` gives the line number of what it can't read."""
    lines = text.splitlines()
    number = 1
    try:
        m = re.fullmatch(r"graph (\".*\") \{", lines[0].strip()) if lines else None
        if m is None:
            raise GraphError('wanted: graph "name" {')
        graph = Graph(json.loads(m.group(1)))
        for line in lines[1:]:
            number += 1
            body = line.strip()
            if body.startswith("outputs"):
                pairs = re.findall(r"%(\d+) (\"(?:[^\"\\]|\\.)*\")", body)
                graph.set_outputs(*(int(i) for i, _ in pairs), names=[json.loads(n) for _, n in pairs])
            elif body and body != "}":
                _node(graph, line)
    except (GraphError, ValueError, KeyError, IndexError) as e:
        raise GraphError(f"line {number}: {e}") from e
    return graph


def _node(graph: Graph, line: str) -> None:
    m = _HEAD.match(line)
    if m is None or int(m.group(1)) != len(graph):
        raise GraphError(f"wanted '%{len(graph)} = Op(%…) {{…}} : shape', got {line.strip()[:80]!r}")
    at, attrs = m.end(), {}
    if line[at] == "{":
        at += 1
        while line[at] != "}":
            key = _KEY.match(line, at)
            if key is None:
                raise GraphError(f"can't read attributes at {line[at:at + 40]!r}")
            attrs[key.group(1)], at = _JSON.raw_decode(line, key.end())
        at += 1
    shape = _SHAPE.match(line[at:])
    if shape is None:
        raise GraphError(f"no shape in {line.strip()[:80]!r}")
    at += shape.end()
    name, source = "", ()
    if at < len(line) and line[at] == '"':
        name, at = _JSON.raw_decode(line, at)
    rest = line[at:].strip()
    if rest.startswith("@"):
        items: list[list[Any]] = json.loads(rest[1:])
        source = tuple(Source(*s) for s in items)  # type: ignore[assignment]
    inputs = [int(i) for i in re.findall(r"%(\d+)", m.group(3))]
    node = graph.add(decode_op(m.group(2), attrs), *inputs, name=name, source=source)
    if graph[node].shape != Shape.parse(shape.group(1)):
        raise GraphError(f"%{node} is written as {shape.group(1)} but its op gives {graph[node].shape}")
