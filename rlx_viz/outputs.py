"""Owns the other JSON outputs (``compare``, ``diff``, ``sweep``): their keys declared once, for who writes them and for the
schema; and ``all_schemas``, what `rlx-viz schema` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner_core.errors import RlxError
from rlx_viz.summary import plan_schema

__all__ = ["COMPARE", "DIFF", "SWEEP", "Output", "all_schemas"]

_TEXT, _WHOLE, _FLAG, _OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "object"}
_ROWS = {"type": "array", "items": _OBJECT}


@dataclass(frozen=True, slots=True)
class Output:
    """One kind of JSON document: ``format`` and ``version`` stand in it, ``keys`` are all others with their schemas."""

    format: str
    version: int
    keys: Mapping[str, Mapping[str, Any]]

    def document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values under their format; ``RlxError`` where a key is missing or not declared."""
        if values.keys() != self.keys.keys():
            odd = sorted(values.keys() ^ self.keys.keys())
            raise RlxError(f"{self.format}: keys {', '.join(odd)} are not both declared and given; please report this")
        return {"format": self.format, "version": self.version, **values}

    def schema(self) -> dict[str, Any]:
        """JSON Schema of a document."""
        return {
            "$id": f"{self.format}-{self.version}", "type": "object", "required": ["format", "version", *self.keys],
            "properties": {"format": {"const": self.format}, "version": {"const": self.version}, **{k: dict(v) for k, v in self.keys.items()}},
        }


COMPARE = Output("rlx-viz-compare", 1, {
    "verdict": {"type": "object", "required": ["sentence", "smaller", "same_plan", "difference_bytes"]},
    "headline": _OBJECT, "options": _OBJECT, "changes": _ROWS})
DIFF = Output("rlx-viz-diff", 1, {
    "a": _TEXT, "b": _TEXT, "verdict": _TEXT, "fails": _FLAG, "number": _TEXT, "limit": {"type": ["string", "null"]},
    "changes": {"type": "object", "additionalProperties": {"type": "object", "required": ["before_bytes", "after_bytes", "delta_bytes"],
                                                            "properties": dict.fromkeys(("before_bytes", "after_bytes", "delta_bytes"), _WHOLE)}},
    "grown": _ROWS})
SWEEP = Output("rlx-viz-sweep", 1, {"model": _TEXT, "target": _TEXT, "rows": _ROWS})


def all_schemas() -> dict[str, Any]:
    """One schema that every JSON output validates against: a plan's summary, or one of the others."""
    kinds = {"plan": plan_schema(), **{o.format.removeprefix("rlx-viz-"): o.schema() for o in (COMPARE, DIFF, SWEEP)}}
    for kind in kinds.values():
        kind.pop("$id", None)
        kind.pop("$schema", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "rlx-viz-json-1", "title": "JSON outputs of rlx-viz",
            "oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds], "$defs": kinds}
