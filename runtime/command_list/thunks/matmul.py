"""Owns matrix-product thunks. Products go straight into the destination (BLAS, ``out=``)."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.formulas import activate, activation_scratch
from runtime.command_list.half_products import product, product_scratch, strip_size
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch
from runtime.command_list.thunk import Thunk, thunk
from runtime.errors import RunError


@thunk(name="Sgemm", label="sgemm", partial_extent="scales", where="gpu")
class Sgemm(Thunk):
    """c[m,n] = a[m,k] b[k,n]; ``a_t``: a is stored [k,m], ``b_t``: b is stored [n,k] (elided transposes)."""

    a: In
    b: In
    c: Out
    m: int
    k: int
    n: int
    b_f16: bool = False
    b_t: bool = False
    a_t: bool = False

    @property
    def scratch_bytes(self) -> int:
        return product_scratch(self.m, self.k, self.n, self.a.storage, self.b.storage, self.c.storage)

    def run(self, a: Array, b: Array, c: Array, scratch: Scratch) -> None:
        product(a.T if self.a_t else a, b.T if self.b_t else b, c, scratch, self.m, self.k, self.n)


@thunk(name="BatchedSgemm", label="batched_sgemm", partial_extent="scales", where="gpu")
class BatchedSgemm(Thunk):
    """c[i] = a[i] b[i]; an operand with batch 1 is broadcast. Lead axes beyond one broadcast as in NumPy.

    ``a_t``, ``b_t``: the operand's matrices are stored [k,m], [n,k].
    """

    a: In
    b: In
    c: Out
    batch: int
    m: int
    k: int
    n: int
    a_bcast: bool = False
    b_bcast: bool = False
    a_t: bool = False
    b_t: bool = False

    @property
    def scratch_bytes(self) -> int:
        return product_scratch(self.m, self.k, self.n, self.a.storage, self.b.storage, self.c.storage)

    def run(self, a: Array, b: Array, c: Array, scratch: Scratch) -> None:
        a, b = np.swapaxes(a, -1, -2) if self.a_t else a, np.swapaxes(b, -1, -2) if self.b_t else b
        if not self.scratch_bytes:
            np.matmul(a, b, out=c)
            return
        lead = c.shape[:-2]
        a, b = np.broadcast_to(a, (*lead, *a.shape[-2:])), np.broadcast_to(b, (*lead, *b.shape[-2:]))
        for at in np.ndindex(lead):
            mark = scratch.mark
            product(a[at], b[at], c[at], scratch, self.m, self.k, self.n)
            scratch.release(mark)


@thunk(name="FusedMmBiasAct", label="fused_mm_bias_act", partial_extent="scales", where="gpu")
class FusedMmBiasAct(Thunk):
    """c = act(a w + bias); act "" = none."""

    a: In
    w: In
    bias: In
    c: Out
    m: int
    k: int
    n: int
    act: str = ""
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def scratch_bytes(self) -> int:
        halves = product_scratch(self.m, self.k, self.n, self.a.storage, self.w.storage, self.c.storage)
        size = strip_size(self.m, self.k, self.n) if halves else self.c.numel
        return halves + activation_scratch(self.act, DType.F32 if halves else self.c.storage, size)

    def run(self, a: Array, w: Array, bias: Array, c: Array, scratch: Scratch) -> None:
        def finish(part: Array, columns: slice) -> None:
            np.add(part, bias[columns], out=part)
            if self.act:
                activate(self.act, part, part, scratch, self.alpha, self.beta)

        product(a, w, c, scratch, self.m, self.k, self.n, finish)


@thunk(name="GroupedMatMul", label="grouped_matmul", partial_extent="scales", where="gpu")
class GroupedMatMul(Thunk):
    """dst[i] = input[i] weight[expert_idx[i]]; runs of rows with one expert are one product.

    ``weight_t``: the bank is stored [experts, n, k] (an elided transpose).
    """

    input: In
    weight: In
    expert_idx: In
    dst: Out
    m: int
    k_dim: int
    n: int
    num_experts: int
    weight_t: bool = False

    @property
    def bytes_read(self) -> int:
        bank = self.weight.nbytes // max(self.num_experts, 1) * min(self.m, self.num_experts)  # a row has one expert
        return self.input.nbytes + bank + self.expert_idx.nbytes

    @property
    def scratch_bytes(self) -> int:
        return product_scratch(self.m, self.k_dim, self.n, self.input.storage, self.weight.storage, self.dst.storage)

    def run(self, input: Array, weight: Array, expert_idx: Array, dst: Array, scratch: Scratch) -> None:
        experts = [int(e) for e in expert_idx.reshape(-1).tolist()]
        start, mark = 0, scratch.mark
        for i in range(1, len(experts) + 1):
            if i == len(experts) or experts[i] != experts[start]:
                e = experts[start]
                if not 0 <= e < self.num_experts:
                    raise RunError(f"expert {e} of row {start} is outside [0, {self.num_experts})")
                bank = weight[e].T if self.weight_t else weight[e]
                product(input[start:i], bank, dst[start:i], scratch, self.m, self.k_dim, self.n)
                scratch.release(mark)
                start = i
