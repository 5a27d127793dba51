"""Owns products with packed (GGUF block) weights: rows are dequantised block by block into scratch."""

from __future__ import annotations

from planner_core.ir import Array, QuantScheme
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch
from runtime.command_list.thunk import Thunk, thunk
from runtime.errors import RunError
from runtime.quant.product import packed_matmul, packed_scratch

GPU_SCHEMES = frozenset({QuantScheme.Q4_K, QuantScheme.Q5_0, QuantScheme.Q6_K, QuantScheme.Q1_0, QuantScheme.Q2_0})
"""Formats with a kernel for packed matrix products; the others are dequantised on the host."""


@thunk(name="DequantMatMulGguf", label="dequant_matmul_gguf", partial_extent="full_ok", where="gpu")
class DequantMatMulGguf(Thunk):
    """dst[m,n] = x[m,k] dequant(w_q)ᵀ, w_q n packed rows."""

    x: In
    w_q: In
    dst: Out
    m: int
    k: int
    n: int
    scheme: QuantScheme
    x_f16: bool = False
    dst_f16: bool = False

    @property
    def place(self) -> str:
        return "gpu" if self.scheme in GPU_SCHEMES else "host"

    @property
    def scratch_bytes(self) -> int:
        return packed_scratch(self.m, self.k, self.n, self.x.storage, self.dst.storage)

    def run(self, x: Array, w_q: Array, dst: Array, scratch: Scratch) -> None:
        packed_matmul(x, w_q, dst, self.k, self.scheme, scratch)


@thunk(name="DequantGroupedMatMulGguf", label="dequant_grouped_matmul_gguf", partial_extent="full_ok", where="gpu")
class DequantGroupedMatMulGguf(Thunk):
    """dst[i] = input[i] dequant(w_q[expert_idx[i]])ᵀ; runs of rows with one expert are one product."""

    input: In
    w_q: In
    expert_idx: In
    dst: Out
    m: int
    k_dim: int
    n: int
    num_experts: int
    scheme: QuantScheme

    @property
    def bytes_read(self) -> int:
        bank = self.w_q.nbytes // max(self.num_experts, 1) * min(self.m, self.num_experts)  # a row has one expert
        return self.input.nbytes + bank + self.expert_idx.nbytes

    @property
    def scratch_bytes(self) -> int:
        return packed_scratch(self.m, self.k_dim, self.n, self.input.storage, self.dst.storage)

    def run(self, input: Array, w_q: Array, expert_idx: Array, dst: Array, scratch: Scratch) -> None:
        experts = [int(e) for e in expert_idx.reshape(-1).tolist()]
        start = 0
        for i in range(1, len(experts) + 1):
            if i == len(experts) or experts[i] != experts[start]:
                e = experts[start]
                if not 0 <= e < self.num_experts:
                    raise RunError(f"expert {e} of row {start} is outside [0, {self.num_experts})")
                packed_matmul(input[start:i], w_q[e], dst[start:i], self.k_dim, self.scheme, scratch)
                start = i
