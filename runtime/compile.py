"""Owns ``compile_graph``: the stages from graph to command list, each kept; an option re-runs only what it touches."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from planner_core.ir import Array, Graph
from planner_core.memory import MemoryPlan, PlanOptions, Target, plan_graph
from planner_core.memory.verify import require_sound
from planner_core.options import coerce_option
from runtime.command_list import CommandList
from runtime.executors import HostExecutor
from runtime.lowering import lower_graph

__all__ = ["Compilation", "CompileOptions", "compile_graph"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compilation. ``plan`` None = the target's preset for the graph at hand."""

    target: Target = Target.CPU
    plan: PlanOptions | None = None

    @classmethod
    def for_target(cls, target: Target | str, graph: Graph | None = None) -> CompileOptions:
        """The target's presets, looked up now for ``graph`` (the environment is read here, once)."""
        plan = PlanOptions.for_target(target, graph)
        return cls(Target(target), plan)

    def plan_for(self, graph: Graph) -> PlanOptions:
        """The plan's options: those given, or the target's preset for the graph."""
        return self.plan if self.plan is not None else PlanOptions.for_target(self.target, graph)


@dataclass(eq=False, slots=True)
class Compilation:
    """Every stage of one compilation; nothing downstream computes a stage again. ``timings`` in seconds."""

    options: CompileOptions
    source: Graph
    fused: Graph
    legal: Graph
    plan: MemoryPlan
    commands: CommandList
    timings: dict[str, float]
    fusion_log: tuple[Any, ...] = ()
    pass_log: tuple[Any, ...] = ()
    _executor: HostExecutor | None = field(default=None, repr=False)

    @property
    def default_plan_options(self) -> PlanOptions:
        """What the target starts from for this graph: the options that "changed" is said against."""
        return PlanOptions.for_target(self.options.target, self.legal)

    @property
    def commands_before(self) -> CommandList:
        """The list before passes (there are none yet)."""
        return self.commands

    @property
    def allocate_bytes(self) -> int:
        """The number to allocate: weights, arena and the largest scratch of a thunk (or of a nested body)."""
        p = self.plan
        return p.weights_size + p.arena_size + max(self.commands.scratch_bytes, p.scratch_size)

    def with_options(self, **delta: Any) -> Compilation:
        """This graph under other options: fields of ``PlanOptions``, or ``target`` (which resets the plan's).

        Text values are read as the field's type. Plans and lowers again; everything before is shared.
        """
        options = self.options
        if "target" in delta:
            options = CompileOptions(target=Target(delta.pop("target")))
        plan = options.plan_for(self.legal)
        changed = {k: coerce_option(PlanOptions, k, v) for k, v in delta.items()}
        options = dataclasses.replace(options, plan=dataclasses.replace(plan, **changed))
        timings = {k: v for k, v in self.timings.items() if k in ("fuse", "legalise")}
        return _finish(options, self.source, self.fused, self.legal, timings)

    @property
    def executor(self) -> HostExecutor:
        """Made on first use, then kept: buffers and views are set up once."""
        if self._executor is None:
            self._executor = HostExecutor(self.commands, self.legal.weights)
        return self._executor

    def run(self, inputs: Mapping[str, Array], sanitize: bool = False, timed: bool = False) -> dict[str, Array]:
        """Outputs by name for inputs by name, on the planned arena. ``sanitize`` audits every thunk."""
        return self.executor.run(inputs, sanitize=sanitize, timed=timed)


def _timed(timings: dict[str, float], stage: str, fn: Callable[[], _T]) -> _T:
    start = time.perf_counter()
    made = fn()
    timings[stage] = time.perf_counter() - start
    return made


def fuse(graph: Graph, options: CompileOptions) -> Graph:
    """The fusion stage's place; no rules yet."""
    return graph


def legalise(graph: Graph, options: CompileOptions) -> Graph:
    """What the target stores and runs; the host runs every op as it is."""
    return graph


def _finish(options: CompileOptions, source: Graph, fused: Graph, legal: Graph,
            timings: dict[str, float]) -> Compilation:
    plan = _timed(timings, "plan", lambda: plan_graph(legal, options.plan_for(legal)))
    _timed(timings, "verify", lambda: require_sound(legal, plan))
    commands = _timed(timings, "lower", lambda: lower_graph(legal, plan))
    return Compilation(options, source, fused, legal, plan, commands, timings)


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> Compilation:
    """Graph to command list, every stage kept and timed.

    Raises ``PlanError`` with the violations of an unsound plan, ``LoweringError`` for an op that can't run here,
    ``UnboundDimError`` for a symbol without a value.
    """
    options = options or CompileOptions()
    timings: dict[str, float] = {}
    fused = _timed(timings, "fuse", lambda: fuse(graph, options))
    legal = _timed(timings, "legalise", lambda: legalise(fused, options))
    return _finish(options, graph, fused, legal, timings)
