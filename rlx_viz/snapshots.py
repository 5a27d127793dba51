"""Owns ``snapshot``: one compilation as the columnar document that every picture and export is made from.

The tables' makers are in ``rlx_viz/snapshot_tables/``.
"""

from __future__ import annotations

from typing import Any

from rlx_viz.columns import ColumnDocument, StringTable, Tables
from rlx_viz.snapshot_tables.claims import body_tables
from rlx_viz.snapshot_tables.commands import command_tables, profile_table
from rlx_viz.snapshot_tables.decisions import decision_tables
from rlx_viz.snapshot_tables.figures import counters, estimates
from rlx_viz.snapshot_tables.graphs import graph_tables
from rlx_viz.snapshot_tables.meta import meta_of
from rlx_viz.snapshot_tables.names import Names
from rlx_viz.snapshot_tables.tensors import families_of, plan_tables
from runtime.compile import Compilation
from runtime.profile import Profile

__all__ = ["snapshot", "with_profile"]


def snapshot(compilation: Compilation, *, name: str = "", command: str = "", redact: bool = False,
             profile: Profile | None = None) -> ColumnDocument:
    """The document of a compilation: ≤ 64 bytes a tensor in ``tensors``, other tables apart.

    ``name`` is shown for the graph's own; ``command`` goes into the footer. ``redact`` replaces names and sources by
    stable tokens (``t12``, ``n7`` before fusion, ``s3``), keeping ops, shapes and numbers. ``profile``: of a run of
    this compilation.
    """
    c, strings, names = compilation, StringTable(), Names(redact)
    families = families_of(c.source, c.legal)
    meta = meta_of(c, name, command, names, families)
    tables: Tables = plan_tables(c, names, strings, families, meta["classes"])
    rules, decisions = decision_tables(c, names, strings)
    tables |= graph_tables(c.fusion, c.legal, names, strings, families) | decisions
    tables |= command_tables(c, names, strings) | body_tables(c.plan, c.legal, names, strings)
    if profile is not None:
        tables["profile"] = profile_table(profile)
    meta |= {**rules, "counters": counters(c), "source_is_tensors": "source" not in tables}
    estimated: dict[str, Any] | None = estimates(c)
    if estimated is not None:
        meta["estimate"] = estimated
    return ColumnDocument(meta, strings.strings(), tables)


def with_profile(doc: ColumnDocument, profile: Profile) -> ColumnDocument:
    """The document with the times of a run of the same compilation."""
    return ColumnDocument(doc.meta, doc.strings, {**doc.tables, "profile": profile_table(profile)})
