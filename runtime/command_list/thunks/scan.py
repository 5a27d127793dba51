"""Owns state-space scans: the state lives in scratch, never stored over the sequence."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import is_half, store, wide_dtype


@thunk(name="SelectiveScan", label="selective_scan", partial_extent="full_ok", where="gpu")
class SelectiveScan(Thunk):
    """h = exp(delta_t a) h + delta_t x_t b_t; dst_t = Σ_n h c_t (Mamba); x, delta, dst [batch, seq, hidden], a [hidden,
    state_size], b, c [batch, seq, state_size]."""

    x: In
    delta: In
    a: In
    b: In
    c: In
    dst: Out
    batch: int
    seq: int
    hidden: int
    state_size: int

    @property
    def place(self) -> str:
        return "gpu" if self.dst.storage is DType.F32 and self.state_size <= 128 else "host"

    @property
    def scratch_bytes(self) -> int:
        dtype = wide_dtype(self.dst.storage.numpy)
        state = self.batch * self.hidden * self.state_size
        return scratch_for((state, dtype), (state, dtype), (self.batch * self.hidden, dtype))

    def run(self, x: Array, delta: Array, a: Array, b: Array, c: Array, dst: Array, scratch: Scratch) -> None:
        dims, wide = (self.batch, self.hidden, self.state_size), wide_dtype(dst.dtype)
        h, step = scratch.take(dims, wide), scratch.take(dims, wide)
        scaled = scratch.take(dims[:2], wide)
        h[...] = 0
        for t in range(self.seq):
            np.multiply(delta[:, t, :, None], a, out=step, dtype=wide)
            np.exp(step, out=step)
            np.multiply(h, step, out=h)
            np.multiply(delta[:, t], x[:, t], out=scaled, dtype=wide)
            np.multiply(scaled[:, :, None], b[:, t, None, :], out=step)
            np.add(h, step, out=h)
            if is_half(dst.dtype):
                np.multiply(h, c[:, t, None, :], out=step)
                np.add.reduce(step, axis=2, out=scaled)
                store(dst[:, t], scaled)
            else:
                np.matmul(h, c[:, t, :, None], out=dst[:, t, :, None])
