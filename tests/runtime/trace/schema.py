"""A check of the trace-event format (JSON array form), written from its description; shares nothing with the writer.

A reader takes an array whose last bracket is missing, as after a kill: ``read_events(text, closed=False)``.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

REQUIRED = {"X": {"name", "ts", "dur", "pid", "tid"}, "C": {"name", "ts", "pid", "args"}, "M": {"name", "pid", "args"},
            "i": {"name", "ts", "pid", "tid"}}
METADATA = {"process_name": "name", "thread_name": "name", "process_labels": "labels", "process_sort_index": "sort_index",
            "thread_sort_index": "sort_index"}
NUMBER = (int, float)


def read_events(text: str, closed: bool = True) -> list[dict[str, Any]]:
    """The events; AssertionError or JSONDecodeError for text that a viewer would refuse."""
    if closed:
        events = json.loads(text)
        assert isinstance(events, list)
        return events
    text = text.rstrip()
    assert text.startswith("[")
    if text == "[":
        return []
    found: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")
    return found


def check_events(events: list[dict[str, Any]]) -> None:
    """Every event is one of the format's, complete, with times that nest within a thread."""
    assert events, "a trace has at least its metadata"
    for e in events:
        kind = e.get("ph")
        assert kind in REQUIRED, f"unknown phase {kind!r}"
        assert REQUIRED[kind] <= e.keys(), f"{e} lacks {REQUIRED[kind] - e.keys()}"
        assert isinstance(e["name"], str) and e["name"]
        assert isinstance(e["pid"], int)
        for k in ("ts", "dur"):
            if k in e:
                assert isinstance(e[k], NUMBER) and not isinstance(e[k], bool) and e[k] >= 0
        if "tid" in e:
            assert isinstance(e["tid"], int)
        assert isinstance(e.get("args", {}), dict)
        if kind == "C":
            assert e["args"] and all(isinstance(v, NUMBER) for v in e["args"].values())
        if kind == "M":
            assert METADATA[e["name"]] in e["args"]
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            threads.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in threads.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 0.002, "commands of one thread overlap (beyond the rounding to a nanosecond)"
