"""Owns traces in the trace-event format (JSON array), which Perfetto's viewer and Chrome open.

One complete event (``ph: X``) a command: label, start and duration in µs, bytes read and written, the arena range it
touched. Counter events (``ph: C``) draw the live bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner_core.ir import write_atomically
from runtime.command_list import CommandList, Thunk

__all__ = ["complete_event", "counter_event", "events_of", "thunk_facts", "write_events"]

PID = 1


def thunk_facts(t: Thunk) -> dict[str, Any]:
    """Bytes read and written by one command, and the arena range that it touches (empty: none)."""
    spans = [o for o in (*t.reads(), *t.writes()) if o.space == "arena" and o.nbytes]
    return {
        "bytes_read": sum(o.nbytes for o in t.reads()),
        "bytes_written": sum(o.nbytes for o in t.writes()),
        "arena_begin": min((o.offset for o in spans), default=0),
        "arena_end": max((o.offset + o.nbytes for o in spans), default=0),
    }


def complete_event(name: str, start_us: float, dur_us: float, args: Mapping[str, Any], tid: int = 1,
                   category: str = "command") -> dict[str, Any]:
    """One finished piece of work."""
    return {"name": name, "cat": category, "ph": "X", "ts": round(start_us, 3), "dur": round(max(dur_us, 0.0), 3),
            "pid": PID, "tid": tid, "args": dict(args)}


def counter_event(name: str, ts_us: float, values: Mapping[str, float]) -> dict[str, Any]:
    """Values that hold from now on."""
    return {"name": name, "ph": "C", "ts": round(ts_us, 3), "pid": PID, "args": dict(values)}


def events_of(commands: CommandList, seconds: Iterable[float], live: Iterable[float] = ()) -> list[dict[str, Any]]:
    """The events of one run: commands one after the other, with live arena bytes at each where given."""
    out: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": PID, "args": {"name": f"rlx-viz {commands.name}"}},
        {"name": "thread_name", "ph": "M", "pid": PID, "tid": 1, "args": {"name": "host executor"}},
    ]
    at, levels = 0.0, list(live)
    for i, (t, s) in enumerate(zip(commands.thunks, seconds, strict=True)):
        node = commands.node_of[i]
        if t.where != "none":
            out.append(complete_event(t.trace_label, at * 1e6, s * 1e6,
                                      {"index": i, "node": commands.node_names[node], **thunk_facts(t)}))
        if levels:
            out.append(counter_event("live arena bytes", at * 1e6, {"live": levels[min(node, len(levels) - 1)]}))
        at += s
    return out


def write_events(path: str | Path, events: Iterable[Mapping[str, Any]]) -> Path:
    """The events as one JSON array, written atomically; returns the path."""
    text = "[\n" + ",\n".join(json.dumps(e, separators=(",", ":"), sort_keys=True) for e in events) + "\n]\n"
    write_atomically(path, text.encode())
    return Path(path)
