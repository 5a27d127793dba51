"""Owns tables for analysis: pandas frames of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from planner_core.zoo import SweepRow
from rlx_viz.columns import ColumnDocument

__all__ = ["commands_frame", "decisions_frame", "sweep_frame", "tensors_frame"]


def tensors_frame(doc: ColumnDocument) -> pd.DataFrame:
    """One row a tensor, names and kinds as text; offsets, sizes and guards in bytes, births and deaths in
    steps (inclusive). ``offset`` is empty where a tensor has no slot."""
    t, meta, text = doc.tables["tensors"], doc.meta, doc.strings
    space = [meta["spaces"][i] for i in t["space"]]
    return pd.DataFrame({
        "id": range(len(t["name"])),
        "name": [text[i] for i in t["name"]],
        "op": [text[i] for i in t["op"]],
        "shape": [text[i] for i in t["shape"]],
        "dtype": [meta["dtypes"][i] for i in t["dtype"]],
        "kind": [meta["kinds"][i] for i in t["kind"]],
        "space": space,
        "birth": t["birth"], "death": t["death"], "last_read": t["last_read"],
        "kept_by": [meta["rules"][i]["name"] for i in t["rule"]],
        "offset": pd.array([int(o) if s != "none" else None for o, s in zip(t["offset"], space, strict=True)], dtype="Int64"),
        "size": t["size"].astype("int64"), "guard": t["guard"].astype("int64"),
        "root": t["root"],
        "is_output": (t["flags"] & 1) != 0,
        "source": [text[i] for i in t["source"]],
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
    return pd.DataFrame({
        "stage": stage,
        "rule": [rules[i]["name"] for i in t["rule"]],
        "verdict": ["applied" if v else "refused" for v in t["verdict"]],
        "anchor": t["anchor"].astype("int64"),
        "label": [text[i] for i in label],
        "reason": [reasons[i]["name"] for i in t["reason"]],
        "explanation": [reasons[i]["text"] for i in t["reason"]],
        "facts": [text[i] for i in t["facts"]],
        "bytes_saved": t["bytes"].astype("int64"),
        "dispatches_saved": t["dispatches"].astype("int64"),
    })


def commands_frame(doc: ColumnDocument) -> pd.DataFrame:
    """One row a command that runs: label, the tensor it makes, where it runs, bytes read, written and of scratch;
    after a run also ``us`` and ``flops``."""
    t, text = doc.tables["commands"], doc.strings
    names = doc.tables["tensors"]["name"]
    frame = pd.DataFrame({
        "command": [text[i] for i in t["label"]],
        "node": [text[names[n]] for n in t["node"]],
        "where": [("none", "gpu", "host")[w] for w in t["where"]],
        "read": t["read"].astype("int64"), "written": t["written"].astype("int64"), "scratch": t["scratch"].astype("int64"),
    })
    if "profile" in doc.tables:
        frame["us"] = doc.tables["profile"]["us"].astype("float64")
        frame["flops"] = doc.tables["profile"]["flops"].astype("int64")
    return frame


def sweep_frame(rows: Sequence[SweepRow]) -> pd.DataFrame:
    """One row a size: a column for each swept name, then ``arena``, ``bound`` and ``allocate`` in bytes."""
    if not rows:
        return pd.DataFrame(columns=["arena", "bound", "allocate"], dtype="int64")
    frame = pd.DataFrame([dict(r.binding) for r in rows])
    for name in ("arena", "bound", "allocate"):
        frame[name] = pd.Series([getattr(r, name) for r in rows], dtype="int64")
    return frame
