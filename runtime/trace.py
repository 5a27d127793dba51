"""Owns traces in the trace-event format (JSON array), which Perfetto's viewer and Chrome open.

One complete event (``ph: X``) a command: label, start and duration in µs, bytes read and written, the arena range it
touched. Counter events (``ph: C``) draw the live bytes. ``write_events`` writes a finished run; ``trace(path)`` streams
what runs meanwhile, a line an event, so that a file whose writer was killed lacks the last bracket at most (the format
says that it may).
"""

from __future__ import annotations

import atexit
import io
import json
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner_core.environment import Environ, variable
from planner_core.environment import path as environment_path
from planner_core.errors import RlxError
from planner_core.ir import write_atomically
from runtime.command_list import CommandList, Thunk

__all__ = ["TRACE_VARIABLE", "Tracer", "complete_event", "counter_event", "current_tracer", "events_of", "thunk_facts",
           "trace", "trace_from_environment", "write_events"]

TRACE_VARIABLE = variable("RLX_TRACE_PERFETTO", "path", "Where every run of the process is traced to (JSON that Perfetto opens).")
"""Names the file that every run of this process is traced to."""
PID = 1


def thunk_facts(t: Thunk) -> dict[str, Any]:
    """Bytes read and written by one command, and the arena range that it touches (empty: none)."""
    spans = [o for o in (*t.reads(), *t.writes()) if o.space == "arena" and o.nbytes]
    return {
        "bytes_read": t.bytes_read,
        "bytes_written": t.bytes_written,
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


# --- streaming ----------------------------------------------------------------------------------------


class Tracer:
    """Writes events as they happen, from any thread; ``close`` adds the last bracket. Times count from its making.

    A file has one writer. A forked child writes to a sibling, ``trace.<pid>.json``, once it runs something; so does a
    process whose ``RLX_TRACE_PERFETTO`` names a file that another one is writing (``sibling``; else ``RlxError``).
    """

    def __init__(self, path: str | Path, sibling: bool = False) -> None:
        self.path = Path(path)
        self._zero = time.perf_counter()
        self._fresh()
        self._file: io.FileIO | None = self._open(sibling)
        _TRACERS.add(self)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()  # by thread, not by its number, which a later thread may get again
        self._threads = 0

    def _open(self, sibling: bool) -> io.FileIO:
        try:
            file = io.FileIO(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666), "w")  # an event is there once written
        except OSError as e:
            raise RlxError(f"can't write the trace {self.path}: {e.strerror or e}") from e
        if not _claim(file):
            file.close()
            if not sibling:
                raise RlxError(f"can't write the trace {self.path}: another trace is writing it; give this one its own path")
            self.path = self.path.with_name(f"{self.path.stem}.{os.getpid()}{self.path.suffix}")
            return self._open(False)
        file.truncate()
        name = {"name": "process_name", "ph": "M", "pid": PID, "args": {"name": f"rlx-viz {os.getpid()}"}}
        file.write(b"[\n" + _line(name))
        return file

    def forked(self) -> None:
        """In a child: the parent's file is the parent's. The next event opens the child's own."""
        self._fresh()
        if self._file is not None and not self._file.closed:
            self._file.close()
            self._file = None

    def command(self, name: str, start: float, seconds: float, facts: Mapping[str, Any], category: str = "command") -> None:
        """One finished command of the calling thread; ``start`` by ``time.perf_counter``."""
        self.emit(complete_event(name, (start - self._zero) * 1e6, seconds * 1e6, facts, self._thread(), category))

    def emit(self, event: Mapping[str, Any]) -> None:
        """Any event; nothing once closed."""
        with self._lock:
            if self._file is None:
                self._file = self._open(True)
            if not self._file.closed:
                self._file.write(b",\n" + _line(event))

    def _thread(self) -> int:
        tid: int | None = getattr(self._local, "tid", None)
        if tid is None:
            with self._lock:
                self._threads += 1
                tid = self._local.tid = self._threads
            self.emit({"name": "thread_name", "ph": "M", "pid": PID, "tid": tid,
                       "args": {"name": threading.current_thread().name}})
        return tid

    def close(self) -> None:
        """End the array; a second call does nothing."""
        with self._lock:
            if self._file is not None and not self._file.closed:
                self._file.write(b"\n]\n")
                self._file.close()


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":"), sort_keys=True).encode()


def _claim(file: io.FileIO) -> bool:
    """Take the file for this open handle alone; False if another has it. True where the system has no such locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


_TRACERS: weakref.WeakSet[Tracer] = weakref.WeakSet()
_STACK: list[Tracer] = []
"""Traces that are open, the environment's first; runs write to the last."""
_SWITCH = threading.Lock()
_FROM_ENVIRONMENT: Tracer | None = None


def _in_child() -> None:
    global _SWITCH
    _SWITCH = threading.Lock()
    for t in list(_TRACERS):
        t.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def current_tracer() -> Tracer | None:
    """What runs write to now, if anything."""
    return _STACK[-1] if _STACK else None


@contextmanager
def trace(path: str | Path) -> Iterator[Tracer]:
    """Trace every run of this process, of any thread, to ``path`` until the block ends. Of several open blocks, the one
    begun last is written to. ``RlxError`` for a path that can't be written, or that another trace is writing."""
    made = Tracer(path)
    with _SWITCH:
        _STACK.append(made)
    try:
        yield made
    finally:
        with _SWITCH:
            _STACK.remove(made)
        made.close()


def trace_from_environment(environ: Environ = None) -> Tracer | None:
    """Start the trace that ``RLX_TRACE_PERFETTO`` names, once, to the end of the process; what executors call.

    Where another process writes that file, this one's is ``trace.<pid>.json`` beside it.
    """
    global _FROM_ENVIRONMENT
    path = environment_path(TRACE_VARIABLE, environ)
    if path and _FROM_ENVIRONMENT is None:
        with _SWITCH:
            if _FROM_ENVIRONMENT is None:
                _FROM_ENVIRONMENT = Tracer(path, sibling=True)
                _STACK.insert(0, _FROM_ENVIRONMENT)
                atexit.register(_FROM_ENVIRONMENT.close)
    return current_tracer()
