"""Owns the planner's results as pandas frames: units in the columns' names, signed integers, typed when empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner_core.memory.facts import DTYPES
from planner_core.memory.plan import NO_SLOT, SPACES, MemoryPlan
from planner_core.memory.rules import RULES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["plan_frame", "typed"]


def typed(columns: dict[str, tuple[Any, str]]) -> pd.DataFrame:
    """A frame of ``name: (values, dtype)``: an empty one has its dtypes too."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series(values, dtype=dtype) for name, (values, dtype) in columns.items()})


def plan_frame(plan: MemoryPlan) -> pd.DataFrame:
    """One row a node. ``birth_node``, ``death_node``, ``last_read_node`` count nodes (inclusive; the node count itself:
    kept to the end). ``offset_bytes`` is empty where a node has no slot; ``root`` owns the bytes that a view shows;
    ``stored`` is the dtype in memory, perhaps wider than ``dtype``; ``kept_by`` the rule that set the death, or read.

    Names, ops, shapes and dtypes are empty for a plan that was loaded without its graph.
    """
    from planner_core.memory.explain import last_rule

    graph, n = plan.graph, len(plan.birth)
    has = plan.space != NO_SLOT
    nodes: list[Any] = list(graph.nodes) if graph is not None else []
    texts = {
        "name": [x.label for x in nodes], "op": [x.op.detail for x in nodes], "shape": [str(x.shape) for x in nodes],
        "dtype": [str(x.dtype) for x in nodes],
    }
    rule = last_rule(plan)
    outputs = np.zeros(n, dtype=bool)
    if graph is not None:
        outputs[graph.outputs] = True
    return typed({
        "id": (np.arange(n), "int64"),
        **{k: (v if nodes else [""] * n, "object") for k, v in texts.items()},
        "stored": ([DTYPES[i].text for i in plan.storage.tolist()], "object"),
        "space": ([SPACES[i] for i in plan.space.tolist()], "object"),
        "birth_node": (plan.birth, "int64"), "death_node": (plan.death, "int64"), "last_read_node": (plan.last_read, "int64"),
        "kept_by": ([RULES[k].name if k >= 0 else "read" for k in rule.tolist()], "object"),
        "offset_bytes": ([int(o) if h else None for o, h in zip(plan.offset.tolist(), has.tolist(), strict=True)], "Int64"),
        "size_bytes": (np.where(has, plan.size, 0), "int64"), "guard_bytes": (np.where(has, plan.guard, 0), "int64"),
        "root": (plan.root, "int64"), "is_output": (outputs, "bool"),
        "source": (["; ".join(map(str, x.source)) for x in nodes] if nodes else [""] * n, "object"),
    })
