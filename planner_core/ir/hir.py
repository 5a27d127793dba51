"""Owns ``HirModule``: a module written once over symbolic dims, lowered to a ``Graph`` and bound to sizes.

    m = HirModule("block")
    x = m.input_batch_seq("x", 64)          # f32[batch, seq, 64]
    h = m.attention(x, "attn", heads=4)
    m.outputs(m.linear(h, "head", 10), names=["y"])
    graph = m.bind(DimBinding.batch_seq(1, 128)).lower()

Any builder of ``Graph`` works too: ``m.relu(x)`` appends to the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from planner_core.errors import GraphError
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array
from planner_core.ir.shape import Dim, DimBinding, DimLike

__all__ = ["HirModule"]


class HirModule:
    """A thin builder over a symbolic graph. Values are node ids of that graph."""

    def __init__(self, name: str = "module") -> None:
        self._graph = Graph(name)
        self._binding = DimBinding()

    @property
    def name(self) -> str:
        return self._graph.name

    def __getattr__(self, method: str) -> Callable[..., NodeId]:
        if method.startswith("_"):
            raise AttributeError(method)
        found: Callable[..., NodeId] = getattr(self._graph, method)
        return found

    # --- values -----------------------------------------------------------------------------------

    def input(self, name: str, dims: Iterable[DimLike], dtype: DType = DType.F32) -> NodeId:
        """A tensor given for every run; texts among ``dims`` are symbols."""
        return self._graph.input(name, dims, dtype)

    def input_batch_seq(self, name: str, *width: DimLike, dtype: DType = DType.F32) -> NodeId:
        """``[batch, seq, *width]``, with the symbols that ``DimBinding.batch_seq`` binds."""
        return self._graph.input(name, ("batch", "seq", *width), dtype)

    def param(self, name: str, dims: Iterable[DimLike], dtype: DType = DType.F32, data: Array | None = None) -> NodeId:
        return self._graph.param(name, dims, dtype, data)

    def linear(self, x: NodeId, name: str, out: int, bias: bool = True) -> NodeId:
        """``x @ name.w + name.b``; w ``[in, out]``."""
        g = self._graph
        width = g[x].shape.dims[-1].value
        if width is None:
            raise GraphError(f"linear {name!r} in {g.name!r}: the last dim of {g[x].shape} has no value; only leading dims "
                             "may be symbols")
        y = g.mm(x, g.param(f"{name}.w", (width, out), g[x].dtype), name=name)
        return g.add(y, g.param(f"{name}.b", (out,), g[x].dtype), name=f"{name}.biased") if bias else y

    def attention(self, x: NodeId, name: str, heads: int, kv_heads: int = 0, mask_kind: str = "causal") -> NodeId:
        """``W_o attention(W_q x, W_k x, W_v x)`` with ``x`` ``[batch, seq, width]``; no residual."""
        g = self._graph
        width = g[x].shape.dims[-1].value
        if width is None or width % heads:
            raise GraphError(f"attention {name!r} in {g.name!r}: {heads} heads don't divide {g[x].shape}")
        d, kv = width // heads, kv_heads or heads
        q, k, v = (self.linear(x, f"{name}.{part}", n, bias=False) for part, n in (("q", width), ("k", kv * d), ("v", kv * d)))
        a = g.attention(q, k, v, num_heads=heads, head_dim=d, kv_heads=kv, mask_kind=mask_kind, name=name)
        return self.linear(a, f"{name}.o", width, bias=False)

    def rms_norm(self, x: NodeId, name: str, eps: float = 1e-6) -> NodeId:
        """RMSNorm over the last dim with gain ``name.gamma``."""
        dims: tuple[Dim, ...] = self._graph[x].shape.dims
        return self._graph.rms_norm(x, self._graph.param(f"{name}.gamma", (dims[-1],), self._graph[x].dtype), eps=eps, name=name)

    def outputs(self, *values: NodeId, names: Sequence[str] = ()) -> HirModule:
        """Declare the outputs; returns the module."""
        self._graph.set_outputs(*values, names=names)
        return self

    def bind(self, binding: DimBinding) -> HirModule:
        """The module with values for its symbols, which ``lower`` puts in; shares what was built so far."""
        made = HirModule(self.name)
        made._graph, made._binding = self._graph, binding
        return made

    def lower(self) -> Graph:
        """The graph, with the symbols that ``bind`` left. ``GraphError`` without outputs, ``UnboundDimError`` for a
        symbol that the module doesn't have."""
        if not self._graph.outputs:
            raise GraphError(f"module {self.name!r} has no outputs; call outputs() first")
        return self._graph.bind(self._binding) if self._binding.values else self._graph
