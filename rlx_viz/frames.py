"""Owns tables for analysis: pandas frames of a snapshot, and the JSON summary of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from planner_core.zoo import SweepRow
from rlx_viz.columns import ColumnDocument

__all__ = ["summary_dict", "sweep_frame", "tensors_frame"]


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


def summary_dict(doc: ColumnDocument) -> dict[str, Any]:
    """The headline numbers under stable names, with one entry a tensor; integers are exact."""
    meta = doc.meta
    head = {k: int(v) if isinstance(v, str) else v for k, v in meta["headline"].items()}
    frame = tensors_frame(doc)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return {
        "model": meta["model"]["name"],
        "model_hash": meta["model"]["hash"],
        "nodes": meta["model"]["nodes"],
        "tensors": rows,
        "inputs": meta["model"]["inputs"],
        "outputs": meta["model"]["outputs"],
        "allocate_bytes": head["allocate"],
        "weights_bytes": head["weights"],
        "activations_bytes": head["activations"],
        "scratch_bytes": head["scratch"],
        "padding_bytes": head["padding"],
        "arena_bytes": head["arena"],
        "naive_bytes": head["naive"],
        "saved_bytes": head["saved"],
        "lower_bound_bytes": head["lower_bound"],
        "peak_bytes": head["peak_bytes"],
        "peak_step": head["peak_step"],
        "optimal": head["optimal"],
        "unknown_tensors": head["unknown"],
        "at_least": head["unknown"] > 0,
        "unsupported_ops": meta["unsupported"],
        "notes": meta["notes"],
        "options": {o["name"]: o["value"] for o in meta["options"]},
        "footer": meta["footer"],
    }


def sweep_frame(rows: Sequence[SweepRow]) -> pd.DataFrame:
    """One row a size: a column for each swept name, then ``arena``, ``bound`` and ``allocate`` in bytes."""
    if not rows:
        return pd.DataFrame(columns=["arena", "bound", "allocate"], dtype="int64")
    frame = pd.DataFrame([dict(r.binding) for r in rows])
    for name in ("arena", "bound", "allocate"):
        frame[name] = pd.Series([getattr(r, name) for r in rows], dtype="int64")
    return frame
