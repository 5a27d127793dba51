"""Owns ``run_passes``: every enabled pass over a command list, in order, with a log of each yes and no."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner_core.decision import Decision, DecisionLog, Verdict
from planner_core.log import tell
from planner_core.show import Facts, Shown
from runtime.command_list import CommandList, Operand, Thunk
from runtime.command_list.thunks.elementwise import Nop
from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow, Refused
from runtime.passes.host_forms import host_forced
from runtime.passes.lives import Lives
from runtime.passes.options import PassOptions
from runtime.passes.order import PASSES

__all__ = ["PassCounters", "PassResult", "run_passes"]


@dataclass(frozen=True, slots=True)
class PassCounters:
    """Of one run: places each pass rewrote, dispatches before and after."""

    fused: tuple[tuple[str, int], ...]
    dispatches_before: int
    dispatches_after: int

    def __str__(self) -> str:
        done = ", ".join(f"{name} {n}" for name, n in self.fused if n) or "nothing to do"
        return f"dispatches {self.dispatches_before} -> {self.dispatches_after}: {done}"


@dataclass(frozen=True, slots=True, repr=False)
class PassResult(Shown):
    """The list after passes. ``starts[i]`` is where old thunk i went: its thunks are
    ``starts[i]`` up to ``starts[i + 1]``, one unless it was split. ``host_forced``: new indices that a GPU executor must
    run on the host, because an option says so."""

    commands: CommandList
    log: DecisionLog
    starts: tuple[int, ...]
    counters: PassCounters
    host_forced: frozenset[int]

    def _facts(self) -> Facts:
        return (f"PassResult of {self.commands.name!r}", (
            ("commands", f"{len(self.commands.thunks):,}"), ("applied", len(self.log.applied())), ("refused", len(self.log.refused()))),
            "result.log.to_frame() lists every decision")

    @property
    def index_map(self) -> dict[int, tuple[int, ...]]:
        """Old index -> new indices."""
        return {i: tuple(range(a, b)) for i, (a, b) in enumerate(pairwise(self.starts))}


class _Run:
    """The list in the middle of the passes: thunks, each with its old index and step."""

    def __init__(self, commands: CommandList, options: PassOptions) -> None:
        self.options = options
        self.commands = commands
        self.once = commands.once
        self.origin = list(range(len(commands)))
        self.node_of = list(commands.node_of)
        self.flow = Flow(commands)
        self.lives = Lives(commands)
        self.decisions: list[Decision] = []
        self.count: dict[str, int] = {}

    def go(self, p: CommandPass) -> None:
        """One pass over all its anchors."""
        splits: dict[int, tuple[Thunk, ...]] = {}
        self.count[p.name] = 0
        for i in range(len(self.flow.thunks)):
            if self.flow.thunks[i].label not in p.anchors:
                continue
            try:
                found = p.find(self.flow, i, self.options)
            except Refused as no:
                self._no(p, i, no)
                continue
            if found is not None:
                self._yes(p, i, found, splits)
        if splits:
            self._flatten(splits)

    def _no(self, p: CommandPass, i: int, no: Refused) -> None:
        facts: list[tuple[str, object]] = []
        nodes = [self.origin[i]]
        if no.at is not None:
            facts += [("thunk", self.origin[no.at]), ("label", self.flow.thunks[no.at].label)]
            nodes.append(self.origin[no.at])
        if no.span is not None:
            facts.append(("bytes", _bytes(no.span)))
        self.decisions.append(Decision("passes", p.name, Verdict.REFUSED, self.origin[i], tuple(dict.fromkeys(nodes)),
                                       no.reason, (*facts, *no.facts.items())))

    def _yes(self, p: CommandPass, i: int, a: Applied, splits: dict[int, tuple[Thunk, ...]]) -> None:
        before = {q: self.flow.thunks[q] for q in a.positions}
        after = [t for _, made in a.put for t in made]
        kept = [w for t in after for w in t.writes()]
        dropped = sum(w.nbytes for t in before.values() for w in t.writes() if not any(w.overlaps(k) for k in kept))
        for q, made in a.put:
            if len(made) == 1:
                self.flow.replace(q, made[0])
            else:
                splits[q] = made
        for q in a.gone:
            self.flow.replace(q, Nop())
        self.lives.follow(self.flow, self.node_of, before)
        self.count[p.name] += 1
        self.decisions.append(Decision(
            "passes", p.name, Verdict.APPLIED, self.origin[i], tuple(self.origin[q] for q in a.positions), None,
            (("becomes", " + ".join(t.label for t in after)), *a.facts), dropped,
            sum(t.where != "none" and self._every_run(q) for q, t in before.items())
            - sum(len(made) for q, made in a.put if self._every_run(q))))
        if self.options.verbose or (self.options.print_fused and "decode" in p.switches):
            tell("passes", str(self.decisions[-1]))

    def _every_run(self, position: int) -> bool:
        """Static packs are made in the first run only: fewer commands there are no saving of a run."""
        return self.origin[position] not in self.once

    def _flatten(self, splits: Mapping[int, Sequence[Thunk]]) -> None:
        thunks: list[Thunk] = []
        origin, node_of = [], []
        for i, t in enumerate(self.flow.thunks):
            made = splits.get(i, (t,))
            thunks += made
            origin += [self.origin[i]] * len(made)
            node_of += [self.node_of[i]] * len(made)
        self.origin, self.node_of = origin, node_of
        self.flow = Flow(dataclasses.replace(self.commands, thunks=tuple(thunks), node_of=tuple(node_of)))


def _bytes(o: Operand) -> str:
    return f"{o.space}[{o.offset}, {o.offset + o.nbytes})"


def run_passes(commands: CommandList, options: PassOptions | None = None) -> PassResult:
    """The list rewritten by every enabled pass, in spec order. The list given is not changed."""
    options = options or PassOptions()
    enabled = [p for p in PASSES if p.enabled(options)]
    if not enabled:
        count = commands.dispatches
        return PassResult(commands, DecisionLog(), tuple(range(len(commands) + 1)), PassCounters((), count, count),
                          host_forced(commands, options))
    run = _Run(commands, options)
    for p in enabled:
        run.go(p)
    thunks = tuple(run.flow.thunks)
    made = dataclasses.replace(
        commands, thunks=thunks, node_of=tuple(run.node_of), slots=run.lives.slots(),
        scratch_bytes=max((t.scratch_bytes for t in thunks), default=0))
    starts = [0] * (len(commands) + 1)
    for k, i in enumerate(run.origin):
        starts[i + 1] = k + 1
    labels = {i: commands.node_names[n] for i, n in enumerate(commands.node_of)}
    used = {d.anchor for d in run.decisions}
    return PassResult(
        made, DecisionLog(tuple(run.decisions), {i: labels[i] for i in sorted(used)}), tuple(starts),
        PassCounters(tuple(run.count.items()), commands.dispatches, made.dispatches), host_forced(made, options))
