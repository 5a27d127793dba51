"""Gated halves of one row, and why some stay apart."""

from __future__ import annotations

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph, QuantScheme
from tests.planner_core.fusion.harness import Applied, Refused


def gated(kind: str = "silu", *, cut: str = "narrow", gate: int = 0, swap: bool = False, rows: tuple[int, ...] = (2, 3),
          packed: bool = False, axis: int = -1, keep: str = "", dtype: DType = DType.F32) -> Graph:
    """``cut``: by narrow, by slice, or by an axis of two; ``gate``: which half."""
    g = Graph("gated")
    n = 32
    if packed:
        w = g.param("w", (2 * n * QuantScheme.Q8_0.row_bytes(32),), DType.U8)
        x = g.dequant_mat_mul(g.input("x", (*rows, 32)), w, n=2 * n, scheme=QuantScheme.Q8_0)
    else:
        x = g.relu(g.input("x", (*rows, 2 * n) if axis == -1 else (2, 2 * n, 3), dtype))
    axis %= g[x].shape.rank
    if cut == "narrow":
        halves = [g.narrow(x, axis=axis, start=i * n, len=n) for i in (0, 1)]
    elif cut == "slice":
        halves = [g.slice(x, axes=(axis,), starts=(i * n,), stops=(i * n + n,), steps=(1,)) for i in (0, 1)]
    else:
        wide = g.reshape(x, dims=(*rows, 2, n))
        halves = [g.reshape(g.narrow(wide, axis=axis, start=i, len=1), dims=(*rows, n)) for i in (0, 1)]
    act = g.activation(halves[gate], kind=kind)
    up = halves[1 - gate]
    y = g.mul(up, act) if swap else g.mul(act, up)
    return g.set_outputs(g.neg(y), *([act] if keep == "output" else [g.relu(act)] if keep == "shared" else []))


METAL = FusionTarget.METAL
RULES = {"swiglu": ("silu", "SwiGLU"), "geglu": ("gelu", "GeGLU")}
APPLIED = [
    *(Applied(rule, lambda k=k, c=c, w=w: gated(k, cut=c, gate=w, swap=bool(w)), (op,), ("Narrow", "Slice", "Binary(mul)"),  # type: ignore[misc]
              id=f"{c}, {('first', 'second')[w]}")
      for rule, (k, op) in RULES.items() for c in ("narrow", "slice", "pair") for w in (0, 1)),
    Applied("geglu", lambda: gated("gelu_approx", gate=1), ("GeGLU(gelu_approx)",), ("Narrow",), id="tanh"),
    Applied("swiglu", lambda: gated(packed=True), ("SwiGLU",), target=METAL, decode_forms=False, id="many rows on Metal"),
    Applied("swiglu", lambda: gated(packed=True, rows=(1, 1)), ("SwiGLU",), target=METAL, id="one row, asked for"),
]
REFUSED = [
    *(Refused(rule, reason, lambda k=k, kw=kw: gated(k, **kw))  # type: ignore[misc, arg-type]
      for rule, (k, _) in RULES.items() for reason, kw in (
          (Refusal.SHARED, {"keep": "shared"}), (Refusal.OUTPUT, {"keep": "output"}), (Refusal.DTYPE, {"dtype": DType.F64}),
          (Refusal.AXIS, {"axis": 1}))),
    *(Refused(rule, Refusal.COMMAND_PASS, lambda k=k: gated(k, packed=True, rows=(1, 1)), METAL, decode_forms=False)  # type: ignore[misc]
      for rule, (k, _) in RULES.items()),
]
