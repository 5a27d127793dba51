"""Owns what several families share: linear layers in every weight format, norms, split heads, size checks."""

from __future__ import annotations

from planner_core.errors import GraphError
from planner_core.ir import DType, Graph, NodeId, QuantScheme

__all__ = ["conv1d", "layer_norm", "linear", "quant_of", "require"]


def require(model: str, **conditions: bool) -> None:
    """``GraphError`` naming every condition that does not hold (its underscores read as spaces)."""
    broken = [c.replace("_", " ") for c, holds in conditions.items() if not holds]
    if broken:
        raise GraphError(f"{model}: wanted {'; '.join(broken)}")


def quant_of(model: str, quant: str) -> tuple[DType, QuantScheme | None]:
    """``""``: f32; ``"f16"``, ``"bf16"``: every float that wide; a GGUF scheme's name: f32 over packed weights."""
    if quant in ("", "f32", "f16", "bf16"):
        return DType.parse(quant or "f32"), None
    scheme = next((s for s in QuantScheme if s.text == quant), None)
    if scheme is None:
        raise GraphError(f"{model}: quant {quant!r}: wanted '', f16, bf16 or one of {', '.join(map(str, QuantScheme))}")
    return DType.F32, scheme


def linear(g: Graph, x: NodeId, name: str, k: int, n: int, *, bias: bool = True,
           scheme: QuantScheme | None = None) -> NodeId:
    """``x[.., k] @ w (+ b)``; w is ``[k, n]`` in x's dtype, or ``n`` packed rows under ``scheme``."""
    dtype = g[x].dtype
    if scheme is None:
        y = g.mm(x, g.param(name + ".w", (k, n), dtype), name=name)
    else:
        packed = g.param(name + ".w", (n * scheme.row_bytes(k),), DType.U8)
        y = g.dequant_mat_mul(x, packed, n=n, scheme=scheme, name=name)
    return g.add(y, g.param(name + ".b", (n,), dtype), name=name + ".biased") if bias else y


def layer_norm(g: Graph, x: NodeId, name: str, n: int, eps: float = 1e-5) -> NodeId:
    dtype = g[x].dtype
    return g.layer_norm(x, g.param(name + ".gamma", (n,), dtype), g.param(name + ".beta", (n,), dtype), eps=eps, name=name)


def conv1d(g: Graph, x: NodeId, name: str, cin: int, cout: int, kernel: int, *, dilation: int = 1,
           groups: int = 1, before: int | None = None, after: int | None = None) -> NodeId:
    """Conv with bias over ``[N, C, T]``; "same" padding unless the pads are given."""
    same = dilation * (kernel - 1) // 2
    pads = (same if before is None else before, same if after is None else after)
    return g.fused_conv_bias_act(
        x, g.param(name + ".w", (cout, cin // groups, kernel)), g.param(name + ".b", (cout,)), strides=(1,), pads=pads,
        dilations=(dilation,), groups=groups, name=name)
