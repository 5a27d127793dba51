"""Owns tables for analysis: pandas frames of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from planner_core.frames import typed
from planner_core.zoo import SweepRow
from rlx_viz.columns import ColumnDocument
from rlx_viz.whatif import STEP, counterfactuals, waterfall
from runtime.compile import Compilation
from runtime.steps import birth_steps, death_steps

__all__ = ["commands_frame", "decisions_frame", "savings_frame", "sweep_frame", "tensors_frame"]


def tensors_frame(doc: ColumnDocument) -> pd.DataFrame:
    """One row a tensor, names and kinds as text. ``birth``, ``death``, ``last_read`` are steps, which count commands that
    run (inclusive; the number of commands: kept to the end); the same in nodes beside them. ``offset_bytes`` is empty
    where a tensor has no slot. A document without commands (a problem file) has its own steps in both."""
    t, meta, text = doc.tables["tensors"], doc.meta, doc.strings
    space = [meta["spaces"][i] for i in t["space"]]
    born, dead, read = (t[k].astype(np.int64) for k in ("birth", "death", "last_read"))
    if "commands" in doc.tables:
        nodes, last = doc.tables["commands"]["node"], len(born)
        steps = birth_steps(nodes, born), death_steps(nodes, born, dead, last), death_steps(nodes, born, read, last)
    else:
        steps = born, dead, read
    return typed({
        "id": (range(len(born)), "int64"),
        **{k: ([text[i] for i in t[k]], "object") for k in ("name", "op", "shape")},
        "dtype": ([meta["dtypes"][i] for i in t["dtype"]], "object"),
        "kind": ([meta["kinds"][i] for i in t["kind"]], "object"),
        "space": (space, "object"),
        "birth": (steps[0], "int64"), "death": (steps[1], "int64"), "last_read": (steps[2], "int64"),
        "birth_node": (born, "int64"), "death_node": (dead, "int64"), "last_read_node": (read, "int64"),
        "kept_by": ([meta["rules"][i]["name"] for i in t["rule"]], "object"),
        "offset_bytes": ([int(o) if s != "none" else None for o, s in zip(t["offset"], space, strict=True)], "Int64"),
        "size_bytes": (t["size"], "int64"), "guard_bytes": (t["guard"], "int64"),
        "root": (t["root"], "int64"),
        "is_output": ((t["flags"] & 1) != 0, "bool"),
        "source": ([text[i] for i in t["source"]], "object"),
    })


def decisions_frame(doc: ColumnDocument) -> pd.DataFrame:
    """One row a decision of a fusion rule or a command pass: what it did, or the reason why not. ``anchor`` is a node
    of the source (fusion) or an index into the list before passes; ``label`` names it; bytes and dispatches saved."""
    t, meta, text = doc.tables["decisions"], doc.meta, doc.strings
    rules, reasons = meta["decision_rules"], meta["reasons"]
    source = doc.tables.get("source", doc.tables["tensors"])["name"]
    before = doc.tables["commands_before"]["node"]
    names = doc.tables["tensors"]["name"]
    stage = [rules[i]["stage"] for i in t["rule"]]
    label = [source[a] if s == "fusion" else names[before[a]] for s, a in zip(stage, t["anchor"].tolist(), strict=True)]
    return typed({
        "stage": (stage, "object"),
        "rule": ([rules[i]["name"] for i in t["rule"]], "object"),
        "verdict": (["applied" if v else "refused" for v in t["verdict"]], "object"),
        "anchor": (t["anchor"], "int64"),
        "label": ([text[i] for i in label], "object"),
        "reason": ([reasons[i]["name"] for i in t["reason"]], "object"),
        "explanation": ([reasons[i]["text"] for i in t["reason"]], "object"),
        "facts": ([text[i] for i in t["facts"]], "object"),
        "bytes_saved": (t["bytes"], "int64"),
        "dispatches_saved": (t["dispatches"], "int64"),
    })


def commands_frame(doc: ColumnDocument) -> pd.DataFrame:
    """One row a command that runs: its step, label, the tensor it makes with its node index, where the target would run
    it (gpu, host, or none: it does nothing), bytes read, written and of scratch. After a run also where it ran (``ran_on``:
    our host executor), ``us`` and ``flops``."""
    t, text = doc.tables["commands"], doc.strings
    names = doc.tables["tensors"]["name"]
    frame = typed({
        "step": (range(len(t["label"])), "int64"),
        "command": ([text[i] for i in t["label"]], "object"),
        "node": ([text[names[n]] for n in t["node"]], "object"),
        "node_id": (t["node"], "int64"),
        "planned_on": ([("none", "gpu", "host")[w] for w in t["where"]], "object"),
        "read_bytes": (t["read"], "int64"), "written_bytes": (t["written"], "int64"), "scratch_bytes": (t["scratch"], "int64"),
    })
    if "profile" in doc.tables:
        frame["ran_on"] = "host"
        frame["us"] = doc.tables["profile"]["us"].astype("float64")
        frame["flops"] = doc.tables["profile"]["flops"].astype("int64")
    return frame


def savings_frame(compilation: Compilation, order: Sequence[str] = ()) -> pd.DataFrame:
    """What each change saved, told in two ways; negative: saved. One row a change, between the start and the number to
    allocate, which the ``_in_order`` columns sum to exactly.

    ``bytes_in_order``, ``traffic_bytes_in_order``, ``dispatches_in_order``: on top of the rows before (``order``: as for
    ``whatif.waterfall``). ``bytes_alone``, ``arena_bytes_alone``, ``traffic_bytes_alone``, ``dispatches_alone``: this plan
    with it against this plan without it; empty where nothing switches it or it is off.
    """
    others = {o.option: o for o in counterfactuals(compilation)}
    rows = waterfall(compilation, order=order)
    alone = [others.get(r.option) if r.kind == STEP and r.option else None for r in rows]
    return typed({
        "change": ([r.label for r in rows], "object"), "option": ([r.option for r in rows], "object"),
        "bytes_in_order": ([r.nbytes for r in rows], "int64"), "traffic_bytes_in_order": ([r.traffic for r in rows], "int64"),
        "dispatches_in_order": ([r.dispatches for r in rows], "int64"),
        "bytes_alone": ([o and o.saved for o in alone], "Int64"), "arena_bytes_alone": ([o and o.arena_saved for o in alone], "Int64"),
        "traffic_bytes_alone": ([o and o.traffic_saved for o in alone], "Int64"),
        "dispatches_alone": ([o and o.dispatches_saved for o in alone], "Int64"),
    })


def sweep_frame(rows: Sequence[SweepRow]) -> pd.DataFrame:
    """One row a size: a column for each swept name, then arena, bound and number to allocate, in bytes."""
    names = dict.fromkeys(k for r in rows for k, _ in r.binding)
    frame = pd.DataFrame({k: [dict(r.binding).get(k) for r in rows] for k in names})
    for name in ("arena", "bound", "allocate"):
        frame[f"{name}_bytes"] = pd.Series([getattr(r, name) for r in rows], dtype="int64")
    return frame
