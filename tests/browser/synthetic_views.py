"""Synthetic documents with everything the explorer's views read: fusion, decisions, commands, savings, a comparison.

Built on `synthetic.make_document`: each of its tensors stands for one or two ops of a made-up source graph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlx_viz.columns import ColumnDocument, StringTable
from tests.browser.synthetic import make_document

NONE = 0xFFFFFFFF
PER_GROUP = 16
"""Tensors a module: one block of the synthetic transformer."""
FUSION_RULES = (("matmul_bias_act", "Bias and activation join the product."), ("residual_norm", "A residual sum joins its norm."))
PASS_RULES = (("merge_slices", "Neighbouring slices become one thunk."), ("elide_copies", "A copy onto itself is dropped."))
REASONS = (("", ""), ("SECOND_READER", "another op reads the value"), ("HAZARD", "its bytes are written in between"))
OPTIONS: tuple[tuple[str, str, str, Any, list[Any]], ...] = (
    ("fuse_matmul", "fusion: products", "bool", True, []),
    ("fuse_norm", "fusion: norms", "bool", True, []),
    ("merge_slices", "passes", "bool", True, []),
    ("strategy", "placement", "choice", "first_fit", ["first_fit", "best_fit"]),
)


def make_views_document(
    n: int, *, profile: bool = False, families: int = 0, late: bool = False, **plan: Any
) -> ColumnDocument:
    """A document of `n` tensors with every optional table. `families` replaces op families by that many of its own;
    `late` leaves out what is worked out in the background."""
    doc = make_document(n, **plan)
    strings = StringTable({text: at for at, text in enumerate(doc.strings)})
    tables, meta = dict(doc.tables), dict(doc.meta)
    tensors = dict(tables["tensors"])
    if families:
        meta["families"] = [f"family{k}" for k in range(families)]
        tensors["family"] = (np.arange(n) % families).astype(np.uint8)
        tables["tensors"] = tensors
    drawn = tensors["kind"] != 1
    layer, x = _layers(n, tables["edges"], drawn)
    tables["layout"] = {"layer": layer, "x": x}
    _source(doc, strings, tables, drawn)
    _decisions(strings, tables, meta)
    _commands(doc, strings, tables, drawn)
    count = len(tables["commands"]["node"])
    source = len(tables["source"]["name"])
    meta["counters"] = {"dispatches_source": source, "dispatches_before": len(tables["commands_before"]["node"]),
                        "dispatches": count, "traffic_source": 3 * 2**30, "traffic": 2**30}
    meta["estimate"] = {"device": "test", "title": "test device", "us_before": 8200.0, "us": 3100.5}
    meta["options"] = [*meta["options"], *(
        {"name": name, "group": group, "stage": "fusion", "type": kind, "value": value, "default": value, "choices": choices,
         "help": f"What {name} does.", "changed": False} for name, group, kind, value, choices in OPTIONS)]
    meta["presets"] = [{"name": "cautious", "doc": "Everything lives longer.", "options": {"pin_output_ancestors": True}}]
    if profile:
        tables["profile"] = {"us": (np.arange(count) % 7 * 10 + 1.5).astype(np.float32), "flops": np.full(count, 1e6)}
    result = ColumnDocument(meta, strings.strings(), tables)
    return result if late else with_late_tables(result)


def with_late_tables(doc: ColumnDocument) -> ColumnDocument:
    """The document with savings and counterfactuals."""
    strings = StringTable({text: at for at, text in enumerate(doc.strings)})
    tables = {**doc.tables, **late_tables(doc, strings)}
    return ColumnDocument(doc.meta, strings.strings(), tables)


def late_tables(doc: ColumnDocument, strings: StringTable) -> dict[str, dict[str, Any]]:
    """Savings that sum exactly, and one counterfactual for the first extended tensors."""
    head = doc.meta["headline"]
    start, end = int(head["naive"]) + int(head["weights"]), int(head["allocate"])
    half = (end - start) // 3
    steps = [("matmul_bias_act", "fuse_matmul", half), ("guards", "", 4096), ("reuse", "arena_no_reuse", end - start - half - 4096)]
    node = doc.tables["extensions"]["node"][:3]
    return {
        "savings": {
            "label": strings.intern_all(["nothing reused", *(label for label, _, _ in steps), "allocate"]),
            "kind": np.array([0, 1, 1, 1, 2], np.uint8),
            "option": np.array([NONE, *(strings.intern(o) if o else NONE for _, o, _ in steps), NONE], np.uint32),
            "bytes": np.array([start, *(b for _, _, b in steps), end], np.float64),
        },
        "counterfactuals": {
            "option": strings.intern_all(["pin_output_ancestors"]), "value": strings.intern_all(["false"]),
            "allocate": np.array([end - 65536.0]), "saved": np.array([65536.0]),
        },
        "counterfactual_nodes": {
            "row": np.zeros(len(node), np.uint32), "node": node.astype(np.uint32),
            "death": doc.tables["extensions"]["old"][:3].astype(np.uint32),
        },
    }


def compared(a: ColumnDocument, b: ColumnDocument) -> ColumnDocument:
    """`b` with its matches in `a`: row by row, the last eight new, every ninth moved."""
    rows = np.arange(b.rows("tensors"), dtype=np.uint32)
    other = np.where((rows < a.rows("tensors")) & (rows < len(rows) - 8), rows, NONE).astype(np.uint32)
    change = np.where(other == NONE, 3, np.where(rows % 9 == 4, 1, 0)).astype(np.uint8)
    return replace(b, tables={**b.tables, "match": {"other": other, "change": change}})


def _layers(n: int, edges: dict[str, Any], drawn: Any) -> tuple[Any, Any]:
    layer = np.zeros(n, np.int64)
    for a, b in zip(edges["src"].tolist(), edges["dst"].tolist(), strict=True):
        layer[b] = max(layer[b], layer[a] + 1)
    x, seen = np.full(n, -1.0, np.float32), dict[int, int]()
    for i in range(n):
        if drawn[i]:
            x[i] = seen.get(int(layer[i]), 0)
            seen[int(layer[i])] = int(x[i]) + 1
    return np.where(drawn, layer, 0).astype(np.uint32), x


def _source(doc: ColumnDocument, strings: StringTable, tables: dict[str, Any], drawn: Any) -> None:
    """Products come from a product and an addition; all else is itself."""
    tensors = tables["tensors"]
    text = doc.strings
    rows: list[tuple[str, str, int]] = []
    anchor: list[int] = []
    for i in range(doc.rows("tensors")):
        name, op = text[int(tensors["name"][i])], text[int(tensors["op"][i])]
        if op == "MatMul":
            rows.append((f"{name}/product", "MatMul", i))
            rows.append((name, "Add", i))
        else:
            rows.append((name, op, i))
        anchor.append(len(rows) - 1)
    rows.append(("/unused/Shape_output_0", "Shape", NONE))
    fused = np.array([row for _, _, row in rows], np.uint32)
    kept = fused != NONE
    src, dst = [], []
    for a, b in zip(tables["edges"]["src"].tolist(), tables["edges"]["dst"].tolist(), strict=True):
        first = anchor[b] - (1 if int((fused == b).sum()) > 1 else 0)
        src.append(anchor[a])
        dst.append(first)
    for i in range(1, len(rows)):
        if kept[i] and fused[i] == fused[i - 1]:
            src.append(i - 1)
            dst.append(i)
    edges = {"src": np.array(src, np.uint32), "dst": np.array(dst, np.uint32)}
    shown = np.array([bool(row == NONE or drawn[row]) for row in fused.tolist()])
    order = np.argsort(edges["dst"], kind="stable")
    layer, x = _layers(len(rows), {"src": edges["src"][order], "dst": edges["dst"][order]}, shown)
    group = np.where(kept & shown, np.where(kept, fused, 0) // PER_GROUP, NONE).astype(np.uint32)
    take = np.where(kept, fused, 0)
    tables["source"] = {
        "name": strings.intern_all(name for name, _, _ in rows), "op": strings.intern_all(op for _, op, _ in rows),
        "shape": tensors["shape"][take], "source": tensors["source"][take], "family": tensors["family"][take],
        "bytes": tensors["size"][take], "fused": fused, "group": group, "layer": layer, "x": x,
    }
    tables["source_edges"] = edges
    groups = int(group[group != NONE].max()) + 1 if bool((group != NONE).any()) else 0
    between: dict[tuple[int, int], float] = {}
    for a, b in zip(group[edges["src"]].tolist(), group[edges["dst"]].tolist(), strict=True):
        if a != b and NONE not in (a, b):
            between[a, b] = between.get((a, b), 0.0) + 65536.0
    members = [np.flatnonzero(group == g) for g in range(groups)]
    tables["groups"] = {
        "name": strings.intern_all(f"model.layers.{g}" for g in range(groups)),
        "count": np.array([len(m) for m in members], np.uint32), "layer": np.arange(groups, dtype=np.uint32), "x": np.zeros(groups, np.float32),
        "first": np.array([m[0] for m in members], np.uint32), "last": np.array([m[-1] for m in members], np.uint32),
    }
    tables["group_edges"] = {
        "src": np.array([a for a, _ in between], np.uint32), "dst": np.array([b for _, b in between], np.uint32),
        "bytes": np.array(list(between.values()), np.float64),
    }


def _decisions(strings: StringTable, tables: dict[str, Any], meta: dict[str, Any]) -> None:
    """Every product's addition is applied, every third norm refused; passes alternate."""
    fused = tables["source"]["fused"]
    twice = [i for i in range(1, len(fused)) if fused[i] == fused[i - 1] != NONE]
    norms = [i for i in range(len(fused)) if i % 8 == 5 and fused[i] != NONE]
    found = [(0, 1, i, 0, "saved 4 KiB", 4096.0, 1, [i - 1, i]) for i in twice]
    found += [(1, 0, i, 1, f"readers 2, node {i}", 0.0, 0, [i]) for i in norms]
    meta["decision_rules"] = [{"stage": s, "name": n, "doc": d} for s, rules in (("fusion", FUSION_RULES), ("passes", PASS_RULES)) for n, d in rules]
    meta["reasons"] = [{"name": n, "text": t} for n, t in REASONS]
    passes = [(2 + k % 2, int(k % 3 == 0), k, 0 if k % 3 == 0 else 2, "", 0.0, 0, [k]) for k in range(0, min(len(fused) // 2, 40), 4)]
    every = found + passes
    tables["decisions"] = {
        "stage": np.array([0] * len(found) + [1] * len(passes), np.uint8), "rule": np.array([d[0] for d in every], np.uint8),
        "verdict": np.array([d[1] for d in every], np.uint8), "anchor": np.array([d[2] for d in every], np.uint32),
        "reason": np.array([d[3] for d in every], np.uint8), "facts": strings.intern_all(d[4] for d in every),
        "bytes": np.array([d[5] for d in every], np.float64), "dispatches": np.array([d[6] for d in every], np.int32),
    }
    links = [(at, node) for at, d in enumerate(every) for node in d[7]]
    tables["decision_nodes"] = {"decision": np.array([a for a, _ in links], np.uint32), "node": np.array([b for _, b in links], np.uint32)}


def _commands(doc: ColumnDocument, strings: StringTable, tables: dict[str, Any], drawn: Any) -> None:
    """One thunk per tensor with a slot; before passes, every fifth was two."""
    tensors, edges = tables["tensors"], tables["edges"]
    nodes = [i for i in range(doc.rows("tensors")) if drawn[i] and tensors["space"][i] == 0]
    label = strings.intern_all(f"thunk_{doc.strings[int(tensors['op'][i])].lower()}" for i in nodes)
    size, root = tensors["size"], tensors["root"]
    read, spans = [], []
    for command, node in enumerate(nodes):
        total = 0.0
        for source in edges["src"][edges["dst"] == node].tolist():
            slot = source if size[source] else int(root[source])
            total += size[slot]
            spans.append((command, 0, int(tensors["space"][slot]), float(tensors["offset"][slot]), float(size[slot])))
        spans.append((command, 1, 0, float(tensors["offset"][node]), float(size[node])))
        read.append(total)
    tables["commands"] = {
        "label": label, "node": np.array(nodes, np.uint32), "where": np.array([2 if k % 11 == 3 else 1 for k in range(len(nodes))], np.uint8),
        "read": np.array(read, np.float64), "written": size[nodes], "scratch": np.zeros(len(nodes)),
    }
    before = [(k, part) for k in range(len(nodes)) for part in range(2 if k % 5 == 0 else 1)]
    tables["commands_before"] = {
        "label": label[[k for k, _ in before]] if before else label[:0], "node": np.array([nodes[k] for k, _ in before], np.uint32),
        "first": np.array([NONE if part else k for k, part in before], np.uint32), "count": np.array([1 - part for _, part in before], np.uint32),
    }
    tables["spans"] = {
        "command": np.array([s[0] for s in spans], np.uint32), "role": np.array([s[1] for s in spans], np.uint8),
        "space": np.array([s[2] for s in spans], np.uint8), "offset": np.array([s[3] for s in spans], np.float64),
        "bytes": np.array([s[4] for s in spans], np.float64),
    }
