"""Owns ``compile_graph``: the stages from graph to command list, each kept; an option re-runs only what it touches."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from planner_core.environment import VARIABLES, Environ, Variable, snapshot
from planner_core.errors import OptionError
from planner_core.fusion import DecisionLog, Fusion, FusionOptions, fuse_graph, fusion_for_target
from planner_core.ir import Array, DimBinding, DType, Graph
from planner_core.ir.rebind import bound_symbols
from planner_core.memory import (
    ArenaWidthPolicy,
    BodyPlan,
    Headline,
    Holder,
    MemoryPlan,
    PlanOptions,
    Target,
    body_plans,
    headline,
    holders,
    plan_graph,
)
from planner_core.memory.holders import SHARE
from planner_core.memory.verify import require_sound
from planner_core.options import OptionInfo, coerce_option, option, options_of, variables_of
from planner_core.show import Facts, Shown
from planner_core.units import bytes_text
from runtime.command_list import CommandList
from runtime.executors import ExecutorPool, HostExecutor
from runtime.legalise import apply_precision
from runtime.lowering import LowerOptions, lower_graph
from runtime.passes import PassOptions, PassResult, run_passes
from runtime.precision import PrecisionPolicy
from runtime.steps import birth_steps, death_steps

if TYPE_CHECKING:
    from runtime.profile import Profile

__all__ = ["GROUPS", "Compilation", "CompileOptions", "OptionRow", "compile_graph", "compile_template"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compilation, a group a stage. None = the target's preset for the graph at hand."""

    target: Target = option(
        Target.CPU, group="compile", help="What the graph is compiled for: it sets where every other option starts.")
    plan: PlanOptions | None = None
    fusion: FusionOptions | None = None
    lower: LowerOptions | None = None
    passes: PassOptions | None = None
    precision: PrecisionPolicy | None = option(
        None, group="compile", choices=PrecisionPolicy,
        help="f32: as the graph says. auto_mixed (f16) and auto_mixed_bf16: products and convolutions in half; reductions, "
             "norms, softmax and losses stay f32.")
    """None = F32; a session or a cache may fill in its own."""
    dims: DimBinding = DimBinding()
    """Values for the graph's symbols."""
    environ: tuple[tuple[str, str], ...] | None = field(default=None, compare=False, repr=False)
    """The switches of the environment that presets are looked up with; None = those of now. ``compile_graph`` takes them
    down, so that a compilation goes on saying what it was compiled with."""

    def at_compile(self) -> CompileOptions:
        """A copy whose presets no longer follow the environment."""
        if self.environ is not None:
            return self
        return dataclasses.replace(self, environ=snapshot())

    @property
    def _environ(self) -> dict[str, str] | None:
        return None if self.environ is None else dict(self.environ)

    def __post_init__(self) -> None:
        for name in ("target", "precision"):  # their texts will do
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, coerce_option(CompileOptions, name, value))

    @classmethod
    def for_target(cls, target: Target | str, graph: Graph | None = None,
                   environ: Environ = None, **changes: Any) -> CompileOptions:
        """The target's presets, looked up now for ``graph`` (the environment is read here, once), with options changed by
        name as ``Compilation.with_options`` takes them.

        ``OptionError`` for a target that doesn't exist.
        """
        plan = PlanOptions.for_target(target, graph, environ)  # checks the target's name
        made = cls(Target(target), plan, fusion_for_target(target), LowerOptions.for_environment(environ),
                   passes_for_target(target, environ))
        return made.changed(graph, **changes) if changes else made

    def plan_for(self, graph: Graph | None) -> PlanOptions:
        """The plan's options: those given, or the target's preset for the graph (half stored as half under a mixed
        precision policy)."""
        if self.plan is not None:
            return self.plan
        preset = PlanOptions.for_target(self.target, graph, self._environ)
        return preset if self.half is None else preset.replace(width_policy=ArenaWidthPolicy.NATIVE)

    @property
    def half(self) -> DType | None:
        """The half type that products are computed in, if any."""
        return None if self.precision is None else self.precision.half

    def cache_key(self, graph: Graph) -> str:
        """SHA-256 over every option that changes what is compiled for ``graph``, presets resolved: equal in any process."""
        groups: dict[str, Any] = {"fusion": self.fusion_used, "plan": self.plan_for(graph), "lower": self.lower_used,
                                  "passes": self.passes_used}
        value = {stage: {o.name: _plain(getattr(groups[stage], o.name)) for o in options_of(cls) if o.cache_key}
                 for stage, cls in GROUPS.items()}
        value["all"] = {"target": self.target.value, "precision": (self.precision or PrecisionPolicy.F32).value,
                        "dims": self.dims.as_dict()}
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

    @property
    def fusion_used(self) -> FusionOptions:
        """The fusion options: those given, or the target's preset."""
        return self.fusion if self.fusion is not None else fusion_for_target(self.target)

    @property
    def lower_used(self) -> LowerOptions:
        """The lowering options: those given, or the environment's."""
        return self.lower if self.lower is not None else LowerOptions.for_environment(self._environ)

    @property
    def passes_used(self) -> PassOptions:
        """The pass options: those given, or the target's preset."""
        return self.passes if self.passes is not None else passes_for_target(self.target, self._environ)

    def changed(self, graph: Graph | None, **delta: Any) -> CompileOptions:
        """A copy with options of any stage changed by name; text values are read as the option's type.

        ``target`` resets every group to its preset before the others apply; a plan that is the preset follows
        ``precision``. ``OptionError`` names a stray one.
        """
        made = self
        if "precision" in delta:
            follows = self.plan == dataclasses.replace(self, plan=None).plan_for(graph)
            made = dataclasses.replace(self, plan=None if follows else self.plan,
                                       precision=coerce_option(CompileOptions, "precision", delta.pop("precision")))
        if "target" in delta:
            preset = CompileOptions.for_target(coerce_option(CompileOptions, "target", delta.pop("target")), graph, self._environ)
            made = dataclasses.replace(preset, precision=made.precision, dims=self.dims, environ=self.environ,
                                       plan=preset.plan if made.half is None else None)
        stages = {stage: {k: v for k, v in delta.items() if k in names} for stage, names in STAGES.items()}
        for name in delta:
            if not any(name in names for names in STAGES.values()):
                known = [n for names in STAGES.values() for n in names] + [o.name for o in options_of(CompileOptions)]
                near = difflib.get_close_matches(name, known, 1)
                raise OptionError(f"no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else "; see `rlx-viz options`"))
        now: dict[str, Any] = {"fusion": made.fusion_used, "plan": made.plan_for(graph), "lower": made.lower_used,
                               "passes": made.passes_used}
        new = {stage: dataclasses.replace(now[stage], **{k: coerce_option(GROUPS[stage], k, v) for k, v in values.items()})
               for stage, values in stages.items() if values}
        return dataclasses.replace(made, **new)


def _plain(v: Any) -> Any:
    return v.value if isinstance(v, Enum) else v


def passes_for_target(target: Target | str, environ: Environ = None) -> PassOptions:
    """The command passes are Metal's: on there, with the environment's switches; off for every other target."""
    return PassOptions.for_environment(environ) if Target(target).profile.command_passes else PassOptions.none()


GROUPS: dict[str, type[Any]] = {"fusion": FusionOptions, "plan": PlanOptions, "lower": LowerOptions,
                               "passes": PassOptions}
"""Stage -> the class whose fields are its options."""


def environment_variables() -> tuple[Variable, ...]:
    """Every environment variable that is read: those of options, in stage order, then the others."""
    own = [name for cls in GROUPS.values() for o in options_of(cls) for name in variables_of(o)]
    return tuple(VARIABLES[name] for name in dict.fromkeys((*own, *VARIABLES)))


STAGES = {stage: frozenset(o.name for o in options_of(cls)) for stage, cls in GROUPS.items()}
"""Stage -> names of its options; a name belongs to one stage."""
if len(frozenset().union(*STAGES.values())) != sum(map(len, STAGES.values())):
    raise TypeError("an option's name is declared in two stages")


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option as a front end shows it."""

    stage: str
    info: OptionInfo
    value: Any
    default: Any

    @property
    def changed(self) -> bool:
        return bool(self.value != self.default)


@dataclass(eq=False, slots=True, repr=False)
class Compilation(Shown):
    """Every stage of one compilation; nothing downstream computes a stage again. ``timings`` in seconds."""

    options: CompileOptions
    source: Graph
    fusion: Fusion
    legal: Graph
    plan: MemoryPlan
    commands_before: CommandList
    passed: PassResult
    timings: dict[str, float]
    _stages: _Stages = field(repr=False)
    _pool: ExecutorPool | None = field(default=None, init=False, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def _facts(self) -> Facts:
        p, options = self.plan, self.options
        return (f"Compilation of {self.source.name!r} for {options.target.value}", (
            ("nodes", f"{len(self.source):,}"), ("dispatches", f"{self.commands.dispatches:,}"), ("to allocate", bytes_text(self.allocate_bytes)),
            ("arena", bytes_text(p.arena_size)), ("weights", bytes_text(p.weights_size)), ("optimal", p.optimal)),
            "rlx_viz.explore(c) shows it, c.summary() has the numbers, c.run(inputs) runs it")

    @property
    def fused(self) -> Graph:
        """The graph after fusion."""
        return self.fusion.graph

    @property
    def fusion_log(self) -> DecisionLog:
        """What the fusion rules did and refused."""
        return self.fusion.log

    @property
    def default_fusion_options(self) -> FusionOptions:
        """The target's fusion preset."""
        return fusion_for_target(self.options.target)

    def option_rows(self) -> list[OptionRow]:
        """Every option of every stage with its value and the target's default, in stage order. A target is its own
        default: all others are said against it."""
        stages: dict[str, tuple[Any, Any]] = {
            "fusion": (self.fusion.options, self.default_fusion_options),
            "plan": (self.plan.options, self.default_plan_options),
            "lower": (self.options.lower_used, dataclasses.replace(self.options, lower=None).lower_used),
            "passes": (self.options.passes_used, dataclasses.replace(self.options, passes=None).passes_used),
        }
        whole = {"target": (self.options.target,) * 2, "precision": (self.options.precision or PrecisionPolicy.F32, PrecisionPolicy.F32)}
        return [OptionRow("compile", o, *whole[o.name]) for o in options_of(CompileOptions)] + [
                OptionRow(stage, o, getattr(values, o.name), getattr(defaults, o.name))
                for stage, (values, defaults) in stages.items() for o in options_of(GROUPS[stage])]

    @property
    def default_plan_options(self) -> PlanOptions:
        """What the target starts from for this graph: the options that "changed" is said against."""
        return dataclasses.replace(self.options, plan=None).plan_for(self.legal)

    @property
    def commands(self) -> CommandList:
        """The list after passes: what runs."""
        return self.passed.commands

    @property
    def pass_log(self) -> DecisionLog:
        """What the command passes did and refused; anchors are indices into ``commands_before``."""
        return self.passed.log

    @property
    def index_map(self) -> dict[int, tuple[int, ...]]:
        """Index in ``commands_before`` -> indices in ``commands``."""
        return self.passed.index_map

    @property
    def allocate_bytes(self) -> int:
        """The number to allocate: weights, arena and the largest scratch of a thunk (or of a nested body)."""
        p = self.plan
        return p.weights_size + p.arena_size + max(self.commands.scratch_bytes, p.scratch_size)

    def with_options(self, **delta: Any) -> Compilation:
        """This graph under other options of any stage, by name, another ``precision``, or another ``target`` (which
        resets them all).

        Text values are read as the option's type. Only the stages that an option touches run again.
        """
        return self.under(self.options.changed(self.legal, **delta))

    def under(self, options: CompileOptions) -> Compilation:
        """This graph under other options: a stage runs again only where something that it reads has changed since this
        compilation, or since one that this one was made from. ``OptionError`` for other dims, which are bound already."""
        if options.dims != self.options.dims:
            raise OptionError(f"dims {options.dims.as_dict()}: this compilation's are bound to {self.options.dims.as_dict()}; "
                              "compile the graph again")
        return self._stages.compile(options.at_compile())

    def tensors(self) -> Any:
        """One row a tensor, as a frame: the plan's (``MemoryPlan.to_frame``) with ``birth``, ``death`` and ``last_read`` in
        steps, which count the commands that run (inclusive; the number of commands: kept to the end)."""
        frame, plan, nodes = self.plan.to_frame(), self.plan, self.commands.node_of
        at = frame.columns.get_loc("birth_node")
        for k, (name, values) in enumerate({
            "birth": birth_steps(nodes, plan.birth), "death": death_steps(nodes, plan.birth, plan.death, plan.last_step),
            "last_read": death_steps(nodes, plan.birth, plan.last_read, plan.last_step),
        }.items()):
            frame.insert(at + k, name, values)
        return frame

    def holders(self) -> list[Holder]:
        """Everything in force that holds more than 5% of the arena, largest first: the plan's rules and options
        (``planner_core.memory.holders``), and changed options of earlier stages, each compared with its default."""
        found, arena = holders(self.plan), self.plan.arena_size
        changed = [r for r in self.option_rows() if r.changed]
        # all of fusion at once: a plan for each of forty would keep a toggle waiting
        for rows in ([r for r in changed if r.info.name == "precision"], [r for r in changed if r.stage == "fusion"]):
            if not rows or not arena:
                continue
            defaults = {r.info.name: r.default for r in rows}
            without = self._stages.planned(self.options.changed(self.legal, **defaults).at_compile()).arena_size
            if arena - without > SHARE * arena:
                name = " + ".join(f"{r.info.name}={str(getattr(r.value, 'value', r.value)).lower()}" for r in rows)
                found.append(Holder(name, "; ".join(r.info.help for r in rows), tuple(defaults.items()), arena, without))
        return sorted(found, key=lambda h: (-h.held, h.name))

    def summary(self) -> Headline:
        """The headline: the number to allocate and its parts, in bytes; ``print`` it for text with what holds it up."""
        return dataclasses.replace(headline(self.plan, self.commands.scratch_bytes), held=tuple(map(str, self.holders())))

    def bodies(self) -> list[BodyPlan]:
        """The plan of each body of If, Loop and Scan: what runs inside one command."""
        return list(body_plans(self.legal, self.plan.options))

    def profile(self, inputs: Mapping[str, Array], repeat: int = 5) -> Profile:
        """Median time, bytes and FLOPs of every command over ``repeat`` runs."""
        from runtime.profile import profile

        return profile(self, inputs, repeat)

    @property
    def executors(self) -> ExecutorPool:
        """Made on first use, then kept: buffers and views are set up once."""
        pool = self._pool
        if pool is None:
            with self._making:
                pool = self._pool
                if pool is None:
                    pool = self._pool = ExecutorPool(HostExecutor(self.commands, self.legal.weights, self.fusion.frozen))
        return pool

    @property
    def executor(self) -> HostExecutor:
        """The first of ``executors``: the one that runs where none overlap, and that params are set in."""
        return self.executors.first

    def run(self, inputs: Mapping[str, Array], sanitize: bool = False, timed: bool = False) -> dict[str, Array]:
        """Outputs by name for inputs by name, on the planned arena. ``sanitize`` audits every thunk; ``timed`` fills
        ``executor.seconds``.

        Safe for threads, and for a kernel that runs the compilation it is called from: runs at the same time get arenas of
        their own (``ExecutorPool``), one more for each.

        A param may be given by name too, for this run alone (an ONNX initializer that is an input as well): such a run has
        a copy of the weights. ``RunError`` for one whose value fusion computed with.
        """
        given = [name for name in inputs if name in self.legal.weights or name in self.fusion.frozen]
        if given:
            return self._run_with(given, inputs, sanitize, timed)
        pool = self._pool or self.executors
        executor = pool.take()
        try:
            out = executor.run(inputs, sanitize=sanitize, timed=timed)
            if timed and executor is not pool.first:
                pool.first.seconds = executor.seconds.copy()
            return out
        finally:
            pool.give(executor)


    def _run_with(self, given: list[str], inputs: Mapping[str, Array], sanitize: bool, timed: bool) -> dict[str, Array]:
        one = HostExecutor(self.commands, self.legal.weights, self.fusion.frozen)
        for name in given:
            one.set_param(name, inputs[name])
        return one.run({k: v for k, v in inputs.items() if k not in given}, sanitize=sanitize, timed=timed)


def legalise(graph: Graph, options: CompileOptions) -> Graph:
    """What the target stores and runs: casts of the precision policy; the host runs every op as it is."""
    return graph if options.precision is None else apply_precision(graph, options.precision)


MOST_KEPT = 6
"""Results of one stage that a compilation and those made from it keep."""


class _Stages:
    """The stages of one source graph, each result kept under what it was made from. Safe for threads: two that want the
    same may both make it, and one's is kept."""

    def __init__(self, source: Graph, fusion: Fusion | None = None, target: Target | None = None) -> None:
        self.source = source
        self._kept: dict[str, OrderedDict[Hashable, tuple[Any, float]]] = {}
        self._lock = threading.Lock()
        if fusion is not None:
            self._kept["fuse"] = OrderedDict({(target, fusion.options): (fusion, 0.0)})

    def _stage(self, name: str, key: Hashable, make: Callable[[], _T], timings: dict[str, float]) -> _T:
        kept = self._kept.setdefault(name, OrderedDict())
        with self._lock:
            found = kept.get(key)
            if found is not None:
                kept.move_to_end(key)
        if found is None:
            start = time.perf_counter()
            found = make(), time.perf_counter() - start
            with self._lock:
                kept[key] = found
                if len(kept) > MOST_KEPT:
                    kept.popitem(last=False)
        timings[name] = found[1]
        made: _T = found[0]
        return made

    def planned(self, options: CompileOptions) -> MemoryPlan:
        """The plan under these options; nothing is lowered."""
        return self._planned(options, {})[2]

    def _planned(self, options: CompileOptions, timings: dict[str, float]) -> tuple[Fusion, Graph, MemoryPlan, tuple[Hashable, ...]]:
        """(fusion, legal graph, plan, what they were made from)."""
        key: tuple[Hashable, ...] = (options.target, options.fusion_used)
        fusion = self._stage("fuse", key, lambda: fuse_graph(self.source, options.target, options.fusion_used), timings)
        key = (*key, options.half)
        legal = self._stage("legalise", key, lambda: legalise(fusion.graph, options), timings)
        wanted = options.plan_for(legal)
        key = (*key, wanted)
        return fusion, legal, self._stage("plan", key, lambda: plan_graph(legal, wanted), timings), key

    def compile(self, options: CompileOptions) -> Compilation:
        """Every stage under these options."""
        timings: dict[str, float] = {}
        fusion, legal, plan, key = self._planned(options, timings)
        self._stage("verify", key, lambda: require_sound(legal, plan), timings)
        key = (*key, options.lower_used)
        before = self._stage("lower", key, lambda: lower_graph(legal, plan, options.lower_used), timings)
        key = (*key, options.passes_used)
        passed = self._stage("passes", key, lambda: _passed(before, options.passes_used, fusion), timings)
        return Compilation(options, self.source, fusion, legal, plan, before, passed, timings, self)


def _passed(before: CommandList, options: PassOptions, fusion: Fusion) -> PassResult:
    passed = run_passes(before, options)
    known = passed.commands.provenance
    if known is None:
        return passed
    known = dataclasses.replace(known, fusion=fusion, passes=passed.log)
    return dataclasses.replace(passed, commands=dataclasses.replace(passed.commands, provenance=known))


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> Compilation:
    """Graph to command list, every stage kept and timed.

    Raises ``PlanError`` with the violations of an unsound plan, ``LoweringError`` for an op that can't run here,
    ``UnboundDimError`` for a symbol without a value.
    """
    options = (options or CompileOptions()).at_compile()
    already = bound_symbols(graph)
    graph = graph.bind({k: v for k, v in options.dims.values if already.get(k) != v}) if options.dims.values else graph
    return _Stages(graph).compile(options)


def compile_template(fusion: Fusion, options: CompileOptions) -> Compilation:
    """A graph that was fused with its symbols open, bound by ``options.dims`` and compiled from there on."""
    options = options.at_compile()
    bound = dataclasses.replace(fusion, source=fusion.source.bind(options.dims), graph=fusion.graph.bind(options.dims))
    return _Stages(bound.source, bound, options.target).compile(options)
