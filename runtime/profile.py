"""Owns ``Profile``: what each command took in a run, with its bytes and FLOPs, as a frame and as a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.ir import Array, Graph
from planner_core.memory import live_curve
from planner_core.show import Facts, Shown
from runtime.command_list import CommandList
from runtime.trace import events_of, thunk_facts, write_events

if TYPE_CHECKING:
    from runtime.compile import Compilation

__all__ = ["Profile", "profile"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Profile(Shown):
    """One number a thunk: ``seconds`` (the median of ``repeat`` runs), ``flops`` (of the graph ops that it runs; a
    fused command has the sum of those it replaced). ``live``: arena bytes live at each schedule step."""

    commands: CommandList
    seconds: Array
    flops: Array
    repeat: int
    live: Array

    def _facts(self) -> Facts:
        return (f"Profile of {self.commands.name!r}", (
            ("commands", f"{len(self.seconds):,}"), ("total", f"{self.total_seconds * 1e3:.3f} ms"), ("repeats", self.repeat)),
            "profile.to_frame() has a row a command")

    @property
    def total_seconds(self) -> float:
        """Time in commands that do something, without input and output copies: shares of it sum to 1."""
        return float(self.seconds[self._busy].sum())

    @property
    def _busy(self) -> list[int]:
        return [i for i, t in enumerate(self.commands.thunks) if t.where != "none"]

    def to_frame(self) -> Any:
        """One row a command that does something. ``ran_on``: our host executor ran it; ``planned_on``: where the list's
        target would (gpu or host). ``gb_per_s`` counts bytes read and written (10⁹;
        of a table that indices choose from, the rows chosen), ``gflop_per_s``
        10⁹ FLOPs; both are empty where the time is below the clock's tick."""
        import pandas as pd

        c = self.commands
        keep = self._busy
        facts = [thunk_facts(c.thunks[i]) for i in keep]
        s = self.seconds[keep]
        nbytes = np.asarray([f["bytes_read"] + f["bytes_written"] for f in facts], dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(s > 0, 1 / np.where(s > 0, s, 1), np.nan)
        return pd.DataFrame({
            "index": keep,
            "command": [c.thunks[i].trace_label for i in keep],
            "node": [c.node_names[c.node_of[i]] for i in keep],
            "ran_on": "host",
            "planned_on": [c.thunks[i].place for i in keep],
            "us": s * 1e6,
            "share": s / self.total_seconds if self.total_seconds else s,
            "bytes_read": [f["bytes_read"] for f in facts],
            "bytes_written": [f["bytes_written"] for f in facts],
            "flops": self.flops[keep],
            "gb_per_s": nbytes * rate / 1e9,
            "gflop_per_s": self.flops[keep] * rate / 1e9,
        })

    def events(self) -> list[dict[str, Any]]:
        """The run in the trace-event format."""
        return events_of(self.commands, self.seconds.tolist(), self.live.tolist())

    def write_trace(self, path: str | Path) -> Path:
        """Write a JSON trace that Perfetto's viewer and Chrome open; returns the path."""
        return write_events(path, self.events())


def _node_flops(graph: Graph) -> list[int]:
    out = []
    for n in graph.nodes:
        shapes = [graph[i].shape for i in n.inputs]
        whole = n.shape.is_static and all(s.is_static for s in shapes)
        out.append(n.op.flops(n.shape, *shapes) if whole else 0)
    return out


def _flops(c: Compilation) -> Array:
    """FLOPs of each thunk of the final list; those of vanished thunks go where their work went."""
    per_node, before = _node_flops(c.legal), c.commands_before
    at = np.zeros(len(before.thunks), dtype=np.int64)
    seen: set[int] = set()
    for i, node in enumerate(before.node_of):
        if node not in seen:
            at[i] = per_node[node]
            seen.add(node)
    for d in c.pass_log.applied():
        lasting = [i for i in d.nodes if any(c.commands.thunks[k].where != "none" for k in c.index_map[i])]
        to = max(lasting or d.nodes)
        total = int(at[list(d.nodes)].sum())
        at[list(d.nodes)] = 0
        at[to] = total
    out = np.zeros(len(c.commands.thunks), dtype=np.int64)
    for i, new in c.index_map.items():
        out[max((k for k in new if c.commands.thunks[k].where != "none"), default=new[-1])] += at[i]
    return out


def profile(compilation: Compilation, inputs: Mapping[str, Array], repeat: int = 5) -> Profile:
    """Run ``repeat`` times (after one that warms up) and keep each command's median time.

    Raises as ``Compilation.run``; ``ValueError`` for a repeat below 1.
    """
    if repeat < 1:
        raise ValueError(f"repeat is {repeat}, wanted 1 or more")
    runs = []
    with compilation.executors.lent() as executor:  # the times of its runs, whatever else runs meanwhile
        executor.run(inputs)
        for _ in range(repeat):
            executor.run(inputs, timed=True)
            runs.append(executor.seconds.copy())
    return Profile(compilation.commands, np.median(np.asarray(runs), axis=0), _flops(compilation), repeat,
                   live_curve(compilation.plan).astype(np.float64))
