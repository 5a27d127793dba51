"""Norms with the sum before and the gate or modulation after them, and why some stay apart."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.ir import DType, Graph, QuantScheme
from tests.planner_core.fusion.harness import Applied, Refused


def residual(kind: str = "layer", bias: str = "", *, dims: tuple[int, ...] = (2, 3, 8), y: tuple[int, ...] | None = None,
             beta: bool = False, later: str = "", dtype: DType = DType.F32) -> Graph:
    """``bias``: added to the sum (``late``), to one summand (``early``), to a product (``product``); ``packed``: none, and
    one summand is a product by packed weights."""
    g = Graph("residual")
    h = dims[-1]
    x, z = g.input("x", dims, dtype), g.input("y", y or dims, dtype)
    if bias == "packed":
        w = g.param("w", (h * QuantScheme.Q8_0.row_bytes(h),), DType.U8)
        x = g.dequant_mat_mul(x, w, n=h, scheme=QuantScheme.Q8_0)
    if bias == "product":
        x = g.mm(x, g.param("w", (h, h), dtype))
    if bias in ("early", "product"):
        x = g.add(x, g.param("bias", (h,), dtype))
    s = g.add(z, x) if bias == "early" else g.add(x, z)
    if bias == "late":
        s = g.add(g.param("bias", (h,), dtype), s)
    gamma = g.param("gamma", (h,), dtype)
    shift = [g.param("beta", (h,), dtype)] if beta or kind == "layer" else []
    n = g.layer_norm(s, gamma, *shift, eps=1e-3) if kind == "layer" else g.rms_norm(s, gamma, *shift, eps=1e-3)
    return g.set_outputs(g.neg(n), *({"output": lambda: [s], "read": lambda: [g.relu(s)]}[later]() if later else []))


def modulated(kind: str = "layer", *, unsqueeze: str = "late", dims: tuple[int, ...] = (2, 3, 8), full: bool = False,
              gain: float = 1.0, keep: str = "", dtype: DType = DType.F32, order: bool = False) -> Graph:
    """adaLN; ``unsqueeze``: 1 is added before or after the modulation gets its axis; ``full``: one a token."""
    g = Graph("modulated")
    b, h = dims[0], dims[-1]
    x = g.input("x", dims, dtype)
    where = dims if full else (b, *(1 for _ in dims[1:-1]), h)
    scale, shift = (g.input(n, dims if full else (b, h), dtype) for n in ("scale", "shift"))
    ones, zeros = (g.constant(np.full(h, v), dtype) for v in (gain, 0))
    n = g.layer_norm(x, ones, zeros, eps=1e-3) if kind == "layer" else g.rms_norm(x, ones, eps=1e-3)
    one = g.constant(1, dtype)
    factor = g.add(g.reshape(scale, dims=where), one) if unsqueeze == "late" else g.reshape(g.add(one, scale), dims=where)
    scaled = g.mul(factor, n) if order else g.mul(n, factor)
    moved = g.reshape(shift, dims=where)
    y = g.add(moved, scaled) if order else g.add(scaled, moved)
    return g.set_outputs(g.neg(y), *([n] if keep == "output" else []))


def read_norm() -> Graph:
    """The modulated norm is read by two modulations."""
    g = Graph("twice")
    x = g.input("x", (2, 3, 8))
    n = g.layer_norm(x, g.constant(np.ones(8, np.float32)), g.constant(np.zeros(8, np.float32)))
    one = g.constant(np.float32(1))
    ys = []
    for k in "ab":
        scale, shift = (g.input(f"{m}_{k}", (2, 1, 8)) for m in ("scale", "shift"))
        ys.append(g.neg(g.add(g.mul(n, g.add(scale, one)), shift)))
    return g.set_outputs(*ys)


def gated(gate: tuple[int, ...] = (2, 1, 8), *, flat: bool = False, order: int = 0, keep: str = "",
          dtype: DType = DType.F32) -> Graph:
    g = Graph("gated")
    x, y = g.input("x", (2, 3, 8), dtype), g.input("y", (2, 3, 8), dtype)
    v = g.reshape(g.input("gate", (2, 8), dtype), dims=gate) if flat else g.input("gate", gate, dtype)
    p = g.mul(v, y) if order & 1 else g.mul(y, v)
    z = g.add(p, x) if order & 2 else g.add(x, p)
    return g.set_outputs(g.neg(z), *([p] if keep == "output" else [g.relu(p)] if keep == "shared" else []))


def gated_norm(*, first: bool = True, beta: bool = False, z: tuple[int, ...] = (2, 3, 8), keep: str = "",
               dtype: DType = DType.F32) -> Graph:
    g = Graph("gated_norm")
    x = g.input("x", (2, 3, 8), dtype)
    n = g.rms_norm(x, g.param("gamma", (8,), dtype), *([g.param("beta", (8,), dtype)] if beta else []), eps=1e-3)
    s = g.silu(g.input("z", z, dtype))
    y = g.mul(n, s) if first else g.mul(s, n)
    return g.set_outputs(g.neg(y), *([n] if keep == "output" else [g.relu(n)] if keep == "shared" else []))


LN, RMS, ADA, GATE, GATED = ("residual_into_layer_norm", "residual_into_rms_norm", "ada_layer_norm", "gated_residual", "gated_rms_norm")
METAL = FusionTarget.METAL
APPLIED = [
    *(Applied(rule, lambda k=k, b=b: residual(k, b), (op,), ("LayerNorm", "RmsNorm", "Binary(add)"), id=b)  # type: ignore[misc]
      for rule, k, op in ((LN, "layer", "ResidualLayerNorm"), (RMS, "rms", "ResidualRmsNorm")) for b in ("", "early", "late")),
    Applied(LN, lambda: residual("layer", "product"), ("ResidualLayerNorm", "Binary(add)"), id="the product keeps its bias"),
    Applied(RMS, lambda: residual("rms", "late", beta=True), ("ResidualRmsNorm",), ("Binary(add)",), id="bias and shift"),
    Applied(RMS, lambda: residual("rms", dims=(1, 1, 1024)), ("ResidualRmsNorm",), target=METAL, id="one row, asked for"),
    Applied(RMS, lambda: residual("rms"), ("ResidualRmsNorm",), target=METAL, decode_forms=False, id="many rows on Metal"),
    Applied(ADA, modulated, ("AdaLayerNorm",), ("LayerNorm", "Binary(mul)", "Binary(add)")),
    Applied(ADA, lambda: modulated("rms", unsqueeze="early", order=True), ("AdaLayerNorm",), ("RmsNorm",), id="rms, other order"),
    *(Applied(GATE, lambda o=o: gated(flat=o % 2 == 0, order=o), ("GatedResidual",), ("Binary(mul)",), id=str(o))  # type: ignore[misc]
      for o in range(4)),
    Applied(GATED, gated_norm, ("RmsNormMulSilu",), ("RmsNorm", "Activation(silu)")),
    Applied(GATED, lambda: gated_norm(first=False, beta=True), ("RmsNormMulSilu",), ("RmsNorm",), target=METAL, id="metal, asked for"),
]
REFUSED = [
    *(Refused(rule, reason, lambda k=k, kw=kw: residual(k, **kw))  # type: ignore[misc, arg-type]
      for rule, k in ((LN, "layer"), (RMS, "rms")) for reason, kw in (
          (Refusal.READ_LATER, {"later": "read"}), (Refusal.OUTPUT, {"later": "output"}),
          (Refusal.BROADCAST, {"y": (3, 8)}), (Refusal.DTYPE, {"dtype": DType.F64}))),
    Refused(RMS, Refusal.COMMAND_PASS, lambda: residual("rms", dims=(1, 1, 1024)), METAL, decode_forms=False),
    *(Refused(rule, Refusal.COMMAND_PASS, lambda k=k: residual(k, "packed", dims=(1, 1, 64)), METAL, decode_forms=False,  # type: ignore[misc]
              id="packed product") for rule, k in ((LN, "layer"), (RMS, "rms"))),
    Refused(ADA, Refusal.SHARED, read_norm),
    Refused(ADA, Refusal.OUTPUT, lambda: modulated(keep="output")),
    Refused(ADA, Refusal.RANK, lambda: modulated(dims=(2, 2, 3, 8))),
    Refused(ADA, Refusal.BROADCAST, lambda: modulated(full=True)),
    Refused(ADA, Refusal.CONSTANT, lambda: modulated(gain=2.0)),
    Refused(ADA, Refusal.DTYPE, lambda: modulated(dtype=DType.F64)),
    Refused(GATE, Refusal.SHARED, lambda: gated(keep="shared")),
    Refused(GATE, Refusal.OUTPUT, lambda: gated(keep="output")),
    Refused(GATE, Refusal.BROADCAST, lambda: gated((2, 1, 1))),
    Refused(GATE, Refusal.DTYPE, lambda: gated(dtype=DType.F64)),
    Refused(GATED, Refusal.SHARED, lambda: gated_norm(keep="shared")),
    Refused(GATED, Refusal.OUTPUT, lambda: gated_norm(keep="output")),
    Refused(GATED, Refusal.BROADCAST, lambda: gated_norm(z=(3, 8))),
    Refused(GATED, Refusal.DTYPE, lambda: gated_norm(dtype=DType.F64)),
    Refused(GATED, Refusal.COMMAND_PASS, gated_norm, METAL, decode_forms=False),
]
