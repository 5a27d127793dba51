"""Synthetic snapshots to develop and test the front end with: a transformer-like graph of any size.

Deterministic for a seed. Slots come from a first fit over the live ones, so nothing overlaps.
"""

from __future__ import annotations

import bisect
import random
from typing import Any

import numpy as np

from rlx_viz.columns import ColumnDocument, StringTable, exact_int

FAMILIES = [
    "matmul",
    "conv",
    "elementwise",
    "norm",
    "attention",
    "structure",
    "indexing",
    "reduce",
    "boundary",
    "custom",
]
KINDS = ["input", "param", "constant", "activation", "view", "elided"]
SPACES = ["arena", "weights", "none"]
DTYPES = ["f32", "f16", "i64", "i8"]
CLASSES = ["inputs", "constants", "activations", "outputs"]
RULES = [
    {"name": "last_use", "doc": "A tensor dies at the last step that reads it."},
    {"name": "outputs", "doc": "A graph output lives to the end, so that the caller can read it."},
    {"name": "output_ancestors", "doc": "What an output is a view of lives as long as the output."},
    {"name": "boundaries", "doc": "Inputs are written before the first step, so they are born there."},
]
BLOCK = [
    ("norm/LayerNormalization", "LayerNorm", "norm", 1.0),
    ("attn/qkv/MatMul", "MatMul", "matmul", 3.0),
    ("attn/Reshape", "Reshape", "structure", 0.0),
    ("attn/Transpose", "Transpose", "structure", 3.0),
    ("attn/Attention", "Attention", "attention", 1.0),
    ("attn/proj/MatMul", "MatMul", "matmul", 1.0),
    ("attn/Add", "Add", "elementwise", 1.0),
    ("mlp/norm/LayerNormalization", "LayerNorm", "norm", 1.0),
    ("mlp/fc1/MatMul", "MatMul", "matmul", 4.0),
    ("mlp/Gelu", "Gelu", "elementwise", 4.0),
    ("mlp/fc2/MatMul", "MatMul", "matmul", 1.0),
    ("mlp/ReduceMean", "ReduceMean", "reduce", 0.01),
    ("mlp/Gather", "Gather", "indexing", 0.05),
    ("mlp/Add", "Add", "elementwise", 1.0),
]
GUARD = 64


def make_document(
    n: int,
    *,
    seed: int = 1,
    no_reuse: bool = False,
    name: str = "synthetic",
    names: list[str] | None = None,
    unknown: int = 0,
    big: bool = False,
    pin: bool = False,
) -> ColumnDocument:
    """A snapshot of `n` tensors; `no_reuse` gives each its own bytes, `names` replaces the first names."""
    random_source = random.Random(seed)
    strings = StringTable()
    rows: list[dict[str, Any]] = []
    edges: list[tuple[int, int]] = []
    extensions: list[tuple[int, int, int, int, int]] = []
    residual = -1
    for i in range(n):
        layer, place = divmod(i, len(BLOCK) + 2)
        if place >= len(BLOCK):
            label, op, family, scale = f"w{place}", "Param", "boundary", 4.0
        else:
            label, op, family, scale = BLOCK[place]
        width = 4096 * random_source.choice((1, 1, 2, 4)) * max(1, 8 - abs(layer % 16 - 8))
        row = {
            "name": f"/model/layers.{layer}/{label}_output_0",
            "op": op,
            "shape": f"1×{width // 64}×16",
            "source": f"model.onnx · {op}_{i}",
            "dtype": i % 2 if place < 11 else 2,
            "kind": 3,
            "space": 0,
            "family": FAMILIES.index(family),
            "rule": 0,
            "flags": 0,
            "birth": i,
            "last_read": min(n - 1, i + 1),
            "size": float(int(width * scale) // 64 * 64 or 64),
            "guard": GUARD if i % 7 == 3 else 0,
            "root": i,
        }
        if i == 0:
            row.update(name="input_ids", op="Input", kind=0, family=FAMILIES.index("boundary"), rule=3)
        elif place >= len(BLOCK):
            row.update(
                name=f"model.layers.{layer}.{label}.weight",
                kind=1,
                space=1,
                flags=8,
                birth=0,
                last_read=n - 1,
            )
        elif op == "Reshape":
            row.update(kind=4, space=2, size=0.0, guard=0, root=rows[i - 1]["root"])
            edges.append((i - 1, i))
        else:
            source = i - 1 if rows[i - 1]["space"] != 1 else max(0, i - 3)
            edges.append((source, i))
            if op == "Add" and residual >= 0:
                edges.append((residual, i))
            if op in ("Add", "Gather"):
                residual = i if op == "Add" else residual
        if i % 97 == 50 and place < len(BLOCK) and row["kind"] == 3:
            row.update(op="onnx.FancyCustom", family=FAMILIES.index("custom"), flags=2)
        rows.append(row)
    for source, target in edges:
        root = rows[source]["root"]
        for one in (source, root):
            rows[one]["last_read"] = max(rows[one]["last_read"], target)
    for i, row in enumerate(rows):
        row["death"] = row["last_read"]
        longer = n - 1 if i >= n - 3 else min(n - 1, row["last_read"] + random_source.randint(2, 40))
        if (
            row["kind"] in (0, 3)
            and longer > row["death"]
            and (i >= n - 3 or i % 11 == 4 or (pin and i % 3 == 0))
        ):
            rule = 1 if i >= n - 3 else 2
            row["flags"] |= 1 if rule == 1 else 0
            extensions.append((i, rule, n - 1, row["death"], longer))
            row.update(death=longer, rule=rule)
    for row in rows[:unknown]:
        if row["space"] == 0:
            row.update(flags=row["flags"] | 4, size=0.0, space=2)
    for row, text in zip(rows, names or [], strict=False):
        row["name"] = text
    arena = _place(rows, no_reuse)
    weights = 0
    for row in rows:
        if row["space"] == 1:
            row["offset"], weights = float(weights), weights + int(row["size"])
    occupancy = _occupancy(rows, n)
    live = occupancy["live"]
    peak = int(live.argmax()) if n else 0
    naive = sum(int(r["size"]) + r["guard"] for r in rows if r["space"] == 0)
    used = int(live[peak]) if n else 0
    scratch, padding, factor = (
        4096 if n else 0,
        sum(r["guard"] for r in rows if r["space"] == 0),
        2**44 if big else 1,
    )
    headline: dict[str, Any] = {
        "weights": weights * factor,
        "activations": arena * factor,
        "scratch": scratch * factor,
        "padding": padding * factor,
        "arena": arena,
        "naive": naive * factor,
        "saved": (naive - arena) * factor,
        "lower_bound": used,
        "peak_bytes": used,
        "allocate": (weights + arena + scratch + padding) * factor,
    }
    headline = {key: exact_int(value) for key, value in headline.items()}
    headline |= {
        "peak_step": peak,
        "unknown": unknown,
        "unknown_names": [r["name"] for r in rows[:unknown]],
        "optimal": arena == used,
    }
    columns: dict[str, Any] = {}
    for text in ("name", "op", "shape", "source"):
        columns[text] = strings.intern_all(row[text] for row in rows)
    for small in ("dtype", "kind", "space", "family", "rule", "flags"):
        columns[small] = np.array([row[small] for row in rows], dtype=np.uint8)
    for integer in ("birth", "death", "last_read", "guard", "root"):
        columns[integer] = np.array([row[integer] for row in rows], dtype=np.uint32)
    for real in ("offset", "size"):
        columns[real] = np.array([row.get(real, 0.0) for row in rows], dtype=np.float64)
    src, dst = np.array(edges, dtype=np.uint32).reshape(-1, 2).T
    parts = np.array(extensions, dtype=np.uint32).reshape(-1, 5).T
    option = {"group": "memory", "type": "bool", "default": False, "choices": []}
    custom = sum(1 for row in rows if row["flags"] & 2)
    meta = {
        "model": {"name": name, "hash": "9f2c" * 8, "nodes": n, "inputs": [], "outputs": []},
        "headline": headline,
        "classes": CLASSES,
        "kinds": KINDS,
        "spaces": SPACES,
        "dtypes": DTYPES,
        "rules": RULES,
        "families": FAMILIES,
        "options": [
            option
            | {
                "name": "arena_no_reuse",
                "value": no_reuse,
                "changed": no_reuse,
                "help": "Give each tensor its own bytes.",
            },
            option
            | {
                "name": "pin_output_ancestors",
                "value": pin,
                "changed": pin,
                "help": "Keep what outputs view.",
            },
        ],
        "unsupported": {"FancyCustom": custom} if custom else {},
        "notes": ["dim unk__214 unknown on axis 0: took 1"] if n else [],
        "footer": {
            "model_hash": "9f2c" * 8,
            "version": "0.1.0",
            "options": "defaults",
            "command": f"rlx-viz report {name}.onnx",
        },
    }
    tables = {
        "tensors": columns,
        "edges": {"src": src, "dst": dst},
        "occupancy": occupancy,
        "extensions": {
            "node": parts[0],
            "rule": parts[1].astype(np.uint8),
            "cause": parts[2],
            "old": parts[3],
            "new": parts[4],
        },
    }
    return ColumnDocument(meta, strings.strings(), tables)


def _place(rows: list[dict[str, Any]], no_reuse: bool) -> int:
    """First fit in birth order; returns the arena's bytes."""
    live: list[tuple[int, int, int]] = []
    arena = 0
    for row in sorted((r for r in rows if r["space"] == 0), key=lambda r: r["birth"]):
        need, at = int(row["size"]) + row["guard"], 0
        if no_reuse:
            at = arena
        else:
            live = [one for one in live if one[2] >= row["birth"]]
            for start, end, _ in live:
                if start - at >= need:
                    break
                at = max(at, end)
            bisect.insort(live, (at, at + need, row["death"]))
        row["offset"] = float(at)
        arena = max(arena, at + need)
    return arena


def _occupancy(rows: list[dict[str, Any]], n: int) -> dict[str, Any]:
    changes = {name: np.zeros(n + 1) for name in CLASSES}
    for row in rows:
        if row["space"] == 0:
            name = {0: "inputs", 2: "constants"}.get(
                row["kind"], "outputs" if row["flags"] & 1 else "activations"
            )
            changes[name][row["birth"]] += row["size"] + row["guard"]
            changes[name][row["death"] + 1] -= row["size"] + row["guard"]
    columns = {name: np.cumsum(change)[:n] for name, change in changes.items()}
    columns["live"] = np.sum([columns[name] for name in CLASSES], axis=0)
    return columns
