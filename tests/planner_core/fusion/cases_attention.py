"""Attention written out in the ways that exporters and people write it, packed projections, and near misses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from planner_core.fusion import Refusal
from planner_core.ir import DType, Graph
from planner_core.ir.op import Array
from tests.planner_core.fusion.harness import Applied, Refused

B, H, S, D = 2, 4, 5, 8
TURN = (0, 2, 1, 3)


def seen(kind: str, rows: int, keys: int) -> Array:
    """Which keys each row sees."""
    pos, key = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None]
    if kind == "window":
        return (key <= pos) & (key >= pos - 2)
    if kind == "odd":
        return np.asarray((key + pos) % 3 != 1)
    return np.asarray(key <= pos) if kind == "causal" else np.ones((rows, keys), bool)


def masked(g: Graph, s: int, mask: str, fill: float, how: str, dtype: DType) -> int:
    """Scores with a mask; ``how``: added, or chosen by a condition that says what is kept or hidden."""
    dims = g[s].shape.sizes
    rows, keys = dims[-2:]
    if mask.startswith("input"):
        lead = {"input": (), "input padding": (dims[0], 1, 1), "input heads": dims[1:2], "input batch": dims[:1]}[mask]
        where = (*lead, keys) if mask == "input padding" else (*lead, rows, keys)
        if how == "add":
            return g.add(s, g.input("mask", where, dtype))
        cond = g.input("mask", where, DType.BOOL)
    else:
        sees = seen(mask, rows, keys)
        if how == "add":
            return g.add(g.param("mask", (rows, keys), dtype, data=np.where(sees, 0, fill).astype(dtype.numpy)), s)
        known = sees if how == "keep" else ~sees
        cond = g.param("mask", (1, 1, rows, keys)[4 - len(dims):], DType.BOOL, data=known.reshape((1, 1, rows, keys)[4 - len(dims):]))
    low = g.constant(fill, dtype)
    return g.where(cond, s, low) if how == "keep" else g.where(cond, low, s)


def operand(g: Graph, name: str, layout: str, batch: int, heads: int, rows: int, d: int, dtype: DType, share: str, groups: int) -> int:
    """``[B, H, S, D]``, or ``[B · H, S, D]`` with layout bmm; ``share``: how heads are copied."""
    if layout == "single":
        return g.input(name, (batch, rows, d), dtype)
    if layout in ("bshd", "half"):
        x = g.reshape(g.input(name, (batch, rows, heads * d), dtype), dims=(batch, rows, heads, d))
        if share == "rows":
            x = g.expand(g.reshape(x, dims=(batch, rows, heads, 1, d)), dims=(batch, rows, heads, groups, d))
            x = g.reshape(x, dims=(batch, rows, heads * groups, d))
        x = g.transpose(x, perm=TURN)
    else:
        x = g.input(name, (batch, heads, rows, d), dtype)
    if share in ("expand", "repeat"):
        x = g.reshape(x, dims=(batch, heads, 1, rows, d))
        x = g.expand(x, dims=(batch, heads, groups, rows, d)) if share == "expand" else g.concat(*[x] * groups, axis=2)
        x = g.reshape(x, dims=(batch, heads * groups, rows, d))
    if share == "copies":
        x = g.concat(*[x] * groups, axis=1)
    if share == "tile":  # heads 0 1 0 1: not how attention shares them
        x = g.reshape(g.expand(g.reshape(x, dims=(batch, 1, heads, rows, d)), dims=(batch, groups, heads, rows, d)),
                      dims=(batch, heads * groups, rows, d))
    return g.reshape(x, dims=(batch * heads * groups, rows, d)) if layout == "bmm" else x


def attention(layout: str = "bhsd", *, scale: str = "mul", mask: str = "", how: str = "add", fill: float = -math.inf,
              share: str = "", groups: int = 1, softcap: float = 0.0, cast: bool = False, keys: int = 0, keep: str = "",
              turn: str = "last", dtype: DType = DType.F32, width: int = 0, late: str = "", guard: bool = False,
              sizes: tuple[int, int, int, int] = (B, H, S, D)) -> Graph:
    """``turn``: how the keys come: last two axes exchanged, at once with the heads, or not at all."""
    g = Graph("attention")
    batch, heads, rows, d = sizes
    keys, width, kv = keys or rows, width or d, heads // groups
    q = operand(g, "q", layout, batch, heads, rows, d, dtype, "", 1)
    k = operand(g, "k", layout, batch, kv, keys, d, dtype, share, groups)
    v = operand(g, "v", layout, batch, kv, keys, width, dtype, share, groups)
    c = d**-0.5 if layout != "single" else 0.25
    if scale in ("q", "both"):
        q = g.mul(q, g.constant([c if scale == "q" else c**0.5], dtype))
    rank = g[q].shape.rank
    if cast:
        q, k = g.cast(q, to=DType.F32), g.cast(k, to=DType.F32)
    wide = DType.F32 if cast else dtype
    if turn == "at once":
        k = g.transpose(g[k].inputs[0], perm=(0, 2, 3, 1))
    elif turn == "rows first":  # as nn.MultiheadAttention leaves them
        k = g.transpose(g.input("k_rows", (keys, batch * kv, d), dtype), perm=(1, 2, 0))
    elif turn == "last":
        k = g.transpose(k, perm=(*range(rank - 2), rank - 1, rank - 2))
    else:
        k = g.input("kt", g[k].shape.sizes[:-2] + g[k].shape.sizes[:-3:-1], dtype)
    if scale in ("k", "both"):
        k = g.mul(g.constant(c if scale == "k" else c**0.5, wide), k)
    s = product = g.mm(q, k)
    if scale == "mul":
        s = g.mul(g.constant(c, wide), s)
    elif scale == "div":
        s = g.div(s, g.constant(1 / c, wide))
    elif scale == "learned":
        s = g.mul(s, g.input("temperature", (heads, 1, 1), wide))
    if softcap:
        s = g.mul(g.tanh(g.div(s, g.constant(softcap, wide))), g.constant(softcap, wide))
    if mask:
        if layout == "bmm" and mask == "input padding":
            s = g.reshape(masked(g, g.reshape(s, dims=(batch, heads, rows, keys)), mask, fill, how, wide), dims=(batch * heads, rows, keys))
        else:
            s = masked(g, s, mask, fill, how, wide)
    if late == "scale":
        s = g.mul(s, g.constant(0.5, wide))
    p = g.softmax(s, axis=rank - 1)
    if guard:
        p = g.where(g.ne(p, p), g.constant(0, wide), p)
    if cast:
        p = g.cast(p, to=dtype)
    y = g.mm(p, v)
    if layout == "bshd":
        y = g.reshape(g.transpose(y, perm=TURN), dims=(batch, rows, heads * width))
    more: dict[str, Any] = {"output": lambda: [p], "shared": lambda: [g.relu(product)]}
    return g.set_outputs(g.neg(y), *(more[keep]() if keep else []))


def packed(layout: str = "bhsd", *, order: tuple[int, int, int] = (0, 1, 2), out: bool = True, keep: str = "",
           dtype: DType = DType.F32, rotated: str = "", interleaved: bool = False, **how: Any) -> Graph:
    """Thirds of one projection; ``bhsd``: brought to the front by a transpose, ``bshd``: sliced. ``rotated``: which."""
    g = Graph("packed")
    x = g.mm(g.input("x", (B, S, 6), dtype), g.param("w", (6, 3 * H * D), dtype))
    if layout == "bhsd":
        t = g.transpose(g.reshape(x, dims=(B, S, 3, H, D)), perm=(2, 0, 3, 1, 4))
        qkv = [g.reshape(g.narrow(t, axis=0, start=i, len=1), dims=(B, H, S, D)) for i in order]
    else:
        t = x
        qkv = [g.reshape(g.narrow(x, axis=2, start=i * H * D, len=H * D), dims=(B, S, H, D)) for i in order]
    if rotated:
        tables = [g.param(t, (S, D // 2), dtype) for t in ("cos", "sin")]
        for i, name in enumerate("qkv"):
            if name in rotated:
                dims = g[qkv[i]].shape.sizes
                flat = dims if layout == "bhsd" else (B, S, H * D)
                turned = g.rope(g.reshape(qkv[i], dims=flat), *tables, head_dim=D, n_rot=D, interleaved=interleaved)
                qkv[i] = g.reshape(turned, dims=dims)
    y = g.attention(*qkv, num_heads=H, head_dim=D, layout=layout, **how)
    more = [g.relu(qkv[0])] if keep == "shared" else [qkv[0]] if keep == "output" else []
    if layout == "bhsd" and out:
        y = g.transpose(y, perm=TURN)
    return g.set_outputs(g.neg(y), *more)


A, P = "attention", "packed_qkv"
GONE = ("Softmax", "MatMul", "Binary(mul)", "Binary(add)", "Expand", "Concat")
PLAIN: list[tuple[str, dict[str, Any]]] = [
    *((f"scale {s}", {"scale": s}) for s in ("mul", "div", "q", "k", "both", "none")),
    *((f"{m}, {h}, {f}", {"mask": m, "how": h, "fill": f}) for m in ("causal", "window", "none") for h in ("add", "keep", "hide")
      for f in (-math.inf, -1e4)),
    ("causal, more keys", {"mask": "causal", "keys": 7}),
    *((f"{m}, added", {"mask": m}) for m in ("input", "input padding", "input heads", "odd")),
    ("softcap", {"softcap": 5.0, "mask": "causal"}),
    *((f"heads {s}", {"share": s, "groups": 2}) for s in ("expand", "repeat")),
    ("one key head, copied", {"share": "copies", "groups": 4}),
    ("one key head, broadcast", {"groups": 4}),
    ("rows first", {"layout": "bshd"}),
    ("rows first, at once", {"layout": "bshd", "turn": "at once", "mask": "causal"}),
    ("rows first, heads expand", {"layout": "bshd", "share": "expand", "groups": 2}),
    ("rows first, heads expand as rows", {"layout": "bshd", "share": "rows", "groups": 2}),
    ("rows first, result as it is", {"layout": "half", "share": "rows", "groups": 2}),
    ("batch and heads merged", {"layout": "bmm", "mask": "causal"}),
    ("merged, mask split", {"layout": "bmm", "mask": "input padding"}),
    ("merged, heads expand", {"layout": "bmm", "share": "expand", "groups": 2}),
    ("merged, keys rows first", {"layout": "bmm", "turn": "rows first", "mask": "input padding"}),
    ("NaN replaced", {"mask": "causal", "guard": True}),
    ("NaN replaced, finite", {"mask": "odd", "how": "keep", "fill": -1e4, "guard": True}),
    ("finite, rows without keys stay even", {"mask": "input", "how": "keep", "fill": -3e38}),
    ("one head", {"layout": "single", "mask": "input"}),
    ("softmax in f32", {"cast": True, "dtype": DType.F16, "mask": "causal"}),
]
APPLIED = [
    *(Applied(A, lambda kw=kw: attention(**kw), ("Attention",), GONE, id=i) for i, kw in PLAIN),  # type: ignore[misc]
    *(Applied(A, lambda h=h: attention(mask="input", how=h), ("Attention",), ("Softmax",), id=f"condition, {h}")  # type: ignore[misc]
      for h in ("keep",)),
    Applied(A, lambda: attention(share="tile", groups=2), ("Attention", "Expand"), ("Softmax",), id="heads in another order stay copied"),
    Applied(A, lambda: attention(mask="odd", how="hide"), ("Attention",), ("Softmax",), id="condition, hide"),
    Applied(A, lambda: attention(mask="odd", how="keep", fill=-1e4), ("Attention",), ("Softmax",), id="condition, finite"),
    *(Applied(P, lambda la=la, kw=kw: packed(la, **kw), ("FusedAttentionBlock",), ("Narrow", "Transpose", "Attention"),  # type: ignore[misc]
              id=f"{la}, {kw.get('mask_kind', 'none')}") for la in ("bhsd", "bshd") for kw in ({}, {"mask_kind": "causal"})),
    *(Applied(P, lambda la=la: packed(la, rotated="qk"), ("FusedAttentionBlock",), ("Narrow", "Rope", "Attention"),  # type: ignore[misc]
              id=f"{la}, rotated") for la in ("bhsd", "bshd")),
]
def empty() -> Graph:
    """No keys to attend to."""
    g = Graph("empty")
    q, k, v = (g.input(n, (1, 2, rows, 4)) for n, rows in (("q", 3), ("k", 0), ("v", 0)))
    return g.set_outputs(g.mm(g.softmax(g.mm(q, g.transpose(k, perm=(0, 1, 3, 2))), axis=-1), v))


def unbound() -> Graph:
    """Batch and rows are symbols."""
    g = Graph("unbound")
    q, k, v = (g.input(n, ("B", 2, "S", 4)) for n in "qkv")
    return g.set_outputs(g.mm(g.softmax(g.mm(q, g.transpose(k, perm=(0, 1, 3, 2))), axis=-1), v))


REFUSED = [
    Refused(A, Refusal.UNKNOWN_SHAPE, unbound, evaluate=False),
    Refused(A, Refusal.SHAPE, empty, evaluate=False, id="no keys"),
    Refused(A, Refusal.MASK, lambda: attention(mask="input", how="keep", fill=-1e4), id="a fill that is no shift"),
    Refused(A, Refusal.MASK, lambda: attention(mask="input", how="keep", fill=-1e4, guard=True), id="guarded"),
    Refused(A, Refusal.SHARED, lambda: attention(keep="shared")),
    Refused(A, Refusal.OUTPUT, lambda: attention(keep="output")),
    Refused(A, Refusal.DTYPE, lambda: attention(dtype=DType.F64)),
    Refused(A, Refusal.MIXED_DTYPES, lambda: attention(cast=True, dtype=DType.F16, mask="input")),
    Refused(A, Refusal.MASK, lambda: attention(mask="causal", how="keep", fill=-5.0)),
    Refused(A, Refusal.MASK, lambda: attention(mask="causal", late="scale"), id="scaled after"),
    Refused(A, Refusal.MASK, lambda: attention(mask="input", late="scale"), id="input scaled after"),
    Refused(A, Refusal.MASK, lambda: attention(mask="input", guard=True), id="NaN replaced"),
    Refused(A, Refusal.SCALE, lambda: attention(scale="learned")),
    Refused(A, Refusal.HEADS, lambda: attention(width=4)),
    Refused(A, Refusal.LAYOUT, lambda: attention(turn="not")),
    Refused(P, Refusal.SHARED, lambda: packed(keep="shared")),
    Refused(P, Refusal.OUTPUT, lambda: packed(keep="output")),
    Refused(P, Refusal.LAYOUT, lambda: packed(order=(0, 2, 1))),
    Refused(P, Refusal.LAYOUT, lambda: packed(out=False), id="heads stay first"),
    Refused(P, Refusal.MASK, lambda: packed(mask_kind="sliding_window", window=2)),
    Refused(P, Refusal.ROTATION, lambda: packed("bshd", rotated="qk", interleaved=True)),
    Refused(P, Refusal.ROTATION, lambda: packed("bshd", rotated="q"), id="queries only"),
    Refused(P, Refusal.KIND, lambda: packed(softcap=5.0)),
    Refused(P, Refusal.DTYPE, lambda: packed(dtype=DType.F16)),
]
