"""Owns ``decisions`` and ``decision_nodes``: what fusion rules and command passes did and refused.

Fusion anchors and nodes are node ids of the source, those of passes indices into ``commands_before``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.fusion import RULES
from rlx_viz.columns import Column, StringTable
from rlx_viz.snapshot_tables.names import Names
from runtime.compile import Compilation
from runtime.passes import PASSES

__all__ = ["STAGES", "decision_tables"]

STAGES = ("fusion", "passes")


def decision_tables(c: Compilation, names: Names, strings: StringTable) -> tuple[dict[str, Any], dict[str, dict[str, Column]]]:
    """(meta's ``decision_rules`` and ``reasons``, the two tables); reasons are those that occur, in order."""
    rules = [*(("fusion", r.name, r.doc) for r in RULES.values()), *(("passes", p.name, p.doc) for p in PASSES)]
    code = {(stage, name): i for i, (stage, name, _) in enumerate(rules)}
    reasons: dict[Any, int] = {None: 0}
    found = [*c.fusion_log, *c.pass_log]
    nodes = [d.nodes for d in found]
    counts = [len(n) for n in nodes]
    meta: dict[str, Any] = {
        "decision_rules": [{"stage": s, "name": n, "doc": d} for s, n, d in rules],
    }
    tables: dict[str, dict[str, Column]] = {
        "decisions": {
            "stage": np.asarray([STAGES.index(d.stage) for d in found], np.uint8),
            "rule": np.asarray([code[d.stage, d.rule] for d in found], np.uint8),
            "verdict": np.asarray([d.applied for d in found], np.uint8),
            "anchor": np.asarray([d.anchor for d in found], np.uint32),
            "reason": np.asarray([reasons.setdefault(d.reason, len(reasons)) for d in found], np.uint8),
            "facts": strings.intern_all(names.facts(d.facts) for d in found),
            "bytes": np.asarray([d.bytes_saved for d in found], np.float64),
            "dispatches": np.asarray([d.dispatches_saved for d in found], np.int32),
        },
        "decision_nodes": {
            "decision": np.repeat(np.arange(len(found), dtype=np.uint32), counts),
            "node": np.asarray([i for n in nodes for i in n], np.uint32),
        },
    }
    meta["reasons"] = [{"name": "", "text": ""} if r is None else {"name": r.name.lower(), "text": str(r.value)}
                       for r in reasons]
    return meta, tables
