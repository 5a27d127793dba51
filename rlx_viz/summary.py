"""Owns the JSON summary of a plan: each key declared once, for models and problem files alike, and the schema that
every ``--json`` validates against (`rlx-viz schema`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx_viz.columns import ColumnDocument
from rlx_viz.frames import tensors_frame
from runtime.steps import birth_steps

__all__ = ["FIELDS", "SCHEMA_VERSION", "Field", "peak_command", "plan_schema", "summary_dict"]

SCHEMA_VERSION = 1
"""Counts up when a key is renamed, removed or changes its type; new keys don't."""

_Read = Callable[[ColumnDocument], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of the summary: its JSON type, what it says (with its unit), how it is read off a document."""

    name: str
    type: str
    doc: str
    read: _Read
    items: dict[str, Any] | None = None
    """For an array: the schema of its items; for an object: of its values."""

    def schema(self) -> dict[str, Any]:
        """Of the value, by JSON Schema 2020-12."""
        out: dict[str, Any] = {"type": self.type, "description": self.doc}
        if self.items is not None:
            out["items" if self.type == "array" else "additionalProperties"] = self.items
        return out


def _head(key: str) -> _Read:
    def read(doc: ColumnDocument) -> Any:
        value = doc.meta["headline"][key]
        return int(value) if isinstance(value, str) else value

    return read


def _meta(*path: str, without: Any) -> _Read:
    def read(doc: ColumnDocument) -> Any:
        value: Any = doc.meta
        for key in path:
            value = value.get(key, without) if isinstance(value, dict) else without
        return value

    return read


def _bytes(key: str, name: str, doc: str) -> Field:
    return Field(name, "integer", f"{doc} (bytes)", _head(key))


def _claims(name: str, *sizes: str) -> _Read:
    """Rows of a claim, sizes as whole numbers under names that say bytes."""
    def read(doc: ColumnDocument) -> Any:
        rows = []
        for row in doc.meta.get("claims", {}).get(name, []):
            rows.append({f"{k.removesuffix('_bytes')}_bytes" if k in sizes and k != "bytes" else k: int(v) if k in sizes else v
                         for k, v in row.items()})
        return rows

    return read


def peak_command(doc: ColumnDocument) -> int:
    """The peak's step in commands that run; a document without commands has steps of its own."""
    node = int(doc.meta["headline"]["peak_step"])
    return int(birth_steps(doc.tables["commands"]["node"], np.asarray([node]))[0]) if "commands" in doc.tables else node


def _tensors(doc: ColumnDocument) -> list[dict[str, Any]]:
    frame = tensors_frame(doc)
    return frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[return-value]


_TEXT, _OBJECT = {"type": "string"}, {"type": "object"}
FIELDS: tuple[Field, ...] = (
    Field("format", "string", "Always rlx-viz-plan", lambda doc: "rlx-viz-plan"),
    Field("version", "integer", "Version of this schema", lambda doc: SCHEMA_VERSION),
    Field("kind", "string", "model, or problem for a bare placement problem", lambda doc: doc.meta.get("kind", "model")),
    Field("model", "string", "Name of the model or file", _meta("model", "name", without="")),
    Field("model_hash", "string", "SHA-256 of the content, whatever file it came from", _meta("model", "hash", without="")),
    Field("nodes", "integer", "Nodes of the graph that was planned; buffers of a problem", _meta("model", "nodes", without=0)),
    Field("target", "string", "What it was compiled for; empty for a problem", _meta("target", without="")),
    _bytes("allocate", "allocate_bytes", "The number to allocate: weights + activations + scratch + padding"),
    _bytes("weights", "weights_bytes", "Params, in a region of their own"),
    _bytes("activations", "activations_bytes", "Most bytes of other tensors live at one step"),
    _bytes("scratch", "scratch_bytes", "What the largest kernel or control-flow body needs beside its operands"),
    _bytes("padding", "padding_bytes", "Alignment, guards and gaps"),
    _bytes("arena", "arena_bytes", "The region of everything but params, guards included"),
    _bytes("naive", "naive_bytes", "The arena with nothing reused"),
    _bytes("saved", "saved_bytes", "naive - arena"),
    _bytes("lower_bound", "lower_bound_bytes", "No placement of these live ranges is smaller"),
    _bytes("peak_bytes", "peak_bytes", "Live at the peak"),
    Field("peak_step", "integer", "First step at which most bytes are live; steps count commands that run, of `commands`", lambda doc: peak_command(doc)),
    Field("peak_node", "integer", "The same as an index of the graph's nodes; of a problem, its own step", _head("peak_step")),
    Field("commands", "integer", "Commands that run; 0 for a problem", lambda doc: doc.rows("commands")),
    Field("optimal", "boolean", "The arena is proved as small as its live ranges allow", _head("optimal")),
    Field("optimal_text", "string", "The same as a sentence, with its conditions", _meta("claims", "optimal", without="")),
    Field("order_floor_bytes", "integer", "What any order of the same commands needs at least (bytes); 0 unknown",
          lambda doc: int(doc.meta.get("claims", {}).get("order_bytes", 0))),
    Field("order_floor_text", "string", "The same as a sentence", _meta("claims", "order", without="")),
    Field("holders", "array", "Rules and options in force that hold more than 5% of the arena, with the figure without each",
          _claims("holders", "held", "arena_without"), _OBJECT),
    Field("bodies", "array", "Bodies of If, Loop and Scan: their tensors, bytes and peak",
          _claims("bodies", "bytes", "peak_bytes"), _OBJECT),
    Field("placement", "string", "Strategy that placed the arena",
          lambda doc: next((str(o["value"]) for o in doc.meta.get("options", []) if o["name"] == "placement"), doc.meta.get("placement", ""))),
    Field("unknown_tensors", "integer", "Tensors of a size unknown before the run", _head("unknown")),
    Field("at_least", "boolean", "Totals are lower limits, since some sizes are unknown", lambda doc: doc.meta["headline"]["unknown"] > 0),
    Field("unsupported_ops", "object", "Opaque ops by name, those in bodies counted", _meta("unsupported", without={}), {"type": "integer"}),
    Field("inputs", "array", "Name, shape and dtype of each input", _meta("model", "inputs", without=[]), _OBJECT),
    Field("outputs", "array", "Name, shape and dtype of each output", _meta("model", "outputs", without=[]), _OBJECT),
    Field("notes", "array", "What a reader should know", _meta("notes", without=[]), _TEXT),
    Field("options", "object", "Every option with its value",
          lambda doc: {o["name"]: o["value"] for o in doc.meta.get("options", [])}, {}),
    Field("tensors", "array", "One entry a tensor: the columns of --csv", _tensors, _OBJECT),
    Field("footer", "object", "Model hash, product version, options, command", _meta("footer", without={}), _TEXT),
)
"""Every key, in order: units in names, integers exact."""


def summary_dict(doc: ColumnDocument) -> dict[str, Any]:
    """The headline numbers under stable names, with one entry a tensor; equal keys and types for models and problems."""
    return {f.name: f.read(doc) for f in FIELDS}


def plan_schema() -> dict[str, Any]:
    """JSON Schema of ``summary_dict``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"rlx-viz-plan-{SCHEMA_VERSION}", "title": "A plan's summary",
        "type": "object", "required": [f.name for f in FIELDS],
        "properties": {f.name: f.schema() | ({"const": f.read(_NOTHING)} if f.name in ("format", "version") else {}) for f in FIELDS},
    }


_NOTHING: Any = None
