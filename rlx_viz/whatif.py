"""Owns what-ifs: what each rule and option saved (a waterfall with exact sums), and what flipping a toggle would do.

Both plan again many times, so callers run them behind a picture and can stop them between two plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner_core.errors import RlxError
from planner_core.fusion import RULES, Fusion, fuse_graph, no_fusion
from planner_core.ir import Graph
from planner_core.memory import NO_SLOT, PlanOptions, plan_graph
from planner_core.options import options_of
from rlx_viz.columns import Column, ColumnDocument, StringTable
from rlx_viz.snapshot_tables.tensors import NONE
from runtime.compile import Compilation, OptionRow

__all__ = ["CHEAP_NODES", "SAVINGS_NODES", "Counterfactual", "Step", "Stopped", "counterfactuals", "waterfall", "whatif_document", "with_whatif"]

SAVINGS_NODES, CHEAP_NODES = 20_000, 1_000
"""Source nodes up to which a report carries the savings, and what each toggle would free: about two seconds of work
each. By count, so that equal input gives equal bytes."""
START, STEP, END = 0, 1, 2
_OPTION_OF = {"reuse": "arena_no_reuse", "width policy": "width_policy", "elided transposes": "elide_bank_transposes"}
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
    allocate. Start and changes sum to the end exactly. ``option``: what switches the change, "" for none."""

    label: str
    kind: int
    option: str
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactual:
    """One toggle the other way: the number to allocate then, what that saves (negative: costs), and the tensors that
    would die earlier, with their step then (its birth for one that would not exist)."""

    option: str
    value: bool
    allocate: int
    saved: int
    nodes: Column
    deaths: Column


def waterfall(c: Compilation, stop: Stop = _never) -> list[Step]:
    """From "every tensor of the source its own bytes" to the number to allocate: each fusion rule that applied, in
    the rules' order, then the plan's changes (``planner_core.memory.savings``), then kernels' scratch."""
    start = _apart(c.source, c)
    out = [Step("every tensor its own bytes", START, "", start)]
    for rule, after in _fused_totals(c, stop):
        out.append(Step(rule, STEP, rule, after - start))
        start = after
    _check(stop)
    plan = c.plan.savings()
    rest = plan[0].after - start  # a graph rewritten by what no rule's switch names
    if rest:
        out.append(Step("legalised", STEP, "", rest))
    names = {o.name for o in options_of(PlanOptions)}
    out += [Step(s.name, STEP, _OPTION_OF.get(s.name, s.name if s.name in names else ""), s.delta) for s in plan[1:]
            if s.delta or s.name in names]  # an option that was set and changed nothing says so
    scratch = c.allocate_bytes - plan[-1].after
    if scratch:
        out.append(Step("kernels' scratch", STEP, "", scratch))
    return [*out, Step("to allocate", END, "", c.allocate_bytes)]


def _apart(graph: Graph, c: Compilation) -> int:
    """Arena and weights with nothing shared, not even by views, and nothing kept longer than its reads."""
    options = PlanOptions(arena_no_reuse=True, alignment=c.plan.options.alignment)
    options = options.replace(**{o.name: False for o in options_of(PlanOptions) if o.group == "liveness"})
    plan = plan_graph(graph, options, own_views=True)
    return plan.arena_size + plan.weights_size


def _fused_totals(c: Compilation, stop: Stop) -> Iterator[tuple[str, int]]:
    """(rule, bytes apart with the rules up to it on); the last one is the graph that was planned."""
    if c.source is c.fused:
        return
    applied = [name for name in RULES if c.fusion_log.applied(name)]
    every = dataclasses.replace(no_fusion(), fusion=True, decode_forms=c.fusion.options.decode_forms,
                                **dict.fromkeys(RULES, False))  # type: ignore[type-var]
    for k, name in enumerate(applied):
        _check(stop)
        if k == len(applied) - 1:
            yield name, _apart(c.fused, c)
        else:
            some = dataclasses.replace(every, **dict.fromkeys(applied[: k + 1], True))  # type: ignore[type-var]
            yield name, _apart(fuse_graph(c.source, c.options.target, some).graph, c)


# --- the other way ------------------------------------------------------------------------------------


def counterfactuals(c: Compilation, stop: Stop = _never) -> Iterator[Counterfactual]:
    """Each boolean option flipped alone: the plan's first, then the passes', then fusion's. Toggles that can't
    matter are left out (a rule that is on and never applied), and so are those that change nothing when tried."""
    rows = {stage: [r for r in c.option_rows() if r.stage == stage] for stage in ("plan", "passes", "fusion")}
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
        saved = c.allocate_bytes - other.allocate_bytes
        if saved or len(nodes):
            yield Counterfactual(row.info.name, value, other.allocate_bytes, saved, nodes, deaths)


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
        },
        "counterfactuals": {
            "option": strings.intern_all(o.option for o in others),
            "value": strings.intern_all(str(o.value).lower() for o in others),
            "allocate": np.asarray([o.allocate for o in others], np.float64),
            "saved": np.asarray([o.saved for o in others], np.float64),
        },
        "counterfactual_nodes": {
            "row": np.repeat(np.arange(len(others), dtype=np.uint32), [len(o.nodes) for o in others]),
            "node": np.concatenate([np.zeros(0, np.uint32), *(o.nodes for o in others)]).astype(np.uint32),
            "death": np.concatenate([np.zeros(0, np.uint32), *(o.deaths for o in others)]).astype(np.uint32),
        },
    }
