"""Owns the modulated norm and gated sum of diffusion transformers, and their backward thunks.

The modulation's lead dims are aligned right with x's; ``lead_pack`` is [rank, x dims (8), modulation dims (8)], unused
places 1.
"""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.norm_backward import gain_gradient, norm_backward, norm_backward_scratch
from runtime.command_list.thunks.reduce import normalize
from runtime.command_list.widths import buffers, store, wide_dtype, wide_scratch

MAX_LEAD = 8


def pack_lead(x: tuple[int, ...], modulation: tuple[int, ...]) -> tuple[int, ...]:
    """[rank, x dims, modulation dims] of the lead axes, the modulation's padded left with 1s."""
    rank = len(x)
    wide = (1,) * (rank - len(modulation)) + modulation
    pad = (1,) * (MAX_LEAD - rank)
    return rank, *x, *pad, *wide, *pad


def unpack_lead(pack: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Inverse of ``pack_lead``."""
    rank = pack[0]
    return pack[1 : 1 + rank], pack[1 + MAX_LEAD : 1 + MAX_LEAD + rank]


@thunk(name="AdaLayerNorm", label="ada_layer_norm", partial_extent="scales", where="gpu")
class AdaLayerNorm(Thunk):
    """out = norm(x) (1 + scale) + shift; norm is LayerNorm or RMSNorm over h, without gain."""

    x: In
    scale: In
    shift: In
    out: Out
    rows: int
    h: int
    eps: float
    layer_norm: bool
    lead_pack: tuple[int, ...]

    @property
    def scratch_bytes(self) -> int:
        dtype = self.out.storage.numpy
        return scratch_for((self.rows, wide_dtype(dtype)), (self.scale.numel, dtype))

    def run(self, x: Array, scale: Array, shift: Array, out: Array, scratch: Scratch) -> None:
        normalize(x, out, scratch.take(self.rows, wide_dtype(out.dtype)), self.eps, self.layer_norm)
        lead, narrow = unpack_lead(self.lead_pack)
        gain = scratch.take(scale.shape, out.dtype)
        np.add(scale, 1, out=gain)
        y = out.reshape(*lead, self.h)
        np.multiply(y, gain.reshape(*narrow, self.h), out=y)
        np.add(y, shift.reshape(*narrow, self.h), out=y)


@thunk(name="GatedResidual", label="gated_residual", partial_extent="scales", where="gpu")
class GatedResidual(Thunk):
    """out = x + gate y."""

    x: In
    y: In
    gate: In
    out: Out
    rows: int
    h: int
    lead_pack: tuple[int, ...]

    def run(self, x: Array, y: Array, gate: Array, out: Array, scratch: Scratch) -> None:
        lead, narrow = unpack_lead(self.lead_pack)
        np.multiply(y.reshape(*lead, self.h), gate.reshape(*narrow, self.h), out=out.reshape(*lead, self.h))
        np.add(out, x, out=out)


@thunk(name="AdaLayerNormBackward", label="ada_layer_norm_backward", partial_extent="scales", where="gpu")
class AdaLayerNormBackward(Thunk):
    """Gradient of AdaLayerNorm wrt ``input`` (the norm's, gain 1 + scale) or ``scale`` (Σ dy x̂ over each run of rows);
    x, dy [mod_rows, seq_per_mod, h]. One operand a thunk: what nobody reads isn't made; the shift's is a Reduce."""

    x: In
    scale: In
    dy: In
    out: Out
    h: int
    eps: float
    layer_norm: bool
    seq_per_mod: int
    mod_rows: int
    wrt: str

    @property
    def scratch_bytes(self) -> int:
        return norm_backward_scratch(self.seq_per_mod, self.h, self.out.storage.numpy)

    def run(self, x: Array, scale: Array, dy: Array, out: Array, scratch: Scratch) -> None:
        for i in range(self.mod_rows):
            mark = scratch.mark
            if self.wrt == "input":
                norm_backward(x[i], dy[i], scale[i], out[i], self.eps, self.layer_norm, scratch, plus_one=True)
            else:
                gain_gradient(x[i], dy[i], out[i], self.eps, self.layer_norm, scratch)
            scratch.release(mark)


@thunk(name="GatedResidualBackward", label="gated_residual_backward", partial_extent="scales", where="gpu")
class GatedResidualBackward(Thunk):
    """Gradient of x + gate y wrt ``y`` (gate dy) or ``gate`` (Σ y dy over each run of rows); y, dy [mod_rows,
    seq_per_mod, h]. That of x is dy itself."""

    y: In | None
    gate: In | None
    dy: In
    out: Out
    h: int
    seq_per_mod: int
    mod_rows: int
    wrt: str

    @property
    def scratch_bytes(self) -> int:
        return wide_scratch(self.out.storage.numpy, self.out.numel) if self.wrt == "gate" else 0

    def run(self, y: Array | None, gate: Array | None, dy: Array, out: Array, scratch: Scratch) -> None:
        if gate is not None:
            np.multiply(dy, gate[:, None], out=out)
        elif y is not None:
            (wide,) = buffers(scratch, out.dtype, out.size)
            total = out if wide is None else wide.reshape(out.shape)
            np.einsum("msh,msh->mh", y, dy, out=total, dtype=total.dtype, casting="unsafe")
            store(out, total)
