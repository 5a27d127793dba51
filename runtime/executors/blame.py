"""Owns the last part of a sanitizer's report: which rule, pass or lowering to look at. Asked only once something is wrong."""

from __future__ import annotations

from planner_core.ir import NodeId
from planner_core.memory.explain import last_rule
from planner_core.memory.rules import RULES
from runtime.command_list import CommandList, SlotLife
from runtime.command_list.provenance import Provenance
from runtime.executors.audit_values import groups, thunks_of

__all__ = ["blame_of_slot", "blame_of_thunk", "blame_of_value"]


def blame_of_thunk(commands: CommandList, i: int) -> str:
    """The command passes that made thunk i; else the fusion rules that made its node; and the lowering of that node."""
    node = commands.node_of[i]
    lowering = f"lowering of {commands.node_names[node] if node < len(commands.node_names) else f'%{node}'}"
    known: Provenance | None = commands.provenance
    if known is None:
        return f"{lowering} (the list carries no graph, plan or log)"
    changed = commands.thunks is not known.thunks and commands.thunks[i] not in thunks_of(known.thunks, known.node_of).get(node, ())
    if changed:
        return _passes(commands, known, node) or f"{lowering}; the thunk is not the lowered one, and no pass logged a change"
    rules = _fusion(known, node)
    return f"fusion rule {rules}, then {lowering}" if rules else lowering


def blame_of_value(commands: CommandList, node: NodeId) -> str:
    """The passes after which other thunks, or none, make a node's value; empty where none did."""
    known: Provenance | None = commands.provenance
    if known is None or commands.thunks is known.thunks:
        return ""
    before, now = (thunks_of(c.thunks, c.node_of).get(node, ()) for c in (known, commands))
    return _passes(commands, known, node) if before != now else ""


def _passes(commands: CommandList, known: Provenance, node: NodeId) -> str:
    if known.passes is None:
        with_ = groups(commands, known).get(node, frozenset((node,)))
        return ("" if len(with_) == 1 else
                f"a command pass (the list carries no log) that merged {', '.join(commands.node_names[n] for n in sorted(with_))}")
    found = [d for d in known.passes.applied() if any(known.node_of[k] == node for k in (d.anchor, *d.nodes))]
    return ", then ".join(f"command pass {d.rule} at thunk {d.anchor} before passes" for d in found)


def _fusion(known: Provenance, node: NodeId) -> str:
    """Rules that made a node of the legal graph; casts that legalisation put in have none."""
    f = known.fusion
    if f is None:
        return ""
    if known.graph is not f.graph:
        name = known.graph[node].name
        same = [n.id for n in f.graph.nodes if name and n.name == name]
        if len(same) != 1:
            return ""
        node = same[0]
    origins = set(f.origins[node])
    return " and ".join(dict.fromkeys(d.rule for d in f.log.applied() if origins & {d.anchor, *d.nodes}))


def blame_of_slot(commands: CommandList, slot: SlotLife) -> str:
    """What set the slot's place and life: liveness rules, in-place takeovers, the placement, a pass."""
    known: Provenance | None = commands.provenance
    if known is None:
        return f"the plan's slot of %{slot.node} {slot.name!r}"
    plan, graph = known.plan, known.graph
    whole = {i for pair in plan.inplace for i in pair}
    chain = [slot.node]
    for old, new in plan.inplace:
        if old in chain:
            chain.append(new)
    last, rule = chain[-1], int(last_rule(plan)[chain[-1]])
    death = int(plan.death[last])
    by = f"liveness rule {RULES[rule].name}" if rule >= 0 else f"death rule: last read at step {int(plan.last_read[last])}"
    parts = [f"{by} (the plan lets {graph[last].label!r} die at step {death})"]
    if slot.death != death and slot.space == "arena":
        parts.append(f"the list's slot dies at step {slot.death}: changed by a pass, or after planning")
    if len(chain) > 1 or slot.node in whole:
        parts.append("in-place rule: " + " hands its bytes to ".join(f"%{n} {graph[n].label!r}" for n in chain))
    start, size = int(plan.offset[slot.node]), int(plan.size[slot.node])
    if not (start <= slot.offset and slot.offset + slot.size <= start + size):
        parts.append(f"the plan put it at [{start}, {start + size})")
    return "; ".join([*parts, f"placement {plan.options.placement}"])
