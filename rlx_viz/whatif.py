"""Owns what-ifs: what each rule and option saved, told in two ways that may differ, and what flipping a toggle would do.

*In this order* (``waterfall``): each change on top of those before it, with exact sums; the order can be chosen. *Alone*
(``counterfactuals``): this plan without one thing, all else equal. Both plan again many times, so callers run them behind
a picture and can stop them between two plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from planner_core.errors import OptionError, RlxError
from planner_core.fusion import RULES, Fusion, fuse_graph, no_fusion
from planner_core.ir import Graph
from planner_core.memory import NO_SLOT, PlanOptions, plan_graph
from planner_core.options import options_of
from rlx_viz.columns import Column, ColumnDocument, StringTable
from rlx_viz.snapshot_tables.figures import counters, working_nodes
from rlx_viz.snapshot_tables.graphs import node_bytes
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.compile import Compilation, OptionRow

__all__ = ["CHEAP_NODES", "SAVINGS_NODES", "Counterfactual", "Step", "Stopped", "Work",
           "counterfactuals", "step_labels", "waterfall", "whatif_document", "with_whatif", "work_of"]

SAVINGS_NODES, CHEAP_NODES = 20_000, 1_000
"""Source nodes up to which a report carries the savings, and what each toggle would free: about two seconds of work
each. By count, so that equal input gives equal bytes."""
START, STEP, END = 0, 1, 2
_IDLE_GROUPS = frozenset({"checks", "log", "host"})
"""Options that decide what is checked, printed or run where: no bytes hang on them."""

Stop = Callable[[], bool]


class Stopped(Exception):
    """The work was called off; nothing of it is shown."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the waterfall. ``kind`` 0: the start, every tensor with its own bytes; 1: a change; 2: the number to
    allocate. Start and changes sum to the end exactly, in every column. ``option``: what switches the change, "" for none.
    ``traffic``: bytes of intermediate values written in a run; ``dispatches``: commands of a run."""

    label: str
    kind: int
    option: str
    nbytes: int
    traffic: int = 0
    dispatches: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactual:
    """One toggle the other way, alone: the number to allocate then, what that saves (negative: costs) of it, of the
    arena, of intermediate traffic (bytes) and of dispatches, and the tensors that would die earlier, with their step then
    (its birth for one that would not exist)."""

    option: str
    value: bool
    allocate: int
    saved: int
    nodes: Column
    deaths: Column
    arena_saved: int = 0
    traffic_saved: int = 0
    dispatches_saved: int = 0


class Work(NamedTuple):
    """What a run writes between commands (bytes), and how many commands it has."""

    traffic: int
    dispatches: int


def work_of(c: Compilation) -> Work:
    """Of the list that runs, passes counted."""
    counted = counters(c)
    return Work(int(counted["traffic"]) - c.pass_log.bytes_saved, c.commands.dispatches)


@dataclass(frozen=True, slots=True)
class _Change:
    """One step of the way from nothing shared to the plan: plan options, or a fusion rule, or that views share."""

    label: str
    option: str
    plan: tuple[tuple[str, Any], ...] = ()
    rule: str = ""


def waterfall(c: Compilation, stop: Stop = _never, order: Sequence[str] = ()) -> list[Step]:
    """From "every tensor of the source its own bytes" to the number to allocate, each change on top of those before it:
    views, reuse, width policy, elided transposes, the fusion rules that applied, then each option that this plan sets;
    passes and kernels' scratch last. So a fusion rule is told what it saves of an arena that reuses bytes.

    ``order``: labels in the order wanted, for all or some; the others follow in theirs. ``OptionError`` names one that
    is no step of this plan.
    """
    changes = _ordered(_changes(c), order)
    source = counters(c)
    now = _least(c)
    graph, own_views, rules = c.source, True, set[str]()
    total, traffic, calls = _bytes_of(graph, now, own_views), int(source["traffic_source"]), int(source["dispatches_source"])
    out = [Step("every tensor its own bytes", START, "", total, traffic, calls)]
    known = {o.name for o in options_of(PlanOptions)}
    before = calls
    for change in changes:
        _check(stop)
        more, fewer = 0, 0
        if change.rule:
            rules.add(change.rule)
            fused, saved = _fused_by(c, frozenset(rules))
            more, graph = _traffic(fused) - _traffic(graph), fused
            fewer, before = before - (calls - saved), calls - saved
        elif change.label == "views":
            own_views = False
        else:
            now = now.replace(**dict(change.plan))
        after = _bytes_of(graph, now, own_views)
        idle = after == total and not change.rule and (change.label not in known or all(
            value == getattr(PlanOptions(), name) for name, value in change.plan))
        if not idle:
            out.append(Step(change.label, STEP, change.option, after - total, more, -fewer))
        total = after
    _check(stop)
    final = c.plan.arena_size + c.plan.weights_size
    if c.legal is not graph or final != total:
        out.append(Step("legalised" if c.legal is not graph else "shared weights", STEP, "", final - total, _traffic(c.legal) - _traffic(graph)))
        if not (out[-1].nbytes or out[-1].traffic):
            out.pop()
    out += _pass_steps(c)
    scratch = c.allocate_bytes - final
    if scratch:
        out.append(Step("kernels' scratch", STEP, "", scratch))
    return [*out, Step("to allocate", END, "", c.allocate_bytes, *work_of(c))]


def step_labels(c: Compilation) -> list[str]:
    """The changes that a waterfall's ``order`` may name, in their usual order."""
    return [change.label for change in _changes(c)]


def _least(c: Compilation) -> PlanOptions:
    """Options of the start: nothing reused, nothing kept longer than its reads; alignment and placement as in the plan."""
    final = c.plan.options
    now = PlanOptions(arena_no_reuse=True, alignment=final.alignment, placement=final.placement)
    return now.replace(**{o.name: False for o in options_of(PlanOptions) if o.group == "liveness"})


def _changes(c: Compilation) -> list[_Change]:
    """Every step of this compilation, in the default order."""
    final, now = c.plan.options, _least(c)
    first = [_Change("views", ""), _Change("reuse", "arena_no_reuse", (("arena_no_reuse", final.arena_no_reuse),)),
             _Change("width policy", "width_policy", (("width_policy", final.width_policy),)),
             _Change("elided transposes", "elide_bank_transposes", tuple(
                 (k, getattr(final, k)) for k in ("elide_bank_transposes", "elide_requires_small_m")))]
    done = {name for change in first for name, _ in change.plan}
    rules = [_Change(name, name, rule=name) for name in RULES if c.fusion_log.applied(name)] if c.source is not c.fused else []
    rest = [_Change(o.name, o.name, ((o.name, getattr(final, o.name)),)) for o in options_of(PlanOptions)
            if o.name not in done and o.group != "checks" and getattr(final, o.name) != getattr(now, o.name)]
    return [*first, *rules, *rest]


def _ordered(changes: list[_Change], order: Sequence[str]) -> list[_Change]:
    by_label = {change.label: change for change in changes}
    stray = [label for label in order if label not in by_label]
    if stray:
        raise OptionError(f"no step {stray[0]!r} in this waterfall; wanted an order of {', '.join(by_label)}")
    chosen = [by_label[label] for label in dict.fromkeys(order)]
    return [*chosen, *(change for change in changes if change not in chosen)]


def _bytes_of(graph: Graph, options: PlanOptions, own_views: bool) -> int:
    plan = plan_graph(graph, options, own_views=own_views)
    return plan.arena_size + plan.weights_size


def _fused_by(c: Compilation, rules: frozenset[str]) -> tuple[Graph, int]:
    """The source under those rules alone, and the dispatches that their log counts as saved."""
    if rules == frozenset(name for name in RULES if c.fusion_log.applied(name)):
        return c.fused, c.fusion_log.dispatches_saved
    some = dataclasses.replace(no_fusion(), fusion=True, decode_forms=c.fusion.options.decode_forms,  # type: ignore[type-var]
                               **{name: name in rules for name in RULES})
    fusion = fuse_graph(c.source, c.options.target, some)
    return fusion.graph, fusion.log.dispatches_saved


def _traffic(graph: Graph) -> int:
    return int(node_bytes(graph)[working_nodes(graph)].sum())


def _pass_steps(c: Compilation) -> Iterator[Step]:
    """What each command pass that applied saved of traffic and dispatches: the arena stays."""
    known = {row.info.name for row in c.option_rows()}
    for name in dict.fromkeys(d.rule for d in c.pass_log.applied()):
        done = c.pass_log.applied(name)
        yield Step(name, STEP, name if name in known else "", 0, -sum(d.bytes_saved for d in done), -sum(d.dispatches_saved for d in done))


# --- the other way ------------------------------------------------------------------------------------


def counterfactuals(c: Compilation, stop: Stop = _never) -> Iterator[Counterfactual]:
    """Each boolean option flipped alone: the plan's first, then the passes', then fusion's. Toggles that can't
    matter are left out (a rule that is on and never applied), and so are those that change nothing when tried."""
    rows = {stage: [r for r in c.option_rows() if r.stage == stage] for stage in ("plan", "passes", "fusion")}
    here = work_of(c)
    for row in (r for stage in rows.values() for r in stage):
        if not _may_matter(c, row):
            continue
        _check(stop)
        value = not row.value
        try:
            other = c.with_options(**{row.info.name: value})
        except RlxError:
            continue  # no plan that way: nothing to offer
        nodes, deaths = _earlier(c, other)
        saved, then = c.allocate_bytes - other.allocate_bytes, work_of(other)
        if saved or len(nodes) or then != here:
            yield Counterfactual(row.info.name, value, other.allocate_bytes, saved, nodes, deaths,
                                 c.plan.arena_size - other.plan.arena_size, here.traffic - then.traffic, here.dispatches - then.dispatches)


def _may_matter(c: Compilation, row: OptionRow) -> bool:
    name, group = row.info.name, row.info.group
    if row.info.type != "bool" or group in _IDLE_GROUPS or name.startswith("allocate_"):
        return False  # who holds a boundary's bytes is the caller's affair, no saving
    if row.stage == "fusion" and name in RULES:
        return bool(c.fusion_log.applied(name)) if row.value else c.fusion.options.fusion
    if row.stage == "passes" and row.value:
        return bool(c.pass_log.applied())
    return True


def _earlier(c: Compilation, other: Compilation) -> tuple[Column, Column]:
    """(tensors of ``c`` with bytes that die earlier in ``other``, their step then in ``c``'s steps)."""
    plan, n = c.plan, len(c.legal)
    own = (plan.root == np.arange(n)) & (plan.space != NO_SLOT)
    if other.legal is c.legal:
        then = other.plan.death
    else:
        then = _deaths_through_source(c.fusion, other.fusion, c.plan.birth, c.plan.death, other.plan.root, other.plan.death)
    ids = np.flatnonzero(own & (then < plan.death))
    return ids.astype(np.uint32), np.maximum(then[ids], 0).astype(np.uint32)


def _deaths_through_source(now: Fusion, then: Fusion, birth: Column, death: Column, root: Column, other: Column) -> Column:
    """Deaths under another fusion in this one's steps: both are counted in the source's nodes, which they share.
    A death within a kernel of this one's reads as the step before it."""
    place_now, place_then = _places(now), _places(then)
    node_then = {max(o): j for j, o in enumerate(then.origins) if o}
    last_then = len(then.graph) - 1
    out = death.copy()
    for i, o in enumerate(now.origins):
        j = node_then.get(max(o)) if o else None
        if j is None:
            out[i] = birth[i] if o and then.fused_of[max(o)] >= 0 else death[i]
        else:
            step = min(int(other[int(root[j])]), last_then)
            if place_then[step] < place_now[min(int(death[i]), len(place_now) - 1)]:
                done = int(np.searchsorted(place_now, place_then[step], side="right")) - 1
                out[i] = max(done, int(birth[i]))
    return out


def _places(fusion: Fusion) -> Column:
    """The last source node that has run when a node of the fused graph has."""
    return np.maximum.accumulate(np.asarray([max(o, default=-1) for o in fusion.origins], dtype=np.int64))


def _check(stop: Stop) -> None:
    if stop():
        raise Stopped


# --- as a document ------------------------------------------------------------------------------------


def whatif_document(steps: list[Step], others: list[Counterfactual] | None, meta: dict[str, Any] | None = None) -> ColumnDocument:
    """Tables ``savings``, ``counterfactuals``, ``counterfactual_nodes`` alone, with strings of their own; without the
    last two while nobody knows them (None)."""
    strings = StringTable()
    tables = _tables(steps, others or [], strings)
    if others is None:
        tables = {"savings": tables["savings"]}
    return ColumnDocument(meta or {}, strings.strings(), tables)


def with_whatif(doc: ColumnDocument, c: Compilation, whatif: bool | None = True) -> ColumnDocument:
    """The document with the what-ifs of its compilation; None: those that its size makes cheap, False: as it is."""
    nodes = len(c.source)
    if not (nodes <= SAVINGS_NODES if whatif is None else whatif):
        return doc
    strings = StringTable()
    strings.intern_all(doc.strings)
    every = nodes <= CHEAP_NODES if whatif is None else True
    tables = _tables(waterfall(c), list(counterfactuals(c)) if every else [], strings)
    if not every:
        tables = {"savings": tables["savings"]}
    return ColumnDocument(doc.meta, strings.strings(), {**doc.tables, **tables})


def _tables(steps: list[Step], others: list[Counterfactual], strings: StringTable) -> dict[str, dict[str, Column]]:
    return {
        "savings": {
            "label": strings.intern_all(s.label for s in steps),
            "kind": np.asarray([s.kind for s in steps], np.uint8),
            "option": np.asarray([strings.intern(s.option) if s.option else NONE for s in steps], np.uint32),
            "bytes": np.asarray([s.nbytes for s in steps], np.float64),
            "traffic": np.asarray([s.traffic for s in steps], np.float64),
            "dispatches": np.asarray([s.dispatches for s in steps], np.float64),
        },
        "counterfactuals": {
            "option": strings.intern_all(o.option for o in others),
            "value": strings.intern_all(str(o.value).lower() for o in others),
            "allocate": np.asarray([o.allocate for o in others], np.float64),
            "saved": np.asarray([o.saved for o in others], np.float64),
            "arena_saved": np.asarray([o.arena_saved for o in others], np.float64),
            "traffic_saved": np.asarray([o.traffic_saved for o in others], np.float64),
            "dispatches_saved": np.asarray([o.dispatches_saved for o in others], np.float64),
        },
        "counterfactual_nodes": {
            "row": np.repeat(np.arange(len(others), dtype=np.uint32), [len(o.nodes) for o in others]),
            "node": np.concatenate([np.zeros(0, np.uint32), *(o.nodes for o in others)]).astype(np.uint32),
            "death": np.concatenate([np.zeros(0, np.uint32), *(o.deaths for o in others)]).astype(np.uint32),
        },
    }
