"""Owns the tables that the fusion graph is drawn from: ``layout``, ``source``, ``source_edges``, ``groups``,
``group_edges``. Places come from ``planner_core.fusion.views``; a graph's are made once and kept with it."""

from __future__ import annotations

import math

import numpy as np

from planner_core.fusion import Fusion, Modules, layered_layout, module_counts, modules
from planner_core.ir import Graph
from planner_core.memory import facts_of
from planner_core.memory.facts import CONSTANT, PARAM
from rlx_viz.columns import Column, StringTable
from rlx_viz.snapshot_tables.names import Names, text_columns
from rlx_viz.snapshot_tables.tensors import NONE, family_codes

__all__ = ["MOST_DRAWN", "MOST_GROUPS", "graph_tables", "node_bytes"]

MOST_GROUPS = 100
CLEAR_GROUPS = 38
"""Groups whose names can be read at one glance."""
MOST_DRAWN = 50_000
"""Nodes above which a graph is drawn by groups only: no ``layout``, no ``source_edges``, and of ``source`` only what names and
places a node: ``name``, ``op``, ``family``, ``fused``, ``group``."""
_NOT_DRAWN = -1.0


def graph_tables(
    fusion: Fusion, legal: Graph, names: Names, strings: StringTable, families: list[str]
) -> dict[str, dict[str, Column]]:
    """``layout`` and the ``source`` tables up to ``MOST_DRAWN`` nodes (above: ``source`` in short); none of the
    source if fusion changed nothing. Groups of the source always."""
    source = fusion.source
    drawn = max(len(source), len(legal)) <= MOST_DRAWN
    groups = _groups(source)
    place = source.derived(_group_layout)
    u4 = np.uint32
    ids = np.flatnonzero(groups.group >= 0)
    of = groups.group[ids]
    tables: dict[str, dict[str, Column]] = {
        "groups": {
            "name": strings.intern_all(names.module(n) for n in groups.names), "count": groups.count.astype(u4),
            "layer": place[0], "x": place[1],
            "first": ids[np.searchsorted(of, np.arange(len(groups.names)))].astype(u4),
            "last": ids[np.searchsorted(of, np.arange(len(groups.names)), side="right") - 1].astype(u4),
        },
        "group_edges": {"src": groups.src.astype(u4), "dst": groups.dst.astype(u4), "bytes": groups.edge_bytes},
    }
    if drawn:
        tables["layout"] = dict(zip(("layer", "x"), _layout(legal), strict=True))
    if source is fusion.graph:
        return tables
    fused = np.asarray(fusion.fused_of, dtype=np.int64)
    tables["source"] = {
        **{k: v for k, v in text_columns(source, names, strings, source=True).items() if drawn or k in ("name", "op")},
        "family": family_codes(source, families),
        "fused": np.where(fused < 0, NONE, fused).astype(u4),
        "group": np.where(groups.group < 0, NONE, groups.group).astype(u4),
    }
    if drawn:
        ptr, flat = source.edges
        tables["source"] |= {"bytes": node_bytes(source), **dict(zip(("layer", "x"), _layout(source), strict=True))}
        tables["source_edges"] = {"src": flat.astype(u4), "dst": np.repeat(np.arange(len(source), dtype=u4), np.diff(ptr))}
    return tables


def node_bytes(graph: Graph) -> Column:
    """Bytes of each node's value in its own dtype; 0 where an extent is unknown."""
    return graph.derived(_node_bytes)


def _node_bytes(graph: Graph) -> Column:
    elements = facts_of(graph).elements.tolist()
    sizes = [n.dtype.nbytes(e) if e >= 0 else 0 for n, e in zip(graph.nodes, elements, strict=True)]
    return np.asarray(sizes, dtype=np.float64)


def _layout(graph: Graph) -> tuple[Column, Column]:
    """Layer and place of each node; params and constants get layer 0 and place -1: not drawn."""
    return graph.derived(_place)


def _place(graph: Graph) -> tuple[Column, Column]:
    boundary = facts_of(graph).boundary
    shown = np.flatnonzero((boundary != PARAM) & (boundary != CONSTANT))
    number = np.full(len(graph), -1, dtype=np.int64)
    number[shown] = np.arange(len(shown))
    ptr, flat = graph.edges
    src, dst = number[flat], number[np.repeat(np.arange(len(graph)), np.diff(ptr))]
    keep = src >= 0
    made = layered_layout(len(shown), src[keep], dst[keep])
    layer, x = np.zeros(len(graph), dtype=np.uint32), np.full(len(graph), _NOT_DRAWN, dtype=np.float32)
    layer[shown], x[shown] = made.layer, made.x
    return layer, x


# --- groups -------------------------------------------------------------------------------------------


def _groups(source: Graph) -> Modules:
    """Module runs at the depth that makes the clearest picture, at most ``MOST_GROUPS``."""
    return source.derived(_best_groups)


def _best_groups(source: Graph) -> Modules:
    return modules(source, _depth(source), MOST_GROUPS)


def _depth(source: Graph) -> int:
    """The depth whose number of groups is nearest to ``CLEAR_GROUPS``, by ratio."""
    off = [abs(math.log(min(max(n, 1), MOST_GROUPS) / CLEAR_GROUPS)) for n in module_counts(source)]
    return 1 + off.index(min(off))


def _group_layout(source: Graph) -> tuple[Column, Column]:
    groups = _groups(source)
    made = layered_layout(len(groups.names), groups.src, groups.dst)
    return made.layer.astype(np.uint32), made.x.astype(np.float32)
