"""Rotary embedding as people write it, rows appended to a cache, and near misses."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import Refusal
from planner_core.ir import DType, Graph
from tests.planner_core.fusion.harness import Applied, Refused

B, S, H, D = 2, 5, 3, 8


def halves(g: Graph, x: int, interleaved: str = "") -> tuple[int, int]:
    """The two halves of the last axis, or the two of each pair (``slice``, ``gather``, ``narrow``)."""
    dims = g[x].shape.sizes
    last, half = len(dims) - 1, dims[-1] // 2
    if not interleaved:
        a, b = (g.narrow(x, axis=last, start=k * half, len=half) for k in (0, 1))
    elif interleaved == "slice":
        a, b = (g.slice(x, axes=(last,), starts=(k,), stops=(dims[-1],), steps=(2,)) for k in (0, 1))
    else:
        pairs = g.reshape(x, dims=(*dims[:-1], half, 2))
        if interleaved == "gather":
            a, b = (g.gather(pairs, g.constant(np.int64(k)), axis=last + 1) for k in (0, 1))
        else:
            a, b = (g.reshape(g.narrow(pairs, axis=last + 1, start=k, len=1), dims=(*dims[:-1], half)) for k in (0, 1))
    return a, b


def together(g: Graph, a: int, b: int, interleaved: str = "") -> int:
    dims = g[a].shape.sizes
    if not interleaved:
        return g.concat(a, b, axis=len(dims) - 1)
    pairs = g.concat(*(g.reshape(v, dims=(*dims, 1)) for v in (a, b)), axis=len(dims))
    return g.reshape(pairs, dims=(*dims[:-1], 2 * dims[-1]))


def doubled(g: Graph, v: int, interleaved: str = "") -> int:
    return together(g, v, v, interleaved)


def tables(g: Graph, how: str, n: int, where: tuple[int, ...], interleaved: str, dtype: DType) -> tuple[int, int]:
    """cos and sin over ``n`` of a head; ``how``: as params, as constants, computed from angles, or not doubled."""
    width = n // 2
    if how in ("half", "unequal", "per sequence"):
        wide = n if how != "half" else width
        dims = (*where[:-1], wide)
        return g.input("cos", dims, dtype), g.input("sin", dims, dtype)
    if how == "computed":
        angle = g.mul(g.reshape(g.input("positions", (S,), dtype), dims=(S, 1)), g.param("freq", (1, width), dtype))
        angle = doubled(g, angle, interleaved)
        return tuple(g.reshape(f(angle), dims=(*where[:-1], n)) for f in (g.cos, g.sin))  # type: ignore[return-value]
    rng = np.random.default_rng(1)
    out = []
    for name in ("cos", "sin"):
        half = rng.standard_normal((S, width)).astype(dtype.numpy)
        full = np.repeat(half, 2, -1) if interleaved else np.concatenate([half, half], -1)
        full = full.reshape(*where[:-1], n)
        out.append(g.constant(full, dtype) if how == "constant" else g.param(name, full.shape, dtype, data=full))
    return out[0], out[1]


def rotate(g: Graph, x: int, cos: int, sin: int, interleaved: str, form: str) -> int:
    a, b = halves(g, x, interleaved)
    if form == "sum":
        return g.add(g.mul(x, cos), g.mul(together(g, g.neg(b), a, interleaved), sin))
    low = g.sub(g.mul(a, cos), g.mul(b, sin))
    return together(g, low, g.add(g.mul(sin, a), g.mul(b, cos)), interleaved)


def rope(how: str = "param", form: str = "sum", *, heads_first: bool = True, interleaved: str = "", part: int = 0,
         turned: bool = False, keep: str = "", dtype: DType = DType.F32) -> Graph:
    """``part``: only so many of a head are rotated; ``turned``: a transpose brings the heads before."""
    g = Graph("rope")
    if turned:
        x = g.transpose(g.reshape(g.input("x", (B, S, H * D), dtype), dims=(B, S, H, D)), perm=(0, 2, 1, 3))
    else:
        x = g.input("x", (B, H, S, D) if heads_first else (B, S, H, D), dtype)
    n = part or D
    lead = B if how == "per sequence" else 1
    where = (lead, 1, S, n) if heads_first else (lead, S, 1, n)
    cos, sin = tables(g, how, n, where, interleaved, dtype)
    y = rotate(g, g.narrow(x, axis=3, start=0, len=n) if part else x, cos, sin, interleaved, form)
    if part:
        y = g.concat(y, g.narrow(x, axis=3, start=n, len=D - n), axis=3)
    more = []
    if keep in ("output", "shared"):
        product = next(i.id for i in g.nodes if i.op.detail == "Binary(mul)" and cos in i.inputs)
        more = [product] if keep == "output" else [g.relu(product)]
    return g.set_outputs(g.neg(y), *more)


def append(*, room: bool = True, keep: str = "") -> Graph:
    g = Graph("append")
    past, new = 3, 2
    cache = g.input("cache", (1, past + (new if room else 0), 4))
    rows = g.mm(g.input("x", (1, new, 6)), g.param("w", (6, 4)))
    old = g.narrow(cache, axis=1, start=0, len=past) if room else cache
    y = g.concat(old, rows, axis=1)
    more = [old] if keep == "output" else [g.relu(cache)] if keep == "shared" else []
    return g.set_outputs(g.relu(g.mm(y, g.param("v", (4, 2)))), *more)


APPLIED = [
    *(Applied("rope", lambda h=h, f=f, k=k: rope(h, "sum", heads_first=f, interleaved=k), ("Rope",), ("Binary(mul)",),  # type: ignore[misc]
              id=f"{h}, {'heads' if f else 'rows'} first, {k or 'halves'}")
      for h in ("param", "constant") for f in (True, False) for k in ("", "slice", "gather", "narrow")),
    *(Applied("rope", lambda f=f, k=k: rope("half", "halves", heads_first=f, interleaved=k), ("Rope",), ("Binary(mul)", "Concat"),  # type: ignore[misc]
              id=f"half tables, {'heads' if f else 'rows'} first, {k or 'halves'}")
      for f in (True, False) for k in ("", "slice", "gather", "narrow")),
    Applied("rope", lambda: rope("computed"), ("Rope",), id="tables of the run"),
    Applied("rope", lambda: rope("computed", interleaved="slice"), ("Rope",), id="tables of the run, pairs"),
    *(Applied("rope", lambda f=f, k=k: rope(part=4, heads_first=f, interleaved=k), ("Rope",), ("Concat", "Binary(mul)"),  # type: ignore[misc]
              times=2, id=f"part of a head, {'heads' if f else 'rows'} first, {k or 'halves'}")
      for f in (True, False) for k in ("", "slice")),
    Applied("rope", lambda: rope(turned=True), ("Rope", "Transpose"), ("Binary(mul)",), id="before the transpose"),
    Applied("rope", lambda: rope(turned=True, part=4), ("Rope", "Transpose"), ("Concat",), times=2, id="in part, before the transpose"),
    Applied("kv_append", append, ("KvAppend",), ("Concat", "Narrow")),
]
def unbound() -> Graph:
    """As many rows as a symbol says."""
    g = Graph("unbound")
    x = g.input("x", (1, 2, "S", 8))
    cos, sin = (g.param(n, ("S", 8)) for n in ("cos", "sin"))
    a, b = (g.narrow(x, axis=3, start=s, len=4) for s in (0, 4))
    return g.set_outputs(g.add(g.mul(x, cos), g.mul(g.concat(g.neg(b), a, axis=3), sin)))


REFUSED = [
    Refused("rope", Refusal.UNKNOWN_SHAPE, unbound, evaluate=False),
    Refused("rope", Refusal.ROTATION, lambda: rope("unequal")),
    Refused("rope", Refusal.ROTATION, lambda: rope("unequal", interleaved="slice"), id="pairs"),
    Refused("rope", Refusal.LAYOUT, lambda: rope("per sequence")),
    Refused("rope", Refusal.SHARED, lambda: rope(keep="shared")),
    Refused("rope", Refusal.OUTPUT, lambda: rope(keep="output")),
    Refused("rope", Refusal.DTYPE, lambda: rope(dtype=DType.F64)),
    Refused("kv_append", Refusal.SHAPE, lambda: append(room=False)),
    Refused("kv_append", Refusal.SHARED, lambda: append(keep="shared")),
    Refused("kv_append", Refusal.OUTPUT, lambda: append(keep="output")),
]
